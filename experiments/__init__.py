"""What entrim is measured with: datasets, networks, the paper's tables run again, benchmarks.

Not part of the package; run from a checkout as `python -m experiments`.
"""
