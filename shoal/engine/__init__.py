"""Computing one layer range, behind one interface."""
