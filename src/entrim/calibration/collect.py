"""Collect the second moments of the inputs of every layer in one pass of the original network.

The same pass compares the images with the running statistics of BatchNorm layers.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, fx, nn

from entrim.calibration.consumers import BoundConsumer, bind_consumers
from entrim.calibration.executor import Execution, Program, advance, programs
from entrim.calibration.patch_gram import (
    Gram,
    LayerRows,
    PatchGram,
    RowCollector,
    in_double,
    patches,
    reduced_columns,
    sums_device,
)
from entrim.calibration.tensor_store import Scratch, TensorStore
from entrim.config import WORKING_SHARE
from entrim.distributed.world import World
from entrim.entropic.moments import Moments, symmetric_matrix, upper_triangle
from entrim.errors import BadImagesError
from entrim.graph.channel_graph import ChannelGraph, Group
from entrim.graph.eager import ExampleInputs, samples
from entrim.graph.tracer import arguments_of

ROWS_PER_COLUMN, FEWEST_PER_COLUMN, ENOUGH_ROWS = 60, 20, 2**15
"""Rows that the automatic number of positions provides for each column of a layer. Wide layers get
fewer, but at least `FEWEST_PER_COLUMN` for each column and `ENOUGH_ROWS` in total."""
_SHIFTS_PAY = 3
"""Where more than a third of the positions of a kernel are needed, all of them cost less."""
MAX_SHIFT, MAX_RATIO = 1.0, 3.0
"""Limits for the shift of the mean in a BatchNorm, in its standard deviations, and for the ratio of
variances in the first one. With ResNet-20 and VGG-16, CIFAR-10 images in a wrong scale (0 to 1,
0 to 255, half the contrast) exceed them; eight correct images or a single class do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The programs and images of a forward pass, and the options of its statistics."""

    programs: Sequence[Program]
    batches: Sequence[ExampleInputs]
    tensors: Mapping[str, Tensor]
    memory_limit: int
    scratch: Scratch = field(default_factory=Scratch)
    """Folder for tensors beyond the memory limit."""
    n_positions: int | Literal["auto"] | None = None
    """Number of output positions sampled per image; None for all."""
    seed: int | None = None
    """Seed of all random numbers."""
    views: int = 1
    """How often every image occurs: the batches are this many sequences of the same images."""
    capacity: int | float = math.inf
    """Bytes in memory and on disk for the second moments of all layers and for activations."""
    batch_sizes: tuple[int, ...] = field(init=False)
    """The number of images in each batch; batches that are read on demand are not read."""

    def __post_init__(self) -> None:
        batches = self.batches
        sizes = getattr(batches, "sizes", None)
        found = tuple(map(samples, batches)) if sizes is None else sizes
        object.__setattr__(self, "batch_sizes", found)

    @property
    def images(self) -> int:
        """The number of images, every view counted."""
        return sum(self.batch_sizes)

    def part(self, batches: slice) -> "Pass":
        """Return the pass over some of the batches."""
        return replace(self, programs=self.programs[batches], batches=self.batches[batches])

    def first(self, images: int) -> "Pass":
        """Return the pass over the first batches, which contain about `images` images."""
        return self.part(slice(self.n_batches(images)))

    def n_batches(self, images: int) -> int:
        """Return the number of batches that contain about `images` images, at least one."""
        batches = len(self.programs)
        return min(batches, max(1, round(batches * images / self.images)))

    @property
    def order(self) -> list[int]:
        """The numbers of all batches in the order of their images, with all views of each."""
        count = len(self.programs) // self.views
        return [view * count + batch for batch in range(count) for view in range(self.views)]

    def image_numbers(self, batch: int) -> range:
        """Return the numbers of the images in a batch; views of one image have the same number."""
        first = sum(self.batch_sizes[:batch]) % (self.images // self.views)
        return range(first, first + self.batch_sizes[batch])

    def sample_positions(
        self,
        reader: BoundConsumer,
        x: Tensor,
        columns: int,
        generator: torch.Generator,
        images: int | None = None,
    ) -> Int[Tensor, "N P"] | None:
        """Return the output positions of each image to use, drawn anew for every batch.

        None stands for all. The automatic number provides `rows_for(columns)` rows, from `images`
        images, by default all.
        """
        drawn = self.n_sampled(reader, reader.n_positions(x), columns, images)
        if drawn is None:
            return None
        order = torch.rand(len(x), reader.n_positions(x), generator=generator)
        return order.topk(drawn, 1).indices.to(sums_device(x.device))

    def skip_positions(
        self,
        reader: BoundConsumer,
        source: int,
        batch: int,
        columns: int,
        generator: torch.Generator,
        images: int | None = None,
        *,
        is_drawn: bool = False,
    ) -> None:
        """Advance the generator as if the positions of a batch were drawn, without its values.

        `source` is the position of the input in the program. `is_drawn` states that positions are
        drawn even where all are used.
        """
        x = reader.batch_first(
            self.programs[batch].nodes[source].meta["val"], self.batch_sizes[batch]
        )
        count = reader.n_positions(x)
        if is_drawn or self.n_sampled(reader, count, columns, images) is not None:
            torch.rand(len(x), count, generator=generator)

    def n_sampled(
        self, reader: BoundConsumer, count: int, columns: int, images: int | None = None
    ) -> int | None:
        """Return how many of `count` output positions of an image are used; None for all."""
        if self.n_positions != "auto":
            return None if self.n_positions is None else min(self.n_positions, count)
        drawn = -(-rows_for(columns) // (images or self.images))
        factor = _SHIFTS_PAY if math.prod(reader.geometry.kernel) > 1 else 1
        return None if drawn * factor >= count else drawn

    def positions_per_image(self, reader: BoundConsumer, columns: int) -> list[tuple[int, int]]:
        """Return the used and all output positions of an image, for each call of a layer."""
        found = []
        for source in reader.inputs:
            value = self.programs[0].nodes[source].meta.get("val")
            every = 1
            if isinstance(value, Tensor):
                every = reader.n_positions(reader.batch_first(value, self.batch_sizes[0]))
            drawn = self.n_sampled(reader, every, columns)
            found.append((every if drawn is None else drawn, every))
        return found

    def n_rows(self, reader: BoundConsumer, columns: int) -> int:
        """Return the number of rows of a layer with this number of columns."""
        return sum(used for used, _ in self.positions_per_image(reader, columns)) * self.images

    def keeps_rows(self, reader: BoundConsumer, columns: int) -> bool:
        """Whether the rows of a layer with `columns` columns are kept, not its Gram matrices.

        This is the case if the Gram matrices exceed the memory limit and the rows are smaller.
        """
        too_large = _gram_bytes(reader, columns) > self.memory_limit
        return too_large and self.n_rows(reader, columns) < columns

    def statistics_bytes(self, reader: BoundConsumer) -> int:
        """Return the size of the Gram matrices of `reader`, or of its rows if they are kept."""
        n = reader.columns
        if self.keeps_rows(reader, n):
            return reader.geometry.groups * self.n_rows(reader, n) * n * 8
        return _gram_bytes(reader, n)

    def drawing(self, name: str) -> torch.Generator:
        """Return an independent random generator for the purpose `name`."""
        digest = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))

    def new_store(self) -> TensorStore:
        """Return an empty store within the memory limit."""
        return TensorStore(self.memory_limit, self.scratch)

    @contextmanager
    def execution(self, tensors: Mapping[str, Tensor] | None = None) -> Iterator[Execution]:
        """Execute the network on all batches, with other `tensors` if given; without gradients.

        Activations are removed when the context ends.
        """
        weights = self.tensors if tensors is None else tensors
        with torch.no_grad(), self.new_store() as store:
            yield Execution(self.programs, self.batches, dict(weights), store)


def rows_for(columns: int) -> int:
    """Return the number of rows that the automatic number of positions provides for a layer."""
    most, least = ROWS_PER_COLUMN * (columns + 1), FEWEST_PER_COLUMN * (columns + 1)
    return max(least, min(most, ENOUGH_ROWS))


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """The Gram matrices of the layers that consume channels, collected once and on demand.

    Owns the programs of the network on its images, and the consumers bound to them.
    """

    graph: ChannelGraph
    forward: Pass
    consumers: Mapping[str, BoundConsumer]
    store: TensorStore
    collection: Pass
    """The images of the Gram matrices: those of `forward`, and perhaps other views of them."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        graph: ChannelGraph,
        batches: Sequence[ExampleInputs],
        *,
        memory_limit: int,
        scratch: Scratch,
        n_positions: int | Literal["auto"] | None = None,
        seed: int | None = None,
        capacity: int | float = math.inf,
    ) -> "LayerStatistics":
        """Return empty statistics of a network on the images in `batches`."""
        tensors = {
            name: tensor.detach()
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }
        forward = Pass(
            programs=programs(model, batches),
            batches=batches,
            tensors=tensors,
            memory_limit=memory_limit,
            scratch=scratch,
            n_positions=n_positions,
            seed=seed,
            capacity=capacity,
        )
        consumers = bind_consumers(forward.programs[0], graph)
        return cls(graph, forward, consumers, forward.new_store(), forward)

    def close(self) -> None:
        """Remove everything that was collected, and the folder for data on disk."""
        self.store.close()
        self.forward.scratch.close()

    @property
    def unobservable_groups(self) -> set[str]:
        """The groups with a consumer whose inputs cannot be observed."""
        hidden = [c for c in self.graph.consumers if c.layer not in self.consumers]
        return {name for consumer in hidden for name in consumer.columns_per_channel}

    @property
    def gram_bytes(self) -> int:
        """The size of the second moments of all layers."""
        return sum(map(self.forward.statistics_bytes, self.consumers.values()))

    @property
    def activation_capacity(self) -> int | float:
        """Bytes in memory and on disk for activations of several batches."""
        return self.forward.capacity - self.gram_bytes

    def consumers_of(self, *groups: Group) -> list[BoundConsumer]:
        """Return the layers that consume channels of any of `groups`."""
        names = {group.name for group in groups}
        return [c for c in self.consumers.values() if names & c.spec.columns_per_channel.keys()]

    def has_single_consumer(self, group: Group) -> bool:
        """Whether the channels have one producing layer and one consuming call."""
        found = self.consumers_of(group)
        return len(found) == 1 and len(found[0].call_sites) == 1 and len(group.layers) == 1

    def collectable(
        self, names: Collection[str], solved: Collection[str]
    ) -> tuple[list[Group], set[str]]:
        """Return the groups of `names` that can be collected, and the names of too large ones.

        A solution has one weight per column, so rows are not enough for the groups in `solved`.
        """
        hidden = self.unobservable_groups
        groups = [g for g in self.graph.groups if g.name in names and g.name not in hidden]
        large = self.too_large(groups)
        large |= self.kept_as_rows([group for group in groups if group.name in solved])
        return [g for g in groups if g.name not in large and self.consumers_of(g)], large

    def too_large(self, groups: Sequence[Group]) -> set[str]:
        """Return the groups whose statistics do not fit into the memory limit."""
        limit, found = self.forward.memory_limit, set[str]()
        widths = {group.name: group.channels for group in self.graph.groups}
        for consumer in self.consumers_of(*groups):
            too_large = self.collection.statistics_bytes(consumer) > limit
            by_rows = self.keeps_rows(consumer)
            for name in consumer.spec.columns_per_channel:
                if too_large or (by_rows and widths[name] > reduced_columns(limit)):
                    found.add(name)
        return found

    def kept_as_rows(self, groups: Sequence[Group]) -> set[str]:
        """Return the names in `groups` with a consumer whose rows are kept."""
        return {g.name for g in groups if any(map(self.keeps_rows, self.consumers_of(g)))}

    def keeps_rows(self, consumer: BoundConsumer) -> bool:
        """Whether the rows of a layer are kept, because its Gram matrices are too large."""
        return self.collection.keeps_rows(consumer, consumer.columns)

    def collect(
        self,
        consumers: Iterable[BoundConsumer],
        on_batch: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Collect the Gram matrices of `consumers` that are not in the store yet."""
        capture(self.collection, self.missing(consumers), self.store, on_batch)

    def collect_for(
        self,
        ranks: Mapping[str, Collection[int]],
        on_batch: Callable[[int, int], None],
        world: World,
    ) -> None:
        """Collect the Gram matrices of some layers together with all ranks, for those in `ranks`.

        Each rank executes the network on its share of the images only.
        """
        readers = [self.consumers[layer] for layer in ranks]
        capture(self.collection, readers, self.store, on_batch, world, ranks)

    def ranks_that_need(
        self, consumers: Iterable[BoundConsumer], world: World
    ) -> dict[str, list[int]]:
        """Return the layers that are missing on any rank -> the ranks that need their sums."""
        found: dict[str, list[int]] = {}
        for rank, layers in enumerate(
            world.gather([c.spec.layer for c in self.missing(consumers)])
        ):
            for layer in layers:
                found.setdefault(layer, []).append(rank)
        return found

    def missing(self, consumers: Iterable[BoundConsumer]) -> list[BoundConsumer]:
        """Return the `consumers` whose Gram matrices are not in the store yet."""
        return [c for c in consumers if c.spec.layer not in self.store.values]

    def gram(self, layer: str) -> Gram | LayerRows:
        """Return the collected Gram matrices of `layer`, or its rows."""
        return gram_of(self.store, layer)

    def moments(self, group: Group) -> list[Moments]:
        """Return the moments of `group` at every layer that consumes it."""
        return [
            part
            for consumer in self.consumers_of(group)
            for part in moments_of(
                consumer, self.gram(consumer.spec.layer), group, self.forward.tensors
            )
        ]

    def weights(self, group: Group) -> list[Tensor]:
        """Return the weights on the columns of `moments`, for every layer that consumes it."""
        return [
            self.gram(consumer.spec.layer).reduce_weights(number, table, share)
            for consumer in self.consumers_of(group)
            for number, (table, share) in enumerate(
                zip(
                    consumer.of_group(group),
                    shares(consumer, group, self.forward.tensors),
                    strict=True,
                )
            )
        ]


def _gram_bytes(reader: BoundConsumer, columns: int) -> int:
    """Return the size of the Gram matrices of `reader` with this number of columns."""
    return reader.geometry.groups * (columns + 1) ** 2 * 8


def capture(
    task: Pass,
    readers: Sequence[BoundConsumer],
    grams: TensorStore,
    on_batch: Callable[[int, int], None] = lambda done, total: None,
    world: World = World(),  # noqa: B008
    ranks: Mapping[str, Collection[int]] | None = None,
) -> None:
    """Collect the Gram matrices of `readers`, or their rows, into the store `grams`, by layer.

    If the Gram matrices exceed the memory limit together, several passes are made. `on_batch` is
    called with the number of finished batches and their total over all passes. Each rank of `world`
    executes its share of the batches; the sums of a layer are added for those in `ranks`.
    """
    by_layer, batches = {reader.spec.layer: reader for reader in readers}, len(task.programs)
    runs = world.from_root(
        lambda: [[one.spec.layer for one in run] for run in collection_passes(task, readers)]
    )
    own = range(batches * world.rank // world.size, batches * (world.rank + 1) // world.size)
    for number, layers in enumerate(runs):
        some = [by_layer[layer] for layer in layers]
        sums = {layer: _new_sums(task, by_layer[layer]) for layer in layers}
        draws = {layer: task.drawing(layer) for layer in layers}
        for batch in range(own.start):
            _skip_draws(task, batch, some, draws)
        with task.execution() as whole:
            for done, execution in enumerate(whole.by_batch(own), number * len(own) + 1):
                _watch(task, execution, some, sums, draws)
                on_batch(done, len(runs) * len(own))
        for layer in layers:
            owners = range(world.size) if ranks is None else ranks[layer]
            total = sums.pop(layer)
            if isinstance(total, PatchGram):
                found, kind = _sum_over_ranks(total, owners, world), "count"
            else:
                found, kind = _rows_of_ranks(total, owners, world), "rows"
            if found is not None:
                grams.put(layer, found[0])
                grams.put((layer, kind), found[1])


def _sum_over_ranks(
    own: PatchGram, owners: Collection[int], world: World
) -> tuple[Float[Tensor, "groups n1 n1"], int] | None:
    """Return the sum of the Gram matrices of all ranks and their rows; None if others own it."""
    if world.size == 1:
        return own.gram_sum, own.count
    device = own.gram_sum.device
    found = world.sum_for(owners, [own.count, *upper_triangle(own.gram_sum.cpu())])
    return None if found is None else (symmetric_matrix(found[1:]).to(device), found[0])


def _rows_of_ranks(
    own: RowCollector, owners: Collection[int], world: World
) -> tuple[Float[Tensor, "groups T n"], int] | None:
    """Return the rows of all ranks and their number; None if others own the layer."""
    parts = [part for part in world.gather(own.rows() if own.count else None) if part is not None]
    if world.rank not in owners:
        return None
    rows = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return rows, rows.shape[1]


def gram_of(grams: TensorStore, layer: str) -> Gram | LayerRows:
    """Return the Gram matrices, or the rows, that `capture` collected for `layer`."""
    if (layer, "rows") in grams.values:
        return LayerRows(grams.get(layer), int(grams.limit))
    return Gram(grams.get(layer), grams.get((layer, "count")))


@dataclass(slots=True)
class ChannelStats:
    """Running mean and variance of every channel."""

    count: int = 0
    total: Tensor | float = 0.0
    squares: Tensor | float = 0.0

    def add(self, x: Tensor, axis: int = 1) -> None:
        """Add one batch whose channels are along `axis`."""
        flat = in_double(x).movedim(axis, 0).flatten(1)
        self.count += flat.shape[1]
        self.total = self.total + flat.sum(1)
        self.squares = self.squares + flat.square().sum(1)

    def over_ranks(self, world: World) -> "ChannelStats":
        """Return the statistics of the images of all ranks."""
        return ChannelStats(*world.sum([self.count, self.total, self.squares]))

    @property
    def mean(self) -> Float[Tensor, " D"]:
        """Mean of each channel."""
        return torch.as_tensor(self.total) / self.count

    @property
    def variance(self) -> Float[Tensor, " D"]:
        """Variance of each channel."""
        return (torch.as_tensor(self.squares) / self.count - self.mean.square()).clamp_min(0)


@dataclass(frozen=True, slots=True)
class BatchNormCall:
    """One call of a BatchNorm with running statistics; its tensors by name."""

    input: fx.Node
    mean: str
    var: str
    weight: str | None
    """None if it is not affine, or if its scale is a computed tensor."""
    scaled: bool
    """Whether it has a scale."""
    eps: float
    calls: int
    """Number of operations that use the running mean."""

    @property
    def name(self) -> str:
        """Name of the module that owns the statistics, or of the running mean."""
        return self.mean.removesuffix(".running_mean")


def batchnorm_of(program: Program, node: fx.Node) -> BatchNormCall | None:
    """Return the BatchNorm with running statistics that `node` calls, else None."""
    if "batch_norm" not in str(node.target):
        return None
    given = arguments_of(node)
    nodes = [given.get(key) for key in ("running_mean", "running_var", "weight")]
    mean, var, weight = (
        program.names.get(one) if isinstance(one, fx.Node) else None for one in nodes
    )
    if mean is None or var is None:
        return None
    return BatchNormCall(
        input=given["input"],
        mean=mean,
        var=var,
        weight=weight,
        scaled=nodes[2] is not None,
        eps=given["eps"],
        calls=len(given["running_mean"].users),
    )


@dataclass(frozen=True, slots=True)
class BatchNormShift:
    """The deviation of the images from the running statistics of one BatchNorm."""

    layer: str
    shift: float
    """Root mean square over channels of (mean - running mean) / sqrt(running variance)."""
    variance: float
    """Median over channels of variance / running variance."""
    initial: bool
    """Whether the running statistics are those of a layer that was never trained."""


def check_images(task: Pass) -> str | None:
    """Return a warning if the images differ from those of the training; raise an error for NaN."""
    norms = batchnorm_shifts(task)
    if any(math.isnan(norm.shift) for norm in norms):
        raise BadImagesError(
            "the network computes NaN on these images: normalize them as in training"
        )
    shifted = [norm for norm in norms if norm.shift > MAX_SHIFT]
    scaled = [norm for norm in norms[:1] if not 1 / MAX_RATIO <= norm.variance <= MAX_RATIO]
    if not shifted and not scaled:
        return None
    if all(norm.initial for norm in norms):
        return (
            "the network seems untrained, because its BatchNorm layers have their initial "
            "statistics: load the trained weights"
        )
    worst = scaled[0] if scaled else max(shifted, key=lambda norm: norm.shift)
    return (
        f"the images differ from those of the training: at {worst.layer} means are shifted by "
        f"{worst.shift:.1f} standard deviations, and variances are {worst.variance:.2g} times the "
        "running variance: normalize the images as in the training of the network"
    )


def batchnorm_shifts(task: Pass) -> list[BatchNormShift]:
    """Return the deviation of the first batch from the statistics of every BatchNorm."""
    found = []
    with task.execution() as whole:
        first = next(whole.by_batch())
        for place, node in enumerate(first.program.nodes):
            norm = batchnorm_of(first.program, node)
            if norm is not None:
                stats = ChannelStats()
                stats.add(first.value(norm.input, 0))
                mean, variance = (in_double(task.tensors[name]) for name in (norm.mean, norm.var))
                shift = (stats.mean - mean) / variance.clamp_min(1e-12).sqrt()
                ratio = stats.variance / variance.clamp_min(1e-12)
                found.append(
                    BatchNormShift(
                        norm.name,
                        float(shift.square().mean().sqrt()),
                        float(ratio.median()),
                        initial=not bool(mean.any()) and bool((variance == 1).all()),
                    )
                )
            advance([first], place, place + 1)
    return found


def moments_of(
    reader: BoundConsumer, gram: Gram | LayerRows, group: Group, tensors: Mapping[str, Tensor]
) -> list[Moments]:
    """Return the moments of `group` at `reader`, one for each group of its convolution.

    The targets are the outputs of the layer, so they follow from the Gram matrix and the weights.
    If the layer also consumes other channels, the target is the contribution of `group` only.
    """
    weights = [share.double() for share in shares(reader, group, tensors)]
    bias = torch.zeros(len(weights), len(weights[0]), dtype=torch.float64)
    if (
        reader.spec.intercept_target == "bias"
        and reader.bias is not None
        and reader.reads_only(group)
    ):
        bias = tensors[reader.bias].double().cpu().view(bias.shape)
    found = [
        gram.moments(number, table, weights[number], bias[number])
        for number, table in enumerate(reader.of_group(group))
    ]
    if reader.spec.intercept_target is None:
        return [moments.through_origin() for moments in found]
    return found


def shares(reader: BoundConsumer, group: Group, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the weights of the layer on the channels of `group`, one matrix per conv group."""
    weight = reader.matrices(tensors[reader.spec.weight]).cpu()
    return [
        weight[number][:, table.flatten().clamp_min(0)] * (table.flatten() >= 0)
        for number, table in enumerate(reader.of_group(group))
    ]


def _skip_draws(
    task: Pass,
    batch: int,
    readers: Sequence[BoundConsumer],
    draws: Mapping[str, torch.Generator],
) -> None:
    """Draw the positions of a batch of another rank."""
    for reader in readers:
        for source in reader.inputs:
            task.skip_positions(reader, source, batch, reader.columns, draws[reader.spec.layer])


def _watch(
    task: Pass,
    execution: Execution,
    readers: Sequence[BoundConsumer],
    sums: Mapping[str, PatchGram | RowCollector],
    draws: Mapping[str, torch.Generator],
) -> None:
    calls = {
        place: (reader, source)
        for reader in readers
        for place, source in zip(reader.call_sites, reader.inputs, strict=True)
    }
    last = max(calls)
    for place in range(last + 1):
        if place in calls:
            reader, source = calls[place]
            layer, images = reader.spec.layer, execution.batch_size(0)
            x = reader.batch_first(execution.at(source, 0), images)
            sampled = task.sample_positions(reader, x, reader.columns, draws[layer])
            if sampled is None:
                sums[layer].add(in_double(x))
            else:
                sums[layer].add_rows(in_double(patches(x, reader.geometry, sampled)))
        advance([execution], place, place + 1)
    for place in range(last + 1):
        execution.store.drop((execution.label, place, 0))


def _new_sums(task: Pass, reader: BoundConsumer) -> PatchGram | RowCollector:
    if task.keeps_rows(reader, reader.columns):
        return RowCollector(reader.geometry)
    return PatchGram(reader.geometry, reader.channels, _device(task))


def _device(task: Pass) -> torch.device:
    return next(iter(task.tensors.values())).device


def collection_passes(task: Pass, readers: Sequence[BoundConsumer]) -> list[list[BoundConsumer]]:
    """Split `readers` into passes whose statistics fit into the memory that is left.

    At least `WORKING_SHARE` of the memory limit is, because no other data are stored in it.
    """
    passes: list[list[BoundConsumer]] = []
    free = max(WORKING_SHARE * task.memory_limit, task.memory_limit - task.scratch.held)
    held = 0
    for reader in readers:
        size = task.statistics_bytes(reader)
        if not passes or held + size > free:
            passes.append([])
            held = 0
        passes[-1].append(reader)
        held += size
    return passes
