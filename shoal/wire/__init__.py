"""What crosses a socket between Shoal's processes."""
