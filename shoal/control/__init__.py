"""Join, place, watch: the cluster's own state."""
