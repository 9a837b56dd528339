"""Collected moments, compared with the layers themselves."""

import copy

import pytest
import torch
from torch import Tensor, nn

from entrim.calibration.collect import Pass, capture, gram_of, moments_of
from entrim.calibration.consumers import BoundConsumer, bind_consumers
from entrim.calibration.executor import advance, programs
from entrim.calibration.patch_gram import Gram
from entrim.calibration.tensor_store import TensorStore
from entrim.surgery.trace import trace

LAYERS: dict[str, nn.Module] = {
    "plain": nn.Conv2d(8, 6, 3),
    "same": nn.Conv2d(8, 6, 3, padding=1, bias=False),
    "strided": nn.Conv2d(8, 6, 3, stride=2, padding=1),
    "uneven stride": nn.Conv2d(8, 6, (3, 2), stride=(1, 3), padding=(0, 1)),
    "dilated": nn.Conv2d(8, 6, 3, dilation=2, padding=2),
    "uneven same": nn.Conv2d(8, 6, (2, 4), padding="same"),
    "valid": nn.Conv2d(8, 6, 3, padding="valid"),
    "circular": nn.Conv2d(8, 6, 3, padding=1, padding_mode="circular"),
    "one by one": nn.Conv2d(8, 6, 1, stride=2),
    "grouped": nn.Conv2d(8, 6, 3, groups=2, padding=1),
    "transposed": nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1),
    "transposed, grouped": nn.ConvTranspose2d(8, 6, 2, groups=2, stride=2),
    "flattened": nn.Sequential(nn.Flatten(), nn.Linear(8 * 36, 6)),
    "channels last": nn.Linear(8, 6),
}


class Regrouped(nn.Module):
    """Changes the shape of its maps by views."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 9, 5)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.norm(self.first(x)).view(len(x), 2, 4, 6, 6).transpose(1, 2).flatten(1, 2)
        return self.last(nn.functional.max_pool2d(maps, 2).view(len(x), -1))


def test_images_are_executed_in_channels_last_format_with_the_same_outputs() -> None:
    torch.manual_seed(0)
    model, batches = Regrouped().eval(), list(torch.randn(10, 3, 6, 6).split(5))
    tensors = {name: t.detach() for name, t in (*model.named_parameters(), *model.named_buffers())}
    task = Pass(
        programs=programs(model, batches), batches=batches, tensors=tensors, memory_limit=10**9
    )
    with task.execution() as execution:
        nodes = execution.program.nodes
        (conv,) = (place for place, node in enumerate(nodes) if "conv2d" in str(node.target))
        advance([execution], 0, conv + 1)
        assert execution.at(conv, 1).is_contiguous(memory_format=torch.channels_last)
        advance([execution], conv + 1, len(nodes) - 1)
        for batch, images in enumerate(batches):
            torch.testing.assert_close(execution.outputs(batch)[0], model(images))


class Two(nn.Module):
    """A layer that produces eight channels, and the one that consumes them."""

    def __init__(self, reader: nn.Module, moved: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.reader, self.moved = reader, moved

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.reader(x.movedim(1, -1) if self.moved else x)


def collect(
    model: nn.Module, batches: list[Tensor], memory_limit: int = 10**9
) -> tuple[Pass, BoundConsumer, TensorStore]:
    tensors = {name: tensor.detach() for name, tensor in model.named_parameters()}
    task = Pass(
        programs=programs(model, batches),
        batches=batches,
        tensors=tensors,
        memory_limit=memory_limit,
    )
    (reader,) = bind_consumers(task.programs[0], trace(model, batches[0][:2])).values()
    grams = TensorStore(memory_limit)
    capture(task, [reader], grams)
    return task, reader, grams


@pytest.mark.parametrize("name", LAYERS)
def test_the_moments_are_those_of_the_actual_inputs_of_the_layer(name: str) -> None:
    """For any other weights V of the layer, the sum of its squared outputs is tr(V G V')."""
    torch.manual_seed(0)
    model = Two(copy.deepcopy(LAYERS[name]), name == "channels last").eval()
    x = torch.randn(12, 3, 6, 6)
    _, reader, grams = collect(model, [x[:5], x[5:]])
    gram = gram_of(grams, reader.spec.layer)
    layer = model.reader[1] if isinstance(model.reader, nn.Sequential) else model.reader
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    with torch.no_grad():
        weight.normal_()
        if isinstance(bias, Tensor):
            bias.normal_()
        found = model.double()(x.double())
    V = reader.matrices(weight.detach())
    groups, outputs = V.shape[:2]
    b = bias.detach().view(groups, outputs, 1) if isinstance(bias, Tensor) else 0 * V[:, :, :1]
    U = torch.cat([b, V], 2)
    assert isinstance(gram, Gram)
    expected = torch.einsum("gmi,gij,gmj->", U, gram.sums, U)
    torch.testing.assert_close(expected, found.square().sum(), rtol=1e-6, atol=0)
    rows = found.numel() // (groups * outputs)
    assert gram.count == rows
    torch.testing.assert_close(reader.weight(V).view_as(weight), weight.detach())


@pytest.mark.parametrize("name", LAYERS)
def test_the_weights_of_the_layer_explain_its_outputs_completely(name: str) -> None:
    """The targets in the moments are the outputs of the layer, so its own weights fit exactly."""
    torch.manual_seed(0)
    model = Two(copy.deepcopy(LAYERS[name]), name == "channels last").eval()
    x = torch.randn(40, 3, 6, 6)
    task, reader, grams = collect(model, [x])
    group = trace(model, x[:2]).groups[0]
    parts = moments_of(reader, gram_of(grams, reader.spec.layer), group, task.tensors)
    assert len(parts) == reader.geometry.groups
    tables = reader.of_group(group)
    for number, (m, table) in enumerate(zip(parts, tables, strict=True)):
        Q = reader.matrices(task.tensors[reader.spec.weight]).double()[number][:, table.flatten()]
        bias = torch.zeros(len(Q), 1, dtype=torch.float64)
        if reader.bias is not None:
            bias = task.tensors[reader.bias].double().view(len(tables), -1)[number][:, None]
        U = torch.cat([bias, Q], 1).T
        explained = float((2 * m.cross_sum * U).sum() - (U * (m.gram_sum @ U)).sum())
        assert explained == pytest.approx(m.target_sum_sq, rel=1e-9)


def test_a_low_memory_limit_takes_more_passes_with_the_same_result() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3)
    ).eval()
    x = torch.randn(50, 6)
    tensors = {name: tensor.detach() for name, tensor in model.named_parameters()}
    found = []
    for limit in (10**9, 21 * 21 * 8):
        runs: list[int] = []
        task = Pass(
            programs=programs(model, [x]),
            batches=[x],
            tensors=tensors,
            memory_limit=limit,
        )
        known = bind_consumers(task.programs[0], trace(model, x))
        with TensorStore(limit) as grams:
            capture(task, list(known.values()), grams, lambda done, _, runs=runs: runs.append(done))
            sums = [gram.sums for n in known if isinstance(gram := gram_of(grams, n), Gram)]
            found.append((len(runs), sums))
    (few, expected), (many, same) = found
    assert (few, many) == (1, 2)
    assert all(torch.equal(a, b) for a, b in zip(expected, same, strict=True))
