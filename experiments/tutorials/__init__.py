"""The programs of the tutorials: networks of other libraries with trained weights, pruned.

Each is run by `python -m experiments.tutorials.NAME FOLDER` and prints the figures of its page.
"""

from argparse import ArgumentParser
from pathlib import Path

from torch import nn

from experiments.operators import define_missing_operators


def read_folder(description: str | None) -> Path:
    """Return the folder for the results, from the command line."""
    parser = ArgumentParser(description=description)
    parser.add_argument("folder", type=Path, help="where the results are written")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    define_missing_operators()
    return folder.resolve()


def copy_weights(target: nn.Module, source: nn.Module) -> nn.Module:
    """Copy all weights into a network with the same layers in the same order, and return it."""
    names = [name for name in target.state_dict() if not name.endswith("_tracked")]
    values = [v for name, v in source.state_dict().items() if not name.endswith("_tracked")]
    target.load_state_dict(dict(zip(names, values, strict=True)), strict=False)
    return target.eval()
