"""One upload, every head: the server solves several heads from the same sums, and each site takes the one that is best
on its own validation rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedlog.algorithms.one_exchange.base import OWN_SECOND, OWN_SUMS, Noise, OneExchange, single
from fedlog.core.heads.gaussian import find_needed_detail, nearest_mean, shared_covariance
from fedlog.core.heads.moments import Detail, Moments
from fedlog.core.heads.personal import STRENGTHS, own_fedlog_head
from fedlog.core.heads.ridge import ridge_around, ridge_head
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Prior
from fedlog.core.stats import Statistics
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Contribution, Kind, Message


@dataclass(frozen=True)
class FedHeads(OneExchange):
    """The heads named in `heads` (fedlog, ncm, lda, ridge); a site without validation rows takes the first.

    With `personal`, FedLog's head and the ridge also come in the site's own versions.
    """

    heads: str = "lda,ridge,fedlog,ncm"
    share: float | None = None
    strength: float = 0.01
    nu: float = 1.0

    name = "fed-heads"
    sends_moments_for_personal = False

    def __post_init__(self) -> None:
        for name in self.names:
            find_needed_detail(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The heads, in the order of the broadcast."""
        return tuple(name.strip() for name in self.heads.split(","))

    @property
    def detail(self) -> Detail:  # type: ignore[override]
        """Second moments if one of the heads needs them."""
        needs = {find_needed_detail(name) for name in self.names}
        return Detail.SECOND if Detail.SECOND in needs else Detail.MEANS

    def solve(self, moments: Moments, noise: Noise) -> Tensor:
        """The first head; `step` solves all."""
        return self._solve(self.names[0], moments, noise)

    def _solve(self, name: str, moments: Moments, noise: Noise) -> Tensor:
        if name == "ncm":
            return nearest_mean(moments.statistics, noise.count_above)
        if name == "lda":
            return shared_covariance(moments, self.share, noise.std, noise.count_above)
        if name == "ridge":
            return ridge_head(moments, self.strength, noise.std, noise.count_above)
        return solve_head(Prior(nu=self.nu).posterior(moments.statistics)).weights

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """All heads of everyone's sums."""
        state = super().step(exchange, server, total)
        if state is server:
            return server
        moments, noise = Moments.from_arrays(total.arrays, self.detail), Noise(total.noise_std)
        others = {f"{HEAD}.{name}": self._solve(name, moments, noise) for name in self.names[1:]}
        return {**state, **others}

    def broadcast(self, server: Params) -> Message:
        """All heads; before there are any, the seed."""
        if HEAD not in server:
            return Message(Kind.SEED, (server["seed"],))
        return Message(Kind.HEADS, (server[HEAD], *(server[f"{HEAD}.{name}"] for name in self.names[1:])))

    def hear(self, message: Message, known: Params) -> Params:
        """Every head in the broadcast, by name."""
        if message.kind is Kind.SEED:
            return super().hear(message, known)
        first, *others = message.arrays
        return {HEAD: first, **{f"{HEAD}.{name}": head for name, head in zip(self.names[1:], others, strict=True)}}

    def candidates(self, home: Params, heard: Params) -> Sequence[tuple[str, Params]]:
        """Every head in the order of `heads`; with `personal`, also own versions of FedLog's and the ridge."""
        deployed = self.deploy(home, heard)
        heads = {
            name: heard[HEAD if at == 0 else f"{HEAD}.{name}"]
            for at, name in enumerate(self.names)
            if at == 0 or f"{HEAD}.{name}" in heard
        }
        if self.personal and OWN_SUMS in home and float(home[OWN_SUMS][:, 0].sum()):
            heads |= self._solve_own_heads(self._read_moments(home, (OWN_SUMS, OWN_SECOND)), heads)
        return [(name, {**deployed, HEAD: self.restrict(head, home)}) for name, head in heads.items()]

    def _solve_own_heads(self, own: Moments, heads: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for strength in STRENGTHS:
            if math.isinf(strength):
                continue
            if "fedlog" in heads:
                head = own_fedlog_head(Statistics(own.statistics.sums), heads["fedlog"], strength, self.nu)
                found[f"fedlog, own {strength:g}"] = head
            if "ridge" in heads and strength:
                near = ridge_around(own, heads["ridge"], strength / own.statistics.total)
                found[f"ridge, own {strength:g}"] = near
            elif "ridge" in heads:
                found["ridge, own 0"] = ridge_head(own, self.strength)
        return single(found)
