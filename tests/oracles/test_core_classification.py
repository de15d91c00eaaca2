"""The figures beside accuracy, against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score, roc_auc_score

from fedlog.core.classification import choose_nearly_best, compute_metrics
from fedlog.core.keys import Key


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.integers(2, 5), st.integers(0, 10**6))
def test_figures_agree_with_scikit_learn(n: int, n_class: int, seed: int) -> None:
    generator = Key(seed).numpy()
    labels = np.minimum(generator.geometric(0.5, n) - 1, n_class - 1).astype(np.int64)
    # Coarse scores, so that there are ties.
    probabilities = np.round(generator.dirichlet(np.ones(n_class), n), 1)
    found = compute_metrics(probabilities, labels)
    predicted = probabilities.argmax(1)
    assert found.accuracy == pytest.approx((predicted == labels).mean())
    expected = [(predicted[labels == c] == c).mean() for c in range(n_class) if (labels == c).any()]
    # Over one class the mean recall is the accuracy, and no figure of its own.
    assert found.balanced_accuracy == (pytest.approx(np.mean(expected)) if len(expected) > 1 else None)
    assert found.macro_f1 == pytest.approx(f1_score(labels, predicted, average="macro", zero_division=0))
    assert found.confusion == confusion_matrix(labels, predicted, labels=range(n_class)).tolist()
    present = [c for c in range(n_class) if 0 < (labels == c).sum() < n]
    if present:
        areas = [roc_auc_score(labels == c, probabilities[:, c]) for c in present]
        assert found.auroc == pytest.approx(np.mean(areas))
        assert found.balanced_accuracy == pytest.approx(
            balanced_accuracy_score(labels, predicted) if set(predicted) <= set(labels) else np.mean(expected)
        )
    else:
        assert found.auroc is None


def test_no_records_have_no_figures() -> None:
    found = compute_metrics(np.zeros((0, 3)), np.zeros(0, dtype=np.int64))
    assert (found.records, found.accuracy, found.auroc) == (0, None, None)


def test_the_first_model_within_an_error_of_the_best_is_taken() -> None:
    assert choose_nearly_best([45, 49, 30], 50) == 1  # the error of 49 in 50 is 1.4
    assert choose_nearly_best([48, 49, 30], 50) == 0
    assert choose_nearly_best([49, 50], 50) == 0  # also where the best makes no mistake
    assert choose_nearly_best([0, 0], 0) == 0
