"""Linear heads as scikit-learn estimators: fit at each site and merge; the result is the head of all data together.

    site_a, site_b = FedLogHead().fit(Xa, ya), FedLogHead().fit(Xb, yb)
    everyone = site_a.merge(site_b)      # only sums were exchanged

`partial_fit` on parts gives the same head as `fit` on the whole, up to rounding.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedlog.core.heads.gaussian import find_needed_detail, linear_discriminant_head, nearest_mean_head
from fedlog.core.heads.regression import regression_moments, solve_regression
from fedlog.core.heads.ridge import ridge_head
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Prior
from fedlog.core.stats import Moments

Array = NDArray[Any]


def _to_tensor(values: ArrayLike) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))


class FedLogHead(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear classifier, computed from class counts, sums of features and, for `lda` and `ridge`, second moments.

    Args:
        head: lda (shared covariance), ridge (least squares on labels), fedlog (the paper's MAP head, for features of
            about unit variance) or ncm (nearest class mean).
        share: for lda, the share of the identity in the covariance; None chooses it in closed form.
        strength: for ridge, the penalty.
        nu: for fedlog, the number of prior records.

    """

    def __init__(
        self,
        head: Literal["lda", "ridge", "fedlog", "ncm"] = "lda",
        share: float | None = None,
        strength: float = 0.01,
        nu: float = 1.0,
    ) -> None:
        self.head = head
        self.share = share
        self.strength = strength
        self.nu = nu

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Sum these records and solve the head; sums of earlier calls are discarded.

        Args:
            X: features, one row a record.
            y: the records' labels.

        Returns:
            The estimator itself, fitted.

        """
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        self.moments_ = self._moments(np.asarray(X), np.asarray(y))
        return self._solve()

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Add these records to those summed before.

        Args:
            X: features, one row a record.
            y: the records' labels.
            classes: all labels of this and later calls; only for the first call, by default those in `y`.

        Returns:
            The estimator itself, fitted on all records so far.

        """
        first = not hasattr(self, "moments_")
        X, y = validate_data(self, X, y, reset=first)
        check_classification_targets(y)
        if first:
            self.classes_ = np.unique(y if classes is None else classes)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"labels that are not among the classes: {unknown[:5]}; hint: name all labels in classes=")
        added = self._moments(np.asarray(X), np.asarray(y))
        self.moments_ = added if first else self.moments_ + added
        return self._solve()

    def merge(self, other: FedLogHead) -> FedLogHead:
        """Add up the sums of two estimators and solve the head of both their records.

        Args:
            other: an estimator that was fitted on other records, with the same classes.

        Returns:
            A new estimator.

        """
        check_is_fitted(self)
        check_is_fitted(other)
        if not np.array_equal(self.classes_, other.classes_):
            raise ValueError(
                "heads with different classes cannot be merged; hint: name all classes with partial_fit(X, y, classes=)"
            )
        both = FedLogHead(**self.get_params())
        both.classes_, both.n_features_in_ = self.classes_, self.n_features_in_
        both.moments_ = self.moments_ + other.moments_
        return both._solve()

    def decision_function(self, X: ArrayLike) -> Array:
        """The logits of each class, before the softmax.

        Args:
            X: features, one row a record.

        Returns:
            (n, classes); for two classes the difference, (n,).

        """
        check_is_fitted(self)
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict(self, X: ArrayLike) -> Array:
        """The most likely class of each record.

        Args:
            X: features, one row a record.

        Returns:
            (n,) labels.

        """
        check_is_fitted(self)
        found: Array = self.classes_[self._logits(X).argmax(axis=1)]
        return found

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probability of each class for each record.

        Args:
            X: features, one row a record.

        Returns:
            (n, classes): the softmax of the logits; each row sums to 1.

        """
        check_is_fitted(self)
        found: Array = torch.softmax(torch.from_numpy(self._logits(X)), dim=1).numpy()
        return found

    @property
    def statistics_(self) -> Moments:
        """The sums that the head is computed from; sums of several sites can be added with `+`."""
        check_is_fitted(self)
        found: Moments = self.moments_
        return found

    def _logits(self, X: ArrayLike) -> Array:
        values: Array = validate_data(self, X, reset=False)
        found: Array = np.asarray(values, dtype=np.float64) @ self.coef_.T + self.intercept_
        return found

    def _moments(self, X: Array, y: Array) -> Moments:
        labels = torch.from_numpy(np.searchsorted(self.classes_, y))
        return Moments.of(_to_tensor(X), labels, len(self.classes_), find_needed_detail(self.head))

    def _solve(self) -> Self:
        moments: Moments = self.moments_
        solved = {
            "lda": lambda: linear_discriminant_head(moments, self.share),
            "ridge": lambda: ridge_head(moments, self.strength),
            "fedlog": lambda: solve_head(Prior(nu=self.nu).posterior(moments.statistics)).weights,
            "ncm": lambda: nearest_mean_head(moments.statistics),
        }[self.head]()
        weights = solved.numpy()
        self.intercept_, self.coef_ = weights[:, 0], weights[:, 1:]
        return self


class FedLinearHead(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Bayesian linear regression, computed from sums, with predictive intervals.

    Args:
        strength: the strength of the prior on the weights, in units of each feature's spread; None: the one with the
            largest evidence.

    """

    def __init__(self, strength: float | None = None) -> None:
        self.strength = strength

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Sum these records and solve the posterior; sums of earlier calls are discarded.

        Args:
            X: features, one row a record.
            y: the records' targets.

        Returns:
            The estimator itself, fitted.

        """
        X, y = validate_data(self, X, y, y_numeric=True)
        self.moments_ = regression_moments(_to_tensor(X), _to_tensor(y))
        return self._solve()

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Add these records to those summed before.

        Args:
            X: features, one row a record.
            y: the records' targets.

        Returns:
            The estimator itself, fitted on all records so far.

        """
        first = not hasattr(self, "moments_")
        X, y = validate_data(self, X, y, y_numeric=True, reset=first)
        added = regression_moments(_to_tensor(X), _to_tensor(y))
        self.moments_ = added if first else self.moments_ + added
        return self._solve()

    def merge(self, other: FedLinearHead) -> FedLinearHead:
        """Add up the sums of two estimators and solve the regression of both their records.

        Args:
            other: an estimator that was fitted on other records.

        Returns:
            A new estimator.

        """
        check_is_fitted(self)
        check_is_fitted(other)
        both = FedLinearHead(**self.get_params())
        both.n_features_in_ = self.n_features_in_
        both.moments_ = self.moments_ + other.moments_
        return both._solve()

    def predict(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The expected targets.

        Args:
            X: features, one row a record.
            return_std: whether to return the scales of their Student distributions too.

        Returns:
            (n,) targets; with `return_std` a pair of targets and scales.

        """
        check_is_fitted(self)
        location, scale = self.posterior_.predict(self._features(X))
        return (location.numpy(), scale.numpy()) if return_std else location.numpy()

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> tuple[Array, Array]:
        """For each record, the interval that holds its target with probability `level`.

        Args:
            X: features, one row a record.
            level: the probability.

        Returns:
            The low and the high ends, (n,) each.

        """
        check_is_fitted(self)
        low, high = self.posterior_.interval(self._features(X), level)
        return low.numpy(), high.numpy()

    def _features(self, X: ArrayLike) -> torch.Tensor:
        return _to_tensor(validate_data(self, X, reset=False))

    def _solve(self) -> Self:
        self.posterior_ = solve_regression(self.moments_, self.strength)
        self.coef_, self.intercept_ = self.posterior_.weights.numpy(), self.posterior_.intercept
        return self
