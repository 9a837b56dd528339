"""The regressions that SPARTAn is compared with, each with its search space."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import ElasticNet, Lasso
from sklearn.model_selection import KFold, RandomizedSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from entrim.spartan import SPARTAnRegressor

TRIALS, FOLDS = 12, 3


def powers(low: float, high: float) -> list[float]:
    """Return as many values as there are trials, evenly spaced in the logarithm."""
    return np.geomspace(low, high, TRIALS).tolist()


@dataclass(frozen=True, slots=True)
class Rival:
    """A regression, its search space, and how to find the features that it uses."""

    name: str
    model: Callable[[], BaseEstimator]
    space: dict[str, list[Any]]
    used: Callable[[Any], np.ndarray] | None = None
    multi_output: bool = True

    def search(self, outputs: int, seed: int) -> RandomizedSearchCV:
        """Return the search, unfitted: the same number of trials on the same folds for all."""
        model, prefix = self.model(), "regressor__model__"
        if outputs > 1 and not self.multi_output:
            model, prefix = MultiOutputRegressor(model), prefix + "estimator__"
        steps = make_pipeline(StandardScaler(), model)
        steps.steps[-1] = ("model", model)
        return RandomizedSearchCV(
            TransformedTargetRegressor(steps, transformer=StandardScaler()),
            {prefix + name: values for name, values in self.space.items()},
            n_iter=TRIALS,
            cv=KFold(FOLDS, shuffle=True, random_state=seed),
            scoring="neg_mean_squared_error",
            random_state=seed,
        )

    def features(self, search: RandomizedSearchCV) -> np.ndarray | None:
        """Return a mask of the features that the best model uses; None for all."""
        if self.used is None:
            return None
        model = search.best_estimator_.regressor_[-1]
        parts = model.estimators_ if isinstance(model, MultiOutputRegressor) else [model]
        return np.maximum.reduce([self.used(part) for part in parts])


def _used_by_coefficient(model: Any) -> np.ndarray:
    return np.abs(np.atleast_2d(model.coef_)).sum(0) > 0


def _used_by_importance(model: Any) -> np.ndarray:
    return model.feature_importances_ > 0


RIVALS = (
    Rival(
        "SPARTAn",
        lambda: SPARTAnRegressor(n_init=5, random_state=0),
        {
            "n_boxes": [1, 2, 3, 4],
            "eps_w": (-np.geomspace(0.003, 0.1, 6)).tolist(),
            "eps_l2": np.geomspace(3e-4, 1e-2, 6).tolist(),
            "eps_r": np.geomspace(2, 50, 6).tolist(),
        },
        _used_by_importance,
    ),
    Rival(
        "Lasso", lambda: Lasso(max_iter=5000), {"alpha": powers(1e-3, 1.0)}, _used_by_coefficient
    ),
    Rival(
        "ElasticNet",
        lambda: ElasticNet(max_iter=5000),
        {"alpha": powers(1e-3, 1.0), "l1_ratio": [0.1, 0.3, 0.5, 0.7, 0.9]},
        _used_by_coefficient,
    ),
    Rival(
        "random forest",
        lambda: RandomForestRegressor(100, random_state=0),
        {"max_features": [0.1, 0.3, 0.6, 1.0], "min_samples_leaf": [1, 2, 4, 8]},
        _used_by_importance,
    ),
    Rival(
        "gradient boosting",
        lambda: GradientBoostingRegressor(random_state=0),
        {
            "learning_rate": np.geomspace(0.03, 0.3, 6).tolist(),
            "max_depth": [1, 2, 3, 4],
            "subsample": [0.5, 0.8, 1.0],
            "max_features": ["sqrt", 0.3, 1.0],
        },
        _used_by_importance,
        multi_output=False,
    ),
    Rival(
        "kernel ridge",
        lambda: KernelRidge(kernel="rbf"),
        {"alpha": powers(1e-3, 10.0), "gamma": powers(1e-5, 1.0)},
    ),
    Rival(
        "small MLP",
        lambda: MLPRegressor(solver="lbfgs", max_iter=200, random_state=0),
        {"hidden_layer_sizes": [(8,), (32,), (32, 16)], "alpha": powers(1e-3, 30.0)},
    ),
)
