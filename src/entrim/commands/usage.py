"""How a command is read: help of 80 columns, and one line for words that are no command."""

import argparse
import shutil
import sys
import textwrap
from typing import Any, NoReturn

from entrim.commands.showing import tell

EXAMPLES = "examples:"
"""How a text begins whose lines stay as they are."""
_WIDE = 80


class _Help(argparse.RawDescriptionHelpFormatter):
    """Wraps descriptions, and leaves examples alone."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(_WIDE, shutil.get_terminal_size().columns - 2))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLES):
            return super()._fill_text(text, width, indent)
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line; those of its commands too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Help, **options)

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one line on stderr."""
        self.exit(2, f"{self.prog}: error: {message}: see {self.prog} --help\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help on stdout as every result, so that a full disk is not passed over."""
        if file is sys.stdout:
            tell(message.rstrip())
        else:
            super()._print_message(message, file)
