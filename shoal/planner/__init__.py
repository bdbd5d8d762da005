"""What machines can do with a model: predicted times, memory, energy and cost."""
