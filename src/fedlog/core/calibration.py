"""How far predicted probabilities can be believed, and how to make them believable.

All functions take logits (n, n_class) and labels (n,). A temperature is fitted on validation records, never on those
that it is judged on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from fedlog.errors import InputError

BINS = 15
# exp(-6) to exp(6): beyond that every softmax is a vote of one class, or of all alike.
LOG_TEMPERATURE = 6.0
IMPOSSIBLE = 1e6  # so far below the largest, a logit is that of a class that cannot be


@dataclass(frozen=True)
class ReliabilityBin:
    """The records with about the same largest probability: how sure the model was, and how often it was right."""

    records: int
    confidence: float
    accuracy: float


def reliability(logits: Tensor, labels: Tensor) -> list[ReliabilityBin]:
    """The records in intervals of equal width by their largest probability, empty intervals left out."""
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


def calibration_error(logits: Tensor, labels: Tensor) -> float:
    """The expected calibration error (Guo et al. 2017): the mean gap of confidence and accuracy, over the records."""
    if not len(labels):
        raise InputError("a calibration error needs records, found: none")
    parts = reliability(logits, labels)
    return sum(part.records * abs(part.confidence - part.accuracy) for part in parts) / len(labels)


def log_loss(logits: Tensor, labels: Tensor) -> float:
    """The mean negative log-likelihood of the labels, in nats."""
    logs = torch.log_softmax(logits.to(torch.float64), dim=1)
    return float(-logs.gather(1, labels[:, None]).mean())


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The number by which to divide logits so that these validation records are most likely.

    Labels are smoothed as by Platt (1999): one imagined record of each class counts too, so that a few records without
    a mistake do not make the model certain. Classes that the logits rule out have no imagined record.
    """
    if not len(labels):
        raise InputError("a temperature needs validation records, found: none")
    values = logits.to(torch.float64)
    possible = values > values.max(dim=1, keepdim=True).values - IMPOSSIBLE
    classes = possible.sum(1)
    share = classes / (len(labels) + classes)  # of the imagined records

    def loss(t: float) -> float:
        logs = torch.log_softmax(values / math.exp(t), dim=1)
        own = logs.gather(1, labels[:, None])[:, 0]
        imagined = torch.where(possible, logs, 0.0).sum(1) / classes
        return float(-((1 - share) * own + share * imagined).mean())

    found = minimize_scalar(loss, bounds=(-LOG_TEMPERATURE, LOG_TEMPERATURE), method="bounded", options={"xatol": 1e-4})
    return math.exp(float(found.x))


def novelty(logits: Tensor, features: Tensor) -> Tensor:
    """How unlike anything seen a record is, (n,): |phi|^2 - logsumexp_y(eta_y . phi), from FedLog's own density.

    `features` (n, m - 1) without the constant, whose square is the same for every record.
    """
    length = features.to(torch.float64).square().sum(1)
    return length - torch.logsumexp(logits.to(torch.float64), dim=1)
