"""Experiments on a running cluster: faults on purpose, and what streams notice of them."""
