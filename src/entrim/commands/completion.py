"""`entrim completion`: what a shell needs to complete commands, options and choices."""

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from entrim.commands.showing import tell, tell_json
from entrim.errors import MissingExtraError

SHELLS = ("bash", "zsh", "fish")
_EXAMPLES = """\
examples:
  entrim completion bash > ~/.local/share/bash-completion/completions/entrim
  entrim completion zsh > ~/.zfunc/_entrim         with ~/.zfunc in fpath before compinit
  entrim completion fish > ~/.config/fish/completions/entrim.fish"""
_PATHS = {"FILE": "FILE", "PATH": "FILE", "MODEL": "FILE", "FUNCTION": "FILE", "DIR": "DIRECTORY"}
"""By what an argument is called in the help: what shtab offers for it."""


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "completion",
        help="print what a shell needs to complete commands and options",
        description="Print a script that completes commands, options, choices and paths. It is "
        "made from the commands of this version: write it again after an update.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("shell", choices=SHELLS)
    return parser


def run(args: Namespace) -> int:
    """Print the script."""
    script = script_for(args.shell, args.parser)
    if args.json:
        tell_json({"shell": args.shell, "script": script})
    else:
        tell(script)
    return 0


def script_for(shell: str, parser: ArgumentParser) -> str:
    """Return the script that completes what `parser` reads."""
    try:
        import shtab
    except ImportError as error:
        raise MissingExtraError("shell completion", "shtab", "cli") from error
    for action in actions(parser):
        for told in getattr(
            action, "_choices_actions", ()
        ):  # zsh and fish show what a command does
            action.choices[told.dest].description = told.help
        if action.metavar in _PATHS and action.choices is None:
            action.complete = getattr(shtab, _PATHS[action.metavar])  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def actions(parser: ArgumentParser) -> Iterator[Action]:
    """Yield every argument of the parser and of the commands in it."""
    for action in parser._actions:
        yield action
        if isinstance(action.choices, dict):
            for inner in action.choices.values():
                yield from actions(inner)
