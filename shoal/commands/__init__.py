"""What the subcommands do, one file each. cli.py gives them their names and prints their errors."""
