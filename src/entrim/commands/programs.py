"""A network from an exported program, the .pt2 file that `torch.export.save` writes."""

from pathlib import Path

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from entrim.answers import quiet
from entrim.errors import CommandError

_MODES = ("train", "training")
"""What operations call the switch that eval mode turns off."""


def read_program(file: Path) -> nn.Module:
    """Return the network of an exported program. Reading one can run code, as importing can."""
    if not file.is_file():
        raise CommandError(f"there is no file {file}: name a program that torch.export.save wrote")
    try:
        with quiet():
            program = torch.export.load(file)
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        raise CommandError(
            f"{file} is no exported program that this PyTorch reads ({said}): write it again with "
            "torch.export.save"
        ) from error
    _refuse_fixed(program, file)
    _refuse_training(program.graph, file)
    model = program.module()
    for module in model.modules():
        for forbidden in ("train", "eval"):  # the mode cannot change, and it is the right one
            vars(module).pop(forbidden, None)
    return model


def _refuse_fixed(program: ExportedProgram, file: Path) -> None:
    """Refuse a program for one number of images only."""
    inputs = program.graph_signature.user_inputs
    nodes = [node for node in program.graph.nodes if node.name in inputs]
    if len(nodes) != 1 or not isinstance(nodes[0].meta.get("val"), torch.Tensor):
        raise CommandError(f"{file} takes {len(inputs)} inputs: export a network of one tensor")
    number = nodes[0].meta["val"].shape[0]
    if isinstance(number, int):
        raise CommandError(
            f"{file} was exported for {number} images at a time: export it again with "
            'dynamic_shapes=({0: torch.export.Dim("batch")},)'
        )


def _refuse_training(graph: fx.Graph, file: Path) -> None:
    """Refuse a program whose operations are those of training mode."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        for place, argument in enumerate(schema.arguments if schema is not None else ()):
            given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            if argument.name in _MODES and given is True:
                raise CommandError(
                    f"{file} was exported in training mode ({node.name}): call model.eval() "
                    "before torch.export.export"
                )
