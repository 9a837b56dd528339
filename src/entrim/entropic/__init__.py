"""Step 3: the sparse regression of the paper; moments in, weights out, no network in sight."""
