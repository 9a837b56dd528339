"""Collect the second moments of all layers at one site, for a calibration without its images."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from entrim.calibration.collect import LayerStatistics, check_images
from entrim.calibration.consumers import BoundConsumer
from entrim.calibration.data import CalibrationData, Images, read_images
from entrim.calibration.patch_gram import Gram
from entrim.calibration.tensor_store import Scratch, TensorStore
from entrim.callbacks import Callback, Progress
from entrim.config import Calibration, check_seed, check_type, explain_options
from entrim.display.bars import make_display
from entrim.errors import BadImagesError, BadSettingError, CalibrationWarning
from entrim.federated.network_moments import (
    EXAMPLES,
    ImageSet,
    NetworkMoments,
    describe_network,
)
from entrim.graph.channel_graph import ChannelGraph
from entrim.graph.eager import ExampleInputs, isolate_random_state, neutral_context, unwrap
from entrim.surgery.trace import trace

MIN_IMAGES = 50
"""Smallest number of images in a sum: a sum over a few rows can reveal them."""


@explain_options
@neutral_context()
@isolate_random_state()
def collect(
    model: nn.Module,
    images: Images,
    *,
    calibration: Calibration = Calibration(),  # noqa: B008
    example_inputs: ExampleInputs | None = None,
    callbacks: Sequence[Callback] | None = None,
    seed: int = 0,
) -> NetworkMoments:
    """Return the second moments of all layers on the images of one site, without the images.

    Every output position of every image is counted, so that the moments of several sites add up
    to those of all images. The sums contain no image, but they describe the images; the page on
    calibration without sharing images explains what they can reveal.

    Parameters
    ----------
    model : nn.Module
        The network, with the same weights at all sites; it is not modified.
    images : Tensor or iterable
        Images as for `sparsify`.
    calibration : Calibration, default Calibration()
        How the images are read: `batch_size`, `batch_to_inputs`, `holdout`, `memory_limit`,
        `scratch_limit` and `scratch_dir`. Other fields have no effect.
    example_inputs : Tensor, tuple or dict, optional
        Inputs with which the network is traced; by default the first four images.
    callbacks : list of Callback, optional
        As for `sparsify`.
    seed : int, default 0
        Seed of the hold-out images.

    Returns
    -------
    NetworkMoments
        Sums over the images for fitting, and over the hold-out images, on which layer errors are
        measured.

    Raises
    ------
    BadImagesError
        If one of the sums would contain fewer than 50 images.

    Examples
    --------
    >>> import torch, entrim
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> entrim.collect(net, torch.randn(300, 8)).image_sets[0].holdout
    50
    """
    check_type("calibration", calibration, Calibration)
    if isinstance(calibration.n_positions, int):
        raise BadSettingError(
            "every position is counted, so that all images have the same weight: leave "
            "n_positions out"
        )
    model, seed = unwrap(model), check_seed(seed)
    folder = calibration.scratch_dir
    scratch = Scratch(
        None if folder is None else Path(folder),
        limit=calibration.scratch_limit,
        memory_limit=calibration.stored_memory,
    )
    data = read_images(
        images,
        model,
        store=TensorStore(calibration.memory_limit // 2, scratch),
        batch_size=calibration.batch_size,
        batch_to_inputs=calibration.batch_to_inputs,
    )
    progress = Progress.of(callbacks, make_display)
    try:
        held = calibration.holdout_size(data.count)
        _check_count(data.count - held, held)
        fitting, holdout = data.split(held, seed)
        examples = fitting.batch(slice(0, EXAMPLES)) if example_inputs is None else example_inputs
        with progress.run("collect"):
            with progress.stage("trace"):
                graph = trace(model, examples)
            collector = _SumCollector(model, graph, calibration, scratch, progress)
            sums, network = collector.sums_on(fitting, check=True)
            return NetworkMoments(
                model=type(model).__name__,
                network=network,
                input_shapes=_input_shapes(data),
                image_sets=(ImageSet(_id_of(data), fitting.count, held),),
                fitting=sums,
                holdout=collector.sums_on(holdout)[0] if held else {},
            )
    finally:
        data.close()
        scratch.close()


@dataclass(frozen=True, slots=True)
class _SumCollector:
    """One network at one site; collects sums on parts of the images."""

    model: nn.Module
    graph: ChannelGraph
    calibration: Calibration
    scratch: Scratch
    progress: Progress

    def sums_on(
        self, images: CalibrationData, *, check: bool = False
    ) -> tuple[dict[str, Gram], dict[str, str]]:
        """Return the sums of every layer on `images`, and the description of the network.

        With `check`, warn if the images differ from those of the training.
        """
        with self.progress.stage("trace"):
            statistics = LayerStatistics.of(
                self.model,
                self.graph,
                images.batches(self.calibration.batch_size),
                memory_limit=self.calibration.memory_limit,
                scratch=self.scratch,
            )
            warning = check_images(statistics.forward) if check else None
        if warning is not None:
            self.progress.warn(warning, CalibrationWarning)
        with statistics.store, self.progress.stage("collect"):
            consumers = self._collectable(statistics, warn=check)
            statistics.collect(consumers, self._report)
            sums = {c.spec.layer: _on_cpu(statistics, c.spec.layer) for c in consumers}
        return sums, describe_network(self.model, statistics)

    def _collectable(self, statistics: LayerStatistics, *, warn: bool) -> list[BoundConsumer]:
        """Return the layers whose sums fit into the memory limit; warn about the others."""
        limit = self.calibration.memory_limit
        consumers = list(statistics.consumers.values())
        large = [c.spec.layer for c in consumers if _sum_bytes(c) > limit]
        if large and warn:
            self.progress.warn(
                f"not collected, because their second moments exceed memory_limit={limit:,} bytes: "
                f"{', '.join(large)}; raise memory_limit, or exclude what they consume",
                CalibrationWarning,
            )
        return [c for c in consumers if c.spec.layer not in large]

    def _report(self, done: int, total: int) -> None:
        self.progress.step("collect", f"batch {done}", done, total, work=(done, total))


def _check_count(fitting: int, holdout: int) -> None:
    """Raise a BadImagesError if a sum would contain few images."""
    if fitting < MIN_IMAGES or 0 < holdout < MIN_IMAGES:
        raise BadImagesError(
            f"a sum over a few images can reveal them, so each needs at least {MIN_IMAGES}: there "
            f"are {fitting} images for fitting and {holdout} hold-out images; pass more images, or "
            f"Calibration(holdout={MIN_IMAGES}) or holdout=0"
        )


def _sum_bytes(consumer: BoundConsumer) -> int:
    return consumer.geometry.groups * (consumer.columns + 1) ** 2 * 8


def _on_cpu(statistics: LayerStatistics, layer: str) -> Gram:
    found = statistics.gram(layer)
    assert isinstance(found, Gram)
    return Gram(found.sums.cpu().clone(), found.count)


def _id_of(images: CalibrationData) -> str:
    """Return a checksum of the set of images, independent of their order and the hold-out."""
    return hashlib.sha256("".join(sorted(images.digests())).encode()).hexdigest()[:32]


def _input_shapes(images: CalibrationData) -> dict[str, tuple[int, ...]]:
    """Return the shape of one image for every input; empty if not all are floating-point."""
    first = {name: images.store.get((name, 0)) for name in images.names}
    if images.fixed or not all(tensor.is_floating_point() for tensor in first.values()):
        return {}
    return {name: tuple(tensor.shape[1:]) for name, tensor in first.items()}
