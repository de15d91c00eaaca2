"""FedPFT (Beitollahi et al. 2024): each client sends a mixture of Gaussians for each of its classes, the server draws
features from all of them and trains a head.

Mixtures cannot be added, only listed, so the server sees each client's by itself: no secure sum. Covariances are
diagonal; the source also has spherical and full ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedlog.algorithms.one_exchange.base import OneExchange
from fedlog.algorithms.shape import BodySummary, Exchange, Schedule, Trained, Work
from fedlog.core.heads.logistic import fit_logistic
from fedlog.core.heads.mixtures import Mixtures, draw_features
from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Contribution, Kind, Message


@dataclass(frozen=True)
class FedPFT(OneExchange):
    """A softmax head trained on features drawn from every client's mixtures of `parts` Gaussians a class."""

    parts: int = 1
    penalty: float = 1e-3
    seed: int = 0

    name = "fedpft"
    sums_in_the_open = True
    sends_statistics = False
    may_federate = False

    def __post_init__(self) -> None:
        if self.parts < 1 or not self.penalty >= 0:
            raise InputError(f"fedpft needs parts >= 1 and penalty >= 0: parts {self.parts}, penalty {self.penalty}")
        if self.personal:
            raise InputError(
                "fedpft has no personal heads: its head is trained on drawn features", hint="fed-lda has them"
            )

    @property
    def schedule(self) -> Schedule:
        """One exchange of mixtures."""
        return Schedule(round=(Exchange("mixtures", (), BodySummary.MIXTURES, parts=self.parts),))

    def close(self, exchange: str, home: Params, work: Work, trained: Trained) -> tuple[Params, Message | None]:
        """The mixtures go."""
        found = trained.mixtures
        message = Message(Kind.MIXTURES, (found.records, found.means, found.variances))
        counts = found.records.reshape(self.plan.n_class, -1).sum(1)
        return {**self.join(trained.params), **self.own_classes(counts)}, message

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The head trained on drawn features, as many as there are records."""
        mixtures = Mixtures(*total.arrays)
        # Every client lists `parts` Gaussians of class 0, then of class 1, and so on.
        of_one = torch.arange(self.plan.n_class).repeat_interleave(self.parts)
        labels = of_one.repeat(len(mixtures.records) // len(of_one))
        features, drawn = draw_features(mixtures, labels, Key(self.seed).child("fedpft"))
        if not len(features):
            return server
        head = fit_logistic(features, drawn, self.plan.n_class, self.penalty)
        return {"seed": server["seed"], HEAD: head}

    def observe(self, server: Params) -> dict[str, float]:
        """No figures: the mixtures are not summed."""
        return {}
