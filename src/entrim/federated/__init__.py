"""Calibration from sums only: images stay at their sites, and only second moments are exchanged."""
