"""Step 1: coupled and frozen channels. Importing this package registers all rules."""

from entrim.graph import rules_elementwise, rules_layers, rules_movement

__all__ = ["rules_elementwise", "rules_layers", "rules_movement"]
