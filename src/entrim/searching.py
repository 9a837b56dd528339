"""With a metric at hand: eps tuned for each part of the network, cost against score."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from entrim import atomic
from entrim.deciding import collect
from entrim.errors import BadSettingError, MissingExtraError
from entrim.hunting import STRENGTHS, Hunt, Range, Wanted
from entrim.images import Calibration, Images
from entrim.network.eager import neutral_context
from entrim.network.form import kind_of, named
from entrim.network.shelf import Shelf
from entrim.parts import Division, Parts, parts_of
from entrim.pipeline import begin, example_of, look, sparsify
from entrim.randomness import own_randomness
from entrim.recording import versions
from entrim.records import Score, Step
from entrim.run import Run
from entrim.scoring import Metric, check_metric
from entrim.settings import Settings
from entrim.sparsified import Sparsified
from entrim.trials import SearchRecord, Trial, pareto
from entrim.trying import Ground

if TYPE_CHECKING:
    from entrim.studying import Storage

OPTIONS = (
    "batchnorm",
    "correct",
    "coupling",
    "example",
    "layers",
    "memory_limit",
    "mode",
    "positions",
    "preset",
    "refit",
    "ridge",
    "round_to",
    "skip",
)
"""Of `sparsify`; its other options are what a search decides."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Searched:
    """What a search found: the record of all trials, and the way from a trial to its network."""

    record: SearchRecord
    original: nn.Module
    """The network that was handed over, untouched."""
    images: Calibration
    options: Mapping[str, Any]
    seed: int

    @property
    def front(self) -> tuple[Trial, ...]:
        """The trials that no other beats in cost and score, the cheapest first."""
        return self.record.front

    def best(self, *, params: float = 1.0, macs: float = 1.0) -> Trial:
        """Return the trial of the best score with at most these fractions; of equals the cheapest.

        All scored trials are looked at, also those behind the front.
        """
        scored = [trial for trial in self.record.trials if trial.score is not None]
        fitting = [trial for trial in scored if trial.params <= params and trial.macs <= macs]
        if not fitting:
            least = min(scored, key=lambda trial: getattr(trial, self.record.cost))
            raise BadSettingError(
                f"no trial has at most {params:.1%} of the parameters and {macs:.1%} of the MACs; "
                f"the cheapest has {least.params:.1%} and {least.macs:.1%}: ask for more, or "
                "search on with more trials= or a larger eps_w="
            )
        return max(fitting, key=lambda t: (t.score, -getattr(t, self.record.cost), -t.number))

    def smallest(self, score: float) -> Trial:
        """Return the cheapest trial with at least this score; of equals the best.

        `found.smallest(0.99 * found.record.intact)` holds 99 % of what the original reaches.
        """
        good = [trial for trial in self.front if trial.score is not None and trial.score >= score]
        if not good:
            best = self.front[-1]
            raise BadSettingError(
                f"no trial scores {score:.4g}; the best is trial {best.number} with "
                f"{best.score:.4g}: ask for less, or search on with more trials= or a smaller "
                "eps_w="
            )
        return good[0]

    def sparsified(
        self,
        trial: Trial,
        *,
        name: str = "score",
        on: str = "",
        on_step: Callable[[Step], None] | None = None,
    ) -> Sparsified:
        """Return the network of `trial` with its plan and record: `sparsify` at its eps.

        The record holds the score of the search, under this `name` and as measured `on` that.
        """
        generator = torch.Generator().manual_seed(self.seed)
        images = self.images.batch(slice(None))
        small = sparsify(
            self.original,
            images,
            eps=trial.eps,
            generator=generator,
            on_step=on_step,
            **dict(self.options),
        )
        if trial.score is None:
            return small
        score = Score(name=name, before=self.record.intact, after=trial.score, on=on)
        return replace(small, record=replace(small.record, score=score))


