"""`entrim completion`: a script that completes commands, options and choices in a shell."""

from argparse import Action, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator
from typing import Any

from entrim.cli.console import print_json, print_result
from entrim.errors import MissingExtraError

SHELLS = ("bash", "zsh", "fish")
_EXAMPLES = """\
examples:
  entrim completion bash > ~/.local/share/bash-completion/completions/entrim
  entrim completion zsh > ~/.zfunc/_entrim         with ~/.zfunc in fpath before compinit
  entrim completion fish > ~/.config/fish/completions/entrim.fish"""
_PATHS = {"FILE": "FILE", "PATH": "FILE", "MODEL": "FILE", "FUNCTION": "FILE", "DIR": "DIRECTORY"}
"""What shtab completes, by the name of an argument in the help."""


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "completion",
        help="print a script for shell completion",
        description="Print a script that completes commands, options, choices and paths. Create it "
        "again after an update of entrim.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    return parser


def run(args: Namespace) -> int:
    """Print the script."""
    script = script_for(args.shell, args.parser)
    if args.json:
        print_json({"shell": args.shell, "script": script})
    else:
        print_result(script)
    return 0


def script_for(shell: str, parser: ArgumentParser) -> str:
    """Return the completion script for `parser`."""
    try:
        import shtab
    except ImportError as error:
        raise MissingExtraError("shell completion", "shtab", "cli") from error
    for action in actions(parser):
        lines = {item.dest: item.help for item in getattr(action, "_choices_actions", ())}
        for name, inner in commands_of(action).items():
            inner.description = lines[name]  # zsh and fish show it next to a command
        if action.metavar in _PATHS and action.choices is None:
            offered = getattr(shtab, _PATHS[action.metavar])
            action.complete = offered  # pyright: ignore[reportAttributeAccessIssue]
    return shtab.complete(parser, shell)


def actions(parser: ArgumentParser) -> Iterator[Action]:
    """Yield every argument of the parser and of its commands."""
    for action in parser._actions:
        yield action
        for inner in commands_of(action).values():
            yield from actions(inner)


def commands_of(action: Action) -> dict[str, ArgumentParser]:
    """Return the parsers of the commands if `action` is the argument that selects one."""
    return dict(action.choices) if isinstance(action, _SubParsersAction) else {}
