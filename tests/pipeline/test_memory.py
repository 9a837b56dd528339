"""Memory and disk space do not depend on the number of images."""

import json
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import entrim
from entrim.calibration.executor import Execution
from entrim.reconstruction.sequential import batch_counts

MIB = 2**20
PROGRAM = """
import json, resource, warnings
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import entrim

class Noise(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, number):
        return torch.randn(3, 48, 48, generator=torch.Generator().manual_seed(number))

def peak(count):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Conv2d(16, 16, 4), nn.Flatten(), nn.Linear(16, 10),
    ).eval()
    limits = entrim.Calibration(batch_size=20, memory_limit=24 * 2**20, scratch_limit=48 * 2**20)
    images, target = DataLoader(Noise(count), 20), entrim.Widths({"0": 16})
    found = entrim.sparsify(
        net, images, target, calibration=limits, selector="greedy",
        reconstruction=entrim.Reconstruction(mirror=True, mixtures=0, relaxation=0),
    )
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kib * 1024, [note for note in found.record.notes if "scratch_limit" in note]

torch.set_num_threads(1)
warnings.simplefilter("ignore")
print(json.dumps([peak(100), peak(400)]))
"""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()


@pytest.mark.slow
def test_the_peak_memory_is_bounded_for_any_number_of_images() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, check=True
    )
    (few, _), (many, notes) = json.loads(done.stdout.splitlines()[-1])
    activations = 2 * 2 * 360 * 32 * 48 * 48 * 4  # two networks, two views, fitting images
    assert activations > 16 * 24 * MIB
    assert many - few < 24 * MIB
    assert len(notes) == 1
    assert notes[0].startswith("the refits of the layers 2 to 2 use ")


def test_fewer_batches_reach_layers_whose_stored_values_exceed_the_capacity() -> None:
    images = torch.randn(60, 3, 12, 12)
    calibration = entrim.Calibration(batch_size=10, holdout=0)
    with entrim.Pruner(network(), images, calibration=calibration) as pruner:
        task, layers = pruner.statistics.forward, pruner.statistics.consumers
        conv, linear = layers["2"].call_sites[0], layers["6"].call_sites[0]
        one = 10 * 8 * 144 * 4  # bytes of an activation of one batch
        assert batch_counts(task, [conv, linear], {}, 4 * (3 * one)) == [3, 6]
        assert batch_counts(task, [conv, linear], {}, 0) == [1, 1]
        pairs = replace(task, views=2)
        assert batch_counts(pairs, [conv, linear], {}, 4 * (3 * one)) == [2, 6]
        assert pairs.order == [0, 3, 1, 4, 2, 5]


def test_batches_that_follow_later_run_every_operation_once(monkeypatch) -> None:
    ran: list[tuple[str, int, int]] = []
    compute = Execution.compute

    def record(self: Execution, place: int, batch: int) -> object:
        ran.append((self.label, place, batch))
        return compute(self, place, batch)

    calibration = entrim.Calibration(
        batch_size=10, holdout=0, memory_limit=400_000, scratch_limit=200_000
    )
    with entrim.Pruner(
        network(),
        DataLoader(TensorDataset(torch.randn(60, 3, 12, 12)), 10),
        calibration=calibration,
        reconstruction=entrim.Reconstruction(mirror=False, ridge=1e-3, mixtures=0, relaxation=0),
    ) as pruner:
        pruner.collect(pruner.graph.groups)
        selection = pruner.select(entrim.Widths({"0": 4}))
        monkeypatch.setattr(Execution, "compute", record)
        result = pruner.apply(selection)
        fits = pruner.fits
    assert [fit.layer for fit in fits] == ["2", "6"]
    assert fits[0].images is not None
    assert fits[0].images < 60
    assert fits[1].images is None
    original = [entry for entry in ran if entry[0] == ""]
    assert len(original) == len(set(original))
    assert {batch for _, _, batch in original} == set(range(6))
    assert result.proof.final < 1e-6
