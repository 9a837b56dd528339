"""A program without entrim that loads saved networks and writes their outputs.

Its arguments are folders; each is called like the number of a kind of network, and contains the
saved network and its `inputs.pt`.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch.utils import _pytree as pytree

from tests.surgery.kinds import KINDS


def loader_in(folder: Path) -> ModuleType:
    """Return the module `load_model` of a folder."""
    spec = importlib.util.spec_from_file_location("load_model", folder / "load_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    assert sys.modules["entrim"] is None, "entrim can be imported"
    kinds = list(KINDS.values())
    for folder in map(Path, sys.argv[1:]):
        torch.manual_seed(0)  # for tensors that are neither parameters nor buffers
        model = kinds[int(folder.name)].build()
        loaded = loader_in(folder).load(model).eval()
        assert type(loaded) is type(model)
        args, kwargs = torch.load(folder / "inputs.pt")
        with torch.no_grad():
            outputs = pytree.tree_leaves(loaded(*args, **kwargs))
        torch.save(outputs, folder / "outputs.pt")
