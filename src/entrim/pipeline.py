"""The order of the stages: trace, collect, choose, rebuild, cut."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from entrim.budget import Budget
from entrim.budgeting import decide_within
from entrim.calibration.data import Images, read_images
from entrim.calibration.tensor_store import Shelf
from entrim.checking import check_images
from entrim.choose import Chosen
from entrim.deciding import Scene, decide, name_eps, stability
from entrim.entropic.moments import MEMORY_LIMIT
from entrim.errors import BadSettingError
from entrim.graph.eager import Example, neutral_context, own_randomness, unwrap
from entrim.rebuilding import cut_in, rebuilt
from entrim.recording import identity, recorded
from entrim.records import Step
from entrim.run import Run
from entrim.settings import RIDGE, Patterns, Settings
from entrim.sparsified import Sparsified
from entrim.storage.checkpoint import Journal
from entrim.surgery.prune import Cut, cut
from entrim.surgery.trace import trace

_EXAMPLE = 4


@neutral_context()
def sparsify(
    model: nn.Module,
    images: Images,
    eps_w: float | None = None,
    eps_l2: float | None = None,
    *,
    preset: str | None = None,
    mode: str | None = None,
    refit: bool | None = None,
    correct: bool | None = None,
    coupling: str = "joint",
    batchnorm: str = "keep",
    layers: Patterns | None = None,
    skip: Patterns = (),
    eps: Mapping[str, tuple[float, float]] | None = None,
    widths: Mapping[str, int | float] | None = None,
    budget: Budget | None = None,
    selector: str | None = None,
    scores: Mapping[str, Tensor | Sequence[float]] | None = None,
    alternation: int | float | None = None,
    round_to: int = 1,
    ridge: float = RIDGE,
    positions: int | None = None,
    resamples: int = 0,
    example: Example | None = None,
    on_step: Callable[[Step], None] | None = None,
    generator: torch.Generator | None = None,
    memory_limit: int = MEMORY_LIMIT,
    journal: str | os.PathLike[str] | Journal | None = None,
) -> Sparsified:
    """Return a smaller network that computes as nearly as possible what `model` does.

    `images` are a few hundred like those the network will see, normalised as in its training: a
    tensor, or an iterable of batches, where labels behind the images are ignored and a dict is
    handed over as keyword arguments. `model` is not touched. Patterns (`*` and `?`) match the name
    of a group or of a layer that produces its channels, as `trace` lists them; where several match,
    the first counts.

    How small: one of the following three. Without any, the widths are those of the knee, where
    cutting more would begin to cost more than it saves; `record.tradeoff` holds the whole curve.

    - `budget=Budget(params=0.3)`: what may remain. Every group is cut on its own to see what that
      does to the outputs, and the widths are those that hurt least under the budget.
    - `eps_w`, `eps_l2`: how strongly few channels are wanted, as in the paper; more cuts more.
      `eps={pattern: (eps_w, eps_l2)}` sets them for some groups, and the others are cut by eps_w
      and eps_l2 all the same, -1e-4 and 1e-4 where they are not given: to cut the named groups
      only, name them in `layers` too.
    - `widths={pattern: 64 or 0.5}`: channels to keep, as a number or a fraction; groups that it
      does not name stay whole unless eps is given too. Channels that are zero on all images, or
      copies of others, are not kept to fill a width up.

    And how:

    - `selector`: how channels are chosen at given widths, see `select`; "entropic" by default,
      "greedy" under a budget. For comparisons.
    - `scores={pattern: one number a channel}`: importances of your own instead of a selector; the
      largest stay, at given widths or under a budget, and the weights are solved again as ever.
    - `layers`, `skip`: look at these groups only; leave these alone.
    - `preset="paper"`: the method as published: every layer alone, no refit, only channels that one
      layer makes and one layer reads.
    - `alternation=3e-3`: choose by the paper's own two steps, until they lower the loss by less
      than this; slower, and with more channels than the minimum has. Needs SciPy; to compare.
    - `mode`: "sequential" (default) rebuilds the layers in order, each on what it will really see;
      "independent" each on the original activations: faster by one pass, less accurate.
    - `refit` (True): solve the weights again, without the shrinkage of eps_l2, once the channels
      are chosen. Without it the weights are those of the entropic solve; another selector, or
      `coupling="max"`, then leaves the old ones.
    - `correct` (True): let a layer that is added to a skip path make up for the drift of that path;
      in sequential mode only.
    - `ridge`: pulls the refit towards the weights of before, relative to each column's own second
      moment; raise it when there are few images.
    - `coupling`: channels that several layers read are chosen for all at once ("joint"), or for
      each alone and then by the largest importance ("max", the paper's proposal).
    - `batchnorm="reestimate"`: give every BatchNorm behind a cut the statistics of these images;
      one that serves several calls keeps its own.
    - `round_to`: widths are multiples of this, rounded up, for hardware that likes them.
    - `positions`: choose by so many random output positions of each image instead of all: faster
      for large images. A sequential rebuild looks at all of them.
    - `resamples`: choose again on so many resampled sets of images, and record how stable the kept
      channels are.
    - `example`: what the network is traced and proven with, by default the first four images.
    - `on_step`: called with a `Step` after each batch, group and layer.
    - `generator`: draws positions, resamples and random selections.
    - `memory_limit`: bytes that second moments or activations may take; activations beyond it wait
      on disk.
    - `journal`: a folder for what is finished, so that a call that was interrupted or killed goes
      on after it, to the same bits with as many threads, when it is made again with the same
      network, images and settings; with anything else it is refused. The folder goes when the
      call ends well.

    >>> import torch, entrim
    >>> g = torch.Generator().manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> small = entrim.sparsify(net, torch.randn(300, 8, generator=g), widths={"0": 4}).model
    >>> small[0].out_features
    4
    """
    settings = Settings(
        eps_w=eps_w,
        eps_l2=eps_l2,
        preset=preset,
        mode=mode,
        refit=refit,
        correct=correct,
        coupling=coupling,
        batchnorm=batchnorm,
        layers=layers,
        skip=skip,
        eps=eps or {},
        widths=widths,
        budget=budget,
        selector=selector,
        alternation=alternation,
        scores={name: _plain(values) for name, values in (scores or {}).items()} or None,
        round_to=round_to,
        ridge=ridge,
        positions=positions,
        resamples=resamples,
        memory_limit=memory_limit,
    )
    kept = journal if isinstance(journal, Journal) else _journal(journal)
    run = begin(model, images, settings, generator, on_step, kept)
    done = _through(run, example_of(run, example))
    if journal is not kept:
        kept.remove()
    return done


def _journal(folder: str | os.PathLike[str] | None) -> Journal:
    return Journal(folder=None if folder is None else Path(folder))


def _plain(scores: Tensor | Sequence[float]) -> tuple[float, ...]:
    if isinstance(scores, Tensor) and scores.ndim != 1:
        raise BadSettingError(
            f"scores have the shape {tuple(scores.shape)}: hand over one number a channel"
        )
    return tuple(map(float, scores))


def begin(
    model: nn.Module,
    images: Images,
    settings: Settings,
    generator: torch.Generator | None,
    on_step: Callable[[Step], None] | None,
    journal: Journal | None = None,
) -> Run:
    """Return the run in which nothing has happened yet but that the images were read."""
    model = unwrap(model)
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    data = read_images(images, like.device, like.dtype)
    sown = _seed_of(generator) if settings.draws else None
    seed = int(torch.randint(2**62, (), generator=generator)) if settings.draws else None
    on_step = on_step or (lambda _: None)
    return Run(model, settings, data, seed, on_step, journal or Journal(), sown=sown)


def _seed_of(generator: torch.Generator | None) -> int | None:
    """Return the seed of a generator that nothing was drawn from yet, by default PyTorch's own."""
    mine = torch.default_generator if generator is None else generator
    new = torch.Generator().manual_seed(mine.initial_seed())
    return mine.initial_seed() if torch.equal(new.get_state(), mine.get_state()) else None


def example_of(run: Run, example: Example | None) -> Example:
    """Return what the network is traced with: `example`, or the first images."""
    return run.images.batch(slice(0, _EXAMPLE)) if example is None else example


def _through(run: Run, example: Example) -> Sparsified:
    """Go through all stages, after what an interrupted run has finished of them."""
    with own_randomness():  # a layer may draw random numbers in eval mode too
        torch.manual_seed(run.seed or 0)
        return _stages(run, example)


def _stages(run: Run, example: Example) -> Sparsified:
    scene = look(run, example)
    known = {} if run.journal.folder is None else identity(run, scene, example)
    with run.journal.opened(known) as finished:
        if finished:
            run.tell("resume", "the interrupted run", finished, finished, "finished before")
        return _onward(run, scene, example)


def _onward(run: Run, scene: Scene, example: Example) -> Sparsified:
    asks = run.settings.asks(scene.graph, scene.alone)
    with Shelf(run.settings.memory_limit) as grams:
        allocation = None
        if run.settings.allocates:
            allocation = decide_within(run, scene, asks, grams, example)
            asks = allocation.asks
        chosen = allocation.chosen if allocation else decide(run, scene, asks, grams)
        overlaps = stability(run, scene, asks, chosen)
        done = build(run, scene, chosen, grams, example)
        if not cut_in(scene, chosen):
            name_eps(run, scene, {name: asks[name] for name in chosen}, grams)
    run.tell("cut", type(run.model).__name__, 1, 1, f"proven to {done.proof.final:.0e}")
    record = recorded(run, scene, asks, chosen, overlaps, allocation, done, example)
    return Sparsified(model=done.model, plan=done.plan, record=record, original=run.model)


def look(run: Run, example: Example) -> Scene:
    """Return the network as it is looked at, traced and its images checked."""
    with run.stage("trace"):
        graph = trace(run.model, example)
        scene = Scene.of(run, graph, run.images)
        check_images(run, scene)
    groups = f"{len(graph.groups)} group{'s' * (len(graph.groups) != 1)}"
    run.tell("trace", type(run.model).__name__, 1, 1, groups)
    return scene


def build(
    run: Run, scene: Scene, chosen: Mapping[str, Chosen], grams: Shelf, example: Example
) -> Cut:
    """Return the network on the chosen channels: its weights solved again, then cut."""
    with run.stage("rebuild"):
        plan = rebuilt(run, scene, chosen, grams)
    with run.stage("cut"):
        return cut(run.model, plan, example, graph=scene.graph)
