"""An exported program as MODEL is pruned like the network that it was exported from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import entrim
from entrim.cli.model import read_model
from tests.cli.conftest import Command, assert_refused
from tests.pipeline.networks import Residual, images

ANY = ({0: torch.export.Dim("batch")},)


def export_program(
    model: nn.Module, file: Path, shape: tuple[int, ...] = (1, 8, 8), **options: Any
) -> None:
    torch.export.save(torch.export.export(model, (torch.randn(2, *shape),), **options), file)


def batchnorm_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
    )


def test_program_is_pruned_like_its_network(command: Command, workshop: Path) -> None:
    torch.manual_seed(0)
    model = read_model(f"{workshop}/nets.py:small", None)
    export_program(model, workshop / "net.pt2", dynamic_shapes=ANY)
    save_file(model.state_dict(), workshop / "net.safetensors")
    how = ("--images", "x.npy", "--width", "0.5", "--json")
    code = ("sparsify", "nets.py:small", "--weights", "net.safetensors", "--out", "from-code")
    done = {
        "from-code": command(*code, *how),
        "from-program": command("sparsify", "net.pt2", "--out", "from-program", *how),
    }
    told = {name: json.loads(end.out) for name, end in done.items() if end.code == 0}
    assert told["from-code"]["kept"] == told["from-program"]["kept"]
    x = torch.from_numpy(np.load(workshop / "x.npy"))
    again = torch.export.load(workshop / "net.pt2").module()
    assert torch.equal(
        entrim.load(again, workshop / "from-program")(x),
        entrim.load(model, workshop / "from-code")(x),
    )
    done = command("export", "from-program", "--torchexport", "smaller.pt2", "--json")
    assert json.loads(done.out)["files"][0]["relative"] < 1e-6


def test_program_has_the_groups_of_its_network(tmp_path: Path) -> None:
    model = Residual().eval()
    export_program(model, tmp_path / "r.pt2", (3, 8, 8), dynamic_shapes=ANY)
    read, x = read_model(str(tmp_path / "r.pt2"), None), images(20, 3, 8, 8)
    found, wanted = entrim.trace(read, x), entrim.trace(model, x)
    for one, other in zip(found.groups, wanted.groups, strict=True):
        assert (one.name, one.members, one.layers) == (other.name, other.members, other.layers)
    assert found.frozen == wanted.frozen
    assert torch.equal(read(x), model(x))


def test_layers_of_a_program_are_listed(command: Command, workshop: Path) -> None:
    export_program(batchnorm_network().eval(), workshop / "listed.pt2", dynamic_shapes=ANY)
    told = command("inspect", "listed.pt2", "--shape", "1,8,8", "--json")
    assert told.code == 0, told.err
    data = json.loads(told.out)
    assert data["groups"] == {"0": 8}
    assert [layer["params"] for layer in data["layers"]] == [80, 16, 1156]
    assert [layer["class_name"] for layer in data["layers"]] == ["conv2d", "batch_norm", "linear"]
    assert (
        command("inspect", "listed.pt2", "--shape", "1,8,8").out.splitlines()[1].startswith("prog")
    )


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("fixed", ("exported for batches of 2 images", "dynamic_shapes=")),
        ("training", ("exported in training mode (batch_norm)", "call model.eval()")),
        ("dropout", ("exported in training mode (dropout)", "call model.eval()")),
        ("torn", ("is not an exported program", "torch.export.save")),
        ("other", ("is not an exported program", "torch.export.save")),
        ("gone", ("there is no file gone.pt2",)),
    ],
)
def test_unsuitable_programs_are_refused(
    command: Command, workshop: Path, name: str, parts: tuple[str, ...]
) -> None:
    file = workshop / f"{name}.pt2"
    if name == "fixed":
        export_program(batchnorm_network().eval(), file)
    if name == "training":
        export_program(batchnorm_network().train(), file, dynamic_shapes=ANY)
    if name == "dropout":
        export_program(
            nn.Sequential(batchnorm_network().eval(), nn.Dropout(0.5)), file, dynamic_shapes=ANY
        )
    if name == "torn":
        export_program(batchnorm_network().eval(), workshop / "complete.pt2", dynamic_shapes=ANY)
        file.write_bytes((workshop / "complete.pt2").read_bytes()[:3000])
    if name == "other":
        torch.save({"a": torch.zeros(3)}, file)
    assert_refused(command("inspect", file.name, "--shape", "1,8,8"), *parts)
