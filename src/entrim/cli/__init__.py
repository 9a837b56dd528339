"""The command line: results on stdout, progress on stderr, errors as one sentence."""
