"""Linear classifiers and regressors as scikit-learn estimators: fit one at each site, then merge them.

The merged estimator is the one that all data together would give:

    site_a, site_b = FedLogHead().fit(Xa, ya), FedLogHead().fit(Xb, yb)
    everyone = site_a.merge(site_b)      # only sums were exchanged

`partial_fit` on parts gives the same head as `fit` on the whole, up to rounding.
"""

from __future__ import annotations

import copy
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedlog.core.heads.gaussian import find_detail_for_head, solve_linear_discriminant, solve_nearest_mean_head
from fedlog.core.heads.regression import solve_regression, sum_regression_moments
from fedlog.core.heads.ridge import solve_ridge_head
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Prior
from fedlog.core.stats import Moments

Array = NDArray[Any]


def _convert_to_tensor(values: ArrayLike) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))


class _HeadFromSums(BaseEstimator):  # type: ignore[misc]
    """The base class of the estimators.

    `partial_fit` adds records to the sums in `moments_`; `_solve_head` computes the head from these sums.
    """

    moments_: Moments

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Sum these records and solve the head; sums of earlier calls are discarded.

        Args:
            X: features, one row per record.
            y: the records' labels, or their targets in a regression.

        Returns:
            The estimator itself, fitted.

        """
        if hasattr(self, "moments_"):
            del self.moments_
        return self.partial_fit(X, y)

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        raise NotImplementedError

    def merge(self, other: Self) -> Self:
        """Add up the sums of two estimators and solve the head of all their records.

        Args:
            other: an estimator that was fitted on other records, with the same classes if it is a classifier.

        Returns:
            A new estimator.

        """
        check_is_fitted(self)
        check_is_fitted(other)
        if not np.array_equal(getattr(self, "classes_", ()), getattr(other, "classes_", ())):
            raise ValueError(
                "expected two estimators with the same classes to merge, found different classes; hint: name all "
                "classes in the first call, partial_fit(X, y, classes=...)"
            )
        both = copy.copy(self)
        return both._add_moments(other.moments_)

    def _add_moments(self, moments: Moments) -> Self:
        """Add these sums to the sums of earlier records, if there are any, and solve the head."""
        self.moments_ = self.moments_ + moments if hasattr(self, "moments_") else moments
        return self._solve_head()

    def _solve_head(self) -> Self:
        raise NotImplementedError


class FedLogHead(ClassifierMixin, _HeadFromSums):  # type: ignore[misc]
    """A linear head for classification, computed from class counts, sums of features and second moments.

    Second moments are used by `lda` and `ridge` only.

    Args:
        head: lda (shared covariance), ridge (least squares on labels), fedlog (the paper's MAP head, for features of
            about unit variance) or ncm (nearest class mean).
        share: for lda, the shrinkage (share of the identity in the covariance); None chooses it in closed form.
        strength: for ridge, the L2 penalty.
        nu: for fedlog, the weight of the prior, as a number of records.

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

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Add these records to the sums and solve the head again.

        Args:
            X: features, one row per record.
            y: the records' labels.
            classes: all labels that this and later calls may contain, for the first call (default: those in `y`).

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
            raise ValueError(
                f"expected labels among the classes of the first call, found others: {unknown[:5]}; hint: name all "
                "labels in the first call, partial_fit(X, y, classes=...)"
            )
        labels = torch.from_numpy(np.searchsorted(self.classes_, y))
        return self._add_moments(
            Moments.from_records(_convert_to_tensor(X), labels, len(self.classes_), find_detail_for_head(self.head))
        )

    def decision_function(self, X: ArrayLike) -> Array:
        """Compute the logits (before the softmax) of each class for each record.

        Args:
            X: features, one row per record.

        Returns:
            (n, classes); with two classes (n,), the logit of the second class minus that of the first.

        """
        logits = self._compute_logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict(self, X: ArrayLike) -> Array:
        """Predict the most likely class of each record.

        Args:
            X: features, one row per record.

        Returns:
            (n,) labels.

        """
        logits = self._compute_logits(X)
        found: Array = self.classes_[logits.argmax(axis=1)]
        return found

    def predict_proba(self, X: ArrayLike) -> Array:
        """Compute the probability of each class for each record.

        Args:
            X: features, one row per record.

        Returns:
            (n, classes): the softmax of the logits; each row sums to 1.

        """
        found: Array = torch.softmax(torch.from_numpy(self._compute_logits(X)), dim=1).numpy()
        return found

    @property
    def statistics_(self) -> Moments:
        """The sums that the head is computed from, the same as `moments_`; add the sums of several sites with `+`."""
        check_is_fitted(self)
        return self.moments_

    def _compute_logits(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        values: Array = validate_data(self, X, reset=False)
        found: Array = np.asarray(values, dtype=np.float64) @ self.coef_.T + self.intercept_
        return found

    def _solve_head(self) -> Self:
        moments = self.moments_
        solved = {
            "lda": lambda: solve_linear_discriminant(moments, self.share),
            "ridge": lambda: solve_ridge_head(moments, self.strength),
            "fedlog": lambda: solve_head(Prior(nu=self.nu).posterior(moments.statistics)).weights,
            "ncm": lambda: solve_nearest_mean_head(moments.statistics),
        }[self.head]()
        weights = solved.numpy()
        self.intercept_, self.coef_ = weights[:, 0], weights[:, 1:]
        return self


class FedLinearHead(RegressorMixin, _HeadFromSums):  # type: ignore[misc]
    """A linear head for regression (Bayesian, with predictive intervals), computed from sums over records.

    Args:
        strength: the strength of the prior on the weights, in units of each feature's spread; None chooses the strength
            with the largest evidence (marginal likelihood).

    """

    def __init__(self, strength: float | None = None) -> None:
        self.strength = strength

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Add these records to the sums and solve the head again.

        Args:
            X: features, one row per record.
            y: the records' targets.

        Returns:
            The estimator itself, fitted on all records so far.

        """
        X, y = validate_data(self, X, y, y_numeric=True, reset=not hasattr(self, "moments_"))
        return self._add_moments(sum_regression_moments(_convert_to_tensor(X), _convert_to_tensor(y)))

    def predict(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Predict the expected target of each record.

        Args:
            X: features, one row per record.
            return_std: whether to return the scales of the targets' Student t distributions as well.

        Returns:
            (n,) targets; with `return_std` a pair of targets and scales.

        """
        features = self._validate_features(X)
        location, scale = self.posterior_.predict(features)
        return (location.numpy(), scale.numpy()) if return_std else location.numpy()

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> tuple[Array, Array]:
        """Predict for each record the interval that holds its target with probability `level`.

        Args:
            X: features, one row per record.
            level: the probability.

        Returns:
            The low and the high ends, (n,) each.

        """
        features = self._validate_features(X)
        low, high = self.posterior_.predict_interval(features, level)
        return low.numpy(), high.numpy()

    def _validate_features(self, X: ArrayLike) -> torch.Tensor:
        """The features as a tensor; an error if the estimator is not fitted or was fitted on other columns."""
        check_is_fitted(self)
        return _convert_to_tensor(validate_data(self, X, reset=False))

    def _solve_head(self) -> Self:
        self.posterior_ = solve_regression(self.moments_, self.strength)
        self.coef_, self.intercept_ = self.posterior_.weights.numpy(), self.posterior_.intercept
        return self
