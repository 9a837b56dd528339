"""Progress for people who watch: a bar in a terminal, one line in a notebook."""
