"""Measurements made by hand: everything compared stands side by side in one run."""
