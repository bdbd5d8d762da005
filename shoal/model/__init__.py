"""What a model file is, and cutting it into slices."""
