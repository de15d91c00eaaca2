"""The server solves several heads from the same sums; each client chooses the best one on its validation records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedlog.algorithms.one_exchange.base import OWN_SECOND, OWN_SUMS, OneExchange, to_float32
from fedlog.algorithms.one_exchange.solved_heads import FedLDA, FedLogOnce, FedNCM, FedRidge
from fedlog.core.heads.gaussian import QuadraticHead, find_detail_for_head
from fedlog.core.heads.personal import STRENGTHS
from fedlog.core.stats import Detail, Moments
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Contribution, Kind, Message


@dataclass(frozen=True)
class FedHeads(OneExchange):
    """Solves all heads named in `heads` (fedlog, ncm, lda, ridge); each client chooses one on its validation records.

    A client without validation records takes the first. With `personal`, a client can also choose its own versions of
    FedLog's head and of the ridge head.
    """

    heads: str = "lda,ridge,fedlog,ncm"
    share: float | None = None
    strength: float = 0.01
    nu: float = 1.0

    name = "fed-heads"
    sends_moments_for_personal = False

    def __post_init__(self) -> None:
        for name in self.names:
            find_detail_for_head(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the heads, in the order of the broadcast."""
        return tuple(name.strip() for name in self.heads.split(","))

    @property
    def _methods(self) -> dict[str, OneExchange]:
        """The methods that solve the heads, by name."""
        return {
            "fedlog": FedLogOnce(self.plan, nu=self.nu),
            "ncm": FedNCM(self.plan),
            "lda": FedLDA(self.plan, share=self.share),
            "ridge": FedRidge(self.plan, strength=self.strength),
        }

    @property
    def detail(self) -> Detail:  # type: ignore[override]
        """Which second moments are summed: none, unless one of the heads needs them."""
        needs = {find_detail_for_head(name) for name in self.names}
        return Detail.SECOND if Detail.SECOND in needs else Detail.MEANS

    def solve(self, moments: Moments, noise_std: float = 0.0) -> Tensor | QuadraticHead:
        """The head that is named first in `heads`; `step` solves all of them."""
        return self._methods[self.names[0]].solve(moments, noise_std)

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The server's next state: all heads, solved from the summed moments."""
        state = super().step(exchange, server, total)
        if state is server:
            return server
        given = Moments.from_arrays(total.arrays, self.detail), total.noise_std
        others = {f"{HEAD}.{name}": self._methods[name].solve_model_parts(*given)[HEAD] for name in self.names[1:]}
        return {**state, **others}

    def broadcast(self, server: Params) -> Message:
        """A message with all heads; until they are solved, one with the seed of the initial model."""
        if HEAD not in server:
            return Message(Kind.SEED, (server["seed"],))
        return Message(Kind.HEADS, (server[HEAD], *(server[f"{HEAD}.{name}"] for name in self.names[1:])))

    def receive(self, message: Message, known: Params) -> Params:
        """Every head in the broadcast, by name; a head of zeros if the message holds only the seed."""
        if message.kind is Kind.SEED:
            return super().receive(message, known)
        first, *others = message.arrays
        return {HEAD: first, **{f"{HEAD}.{name}": head for name, head in zip(self.names[1:], others, strict=True)}}

    def candidates(self, home: Params, received: Params) -> Sequence[tuple[str, Params]]:
        """The models that a client chooses from: one for each head, and with `personal` one for each personal head."""
        deployed = self.deploy(home, received)
        heads = {
            name: received[HEAD if at == 0 else f"{HEAD}.{name}"]
            for at, name in enumerate(self.names)
            if at == 0 or f"{HEAD}.{name}" in received
        }
        if self.personal and OWN_SUMS in home and float(home[OWN_SUMS][:, 0].sum()):
            heads |= self._solve_personal_heads(self._read_moments(home, (OWN_SUMS, OWN_SECOND)), heads)
        return [(name, {**deployed, HEAD: self.restrict_to_own_classes(head, home)}) for name, head in heads.items()]

    def _solve_personal_heads(self, own: Moments, heads: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        able = [name for name in ("fedlog", "ridge") if name in heads]
        for strength in STRENGTHS[1:]:
            for name in able:
                solved = self._methods[name].solve_personal_head(own, {HEAD: heads[name]}, strength)
                if isinstance(solved, Tensor):
                    found[f"{name}, own {strength:g}"] = solved
        return to_float32(found)
