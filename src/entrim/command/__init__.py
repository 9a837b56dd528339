"""The command line: one module a subcommand, and a dispatcher."""

from entrim.command.dispatch import main

__all__ = ["main"]
