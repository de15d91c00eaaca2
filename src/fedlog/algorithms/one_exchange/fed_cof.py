"""FedCOF (Goswami et al. 2024): covariances from the clients' class means alone, so class means are all that is sent.

How much the clients' means of a class differ says how much its records do. The server has to see each client's means:
under a secure sum it does not, and the method is refused there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedlog.algorithms.one_exchange.base import SUMS, OneExchange
from fedlog.algorithms.shape import BodySummary, Exchange, Schedule, Trained, Work
from fedlog.core.heads.class_means import MeanScatter, ridge_from_means
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Contribution, Kind, Message


@dataclass(frozen=True)
class FedCOF(OneExchange):
    """A ridge whose Gram matrix is estimated from class means; `gamma` is added to every variance."""

    gamma: float = 1.0

    name = "fedcof"
    sums_in_the_open = True
    sends_statistics = False

    def __post_init__(self) -> None:
        if not self.gamma > 0:
            raise InputError(f"gamma of fedcof must be above 0: {self.gamma}")
        if self.personal:
            raise InputError(
                "fedcof has no personal heads: the paper it comes from defines none",
                hint="fed-ridge and fed-lda have them",
            )

    @property
    def schedule(self) -> Schedule:
        """One exchange of class means."""
        return Schedule(round=(Exchange("means", (), BodySummary.STATISTICS),))

    def close(self, exchange: str, home: Params, work: Work, trained: Trained) -> tuple[Params, Message | None]:
        """The class means go, each with the number of records behind it."""
        means, _ = trained.statistics.means()
        counts = trained.statistics.counts.round().to(torch.int64)
        message = Message(Kind.CLASS_MEANS, (means[:, 1:].to(torch.float32), counts))
        return {**self.join(trained.params), **self.own_classes(counts)}, message

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The ridge of everyone's class means."""
        scatter = MeanScatter(*total.arrays)
        if not float(scatter.sums[:, 0].sum()):
            return server
        return {"seed": server["seed"], SUMS: scatter.sums, HEAD: ridge_from_means(scatter, self.gamma)}
