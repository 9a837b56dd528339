"""The estimators follow scikit-learn, and find sparse piecewise linear models."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from entrim.errors import BadRowsError, BadSettingError
from entrim.spartan.classifier import eSPAClassifier
from entrim.spartan.regressor import SPARTAnRegressor
from entrim.spartan.selector import SPARTAnSelector
from experiments.benchmarks.piecewise import TRUE, piecewise


@parametrize_with_checks(
    [
        SPARTAnRegressor(n_init=2),
        SPARTAnRegressor(eps_w=0.05, n_init=1),
        SPARTAnRegressor(n_boxes=1, box_weight=0.0, n_init=1),
        SPARTAnSelector(n_init=2),
        eSPAClassifier(n_init=2),
    ]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_checks_of_scikit_learn_pass(estimator: Any, check: Callable[[Any], None]):
    check(estimator)


def unfitted(estimator: Any) -> Any:
    """Return an unfitted copy."""
    return clone(estimator)


def support(selector: Any) -> list[int]:
    """Return the columns that a fitted selector keeps."""
    return np.flatnonzero(selector.get_support()).tolist()


def names_out(transformer: Any, names: list[str] | None = None) -> list[str]:
    """Return the names of the features that a fitted transformer returns."""
    return list(transformer.get_feature_names_out(names))


def bent(seed: int = 0, rows: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of 12 features of which feature 7 decides, with a bend at 0."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 12))
    return x, np.abs(x[:, 7]) + 0.05 * random.normal(size=rows)


def test_a_bend_is_found_with_its_feature_and_its_slopes():
    model = SPARTAnRegressor(n_init=3, random_state=0).fit(*bent())
    assert np.flatnonzero(model.w_).tolist() == [7]
    assert sorted(model.coef_[:, 7].round(1)) == [-1, 1]
    assert model.score(*bent(1)) > 0.95
    assert model.status_.startswith("converged")
    assert model.optimality_residual_ <= 1e-3
    assert (np.diff(model.trace_) <= 0).all()
    assert model.loss_ == model.trace_[-1]
    assert len(model.trace_) == model.n_iter_ + 1


@pytest.mark.parametrize("boxes", ["separate", "touching"])
def test_the_true_features_are_found_among_hundreds_with_fewer_samples(boxes, record_property):
    p = piecewise(boxes, seed=7, rows=150, features=400)
    model = SPARTAnRegressor(n_boxes=3, random_state=0).fit(p.x, p.y)
    error = np.square(model.predict(p.x_test) - p.f_test).mean()
    record_property("share of variance not explained", f"{error:.3f}")
    assert np.flatnonzero(model.w_).tolist() == list(range(TRUE))
    assert error < (0.05 if boxes == "separate" else 0.3)
    assert (
        np.square(LinearRegression().fit(p.x, p.y).predict(p.x_test) - p.f_test).mean() > 2 * error
    )


def test_a_maximum_entropy_w_uses_every_feature():
    model = SPARTAnRegressor(eps_w=5.0, n_init=1, random_state=0).fit(*bent())
    assert (model.w_ > 1e-6).all()
    sharper = SPARTAnRegressor(eps_w=0.01, n_init=2, random_state=0).fit(*bent())
    assert sharper.w_.max() > 3 * model.w_.max()


@pytest.mark.parametrize("eps_w", [-0.02, 0.05])
def test_the_order_of_rows_does_not_matter_and_weights_are_repetitions(eps_w):
    x, y = bent()
    counts = np.random.default_rng(1).integers(0, 3, len(x))
    order = np.random.default_rng(2).permutation(len(x))
    model = SPARTAnRegressor(eps_w=eps_w, n_init=3, random_state=0)
    weighted = unfitted(model).fit(x, y, sample_weight=counts).predict(x)
    repeated = unfitted(model).fit(np.repeat(x, counts, 0), np.repeat(y, counts)).predict(x)
    shuffled = unfitted(model).fit(x[order], y[order], sample_weight=7 * counts[order]).predict(x)
    np.testing.assert_allclose(repeated, weighted, rtol=1e-6)
    np.testing.assert_allclose(shuffled, weighted, rtol=1e-6)


def test_several_targets_share_one_w():
    x, y = bent()
    both = np.stack([y, -2 * y], axis=1)
    model = SPARTAnRegressor(n_init=3, random_state=0).fit(x, both)
    assert model.coef_.shape == (2, 2, 12)
    assert model.intercept_.shape == (2, 2)
    assert model.predict(x).shape == both.shape
    assert model.score(x, both) > 0.95
    one = SPARTAnRegressor(n_init=3, random_state=0).fit(x, y[:, None])
    assert one.predict(x).shape == (len(x), 1)
    np.testing.assert_allclose(
        one.predict(x)[:, 0], SPARTAnRegressor(n_init=3, random_state=0).fit(x, y).predict(x)
    )


def test_a_prediction_is_the_line_of_the_nearest_box():
    x, y = bent()
    model = SPARTAnRegressor(n_init=3, random_state=0).fit(x, y)
    far = (model.w_ * np.square(x[:, None] - model.centers_)).sum(-1)
    box = far.argmin(1)
    assert model.apply(x).tolist() == box.tolist()
    by_hand = model.intercept_[box] + (model.coef_[box] * x).sum(1)
    np.testing.assert_allclose(model.predict(x), by_hand)
    for k in range(model.n_boxes_):
        np.testing.assert_allclose(model.centers_[k], x[model.labels_ == k].mean(0))


def test_features_of_one_block_are_selected_together():
    x, y = bent()
    selector = SPARTAnSelector(block=3, random_state=0).fit(x, y)
    assert support(selector) == [6, 7, 8]
    assert selector.estimator_.w_.shape == (4,)
    assert selector.estimator_.feature_importances_.shape == (12,)


def test_a_selector_returns_feature_names_and_at_most_max_features():
    x, y = bent()
    names = [f"f{i}" for i in range(12)]
    selector = SPARTAnSelector(eps_w=0.05, n_init=2, max_features=2, random_state=0).fit(x, y)
    assert np.shape(selector.transform(x)) == (len(x), 2)
    assert "f7" in names_out(selector, names)
    assert (
        SPARTAnSelector(eps_w=0.05, n_init=2, random_state=0).fit_transform(x, y).shape == x.shape
    )
    selected = SelectFromModel(SPARTAnRegressor(n_init=3, random_state=0)).fit(x, y)
    assert support(selected) == [7]


def test_estimators_work_in_pipelines_searches_and_pickles():
    x, y = bent()
    steps = make_pipeline(
        StandardScaler(), SPARTAnSelector(n_init=3, random_state=0), LinearRegression()
    )
    assert names_out(steps.fit(x, y)[:-1]) == ["x7"]
    search = GridSearchCV(
        make_pipeline(StandardScaler(), SPARTAnRegressor(n_init=2, random_state=0)),
        {"spartanregressor__n_boxes": [1, 2]},
        cv=3,
    ).fit(x, y)
    assert search.best_params_ == {"spartanregressor__n_boxes": 2}
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict(x), search.predict(x))
    assert unfitted(search.best_estimator_).get_params().keys() == again.get_params().keys()


def test_a_class_between_two_clusters_of_another_is_recognized_among_noise():
    random = np.random.default_rng(0)
    x = random.normal(size=(160, 200))
    cluster = random.integers(0, 3, 160)
    x[:, :2] += 4 * cluster[:, None]
    x = (x - x.mean(0)) / x.std(0)
    y = np.where(cluster == 1, "inner", "outer")
    model = eSPAClassifier(n_boxes=3, random_state=0).fit(x[:80], y[:80])
    assert set(np.argsort(model.w_)[-2:]) == {0, 1}
    assert model.score(x[80:], y[80:]) == 1
    assert model.classes_.tolist() == ["inner", "outer"]
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1)
    assert (np.diff(model.trace_) <= 0).all()


def test_the_classifier_satisfies_its_definition():
    x, y = make_blobs(n_samples=90, centers=4, random_state=1, n_features=5)[:2]
    x, y = x / np.std(x, axis=0), np.asarray(y) % 3
    model = eSPAClassifier(n_boxes=4, eps_w=0.1, eps_cl=0.7, n_init=3, random_state=0).fit(x, y)
    w, box = model.w_, model.labels_
    price = np.square(x - model.centers_[box]).sum(0) / (90 * 4)
    surprise = -np.log(model.box_proba_[box, y]).mean()
    assert model.n_boxes_ == 4
    assert model.loss_ == pytest.approx(price @ w + 0.1 * (w @ np.log(w)) + 0.7 * surprise)
    np.testing.assert_allclose(w, np.exp(-price / 0.1) / np.exp(-price / 0.1).sum(), rtol=1e-6)


def test_the_class_probabilities_of_a_box_are_its_frequencies():
    x, y = make_blobs(n_samples=60, centers=3, random_state=3, n_features=2)[:2]
    y = np.where(np.arange(60) % 7 == 0, 0, y)
    weights = np.random.default_rng(0).uniform(0.5, 2, 60)
    model = eSPAClassifier(n_boxes=3, eps_cl=0.01, random_state=0).fit(x, y, weights)
    for k in range(model.n_boxes_):
        inside = model.labels_ == k
        counts = [weights[inside & (y == c)].sum() for c in range(3)]
        np.testing.assert_allclose(model.box_proba_[k], counts / np.sum(counts))


def test_too_few_iterations_warn():
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        SPARTAnRegressor(max_iter=1, n_init=1).fit(*bent())


def test_constant_targets_and_constant_features_are_accepted():
    x, _ = bent()
    assert (
        np.ptp(SPARTAnRegressor(n_init=3, random_state=0).fit(x, np.zeros(len(x))).predict(x)) == 0
    )
    flat = SPARTAnRegressor(n_boxes=1, eps_l2=1e-9).fit(np.zeros((5, 2)), np.arange(5.0))
    np.testing.assert_allclose(flat.predict(np.zeros((1, 2))), 2, rtol=1e-6)


def test_a_ridge_below_rounding_is_raised_and_reported():
    x, y = bent()
    model = SPARTAnRegressor(eps_w=-1e-6, eps_l2=1e-4, n_init=1, tol=0.5).fit(1e9 * x, y)
    assert "ridge raised above rounding error" in model.status_
    assert np.isfinite(model.predict(1e9 * x)).all()


def test_an_unfitted_estimator_raises():
    with pytest.raises(NotFittedError):
        SPARTAnRegressor().apply(np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_boxes": 0}, "n_boxes must be .*, got 0"),
        ({"n_boxes": 500}, "reduce n_boxes"),
        ({"n_init": 0}, "n_init must be .*, got 0"),
        ({"eps_l2": 0.0}, "eps_l2 must be .*, got 0.0"),
        ({"eps_r": -1.0}, "eps_r must be .*, got -1.0"),
        ({"eps_w": float("nan")}, "eps_w must be .*, got nan"),
        ({"box_weight": -1.0}, "box_weight must be .*, got -1.0"),
        ({"tol": 0.0}, "tol must be .*, got 0.0"),
        ({"block": 5}, "must be a multiple of block=5"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_option_out_of_range_is_refused_with_a_remedy(settings, message):
    with pytest.raises(BadSettingError, match=message):
        SPARTAnRegressor(**settings).fit(*bent())


def test_weights_and_other_options_out_of_range_are_refused():
    x, y = bent()
    with pytest.raises(BadRowsError, match="must not be negative"):
        SPARTAnRegressor().fit(x, y, sample_weight=-np.ones(len(x)))
    with pytest.raises(BadSettingError, match=r"max_features must be .*, got 0"):
        SPARTAnSelector(max_features=0).fit(x, y)
    with pytest.raises(BadSettingError, match=r"eps_w must be .*, got -2"):
        eSPAClassifier(eps_w=-2).fit(x, y > 1)


def test_without_scikit_learn_the_import_names_the_extra():
    code = (
        "import sys, entrim; assert 'sklearn' not in sys.modules; sys.modules['sklearn'] = None\n"
    )
    code += "try:\n    import entrim.spartan\nexcept entrim.EntrimError as e:\n    print(e)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "needs scipy and scikit-learn: pip install scipy scikit-learn," in run.stdout, run.stderr
    assert 'pip install ".[spartan]"' in run.stdout


@pytest.mark.parametrize("penalize", [False, True])
def test_a_shifted_target_changes_the_regression_only_if_the_intercept_is_penalized(
    penalize: bool,
) -> None:
    x, y = bent()
    plain, moved = (
        SPARTAnRegressor(
            n_boxes=1, eps_l2=0.5, n_init=1, random_state=0, penalize_intercept=penalize
        ).fit(x, target)
        for target in (y, y + 100)
    )
    shift = float((moved.predict(x) - plain.predict(x)).mean())
    assert (shift == pytest.approx(100)) is not penalize
