"""The second moments of all layers of a network, in files that can be merged.

A file contains sums over rows, no images. It names the network by checksums, and the sets of images
that were counted, so that a set cannot be counted twice.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from entrim.calibration.collect import LayerStatistics
from entrim.calibration.patch_gram import Gram
from entrim.errors import MomentsError, SaveError
from entrim.graph.eager import ExampleInputs
from entrim.storage import atomic
from entrim.storage.checkpoint import fingerprint

FORMAT = 1
EXAMPLES = 4
"""Number of random images in the example inputs."""
_SINGLE = ""
"""The name of the only input of a network."""
_KINDS = ("fitting", "holdout")
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class ImageSet:
    """The images of one call of `collect`."""

    id: str
    """Checksum of the images, independent of their order."""
    fitting: int
    """Number of images that enter the sums for the selection and the weights."""
    holdout: int
    """Number of images that enter the sums for the errors."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class NetworkMoments:
    """The second moments of the inputs of all layers of a network.

    `collect` returns them for the images of one site, `merge` adds those of several sites, and
    `sparsify` accepts them instead of images.

    Attributes
    ----------
    model : str
        Name of the class of the network.
    network : dict
        Checksums of the structure and the weights of the network.
    input_shapes : dict
        Shape of one image for every input of the network, by name; empty if there are inputs that
        random numbers cannot replace.
    image_sets : tuple of ImageSet
        The sets of images that were counted, and their sizes.
    fitting, holdout : dict
        Sums over the images for fitting and over the hold-out images, by layer.

    Examples
    --------
    >>> import torch, entrim
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> sites = [entrim.collect(net, torch.randn(300, 8)) for _ in range(2)]
    >>> moments = entrim.merge(sites)
    >>> moments
    <NetworkMoments of Sequential: 1 layer, 500 images and 100 hold-out images in 2 sets>
    >>> entrim.sparsify(net, moments, entrim.Widths({"0": 4})).model[0].out_features
    4
    """

    model: str
    network: Mapping[str, str]
    input_shapes: Mapping[str, tuple[int, ...]]
    image_sets: tuple[ImageSet, ...]
    fitting: Mapping[str, Gram]
    holdout: Mapping[str, Gram]

    def __repr__(self) -> str:
        return f"<NetworkMoments of {self.model}: {self.extent}>"

    @property
    def extent(self) -> str:
        """The numbers of layers, images and sets, as one phrase."""
        layers, sets = len(self.fitting), len(self.image_sets)
        fitting, holdout = (sum(getattr(one, kind) for one in self.image_sets) for kind in _KINDS)
        return (
            f"{layers} layer{'s' * (layers != 1)}, {fitting:,} images and {holdout:,} hold-out "
            f"images in {sets} set{'s' * (sets != 1)}"
        )

    @property
    def images(self) -> int:
        """The number of images, hold-out images included."""
        return sum(one.fitting + one.holdout for one in self.image_sets)

    def __add__(self, other: "NetworkMoments") -> "NetworkMoments":
        """Return the moments of the images of both operands."""
        if not isinstance(other, NetworkMoments):
            return NotImplemented
        check_network(self, other.model, other.network, "cannot be added")
        known = {one.id for one in self.image_sets}
        if twice := [one.id for one in other.image_sets if one.id in known]:
            raise MomentsError(
                f"the set of images {twice[0]} would be counted twice: merge every part once"
            )
        if self.fitting.keys() != other.fitting.keys():
            (layer, *_) = sorted(self.fitting.keys() ^ other.fitting.keys())
            raise MomentsError(
                f"only one of the parts contains the layer {layer}: collect all parts with the "
                "same memory_limit"
            )
        if bool(self.holdout) != bool(other.holdout):
            raise MomentsError(
                "only one of the parts has hold-out images: collect all of them with or all "
                "without holdout=0"
            )
        return replace(
            self,
            input_shapes=self.input_shapes or other.input_shapes,
            image_sets=(*self.image_sets, *other.image_sets),
            fitting=_add(self.fitting, other.fitting),
            holdout=_add(self.holdout, other.holdout),
        )

    def example_inputs(self, model: nn.Module) -> ExampleInputs:
        """Return random inputs of the network, with the precision and device of its weights."""
        if not self.input_shapes:
            raise MomentsError(
                "the inputs of this network cannot be drawn at random: pass example_inputs="
            )
        parameters = (p for p in model.parameters() if p.is_floating_point())
        like, generator = next(parameters, torch.zeros(())), torch.Generator().manual_seed(0)
        drawn = {
            name: torch.randn(EXAMPLES, *shape, generator=generator).to(like)
            for name, shape in self.input_shapes.items()
        }
        if drawn.keys() == {_SINGLE}:
            return drawn[_SINGLE]
        return tuple(drawn.values()) if "0" in drawn else drawn

    def checksum(self) -> str:
        """Return a checksum of the sums and of everything that describes them."""
        tensors = self._tensors()
        return _seal(self._header(), tensors)

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the moments to a safetensors file, which is replaced in one step.

        Raises
        ------
        SaveError
            If the file cannot be written.
        """
        place, header, tensors = Path(file), self._header(), self._tensors()
        content = safetensors.torch.save(
            tensors, {"moments": header, "seal": _seal(header, tensors)}
        )
        try:
            atomic.write(place, content)
        except OSError as error:
            raise SaveError(
                f"{place} cannot be written ({error.strerror}): free disk space, or choose another "
                "file"
            ) from error

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> "NetworkMoments":
        """Return the moments in a file that `save` wrote, validated.

        Raises
        ------
        MomentsError
            If the file does not exist, is damaged, has a newer format, or contains something other
            than sums of squares and products.
        """
        place = Path(file)
        try:
            with safe_open(place, "pt") as stored:
                notes = stored.metadata() or {}
                if "moments" not in notes:
                    raise MomentsError(f"{place} contains no moments: pass a file of collect")
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            header = json.loads(notes["moments"])
            if header["format"] > FORMAT:
                raise MomentsError(
                    f"{place} has format {header['format']}, this version reads up to {FORMAT}: "
                    "update entrim"
                )
            if notes["seal"] != _seal(notes["moments"], tensors):
                raise MomentsError(f"{place} was modified, its checksum differs: copy it again")
            found = cls._of(header, tensors)
        except OSError as error:
            raise MomentsError(
                f"{place} cannot be read ({error}): pass a file of collect"
            ) from error
        except (SafetensorError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, MomentsError):
                raise
            raise MomentsError(f"{place} is damaged ({error}): copy it again") from error
        for sums in (found.fitting, found.holdout):
            for layer, gram in sums.items():
                _check_sums(place, layer, gram)
        return found

    @classmethod
    def _of(cls, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "NetworkMoments":
        sums = {
            kind: {
                layer: Gram(_unpack(tensors[f"{kind} {layer}"]), count)
                for layer, count in header["rows"][kind].items()
            }
            for kind in _KINDS
        }
        return cls(
            model=header["model"],
            network=header["network"],
            input_shapes={name: tuple(shape) for name, shape in header["inputs"].items()},
            image_sets=tuple(ImageSet(**one) for one in header["images"]),
            **sums,
        )

    def _header(self) -> str:
        sets = [{"id": s.id, "fitting": s.fitting, "holdout": s.holdout} for s in self.image_sets]
        return json.dumps(
            {
                "format": FORMAT,
                "model": self.model,
                "network": dict(self.network),
                "inputs": dict(self.input_shapes),
                "images": sets,
                "rows": {
                    kind: {layer: gram.count for layer, gram in getattr(self, kind).items()}
                    for kind in _KINDS
                },
            }
        )

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f"{kind} {layer}": _pack(gram.sums)
            for kind in _KINDS
            for layer, gram in getattr(self, kind).items()
        }


def merge(parts: Sequence[NetworkMoments | str | os.PathLike[str]]) -> NetworkMoments:
    """Return the moments of all images in `parts`: their sums.

    Files are read one after the other. The result does not contain more layers than its parts, so
    the memory for two of them is enough.

    Parameters
    ----------
    parts : sequence of NetworkMoments or path
        Results of `collect` or `merge`, or files with them.

    Returns
    -------
    NetworkMoments

    Raises
    ------
    MomentsError
        If a set of images occurs twice, the parts belong to different networks, or a file is
        damaged.

    Examples
    --------
    >>> import torch, entrim
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> part = entrim.collect(net, torch.randn(300, 8))
    >>> entrim.merge([part, part])
    Traceback (most recent call last):
    entrim.errors.MomentsError: ... would be counted twice: merge every part once
    """
    if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
        raise MomentsError("there are no parts: pass a list of moments, or of files with them")
    loaded = (p if isinstance(p, NetworkMoments) else NetworkMoments.load(p) for p in parts)
    return reduce(lambda total, part: total + part, loaded)


def describe_network(model: nn.Module, statistics: LayerStatistics) -> dict[str, str]:
    """Return checksums of the structure and of the weights of a network.

    The structure consists of the names of all tensors and the geometry of every layer.
    """
    tensors = statistics.forward.tensors
    layers = {layer: repr(found.geometry) for layer, found in statistics.consumers.items()}
    structure = json.dumps([type(model).__name__, list(tensors), layers])
    return {
        "structure": hashlib.sha256(structure.encode()).hexdigest(),
        "weights": fingerprint(tensors.values()),
    }


def check_network(
    moments: NetworkMoments, model: str, network: Mapping[str, str], what: str
) -> None:
    """Raise a MomentsError that names the difference if `moments` belong to another network."""
    differences = [name for name in network if moments.network.get(name) != network[name]]
    if differences:
        raise MomentsError(
            f"moments of a {moments.model} and of a {model} with another "
            f"{' and other '.join(differences)} {what}: use the same network with the same weights "
            "at all sites"
        )


def _add(first: Mapping[str, Gram], second: Mapping[str, Gram]) -> dict[str, Gram]:
    return {
        layer: Gram(gram.sums + second[layer].sums, gram.count + second[layer].count)
        for layer, gram in first.items()
    }


def _pack(sums: Float[Tensor, "groups n1 n1"]) -> Float[Tensor, "groups packed"]:
    """Return the upper triangles of symmetric matrices."""
    rows, columns = torch.triu_indices(sums.shape[-1], sums.shape[-1])
    return sums[:, rows, columns].contiguous()


def _unpack(packed: Float[Tensor, "groups packed"]) -> Float[Tensor, "groups n1 n1"]:
    """Return the symmetric matrices with these upper triangles."""
    size = round((2 * packed.shape[-1]) ** 0.5 - 0.5)
    rows, columns = torch.triu_indices(size, size)
    sums = packed.new_zeros(len(packed), size, size)
    sums[:, rows, columns] = packed
    sums[:, columns, rows] = packed
    return sums


def _check_sums(file: Path, layer: str, gram: Gram) -> None:
    """Raise a MomentsError if matrices are not sums of z z' with z = (1; x) over `count` rows."""
    sums, squares = gram.sums, gram.sums.diagonal(dim1=1, dim2=2)
    bound = (squares[:, :, None] * squares[:, None]).clamp_min(0).sqrt()
    is_valid = (
        sums.dtype == torch.float64
        and bool(torch.isfinite(sums).all())
        and bool((squares >= 0).all())
        and bool((sums.abs() <= bound * (1 + _TOLERANCE) + _TOLERANCE).all())
        and bool(((sums[:, 0, 0] - gram.count).abs() <= _TOLERANCE * gram.count).all())
    )
    if not is_valid:
        raise MomentsError(
            f"the moments of {layer} in {file} are not sums of squares and products of "
            f"{gram.count:,} rows: collect them again"
        )


def _seal(header: str, tensors: Mapping[str, Tensor]) -> str:
    names = sorted(tensors)
    digest = fingerprint(tensors[name] for name in names)
    return hashlib.sha256(json.dumps([header, names, digest]).encode()).hexdigest()
