"""Sentences of the library in the words of the command line: its keywords as options."""

import re
from collections.abc import Collection, Mapping

from entrim.errors import CommandError, EntrimError, LoadError

_OTHERS = {"widths": "--width", "score": "--metric", "patterns": "--part", "method": "--selector"}
"""Keywords whose option has another name."""
_PHRASES = {
    "a budget=": ("--params", "a budget, such as --params 30%"),
    "budget=": ("--params", "a budget, such as --params 30%"),
    "leave refit=True": ("--no-refit", "leave --no-refit out"),
    "refit=False": ("--no-refit", "--no-refit"),
    "correct=False": ("--no-correct", "--no-correct"),
    "None to score all": ("--no-prune", "--no-prune to score all"),
    'method="reference"': ("--alternation", "--alternation"),
    "score raised": ("--metric", "--metric raised"),
    "score returned": ("--metric", "--metric returned"),
    "another name=": ("--metric", "another --out"),
}
"""What is said in a command that has the option, instead of what the library says."""
_VALUE = r'"(?P<word>\w+)"|\{"\*": (?P<all>[^}]+)\}|(?P<number>-?\d(?:[\d.,e+-]*\d)?)|(?P<none>)'
_KEYWORD = re.compile(rf"(?<![\w./=-])(?P<name>[a-z][a-z_0-9]*)=(?:{_VALUE})(?![\w{{(])")
_SUBJECT = re.compile(r"^(?P<name>[a-z][a-z_0-9]*)(?= is )")
_BARE = re.compile(r"(?<![\w./='\"-])(?P<name>[a-z]+(?:_[a-z0-9]+)+)(?![\w./='\"-])")
"""A word with an underscore is a keyword of Python, wherever it stands."""


def sentence_of(error: EntrimError, options: Collection[str]) -> str:
    """Return what went wrong, as a command with these options says it.

    Files are named as they are: what they are called may look like a keyword.
    """
    if isinstance(error, CommandError | LoadError | OSError):
        return str(error)
    return in_options(str(error), options)


def in_options(sentence: str, options: Collection[str]) -> str:
    """Return the sentence with keywords of Python as options, where there are such options.

    >>> in_options('leave widths= out, raise memory_limit= or pass mode="independent"', {"--width"})
    'leave --width out, raise memory_limit= or pass mode="independent"'
    >>> in_options("round_to is 0: pass max_error=0.05", {"--round-to", "--max-error"})
    '--round-to is 0: pass --max-error 0.05'
    """
    for said, (needed, instead) in _PHRASES.items():
        if needed in options:
            sentence = sentence.replace(said, instead)

    def option(found: re.Match[str]) -> str:
        name = _OTHERS.get(found["name"], f"--{found['name'].replace('_', '-')}")
        if name not in options:
            return found[0]
        return " ".join((name, *_values(found.groupdict())))

    for pattern in (_KEYWORD, _SUBJECT, _BARE):
        sentence = pattern.sub(option, sentence)
    return sentence


def _values(found: Mapping[str, str | None]) -> list[str]:
    return [value for key, value in found.items() if key != "name" and value]
