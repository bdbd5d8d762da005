"""What machines, links, models and failures are like, each figure with its source."""
