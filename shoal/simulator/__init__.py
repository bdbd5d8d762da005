"""The policy cores in virtual time."""
