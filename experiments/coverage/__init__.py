"""Networks of seven libraries with random weights: how much of each can be pruned, and does it run.

`python -m experiments coverage` measures what is missing in its ledger and writes the tables. The
libraries are no dependency of entrim: networks of libraries that are not installed are rows, too.
"""
