"""Training a smaller network to reproduce the outputs of its original."""
