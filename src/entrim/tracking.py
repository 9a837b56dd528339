"""Callbacks that log a run to an experiment tracker: TensorBoard, MLflow, Weights & Biases."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from entrim.callbacks import Callback, ProgressEvent
from entrim.errors import MissingExtraError

_LONGEST = 500
"""Characters of a setting; MLflow refuses more than 6,000, older versions more than 500."""


class TensorBoardCallback(Callback):
    """Log losses, settings and figures of a run to TensorBoard.

    Needs the extra `tensorboard`.

    Parameters
    ----------
    log_dir : str or path, default "runs/entrim"
        The folder of the event files.
    """

    def __init__(self, log_dir: str | os.PathLike[str] = "runs/entrim") -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("TensorBoardCallback", "tensorboard", "tensorboard") from error
        self._writer = SummaryWriter(os.fspath(log_dir))

    def on_step(self, event: ProgressEvent) -> None:
        """Log the loss of a training."""
        if event.loss is not None:
            self._writer.add_scalar(f"{event.stage}/loss", event.loss, event.done)

    def on_result(
        self, run: str, settings: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> None:
        """Log the settings as text and the figures as scalars."""
        self._writer.add_text(f"{run}/settings", f"```json\n{json.dumps(settings, indent=2)}\n```")
        for name, value in metrics.items():
            self._writer.add_scalar(name, value)

    def on_run_end(self, run: str, seconds: float) -> None:
        """Write everything to the event file."""
        self._writer.flush()


class MLflowCallback(Callback):
    """Log losses, settings and figures of a run to MLflow.

    Logs to the active run of MLflow; to a nested one if a call of the same kind was logged there
    before. Without an active run, each call is a run of its own, which fails if the call fails.
    Needs the extra `mlflow`.
    """

    def __init__(self) -> None:
        try:
            import mlflow  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtraError("MLflowCallback", "mlflow", "mlflow") from error
        self._mlflow: Any = mlflow
        self._owns_run = self._has_result = False

    def on_run_begin(self, run: str) -> None:
        """Start a run, unless an active one can be used."""
        active = self._mlflow.active_run()
        self._has_result, self._owns_run = False, active is None or self._is_used(active, run)
        if self._owns_run:
            self._mlflow.start_run(run_name=run, nested=active is not None)

    def _is_used(self, active: Any, run: str) -> bool:
        """Whether settings of such a call were logged before; MLflow does not replace them."""
        known = self._mlflow.get_run(active.info.run_id).data.params
        return any(name.startswith(f"{run}.") for name in known)

    def on_step(self, event: ProgressEvent) -> None:
        """Log the loss of a training."""
        if event.loss is not None:
            self._mlflow.log_metric(f"{event.stage}/loss", event.loss, step=event.done)

    def on_result(
        self, run: str, settings: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> None:
        """Log the settings as parameters, and the figures as metrics."""
        flat = {name: str(value)[:_LONGEST] for name, value in _flatten(settings, run)}
        self._mlflow.log_params(flat)
        self._mlflow.log_metrics(dict(metrics))
        self._has_result = True

    def on_run_end(self, run: str, seconds: float) -> None:
        """End the run that this callback has started."""
        if self._owns_run:
            self._mlflow.end_run("FINISHED" if self._has_result else "FAILED")


class WandbCallback(Callback):
    """Log losses, settings and figures of a run to Weights & Biases.

    Logs to the active run of wandb; without one, each call is a run of its own, which fails if the
    call fails. Needs the extra `wandb`.

    Parameters
    ----------
    **options
        Arguments of `wandb.init`, such as `project="pruning"` or `mode="offline"`.
    """

    def __init__(self, **options: Any) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtraError("WandbCallback", "wandb", "wandb") from error
        self._wandb: Any = wandb
        self._options, self._run = {"project": "entrim", **options}, None
        self._owns_run = self._has_result = False

    def on_run_begin(self, run: str) -> None:
        """Start a run, unless there is an active one."""
        self._has_result, self._owns_run = False, self._wandb.run is None
        self._run: Any = self._wandb.run or self._wandb.init(**{"job_type": run} | self._options)

    def on_step(self, event: ProgressEvent) -> None:
        """Log the loss of a training."""
        if event.loss is not None:
            self._run.log({f"{event.stage}/loss": event.loss})

    def on_result(
        self, run: str, settings: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> None:
        """Log the settings as configuration, and the figures as summary."""
        self._run.config.update(dict(_flatten(settings, run)), allow_val_change=True)
        self._run.summary.update(dict(metrics))
        self._has_result = True

    def on_run_end(self, run: str, seconds: float) -> None:
        """End the run that this callback has started."""
        if self._owns_run:
            self._run.finish(exit_code=0 if self._has_result else 1)


def _flatten(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield nested settings by names with dots; patterns are no names, and stay in their dict.

    >>> dict(_flatten({"budget": {"widths": {"*": 0.5}}, "selector": "auto"}, "sparsify"))
    {'sparsify.budget.widths': {'*': 0.5}, 'sparsify.selector': 'auto'}
    """
    for name, value in settings.items():
        if isinstance(value, Mapping) and value and all(map(str.isidentifier, value)):
            yield from _flatten(value, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}", value
