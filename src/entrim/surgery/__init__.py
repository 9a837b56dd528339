"""Step 7: the smaller network, verified."""
