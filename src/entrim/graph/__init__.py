"""Step 1: which channels are coupled, and which are frozen. Importing it registers all rules."""

from entrim.graph import rules_elementwise, rules_layers, rules_movement

__all__ = ["rules_elementwise", "rules_layers", "rules_movement"]
