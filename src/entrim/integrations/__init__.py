"""Pruned networks in the formats of other libraries, which are imported when they are needed."""
