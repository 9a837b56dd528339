"""Step 4: which channels of a group to keep."""
