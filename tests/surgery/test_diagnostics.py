"""What torch.export prints when it fails goes to the log, not before the error."""

import logging
import sys

import pytest
import torch
from torch import Tensor, nn

import entrim


class Branching(nn.Module):
    """A network that torch.export refuses, with a dump of its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).relu()
        return self.fc((2 * y if y.sum() > 0 else y).mean((2, 3)))


class Talking(nn.Module):
    """A network that prints."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        print("calculating", file=sys.stderr)
        return self.layers(x)


def test_failed_export_prints_nothing_and_logs_its_dump(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "entrim"), pytest.raises(entrim.EntrimError) as error:
        entrim.trace(Branching(), torch.randn(2, 3, 8, 8))
    assert capfd.readouterr() == ("", "")
    assert "def forward(self, arg0_1" in caplog.text
    assert "\n" not in str(error.value)


def test_what_a_traced_network_prints_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    net = Talking(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    assert entrim.trace(net, torch.randn(2, 4)).groups[0].channels == 8
    assert "calculating" in capfd.readouterr().err
