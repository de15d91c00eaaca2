"""FedCOF (Goswami et al. 2024): clients send only class means, from which the server estimates covariances.

The covariance of a class is estimated from how much its mean differs between clients. The server needs each client's
means separately, so secure sums cannot be used.

Personal heads are not in that paper: the server sends the class sums and the Gram matrix instead of the head, and a
client adds its own sums and Gram matrix, which it computes from its records.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.algorithms.interface import Exchange, FeatureSummary, Schedule, Work, WorkResult
from fedlog.algorithms.one_exchange.base import OWN_SECOND, OWN_SUMS, SECOND, SUMS, OneExchange
from fedlog.core.heads.mean_scatter import (
    MeanScatterSums,
    estimate_gram,
    estimate_gram_of_client,
    solve_ridge_with_unit_rows,
)
from fedlog.core.heads.personal import mix_moments
from fedlog.core.packed_matrix import pack_triangle
from fedlog.core.stats import Detail, Moments, Statistics
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Contribution, Kind, Message


@dataclass(frozen=True)
class FedCOF(OneExchange):
    """A ridge head with a Gram matrix that is estimated from class means; `gamma` is added to every variance."""

    gamma: float = 1.0

    name = "fedcof"
    detail = Detail.SECOND  # for personal heads; clients send only class means
    sums_in_the_open = True
    sends_statistics = False

    def __post_init__(self) -> None:
        self._check_option("gamma", self.gamma > 0, "must be above 0")

    @property
    def schedule(self) -> Schedule:
        """One exchange without training: clients send their class means."""
        at_home = Detail.SECOND if self.personal else Detail.MEANS
        return Schedule(round=(Exchange("means", (), FeatureSummary.STATISTICS, at_home),))

    def finish_exchange(
        self, exchange: str, home: Params, work: Work, trained: WorkResult
    ) -> tuple[Params, Message | None]:
        """To keep: the body, and the sums if the client solves a personal head. To send: class means with counts."""
        means, _ = trained.statistics.means()
        counts = trained.statistics.counts.round().to(torch.int64)
        message = Message(Kind.CLASS_MEANS, (means[:, 1:].to(torch.float32), counts))
        kept = {OWN_SUMS: trained.statistics.sums, OWN_SECOND: trained.second} if trained.second is not None else {}
        return {**self.join(trained.params), **kept, **self.mark_own_classes(counts)}, message

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The server's next state: the ridge head, estimated from all clients' class means."""
        scatter = MeanScatterSums(*total.arrays)
        if not float(scatter.sums[:, 0].sum()):
            return server
        gram = estimate_gram(scatter, self.gamma)
        second = {SECOND: pack_triangle(gram)[None]} if self.personal else {}
        head = solve_ridge_with_unit_rows(Statistics(scatter.sums), gram)
        return {"seed": server["seed"], SUMS: scatter.sums, **second, HEAD: head}

    def solve(self, moments: Moments, noise_std: float = 0.0) -> Tensor:
        """The ridge head of the class sums in `moments`; the second moments are used as its Gram matrix."""
        return solve_ridge_with_unit_rows(moments.statistics, moments.gram())

    def solve_personal_head(self, own: Moments, received: Params, strength: float) -> Tensor | None:
        """A client's head from its own sums and Gram matrix, plus those of all clients scaled to `strength` records.

        None if the server did not send the sums of all clients. With strength 0, also None if the client has at most
        one record of each class, since a covariance needs two.
        """
        if SUMS not in received or not (strength or bool((own.statistics.counts > 1).any())):
            return None
        gram = pack_triangle(estimate_gram_of_client(own, self.gamma))[None]
        everyone = self._read_moments(received, (SUMS, SECOND))
        return self.solve(mix_moments(everyone, Moments(own.statistics, self.detail, gram), strength))
