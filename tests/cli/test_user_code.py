"""User code that prints or modifies its inputs."""

import json
from pathlib import Path

import pytest
import torch

from entrim.cli.images import _check_readable
from entrim.cli.inspect import _macs
from entrim.cli.scores import _check_classes
from tests.cli.conftest import Command

LOUD = """
import torch
from torch import nn

print("importing")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        print("building")

    def forward(self, x):
        print("running")
        x -= 0.5
        x *= 2
        return self.head(self.a(x).relu())


def score(net):
    print("scoring")
    net(torch.ones(4, 8))
    return 1.0
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, command: Command) -> Path:
    """Return a folder with a network, labeled images and a saved run."""
    folder = tmp_path_factory.mktemp("loud")
    (folder / "loud.py").write_text(LOUD)
    scope: dict[str, type[torch.nn.Module]] = {}
    exec(LOUD, scope)
    model = scope["Net"]().eval()
    images = torch.rand(150, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        labels = model(images.clone()).argmax(1)
    torch.save(model.state_dict(), folder / "w.pt")
    torch.save({"x": images, "y": labels}, folder / "data.pt")
    done = command(*SPARSIFY, "--width", "*=0.5", "--out", "half", cwd=folder)
    assert done.code == 0, done.err
    return folder


IMAGES = ("--images", "data.pt", "--key", "x")
SPARSIFY = ("sparsify", "loud.py:Net", "--weights", "w.pt", *IMAGES)
COMMANDS = {
    "inspect": ("inspect", "loud.py:Net", "--shape", "8"),
    "sparsify": (*SPARSIFY, "--width", "*=0.5", "--out", "small"),
    "distill": ("distill", "half", "--epochs", "1", "--out", "better"),
    "search": (
        "search", "loud.py:Net", *IMAGES, "--metric", "loud.py:score", "--trials", "2", "--out",
        "found",
    ),
    "export": ("export", "half", "--torchexport", "half.pt2"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_pure_if_user_code_prints(command: Command, place: Path, name: str) -> None:
    done = command(*COMMANDS[name], "--json", cwd=place)
    assert done.code == 0, done.err
    assert isinstance(json.loads(done.out), dict)
    assert "building" in done.err


def test_accuracy_is_correct_if_the_network_modifies_its_input(
    command: Command, place: Path
) -> None:
    labels = ("--labels", "data.pt", "--labels-key", "y")
    words = (*SPARSIFY, *labels, "--width", "*=1.0", "--out", "whole", "--json")
    done = command(*words, cwd=place)
    assert done.code == 0, done.err
    score = json.loads(done.out)["score"]
    assert (score["before"], score["after"]) == (100, 100)


def test_checks_of_the_images_do_not_modify_them() -> None:
    class Doubling(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
            input.mul_(2)
            return super().forward(input)

    model, images = Doubling(8, 3).eval(), torch.rand(4, 8)
    before = images.clone()
    _check_classes(model, images, [0, 2])
    _check_readable(model, images, files=False)
    assert set(_macs(model, images)) == {""}
    assert torch.equal(images, before)
