"""The pinned cases. This is the only file here that knows how the library is called."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import entrim
from entrim.spartan.classifier import eSPAClassifier
from entrim.spartan.regressor import SPARTAnRegressor
from tests.regression.networks import (
    Draw,
    branches_network,
    images,
    lenet_network,
    resnet_network,
    vgg_network,
)
from tests.regression.results import Result, digest, digests_of

CASES: dict[str, Callable[[], Result]] = {}
UNSEEN = 9
"""The seed of images that no case calibrates with."""
ALL = entrim.Calibration(
    holdout=0,
    n_positions=None,
    sensitivity_widths=(0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02),
    sensitivity_images=256,
)
"""All images, positions and widths are used."""
FIXED_RIDGE = entrim.Reconstruction(ridge=1e-4, mirror=False, mixtures=0, relaxation=0)


def case(function: Callable[[], Result]) -> Callable[[], Result]:
    """Register a case under the name of its function."""
    CASES[function.__name__] = function
    return function


def channels_of(model: nn.Module) -> int:
    """Return the number of channels of the images that `model` reads."""
    return next(m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d))


def sparsify(model: nn.Module, **options: Any) -> entrim.SparsifyResult:
    options = {"calibration": ALL, "reconstruction": FIXED_RIDGE, **options}
    return entrim.sparsify(model, images(channels=channels_of(model)), **options)


def pinned(small: entrim.SparsifyResult, *, roughly: bool = False) -> Result:
    """Return what is pinned of a smaller network; `roughly` is said of the choice of channels."""
    record = small.record
    choice: dict[str, Any] = {}
    numbers: dict[str, Any] = {
        "params": record.after.params,
        "macs": record.after.macs,
        "bytes": record.after.bytes,
        "outputs": outputs_of(small.model),
    }
    if record.error is not None:
        numbers["error"] = record.error
    for group in record.groups:
        found = (group.loss, group.optimality_residual, group.stability)
        for name, value in zip(("loss", "certificate", "stability"), found, strict=True):
            if value is not None:
                choice[f"{name} of {group.name}"] = value
        if group.w is not None:
            choice[f"w of {group.name}"] = group.w
    for layer in record.layers:
        numbers[f"error of {layer.layer}"] = layer.error
    if record.tradeoff:
        numbers["tradeoff params"] = [point.params for point in record.tradeoff]
        numbers["tradeoff macs"] = [point.macs for point in record.tradeoff]
        numbers["tradeoff damage"] = [point.divergence for point in record.tradeoff]
    numbers |= digests_of(small.model)
    kept = {group.name: group.kept for group in record.groups}
    return Result.of(kept, numbers, choice) if roughly else Result.of(kept, numbers | choice)


@torch.no_grad()
def outputs_of(model: nn.Module) -> list[float]:
    """Return the digest of the outputs on images that were not calibrated with."""
    return digest(model(images(64, channels_of(model), seed=UNSEEN)))


@case
def lenet_by_eps() -> Result:
    return pinned(
        sparsify(lenet_network(), budget=entrim.EntropicPenalty(eps_w=-3e-3, eps_l2=3e-3))
    )


@case
def lenet_by_eps_alternating() -> Result:
    small = sparsify(
        lenet_network(),
        budget=entrim.EntropicPenalty(
            eps_w=-3e-3, eps_l2=3e-3, solver="alternating", min_decrease=1e-3
        ),
    )
    return pinned(small, roughly=True)


@case
def lenet_by_params() -> Result:
    return pinned(sparsify(lenet_network(), budget=entrim.Budget(params=0.4)))


@case
def lenet_by_error() -> Result:
    return pinned(sparsify(lenet_network(), budget=entrim.Budget(max_error=0.05)))


@case
def lenet_by_scores() -> Result:
    scores = {
        "conv1": [3.0, 1.0, 4.0, 15.0, 9.0, 2.0, 6.0, 5.0],
        "fc1": [float(7 * k % 20) for k in range(20)],
    }
    return pinned(
        sparsify(
            lenet_network(),
            budget=entrim.Widths({"conv1": 3, "fc1": 0.3}, round_to=4),
            selector=entrim.Scores(scores),
        )
    )


@case
def resnet_by_macs() -> Result:
    return pinned(sparsify(resnet_network(), budget=entrim.Budget(macs=0.5)))


@case
def resnet_by_widths() -> Result:
    return pinned(sparsify(resnet_network(), budget=entrim.Widths(0.5)))


@case
def resnet_paper() -> Result:
    return pinned(sparsify(resnet_network(), **entrim.paper_preset(-1e-2, 1e-2)))


@case
def resnet_each_consumer_alone() -> Result:
    return pinned(
        sparsify(
            resnet_network(),
            budget=entrim.Widths(0.7),
            selector=entrim.EntropicSelector(coupling="max"),
            reconstruction=replace(FIXED_RIDGE, order="independent", batchnorm="reestimate"),
        )
    )


@case
def resnet_by_default() -> Result:
    return pinned(
        entrim.sparsify(resnet_network(), images(channels=3), entrim.Budget(macs=0.5)),
    )


@case
def resnet_with_all_widths_on_the_same_images() -> Result:
    calibration = entrim.Calibration(sensitivity_images=128)
    return pinned(
        entrim.sparsify(
            resnet_network(),
            images(channels=3),
            entrim.Budget(macs=0.5),
            calibration=calibration,
        ),
    )


@case
def vgg_by_default() -> Result:
    return pinned(entrim.sparsify(vgg_network(), images(channels=3), entrim.Widths(0.5)))


@case
def vgg_by_macs() -> Result:
    return pinned(sparsify(vgg_network(), budget=entrim.Budget(macs=0.5)))


@case
def vgg_by_widths() -> Result:
    return pinned(sparsify(vgg_network(), budget=entrim.Widths(0.5)))


@case
def vgg_paper() -> Result:
    return pinned(sparsify(vgg_network(), **entrim.paper_preset(-1e-2, 1e-2)))


@case
def vgg_on_sampled_positions() -> Result:
    return pinned(
        sparsify(
            vgg_network(),
            budget=entrim.EntropicPenalty(per_group={"0": (-1e-2, 1e-2), "*": (-3e-3, 3e-3)}),
            exclude="15",
            calibration=entrim.Calibration(holdout=0, n_positions=8, n_bootstrap=2),
            seed=5,
        )
    )


@case
def vgg_at_the_knee() -> Result:
    return pinned(sparsify(vgg_network()))


@case
def branches_by_params() -> Result:
    return pinned(sparsify(branches_network(), budget=entrim.Budget(params=0.3)))


@case
def branches_by_widths() -> Result:
    return pinned(sparsify(branches_network(), budget=entrim.Widths(0.5)))


@case
def search_in_lenet() -> Result:
    model, unseen = lenet_network(), images(64, 1, seed=UNSEEN)
    with torch.no_grad():
        wanted = model(unseen)

    @torch.no_grad()
    def score(small: nn.Module) -> float:
        return 1 - float((small(unseen) - wanted).square().mean())

    found = entrim.search(
        model,
        images(channels=1),
        score,
        trials=4,
        eps_w=(1e-4, 1e-2),
        eps_l2=(1e-4, 1e-2),
        calibration=ALL,
        reconstruction=FIXED_RIDGE,
    )
    best = found.best(params=0.9)
    result = pinned(found.sparsify(best))
    numbers: dict[str, Any] = {"intact": found.record.intact, "best": best.number}
    for trial in found.record.trials:
        numbers[f"eps of trial {trial.number}"] = [e for pair in trial.eps.values() for e in pair]
        numbers[f"widths of trial {trial.number}"] = list(trial.widths.values())
        for name in ("params", "macs", "lost", "score"):
            if (value := getattr(trial, name)) is not None:
                numbers[f"{name} of trial {trial.number}"] = value
    return Result.of(result.kept, numbers | result.numbers)


@case
def distilled_vgg() -> Result:
    small = sparsify(vgg_network(), **entrim.paper_preset(-3e-3, 3e-3))
    better = entrim.distill(
        small,
        images(seed=2),
        entrim.Distillation(
            epochs=2, batch_size=32, shift=1 / 12, flip=True, mix=False, warmup=0, patience=5
        ),
    )
    done = better.record.distilled
    assert done is not None
    result = pinned(better)
    numbers = {"loss before": done.before, "loss after": done.after, "best epoch": done.best}
    return Result.of(result.kept, numbers | result.numbers)


@case
def solver() -> Result:
    moments = [entrim.Moments.of(*_layer(seed), block=4) for seed in (20, 21)]
    one, eps = moments[0], 1e-2
    answers: dict[str, entrim.Solution | entrim.JointSolution] = {
        "fast": entrim.solve(one, -eps, eps),
        "reference": entrim.solve(one, -eps, eps, solver="alternating", min_decrease=1e-3),
        "joint": entrim.solve(moments, -eps, eps),
        "exact width": entrim.solve_k(one, k=4),
    }
    path = entrim.solve_path(one, [1e-3, 1e-2, 1e-1])
    answers |= {f"path {number}": solution for number, solution in enumerate(path)}
    numbers: dict[str, Any] = {}
    rough: dict[str, Any] = {}
    for name, answer in answers.items():
        into = rough if name == "reference" else numbers
        into[f"loss, {name}"] = answer.loss
        into[f"error, {name}"] = answer.mse
        into[f"certificate, {name}"] = answer.optimality_residual
        into[f"w, {name}"] = answer.w.tolist()
        parts = answer.parts if isinstance(answer, entrim.JointSolution) else [answer]
        for number, part in enumerate(parts):
            into[f"weight {number}, {name}"] = digest(part.weight)
            into[f"bias {number}, {name}"] = digest(part.bias)
    kept = {name: answer.kept.tolist() for name, answer in answers.items()}
    return Result.of(kept, numbers, rough)


@case
def selectors() -> Result:
    moments = entrim.Moments.of(*_layer(20), block=4)
    weight = Draw(22).normal(moments.outputs, moments.columns)
    kept: dict[str, list[int]] = {}
    numbers: dict[str, Any] = {}
    for method in ("entropic", "greedy", "lasso", "magnitude", "random", "exhaustive"):
        generator = torch.Generator().manual_seed(3)
        chosen = entrim.select(moments, k=5, method=method, weight=weight, generator=generator)
        kept[method] = chosen.tolist()
        fit = entrim.refit(moments, chosen)
        numbers[f"error, {method}"] = fit.mse
        numbers[f"weight, {method}"] = digest(fit.weight)
        numbers[f"bias, {method}"] = digest(fit.bias)
    return Result.of(kept, numbers)


def _layer(seed: int) -> tuple[Tensor, Tensor]:
    """Return rectified, correlated inputs of 10 channels with 4 columns each, and 3 outputs."""
    draw = Draw(seed)
    rows, channels, block, outputs = 300, 10, 4, 3
    common = draw.normal(rows, 6) @ draw.normal(6, channels * block)
    x = (common + draw.normal(rows, channels * block)).relu()
    weight = draw.normal(channels, block, outputs) * draw.scales(channels)[:, None, None]
    noise = draw.normal(rows, outputs) / 8
    return x, x @ weight.flatten(0, 1) + noise + 0.5


@case
def spartan_regressor() -> Result:
    draw = Draw(30)
    x = draw.normal(160, 8).numpy()
    sides = np.sign(x[:, 2])
    y = sides * (2 * x[:, 5] - x[:, 2]) + draw.normal(160).numpy() / 16
    model = SPARTAnRegressor(n_boxes=2, n_init=3, random_state=0, penalize_intercept=True).fit(x, y)
    numbers = {
        "loss": model.loss_,
        "certificate": model.optimality_residual_,
        "w": model.w_,
        "coefficients": model.coef_.ravel(),
        "intercepts": model.intercept_.ravel(),
        "centres": digest(model.centers_),
        "predictions": digest(model.predict(x)),
    }
    return Result.of({"w": np.flatnonzero(model.w_), "boxes": model.labels_}, numbers)


@case
def spartan_classifier() -> Result:
    draw = Draw(31)
    x = draw.normal(160, 8).numpy()
    x[:, :2] += 3 * np.sign(x[:, :2])
    y = (x[:, 0] * x[:, 1] > 0) ^ (draw.normal(160).numpy() > 0.8)
    model = eSPAClassifier(n_boxes=4, eps_cl=0.1, n_init=3, random_state=0).fit(x, y.astype(int))
    numbers = {
        "loss": model.loss_,
        "certificate": model.optimality_residual_,
        "w": model.w_,
        "class laws": model.box_proba_.ravel(),
        "centres": digest(model.centers_),
    }
    return Result.of({"boxes": model.labels_, "classes": model.predict(x)}, numbers)
