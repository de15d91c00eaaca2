"""An attacker that learns to tell trials with a canary from trials without it, and the bound on mu that it proves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta, norm
from torch import Tensor
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence

Scores = NDArray[np.float64]
THRESHOLDS = 21  # each threshold tried costs confidence, so more of them would not help


@dataclass(frozen=True, eq=False)
class Observation:
    """What the attacker knows about one trial: which training it used (by number), and the entries that were seen."""

    training: int
    seen: Tensor
    """(entries,) float64; trials may have different numbers of entries."""


def score_trials(present: Sequence[Observation], absent: Sequence[Observation]) -> tuple[Scores, Scores]:
    """Score each trial: the higher the score, the more it looks like a trial with the canary.

    A score is a weighted sum of the entries. The weights are learnt from the first fifth of the trials: for each
    training, the difference of an entry's means with and without the canary, divided by its variance. This is the best
    test if every entry has independent noise. An entry without noise that differs with and without the canary gets by
    far the largest weight.
    """
    rows = pad_sequence([trial.seen for trial in (*present, *absent)], batch_first=True)
    trainings = torch.tensor([trial.training for trial in (*present, *absent)])
    sizes = [len(present), len(absent)]
    worlds = list(zip(torch.split(rows, sizes), torch.split(trainings, sizes), strict=True))
    centres, deviations = [], []
    for found, drawn in worlds:
        learnt, after = found[: count_learning_trials(len(found))], drawn[: count_learning_trials(len(found))]
        member = one_hot(after, 1 + int(trainings.max())).to(torch.float64)
        centres.append(member.T @ learnt / member.sum(0).clamp_min(1)[:, None])
        deviations.append(learnt - centres[-1][after])
    apart, middle = centres[0] - centres[1], (centres[0] + centres[1]) / 2
    # An entry without variance decides up to rounding, unless it is the same with and without the canary.
    weights = apart / (torch.cat(deviations).square().mean(0) + 1e-12 * apart.square() + 1e-300)
    scored = [((seen - middle[drawn]) * weights[drawn]).sum(1).numpy() for seen, drawn in worlds]
    return scored[0], scored[1]


def bound_mu_from_below(present: Scores, absent: Scores, confidence: float) -> float:
    """Return a lower bound on the mu of Gaussian differential privacy, wrong with probability at most 1 - confidence.

    For a mu-GDP mechanism every test has false alarms a and misses b with mu >= Phi^-1(1 - a) - Phi^-1(b) (Dong, Roth
    and Su 2022). A test says "present" if the score is above a threshold. The thresholds are quantiles of the scores
    that the attacker learnt from. On the other scores, the false alarms and misses of every threshold are bounded at
    once (Clopper and Pearson, with Bonferroni's correction); the largest mu over all thresholds is returned.
    """
    learnt, rest = count_learning_trials(len(present)), count_learning_trials(len(absent))
    levels = np.concatenate([present[:learnt], absent[:rest], [0.0]])
    thresholds = np.quantile(levels[np.isfinite(levels)], np.linspace(0.0, 1.0, THRESHOLDS + 2)[1:-1])
    alarms = (absent[rest:] > thresholds[:, None]).sum(1)
    misses = (present[learnt:] <= thresholds[:, None]).sum(1)
    error = (1 - confidence) / (2 * THRESHOLDS)
    found = _bound_normal_quantile(alarms, len(absent) - rest, error) + _bound_normal_quantile(
        misses, len(present) - learnt, error
    )
    return max(0.0, float(found.max()))


def find_largest_mu_bound(trials: int, confidence: float) -> float:
    """Return the largest lower bound on mu that this many trials can give: that of an attacker who is always right."""
    certain = np.full(trials, np.inf)
    return bound_mu_from_below(certain, -certain, confidence)


def count_learning_trials(trials: int) -> int:
    """Return the number of trials that the attacker learns from; the other trials test the attacker."""
    return trials // 5


def _bound_normal_quantile(failures: NDArray[np.int64], trials: int, error: float) -> Scores:
    """Return a lower bound on Phi^-1(1 - p), with p the probability of a failure: a false alarm, or a miss.

    `failures` is the number of failures in `trials` trials. The bound is wrong with probability at most `error`.
    """
    upper = np.where(failures < trials, beta.ppf(1 - error, failures + 1, np.maximum(trials - failures, 1)), 1.0)
    return np.asarray(norm.isf(upper))
