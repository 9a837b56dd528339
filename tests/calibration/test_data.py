"""Images from any source are read once, kept for several passes, and checked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import entrim
from entrim.calibration.data import read_images
from entrim.calibration.tensor_store import Scratch, TensorStore, is_memory_backed
from entrim.errors import BadImagesError, ScratchError

X = torch.randn(90, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(90)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 4),
    ).eval()


class TwoInputs(nn.Module):
    """Adds two images before the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.body(left + right)


def generate() -> Iterator[Tensor]:
    yield from X.split([7, 40, 1, 42])


SOURCES: dict[str, Any] = {
    "tensor": lambda: X,
    "array": lambda: X.numpy(),
    "list of batches": lambda: list(X.split(32)),
    "generator": generate,
    "loader": lambda: DataLoader(TensorDataset(X, LABELS), batch_size=13),
    "dataset": lambda: TensorDataset(X, LABELS),
}


@pytest.fixture(scope="module")
def expected() -> entrim.SparsifyResult:
    return entrim.sparsify(network(), X, entrim.Widths(0.5))


@pytest.mark.parametrize(
    ("source", "limit"),
    [*((source, 2**30) for source in SOURCES), ("generator", 50_000), ("loader", 50_000)],
)
def test_every_source_gives_the_same_network(
    expected: entrim.SparsifyResult, source: str, limit: int, tmp_path: Path
) -> None:
    calibration = entrim.Calibration(memory_limit=limit, scratch_dir=tmp_path)
    with entrim.Pruner(network(), SOURCES[source](), calibration=calibration) as pruner:
        assert (pruner.scratch.used > 0) == (limit < X.numel() * X.element_size())
        found = pruner.prune(entrim.Widths(0.5))
    assert found.plan.kept == expected.plan.kept
    assert found.record.images_checksum == expected.record.images_checksum
    for name, tensor in found.model.state_dict().items():
        torch.testing.assert_close(tensor, expected.model.state_dict()[name])


def test_batches_of_a_loader_are_kept_on_disk_beyond_the_limit(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    data = read_images(generate(), network(), store=TensorStore(20_000, scratch))
    assert 0 < data.store.held <= 20_000
    assert scratch.used == X.numel() * 4 - data.store.held
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.pt")) >= scratch.used
    rows = torch.tensor([89, 0, 47, 46, 7, 0])
    batch = data.batch(rows)
    assert isinstance(batch, Tensor)
    assert torch.equal(batch, X[rows])
    for batch, reference in zip(data.batches(30), X.split(30), strict=True):
        assert isinstance(batch, Tensor)
        assert torch.equal(batch, reference)
    data.close()
    scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_a_shuffling_loader_is_read_once() -> None:
    loader = DataLoader(TensorDataset(X, LABELS), batch_size=16, shuffle=True)
    data = read_images(loader, network())
    first, second = (
        torch.cat([b for b in data.batches(20) if isinstance(b, Tensor)]) for _ in "ab"
    )
    assert torch.equal(first, second)
    assert torch.equal(first.sum((1, 2, 3)).sort().values, X.sum((1, 2, 3)).sort().values)


def test_a_bootstrap_sample_reads_rows_of_all_chunks() -> None:
    data = read_images(generate(), network())
    sample = data.resample(torch.Generator().manual_seed(3))
    rows = torch.randint(90, (90,), generator=torch.Generator().manual_seed(3))
    batch = sample.batch(slice(10, 70))
    assert isinstance(batch, Tensor)
    assert torch.equal(batch, X[rows][10:70])


def test_a_network_of_two_inputs_gets_both_by_position() -> None:
    loader = DataLoader(TensorDataset(X, X.flip(3), LABELS), batch_size=30)
    model = TwoInputs().eval()
    result = entrim.sparsify(model, loader, entrim.Widths({"body.0": 4}))
    assert result.record.groups[0].kept
    small, original = (m(X, X.flip(3)) for m in (result.model, model))
    assert (small - original).norm() < 0.6 * (original - original.mean(0)).norm()


def test_batch_to_inputs_may_return_positional_inputs() -> None:
    class Records(Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 90

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {"pixels": X[index], "mirror": X[index].flip(2), "label": LABELS[index]}

    calibration = entrim.Calibration(
        batch_to_inputs=lambda b: (b["pixels"], b["mirror"]), holdout=0
    )
    model = TwoInputs().eval()
    with entrim.Pruner(model, DataLoader(Records(), batch_size=20), calibration=calibration) as p:
        assert isinstance(p.example_inputs, tuple)
        assert torch.equal(p.example_inputs[1], X[:4].flip(3))
        pruned = p.prune(entrim.Widths({"body.0": 4})).model
        assert len(pruned.get_parameter("body.0.weight")) == 4


def test_images_that_exceed_the_scratch_limit_are_refused(tmp_path: Path) -> None:
    store = TensorStore(1000, Scratch(tmp_path, limit=2000))
    with pytest.raises(ScratchError, match="scratch_limit=2,000 bytes: raise it"):
        read_images(generate(), network(), store=store)


def test_stores_share_one_memory_limit(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path, memory_limit=100)
    first, second = TensorStore(80, scratch), TensorStore(1000, scratch)
    first.put("a", torch.zeros(15))
    second.put("b", torch.zeros(5))
    second.put("c", torch.ones(10))
    second.put("d", torch.zeros(100), passing=True)
    assert (first.held, second.held, scratch.held, scratch.used) == (60, 20, 80, 40)
    assert torch.equal(second.get("c"), torch.ones(10))
    first.drop("a")
    second.drop("d")
    second.put("e", torch.zeros(20))
    assert (scratch.held, scratch.used) == (100, 40)
    second.close()
    assert (scratch.held, scratch.used) == (0, 0)


def test_a_scratch_folder_in_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"tmpfs {tmp_path} tmpfs rw 0 0\n/dev/root / ext4 rw 0 0\n")
    monkeypatch.setattr("entrim.calibration.tensor_store._MOUNTS", mounts)
    assert is_memory_backed(tmp_path / "deeper")
    assert not is_memory_backed(Path("/"))
    with pytest.raises(ScratchError, match=r"in memory.*scratch_dir"):
        TensorStore(0, Scratch(tmp_path)).put("x", X)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "there are no images"),
        ([X, X[:, :1]], r"the images have shapes \[\(1, 8, 8\), \(3, 8, 8\)\]: resize"),
        ([{"x": X}, {"y": X}], "the batches have different inputs"),
        ([X[:5], X[5:9] * float("nan")], "4 of 4 images contain NaN or infinity, .* number 5"),
        (X[:1].expand(9, -1, -1, -1), "all 9 images are the same"),
        ([X[:1], X[:1]], "all 2 images are the same"),
        ((X * 50).to(torch.uint8), "got torch.uint8: convert them to float"),
        ([{"flag": True}], "contain no tensor of images"),
        ([{"x": X, "y": X[:3]}], r"the inputs have \[3, 90\] images"),
    ],
)
def test_bad_images_are_refused_in_one_sentence(images: Any, message: str) -> None:
    with pytest.raises(BadImagesError, match=message):
        read_images(images, network())
