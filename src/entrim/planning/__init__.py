"""The cost of a run before it starts: operations of every stage, time, memory and disk."""
