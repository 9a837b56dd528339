"""`entrim completion`: what a shell needs to complete commands, options and choices."""

from argparse import Action, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator
from typing import Any

from entrim.cli.console import print_progress, tell_json
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
    parser.add_argument("shell", choices=SHELLS, help="whose script")
    return parser


def run(args: Namespace) -> int:
    """Print the script."""
    script = script_for(args.shell, args.parser)
    if args.json:
        tell_json({"shell": args.shell, "script": script})
    else:
        print_progress(script)
    return 0


def script_for(shell: str, parser: ArgumentParser) -> str:
    """Return the script that completes what `parser` reads."""
    try:
        import shtab
    except ImportError as error:
        raise MissingExtraError("shell completion", "shtab", "cli") from error
    for action in actions(parser):
        lines = {told.dest: told.help for told in getattr(action, "_choices_actions", ())}
        for name, inner in commands_of(action).items():
            inner.description = lines[name]  # what zsh and fish show beside a command
        if action.metavar in _PATHS and action.choices is None:
            offered = getattr(shtab, _PATHS[action.metavar])
            action.complete = offered  # pyright: ignore[reportAttributeAccessIssue]
    return shtab.complete(parser, shell)


def actions(parser: ArgumentParser) -> Iterator[Action]:
    """Yield every argument of the parser and of the commands in it."""
    for action in parser._actions:
        yield action
        for inner in commands_of(action).values():
            yield from actions(inner)


def commands_of(action: Action) -> dict[str, ArgumentParser]:
    """Return the parsers of the commands, where the argument is that which names one."""
    return dict(action.choices) if isinstance(action, _SubParsersAction) else {}
