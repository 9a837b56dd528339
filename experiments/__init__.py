"""Experiments with entrim: datasets, networks, the tables of the paper, benchmarks.

Not part of the package; run from a checkout as `python -m experiments`.
"""
