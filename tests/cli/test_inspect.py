"""`entrim inspect`: parameters, MACs, and channels that can be pruned."""

import json
from pathlib import Path

import pytest
import torch

import entrim
from tests.cli.conftest import Command, trained_network

LAYERS = """
from torch import nn

def separable():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8),
        nn.ReLU(), nn.ConvTranspose2d(8, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(5, 4),
    )

def chinese():
    net = nn.Sequential()
    net.add_module("卷积", nn.Conv2d(1, 8, 3))
    net.add_module("pool", nn.AdaptiveAvgPool2d(1))
    net.add_module("flat", nn.Flatten())
    net.add_module("fc", nn.Linear(8, 4))
    return net
"""


@pytest.fixture(scope="module", autouse=True)
def write_layers(workshop: Path) -> None:
    """Write networks with unusual layers."""
    (workshop / "layers.py").write_text(LAYERS, encoding="utf-8")


def test_tree_contains_all_parameters_and_macs(command: Command) -> None:
    words = ("inspect", "nets.py:small", "--shape", "1,8,8")
    done, told = command(*words), command(*words, "--json")
    assert (done.code, told.code) == (0, 0), done.err + told.err
    data, model = json.loads(told.out), trained_network()
    assert data["groups"] == {"0": 8}
    assert [layer["name"] for layer in data["layers"]] == ["0", "4"]
    cost = entrim.measure(model, torch.zeros(2, 1, 8, 8), repeats=2)
    assert sum(layer["params"] for layer in data["layers"]) == cost.params
    assert sum(layer["macs"] for layer in data["layers"]) == cost.macs
    lines = done.out.splitlines()
    assert lines[1].startswith("Sequential")
    assert lines[2].startswith("├─ 0 Conv2d")
    assert lines[2].endswith("8 can be pruned")
    assert lines[3].startswith("└─ 4 Linear")
    assert lines[3].endswith("4 frozen: it is an output of the network")
    assert lines[-1] == "1 group with 8 channels can be pruned, 4 channels are frozen"


def test_depthwise_layer_names_its_group(command: Command) -> None:
    words = ("inspect", "layers.py:separable", "--shape", "1,8,8")
    lines = command(*words).out.splitlines()
    assert lines[4].startswith("├─ 3 Conv2d")
    assert lines[4].endswith("8 follow 0")
    assert lines[5].endswith("5 can be pruned")
    assert lines[-1].startswith("2 groups")
    told = json.loads(command(*words, "--json").out)["layers"]
    assert [layer["follows"] for layer in told] == [[], [], [[8, "0"]], [], []]


def test_wide_characters_do_not_shift_columns(command: Command) -> None:
    done = command("inspect", "layers.py:chinese", "--shape", "1,8,8")
    rows = {line.split()[1]: line for line in done.out.splitlines()[2:4]}
    assert rows["卷积"].index("can be") + 2 == rows["fc"].index("frozen")
