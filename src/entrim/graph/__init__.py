"""Step 1: coupled and frozen channels. Importing this package registers all rules."""

from entrim.graph import rules

__all__ = ["rules"]