@neutral_context()
def search(
    model: nn.Module,
    images: Images,
    score: Metric,
    *,
    patterns: Division = None,
    trials: int = 50,
    cost: str = "params",
    eps_w: Range = STRENGTHS,
    eps_l2: Range = STRENGTHS,
    between: Range = (0.0, 1.0),
    prune: float | None = 2.0,
    storage: str | os.PathLike[str] | None = None,
    name: str = "entrim",
    sampler: str = "tpe",
    seed: int = 0,
    timeout: float | None = None,
    on_step: Callable[[Step], None] | None = None,
    **options: Any,
) -> Searched:
    """Return what is found when eps is tuned for each part of the network, cost against score.

    `score(small)` is your metric of a network in eval mode, the higher the better: accuracy on some
    labelled images that are not those you report on. The moments of all layers are collected once;
    a trial then chooses, rebuilds, cuts and scores. Needs the extra `search` (Optuna).

    - `patterns`: the parts of the network that get their own eps: patterns as in `sparsify`, or
      `{"early": "layer1.*", "late": ["layer2.*", "*"]}`; where several match, the first counts. By
      default four parts of neighbouring groups. Name them where you know what belongs together.
    - `trials`: so many in all, those of earlier runs and other processes on `storage` included.
    - `cost`: "params", or "macs" where time matters more than size.
    - `eps_w`, `eps_l2`: the ranges of -eps_w and eps_l2, on a logarithmic scale. Narrow them to
      search around a setting that you know.
    - `between`: the fractions of the cost that you care for. Trials outside end once the channels
      are chosen, before anything is rebuilt.
    - `prune`: a trial also ends there if an earlier one costs no more and its layers lose so many
      times less by an estimate without labels; None scores all.
    - `storage`: a file that keeps every trial. Call again with the same file to go on after a stop
      or a crash, from several processes at once to share the work: each returns when no trial is
      left to begin, with what is known then. A file of another network, other images or other
      settings is refused; for another `score` take another `name`.
    - `name`: of the search in that file, which may hold several.
    - `sampler`: "tpe", or "random" as the baseline. For comparisons.
    - `seed`: the same seed finds the same, with one process.
    - `timeout`: seconds after which no further trial is begun; with a `storage`, call again to go
      on. Each call tries at least one.
    - `on_step`: called with a `Step` after each batch and trial.
    - `options`: `preset`, `mode`, `refit`, `correct`, `coupling`, `batchnorm`, `layers`, `skip`,
      `round_to`, `ridge`, `positions`, `example` and `memory_limit` as in `sparsify`.

    >>> import torch, entrim
    >>> g = torch.Generator().manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> x = torch.randn(300, 8, generator=g)
    >>> y = net(x).argmax(1)
    >>> found = entrim.search(net, x, lambda n: (n(x).argmax(1) == y).float().mean(), trials=8)
    >>> best = found.best(params=0.8)
    >>> small = found.sparsified(best).model
    >>> small[0].out_features == best.widths["0"] < 16
    True
    """
    wanted = Wanted(
        trials=trials,
        cost=cost,
        eps_w=eps_w,
        eps_l2=eps_l2,
        between=between,
        prune=prune,
        sampler=sampler,
        seed=seed,
        timeout=timeout,
    )
    begun = time.monotonic()
    check_metric(score, "score")
    settings = _settings(options)
    kept = _storage(storage)
    generator = torch.Generator().manual_seed(seed)
    run = begin(model, images, settings, generator, on_step)
    example = example_of(run, options.get("example"))
    with own_randomness():
        scene = look(run, example)
    with Shelf(settings.memory_limit) as grams:
        with own_randomness():
            groups = collect(run, scene, settings.asks(scene.graph, scene.alone), grams)
        parts = parts_of(patterns, groups)
        ground = Ground.of(run, scene, groups, grams, example)
        notebook = kept.notebook(name, wanted.ranges(parts), _fingerprint(run, wanted, parts))
        notebook.draws_by(sampler, seed)
        hunt = Hunt(ground, notebook, parts, wanted, score, begun)
        intact = hunt.go()
    tried = hunt.known()
    record = SearchRecord(
        model=type(run.model).__name__,
        images=run.images.count,
        cost=cost,
        intact=intact,
        settings={**asdict(settings), "parts": parts, **asdict(wanted)},
        versions=versions("optuna"),
        front=pareto(tried, cost),
        trials=tuple(tried),
        seconds=dict(run.seconds),
    )
    return Searched(
        record=record, original=run.model, images=run.images, options=dict(options), seed=seed
    )


def _settings(options: Mapping[str, Any]) -> Settings:
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise BadSettingError(
            f"search does not take {', '.join(unknown)}: of sparsify it takes {', '.join(OPTIONS)}"
        )
    return Settings(**{key: value for key, value in options.items() if key != "example"})


def _storage(file: str | os.PathLike[str] | None) -> "Storage":
    try:
        from entrim.studying import Storage
    except ImportError as error:
        raise MissingExtraError("search", "optuna", "search") from error
    return Storage.of(None if file is None else Path(file))


@contextmanager
def at_work(file: Path) -> Iterator[None]:
    """Keep `file`, the storage of a search, from being forgotten; forget it where nothing ended."""
    try:
        with atomic.together(file):
            yield
    except BaseException:
        forget(file)
        raise


def forget(file: Path) -> bool:
    """Remove a storage in which no trial has ended and at which nobody is at work.

    Return whether it is gone.
    """
    try:
        with atomic.alone(file, wait=False):
            if file.stat().st_size and not _storage(file).empty:
                return False
            file.unlink()
    except BlockingIOError:
        return False
    return True


def _fingerprint(run: Run, wanted: Wanted, parts: Parts) -> dict[str, str]:
    """Return what tells this search from others, in three digests."""
    settings = {key: value for key, value in asdict(run.settings).items() if key != "memory_limit"}
    space = (
        dict(parts),
        wanted.eps_w,
        wanted.eps_l2,
        wanted.cost,
        sorted(settings.items(), key=str),
    )
    return {
        "network": _digest(kind_of(run.model), dict(named(run.model))),
        "images": _digest(repr(dict(run.images.fixed)), run.images.arguments),
        "settings": _digest(repr(space), {}),
    }


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    told = hashlib.sha256(text.encode())
    for name, tensor in tensors.items():
        told.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        told.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return told.hexdigest()
