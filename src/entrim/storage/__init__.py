"""Atomic writes, the checkpoint store and the folder of a saved model."""
