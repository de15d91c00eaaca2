"""FedLog's own head in one exchange: on a frozen body the statistics do not change, so one upload is all of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlog.algorithms.one_exchange.base import Noise, OneExchange
from fedlog.core.heads.moments import Moments
from fedlog.core.heads.personal import own_fedlog_head
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Prior
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Params


@dataclass(frozen=True)
class FedLogOnce(OneExchange):
    """The exact MAP head of everyone's statistics (eq. 11)."""

    nu: float = 1.0

    name = "fedlog-once"
    sends_moments_for_personal = False

    def __post_init__(self) -> None:
        if not self.nu >= 0:
            raise InputError(f"the prior's nu must not be negative: {self.nu}")

    def solve(self, moments: Moments, noise: Noise) -> Tensor:
        """The head of maximum posterior."""
        return solve_head(Prior(nu=self.nu).posterior(moments.statistics)).weights

    def solve_own(self, own: Moments, heard: Params, strength: float) -> Tensor:
        """The same with the global posterior as the prior: chi = s * grad A(eta_global) + Phi_own."""
        return own_fedlog_head(own.statistics, heard[HEAD], strength, self.nu)
