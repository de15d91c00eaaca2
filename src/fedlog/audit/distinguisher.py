"""An attacker that learns to tell two worlds apart, and the lower bound on epsilon that its success proves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta
from torch import Tensor
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence

Scores = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Observation:
    """What was seen once, and after which training: its random numbers are public but for the noise."""

    training: int
    seen: Tensor
    """(entries,) float64; as many as there were to see."""


def scores(present: Sequence[Observation], absent: Sequence[Observation]) -> tuple[Scores, Scores]:
    """How much each trial looks like one with the canary, to an attacker who has learnt from the first half of each.

    Training by training it weighs every entry by how far apart the two worlds are in it over how much it varies: the
    best test there is for independent noise on every entry, and an entry without noise decides alone.
    """
    rows = pad_sequence([trial.seen for trial in (*present, *absent)], batch_first=True)
    trainings = torch.tensor([trial.training for trial in (*present, *absent)])
    sizes = [len(present), len(absent)]
    worlds = list(zip(torch.split(rows, sizes), torch.split(trainings, sizes), strict=True))
    centres, deviations = [], []
    for found, drawn in worlds:
        learnt, after = found[: len(found) // 2], drawn[: len(found) // 2]
        member = one_hot(after, 1 + int(trainings.max())).to(torch.float64)
        centres.append(member.T @ learnt / member.sum(0).clamp_min(1)[:, None])
        deviations.append(learnt - centres[-1][after])
    apart, middle = centres[0] - centres[1], (centres[0] + centres[1]) / 2
    # What does not vary at all is certain up to rounding; where it is the same in both worlds it says nothing.
    weights = apart / (torch.cat(deviations).square().mean(0) + 1e-12 * apart.square() + 1e-300)
    scored = [((seen - middle[drawn]) * weights[drawn]).sum(1).numpy() for seen, drawn in worlds]
    return scored[0], scored[1]


def epsilon_lower_bound(present: Scores, absent: Scores, delta: float, confidence: float) -> float:
    """A lower bound on epsilon that is wrong with probability at most 1 - confidence.

    A test (score above a threshold, or below it) that says yes with probability p in one world and q in the other
    shows epsilon >= ln((p - delta) / q). The test is chosen on one half of the trials and judged on the other, with
    Clopper-Pearson bounds on p and q, half of the error to each.
    """
    half, rest = len(present) // 2, len(absent) // 2
    error = (1 - confidence) / 2
    levels = np.concatenate([present[:half], absent[:rest], [0.0]])
    thresholds = np.quantile(levels[np.isfinite(levels)], np.linspace(0.001, 0.999, 199))
    best, test = -math.inf, (0.0, 1)
    for sign in (1, -1):
        # Of hundreds of tests the luckiest would win: a much stricter bound prefers one that will do well again.
        found = _bounds(present[:half], absent[:rest], thresholds, sign, delta, error / 100)
        if found.max() > best:
            best, test = float(found.max()), (float(thresholds[found.argmax()]), sign)
    (judged,) = _bounds(present[half:], absent[rest:], np.array([test[0]]), test[1], delta, error)
    return max(0.0, float(judged))


def largest_epsilon_lower_bound(trials: int, delta: float, confidence: float) -> float:
    """The bound that so many trials in each world give where every single one shows which world it is from."""
    certain = np.full(trials, np.inf)
    return epsilon_lower_bound(certain, -certain, delta, confidence)


def _bounds(present: Scores, absent: Scores, thresholds: Scores, sign: int, delta: float, error: float) -> Scores:
    """The bound that each threshold's test gives, each wrong with probability at most 2 * error."""
    # Above the threshold speaks for the canary, below it against: the two worlds change places.
    likely, unlikely = (present, absent) if sign > 0 else (absent, present)
    hits, misses = ((sign * scores > sign * thresholds[:, None]).sum(1) for scores in (likely, unlikely))
    with np.errstate(divide="ignore"):
        p = np.where(hits > 0, beta.ppf(error, np.maximum(hits, 1), len(likely) - hits + 1), 0.0)
        q = np.where(
            misses < len(unlikely), beta.ppf(1 - error, misses + 1, np.maximum(len(unlikely) - misses, 1)), 1.0
        )
        return np.log(np.maximum(p - delta, 0.0) / q)
