"""One process per slice, and one agent per node."""
