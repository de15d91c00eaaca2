"""Calibration: measure whether predicted probabilities can be trusted, and correct them with a temperature.

Logits are (n, n_class) and labels (n,). A temperature is fitted on validation records, never on the test records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.errors import InputError

BINS = 15
# Temperatures are searched from exp(-6) to exp(6). Outside, a softmax gives 1 to one class, or the same to all.
MAX_LOG_TEMPERATURE = 6.0
IMPOSSIBLE_GAP = 1e6  # a class whose logit is this far below the largest one is ruled out


@dataclass(frozen=True)
class ReliabilityBin:
    """One bin of a reliability diagram: how many records, their mean confidence, and the share classified correctly."""

    records: int
    confidence: float
    accuracy: float


def bin_by_confidence(logits: Tensor, labels: Tensor) -> list[ReliabilityBin]:
    """The non-empty bins of a reliability diagram: 15 of equal width, by each record's largest probability."""
    chances = torch.softmax(logits.to(torch.float64), dim=1)
    sure, predicted = chances.max(dim=1)
    right = (predicted == labels).to(torch.float64)
    place = (sure * BINS).long().clamp_max(BINS - 1)
    found = []
    for at in range(BINS):
        own = place == at
        if bool(own.any()):
            found.append(ReliabilityBin(int(own.sum()), float(sure[own].mean()), float(right[own].mean())))
    return found


def compute_calibration_error(logits: Tensor, labels: Tensor) -> float:
    """The expected calibration error (Guo et al. 2017): the mean of |confidence - accuracy| over bins."""
    if not len(labels):
        raise InputError("a calibration error needs records, found: none")
    parts = bin_by_confidence(logits, labels)
    return sum(part.records * abs(part.confidence - part.accuracy) for part in parts) / len(labels)


def compute_log_loss(logits: Tensor, labels: Tensor) -> float:
    """The mean negative log-likelihood of the labels, in nats."""
    logs = torch.log_softmax(logits.to(torch.float64), dim=1)
    return float(-logs.gather(1, labels[:, None]).mean())


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The number to divide logits by, so that the labels of these validation records become most likely.

    As in Platt (1999), one imagined record of each class is added, so that a few records without a mistake do not make
    the model certain. An imagined record has no logits of its own: every real record carries an equal part of its
    weight, or none of it if the real record's logits rule the class out (see `IMPOSSIBLE_GAP`).
    """
    from scipy.optimize import minimize_scalar  # here: slow to import, and most runs do not need it

    if not len(labels):
        raise InputError("a temperature needs validation records, found: none")
    values = logits.to(torch.float64)
    possible = values > values.max(dim=1, keepdim=True).values - IMPOSSIBLE_GAP
    classes = possible.sum(1)
    share = classes / (len(labels) + classes)  # of the imagined records among all

    def loss(t: float) -> float:
        logs = torch.log_softmax(values / math.exp(t), dim=1)
        own = logs.gather(1, labels[:, None])[:, 0]
        imagined = torch.where(possible, logs, 0.0).sum(1) / classes
        return float(-((1 - share) * own + share * imagined).mean())

    bounds = (-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE)
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return math.exp(float(found.x))


def compute_novelty_scores(logits: Tensor, features: Tensor) -> Tensor:
    """How unlikely each record is under FedLog's density, (n,): |features|^2 - logsumexp(logits).

    A large score means that the record is unlike the training records. `features` (n, w) come without the constant 1,
    which would add the same number to every score.
    """
    length = features.to(torch.float64).square().sum(1)
    return length - torch.logsumexp(logits.to(torch.float64), dim=1)
