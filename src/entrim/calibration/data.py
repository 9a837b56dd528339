"""Calibration data: images from any source, read once and kept for several passes."""

import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from entrim.calibration.tensor_store import SpilledTensor, TensorStore, tensor_bytes
from entrim.distributed.world import World
from entrim.errors import BadImagesError
from entrim.graph.eager import ExampleInputs

Images = Tensor | Iterable[Any] | Dataset[Any]
"""A tensor or array (images first), a list of images or of (image, label) pairs, a Dataset, or
batches: a DataLoader or any other iterable of tensors, (images, labels) pairs or dicts."""
_SINGLE = ""
"""The name of the only input."""
_DIGEST_BYTES = 8
"""Size of the checksum of one image."""


@dataclass(frozen=True, slots=True)
class CalibrationData:
    """All images in the chunks in which they were read, one tensor per input of the network.

    A tensor of the user is one chunk, used in place. Batches of a loader are copied into a tensor
    store, because a loader may shuffle or augment, or be a generator: every later pass uses the
    same images.
    """

    store: TensorStore
    names: tuple[str, ...]
    """Keywords, positions ("0", "1", ...), or "" for a single input."""
    sizes: tuple[int, ...]
    """The number of images in each chunk."""
    device: torch.device
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments, the same for every batch: numbers, flags, single values."""
    rows: Tensor | None = None
    """Indices of the images, if they are a sample of the chunks."""

    @property
    def count(self) -> int:
        """The number of images."""
        return sum(self.sizes) if self.rows is None else len(self.rows)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the images that were copied into a limited store; 0 for a tensor of the user."""
        chunks = range(len(self.sizes)) if self.store.limit < math.inf else ()
        values = [self.store.values[name, number] for name in self.names for number in chunks]
        return sum(v.size if isinstance(v, SpilledTensor) else tensor_bytes(v) for v in values)

    def batch(self, index: slice | Tensor) -> ExampleInputs:
        """Return a batch of images as inputs of the network."""
        found = {name: self._take(name, index).to(self.device) for name in self.names}
        if self.names == (_SINGLE,):
            return found[_SINGLE]
        if self.names[0].isdecimal():
            return tuple(found.values())
        return found | dict(self.fixed)

    def batches(self, batch_size: int) -> "Batches":
        """Return all images in batches of at most `batch_size`, of equal size where possible."""
        least = math.ceil(self.count / batch_size)
        even = [k for k in range(least, 2 * least + 1) if self.count % k == 0]
        number = even[0] if even else least
        edges = [round(k * self.count / number) for k in range(number + 1)]
        return Batches(self, tuple(slice(a, b) for a, b in pairwise(edges)))

    def subset(self, rows: Tensor) -> "CalibrationData":
        """Return the images with these indices."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def split(self, held: int, seed: int) -> tuple["CalibrationData", "CalibrationData"]:
        """Return the images without `held` random ones, in their order, and those."""
        digest = hashlib.sha256(f"{seed} hold-out".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        out, rest = torch.randperm(self.count, generator=generator).tensor_split([held])
        return self.subset(rest.sort().values) if held else self, self.subset(out)

    def halves(self) -> tuple["CalibrationData", "CalibrationData"]:
        """Return the first and the second half of the images."""
        first, second = torch.arange(self.count).tensor_split(2)
        return self.subset(first), self.subset(second)

    def resample(self, generator: torch.Generator | None) -> "CalibrationData":
        """Return a bootstrap sample: the same number of images, drawn with replacement."""
        return self.subset(torch.randint(self.count, (self.count,), generator=generator))

    def checksum(self) -> str:
        """Return a checksum of types, shapes and values, independent of the chunks."""
        digest = hashlib.sha256()
        for name in self.names:
            first = self.store.get((name, 0))
            shape = [self.count, *first.shape[1:]]
            digest.update(f"{first.dtype}{shape}".encode())
            for number in range(len(self.sizes)):
                chunk = self.store.get((name, number)).detach().cpu().contiguous().reshape(-1)
                digest.update(chunk.view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def digests(self) -> list[str]:
        """Return a checksum of every image, to recognize it among others."""
        found = []
        for number in range(self.count):
            digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
            for name in self.names:
                image = self._take(name, slice(number, number + 1)).detach().cpu().contiguous()
                digest.update(f"{image.dtype}{list(image.shape)}".encode())
                digest.update(image.reshape(-1).view(torch.uint8).numpy().data)
            found.append(digest.hexdigest())
        return found

    def in_memory(self) -> "CalibrationData | None":
        """Return the same images independent of `close`; None if some of them are on disk."""
        if any(isinstance(value, SpilledTensor) for value in self.store.values.values()):
            return None
        return replace(self, store=TensorStore(math.inf, values=dict(self.store.values)))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every input; the first dimension is the number of images."""
        first = {name: self.store.get((name, 0)) for name in self.names}
        return {name: (self.count, *tensor.shape[1:]) for name, tensor in first.items()}

    def close(self) -> None:
        """Remove the images from the store."""
        self.store.close()

    def _take(self, name: str, index: slice | Tensor) -> Tensor:
        if self.rows is not None:
            return self._gather(name, self.rows[index])
        if isinstance(index, Tensor):
            return self._gather(name, index)
        start, stop, _ = index.indices(self.count)
        if len(self.sizes) == 1:
            return self.store.get((name, 0))[start:stop]
        parts = [
            self.store.get((name, number))[max(start - low, 0) : stop - low]
            for number, (low, high) in enumerate(pairwise(accumulate(self.sizes, initial=0)))
            if low < stop and high > start
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _gather(self, name: str, rows: Tensor) -> Tensor:
        if len(self.sizes) == 1:
            chunk = self.store.get((name, 0))
            return chunk[rows.to(chunk.device)]
        like = self.store.get((name, 0))
        found = like.new_empty((len(rows), *like.shape[1:]))
        for number, (low, high) in enumerate(pairwise(accumulate(self.sizes, initial=0))):
            inside = ((rows >= low) & (rows < high)).nonzero()[:, 0]
            if len(inside):
                found[inside] = self.store.get((name, number))[rows[inside] - low]
        return found


@dataclass(frozen=True, slots=True)
class Batches(Sequence[ExampleInputs]):
    """Batches that are read on demand."""

    data: CalibrationData
    slices: tuple[slice, ...]

    @overload
    def __getitem__(self, index: int) -> ExampleInputs: ...
    @overload
    def __getitem__(self, index: slice) -> "Batches": ...
    def __getitem__(self, index: int | slice) -> "ExampleInputs | Batches":
        if isinstance(index, slice):
            return Batches(self.data, self.slices[index])
        return self.data.batch(self.slices[index])

    def __len__(self) -> int:
        return len(self.slices)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of images of each batch."""
        return tuple(part.stop - part.start for part in self.slices)


def read_images(
    images: Images,
    model: nn.Module | None,
    *,
    store: TensorStore | None = None,
    batch_size: int = 64,
    batch_to_inputs: Callable[[Any], Any] | None = None,
    world: World = World(),  # noqa: B008
    sharded: bool = False,
) -> CalibrationData:
    """Read and validate images, and convert floating-point images to the precision of a network.

    Several ranks each read their share of the batches of a Dataset or a DataLoader over one, and
    send it to the others; the order is that of a single process.

    Parameters
    ----------
    images : Tensor, Dataset or iterable
        Images from any source.
    model : nn.Module or None
        Determines precision, device, and the number of inputs in a batch; if None, single precision
        on the CPU and one input.
    store : TensorStore, optional
        Stores the batches of loaders; by default in memory.
    batch_size : int, default 64
        Batch size for a Dataset.
    batch_to_inputs : callable, optional
        Converts one batch to a tensor, a tuple of positional or a dict of keyword arguments.
    world : World, optional
        The ranks that call this together; by default a single process.
    sharded : bool, default False
        Whether each rank passes other images; all ranks obtain all of them.
    """
    parameters = () if model is None else model.parameters()
    like = next((p for p in parameters if p.is_floating_point()), torch.zeros(()))
    own = isinstance(images, Tensor | np.ndarray | Mapping)
    kept = TensorStore(math.inf) if own or store is None else store
    needed = 1 if model is None else _positional_inputs(model)
    reader = _BatchReader(kept, like.dtype)
    if batch_to_inputs is None and model is not None:
        images = _stack_images(images, model)
    batches, is_divided = _batches_of_rank(_batches_of(images, batch_size), world, sharded)
    found = (
        _to_inputs(
            batch if batch_to_inputs is None else batch_to_inputs(batch),
            needed,
            keep_tuple=batch_to_inputs is not None,
        )
        for batch in batches
    )
    if is_divided:
        found = (inputs for _, inputs in world.exchange(("", inputs) for inputs in found))
    for inputs in found:
        reader.add(inputs)
    return reader.finish(like.device)


def _batches_of_rank(
    batches: Iterable[Any], world: World, sharded: bool
) -> tuple[Iterable[Any], bool]:
    """Return the batches that this rank reads, and whether the others read other ones."""
    if world.size == 1:
        return batches, False
    loader = batches if isinstance(batches, DataLoader) and not sharded else None
    if loader is not None and isinstance(loader.sampler, DistributedSampler):
        raise BadImagesError(
            "the loader has a DistributedSampler, which reads some images twice: pass the loader "
            "without it, entrim divides the images among the ranks"
        )
    if loader is None or isinstance(loader.dataset, IterableDataset) or not loader.batch_sampler:
        world.check_equal({"images": "not a Dataset", "sharded": str(sharded)})
        return batches, sharded
    world.check_equal({"images": f"{len(loader.dataset)} in a Dataset", "sharded": "False"})  # pyright: ignore[reportArgumentType]
    numbers = world.from_root(partial(list, loader.batch_sampler))
    own = DataLoader(
        loader.dataset,
        batch_sampler=numbers[world.rank :: world.size],
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )
    return own, True


@dataclass(slots=True)
class _BatchReader:
    """Validates and stores one batch after the other."""

    store: TensorStore
    dtype: torch.dtype
    sizes: list[int] = field(default_factory=list)
    first: dict[str, Any] = field(default_factory=dict)
    varied: bool = False

    def add(self, inputs: Mapping[str, Any]) -> None:
        if not self.sizes:
            self.first = dict(inputs)
            if not self.names:
                raise BadImagesError("the batches contain no tensor of images: pass tensors")
        if inputs.keys() != self.first.keys():
            raise BadImagesError("the batches have different inputs: pass batches of one kind")
        tensors = {name: inputs[name] for name in self.names}
        for name, tensor in tensors.items():
            self._check_shape(name, tensor)
        lengths = {len(tensor) for tensor in tensors.values()}
        if len(lengths) > 1:
            raise BadImagesError(
                f"the inputs have {sorted(lengths)} images: pass the same number for each"
            )
        if lengths == {0}:
            return
        done = sum(self.sizes)
        for name, tensor in tensors.items():
            _check_values(tensor, done)
            chunk = tensor.clone() if tensor.is_inference() else tensor.detach()
            if chunk.is_floating_point():
                chunk = chunk.to(self.dtype)
            self._note_variety(name, chunk)
            self.store.put((name, len(self.sizes)), chunk)
        self.sizes += lengths

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, value in self.first.items() if _holds_images(value))

    def finish(self, device: torch.device) -> CalibrationData:
        if not self.sizes:
            raise BadImagesError("there are no images: pass a few hundred")
        floating = any(self.first[name].is_floating_point() for name in self.names)
        if sum(self.sizes) > 1 and floating and not self.varied:
            raise BadImagesError(
                f"all {sum(self.sizes)} images are the same: pass different ones, as in the use of "
                "the network"
            )
        fixed = {name: value for name, value in self.first.items() if name not in self.names}
        return CalibrationData(self.store, self.names, tuple(self.sizes), device, fixed)

    def _check_shape(self, name: str, tensor: Any) -> None:
        if not _holds_images(tensor):
            raise BadImagesError("a batch contains no images: pass tensors with images first")
        known = tuple(self.first[name].shape[1:])
        if tuple(tensor.shape[1:]) != known:
            shapes = sorted({known, tuple(tensor.shape[1:])})
            raise BadImagesError(
                f"the images have shapes {shapes}: resize or crop them to one shape (a pair of "
                "images and labels is one batch: pass [(images, labels)])"
            )

    def _note_variety(self, name: str, chunk: Tensor) -> None:
        """Record whether images differ in any floating-point input; a mask may be constant."""
        if not self.varied and chunk.is_floating_point():
            reference = chunk[:1] if not self.sizes else self.store.get((name, 0))[:1]
            self.varied = not bool((chunk == reference.to(chunk)).all())


def _stack_images(images: Images, model: nn.Module) -> Images:
    """Return a list of single images as one tensor; raise for a single image.

    A tensor is a single image if it has the shape (channels, height, width) of the inputs of the
    first convolution: as a batch, it would have as many images as channels.
    """
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = None if first is None else first.in_channels

    def is_single(image: object) -> bool:
        shape = image.shape if isinstance(image, Tensor | np.ndarray) else ()
        return len(shape) == 3 and shape[0] == channels

    if is_single(images):
        raise BadImagesError("this is a single image: pass a few hundred, stacked in axis 0")
    if isinstance(images, list | tuple) and images and all(map(_is_sample, images)):
        images = [_tensor(image) for image, *_ in images]
        if len({image.shape for image in images}) == 1:
            return torch.stack(images)
    if not isinstance(images, list | tuple) or not images or not all(map(is_single, images)):
        return images
    shapes = sorted({tuple(image.shape) for image in images})
    if len(shapes) > 1:
        raise BadImagesError(
            f"the images have shapes {shapes[0]} and {shapes[-1]}: resize or crop them to one shape"
        )
    return torch.stack([_tensor(image) for image in images])


def _is_sample(value: object) -> bool:
    """Whether `value` is one image with a label, an element of a Dataset."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    image, label = value
    return isinstance(image, Tensor | np.ndarray) and (
        isinstance(label, int | float) or np.shape(label) == ()
    )


def _batches_of(images: Images, batch_size: int) -> Iterable[Any]:
    if isinstance(images, Tensor | np.ndarray | Mapping):
        return [images]
    if isinstance(images, Dataset) and not isinstance(images, DataLoader):
        loader_size = batch_size
        if isinstance(images, IterableDataset) or hasattr(images, "__len__"):
            return DataLoader(images, batch_size=loader_size)
        raise BadImagesError("the Dataset has no length: pass a DataLoader over it")
    if isinstance(images, str | bytes) or not isinstance(images, Iterable):
        raise BadImagesError(
            "images must be a tensor (images, channels, height, width), a Dataset or an iterable "
            f"of batches, got {type(images).__name__}; only the command line reads files"
        )
    return images


def _positional_inputs(model: nn.Module) -> int:
    """Return the number of positional inputs that the network requires, at least one."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return max(1, sum(p.kind in kinds and p.default is p.empty for p in parameters))


def _holds_images(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _to_inputs(batch: Any, needed: int, *, keep_tuple: bool) -> dict[str, Any]:
    """Return the inputs in `batch` by name.

    The first elements of a sequence are passed by position, as many as the network requires; labels
    are ignored. All results of `batch_to_inputs` are passed.
    """
    if isinstance(batch, Mapping):
        return {str(name): value for name, value in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str) and len(batch):
        count = len(batch) if keep_tuple else min(needed, len(batch))
        if count > 1:
            return {str(k): _tensor(value) for k, value in enumerate(batch[:count])}
        batch = batch[0]
    return {_SINGLE: _tensor(batch)}


def _tensor(value: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadImagesError(
            "a batch must be a tensor or a pair (images, labels) of tensors, got "
            f"{type(value).__name__}: convert and normalize the images as in the training"
        ) from error
    if tensor.dim() == 0:
        raise BadImagesError("a batch must be a tensor of images, got a single number")
    return tensor


def _check_values(tensor: Tensor, done: int) -> None:
    if not tensor.is_floating_point():
        if tensor.dtype in (torch.uint8, torch.int8) and tensor.dim() > 2:
            raise BadImagesError(
                f"images must be floating-point, got {tensor.dtype}: convert them to float and "
                "normalize them as in the training of the network"
            )
        return
    flat = tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None]
    bad = (~torch.isfinite(flat).all(1)).nonzero()[:, 0]
    if len(bad):
        raise BadImagesError(
            f"{len(bad)} of {len(tensor)} images contain NaN or infinity, the first is number "
            f"{done + int(bad[0])}: remove them"
        )
