"""Studies: pages and plots that are computed, one command each (`python -m shoal.studies NAME`)."""
