"""The scikit-learn estimators: scikit-learn's own contract, and sites that merge to the pooled model."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from fedlog.errors import InputError
from fedlog.estimators import FedLinearHead, FedLogHead


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "estimator", [FedLogHead(), FedLogHead("ridge"), FedLogHead("ncm"), FedLinearHead()], ids=lambda each: repr(each)
)
def test_scikit_learns_own_contract(estimator: object) -> None:
    # Some checks skip themselves where pandas or another array library is not installed.
    results = check_estimator(estimator, on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 30


@pytest.mark.parametrize("head", ["lda", "ridge", "fedlog", "ncm"])
def test_sites_merge_to_the_pooled_classifier(head: str) -> None:
    X, y = load_iris(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    order = np.random.default_rng(0).permutation(150)
    pooled = FedLogHead(head).fit(X, y)  # type: ignore[arg-type]
    parts = np.array_split(order, [20, 90])
    sites = [FedLogHead(head).partial_fit(X[p], y[p], classes=[0, 1, 2]) for p in parts]  # type: ignore[arg-type]
    merged = sites[0].merge(sites[1]).merge(sites[2])
    assert np.abs(merged.coef_ - pooled.coef_).max() < 1e-10 * max(1, np.abs(pooled.coef_).max())
    assert (merged.predict(X) == pooled.predict(X)).all()
    assert pooled.score(X, y) > 0.8


def test_sites_merge_to_the_pooled_regression_and_intervals_cover() -> None:
    X, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(y))
    train, test = order[:300], order[300:]
    pooled = FedLinearHead().fit(X[train], y[train])
    sites = [FedLinearHead().fit(X[part], y[part]) for part in np.array_split(train, [40, 120])]
    merged = sites[0].merge(sites[1]).merge(sites[2])
    assert np.abs(merged.coef_ - pooled.coef_).max() < 1e-8
    low, high = merged.predict_interval(X[test], 0.9)
    assert 0.83 < np.mean((low <= y[test]) & (y[test] <= high)) < 0.97
    ours = cross_val_score(FedLinearHead(), X, y, cv=5).mean()
    theirs = cross_val_score(BayesianRidge(), X, y, cv=5).mean()
    assert ours == pytest.approx(theirs, abs=0.02)


def test_what_is_wrong_is_said() -> None:
    X, y = load_iris(return_X_y=True)
    started = FedLogHead().partial_fit(X[:40], y[:40], classes=[0, 1])
    with pytest.raises(ValueError, match="expected labels among the classes of the first call, found others"):
        started.partial_fit(X[100:], y[100:])
    with pytest.raises(ValueError, match="different classes"):
        started.merge(FedLogHead().fit(X, y))


@pytest.mark.parametrize("value", [1 / 3, 0.1, 5.0])
def test_a_column_that_does_not_vary_has_no_say_in_a_regression(value: float) -> None:
    X, y = load_diabetes(return_X_y=True)
    flat = np.column_stack([X, np.full(len(X), value)])
    whole, found = FedLinearHead().fit(X, y), FedLinearHead().fit(flat, y)
    assert found.coef_[-1] == 0
    moved = flat + np.eye(flat.shape[1])[-1]  # another value than in training
    for ours, theirs in zip(found.predict_interval(moved), whole.predict_interval(X), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    one = FedLinearHead().fit(flat[:1], y[:1])
    np.testing.assert_allclose(one.predict(moved), y[0])


def test_one_record_gives_no_interval() -> None:
    """One record says how large the number is, not how much it varies: an interval is refused."""
    head = FedLinearHead().fit([[1.0, 2.0]], [3.0])
    assert head.predict([[1.0, 2.0]])[0] == pytest.approx(3.0)
    with pytest.raises(InputError, match="at least 2 records"):
        head.predict_interval([[1.0, 2.0]])
    low, high = head.partial_fit([[2.0, 1.0]], [5.0]).predict_interval([[1.0, 2.0]])
    assert low[0] < high[0]
