"""Which backend trains which body: chosen once per run, and said once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn

from fedlog.data.federation import Federation
from fedlog.engine.clients import Client
from fedlog.engine.training.block import convolve
from fedlog.engine.training.block.compile import compile_body
from fedlog.engine.training.block.feed import Stacked
from fedlog.engine.training.block.generic import VmapNetwork, obstacle
from fedlog.engine.training.block.trainer import BlockBackend
from fedlog.engine.training.dp_sgd import DpSgdBackend
from fedlog.engine.training.loop import LoopBackend
from fedlog.engine.training.tasks import Backend, Settings
from fedlog.errors import InputError
from fedlog.models.body import Body
from fedlog.privacy.sgd import SgdTraining
from fedlog.settings.execution import BackendChoice

CHUNK_RECORDS = 400  # clients x batch size: fewer leave the interpreter's share large, more only need more memory


@dataclass(frozen=True)
class Engine:
    """How local training is computed."""

    settings: Settings = field(default_factory=Settings)
    choice: BackendChoice = BackendChoice.AUTO
    clients_at_once: int | None = None  # None: as many as fit the cache
    training: SgdTraining | None = None  # DP-SGD instead of ordinary training

    def backends(self, federation: Federation, clients: Iterable[Client]) -> dict[str, Backend]:
        """A backend for each architecture, by its name."""
        by_body: dict[str, list[Client]] = {}
        for client in clients:
            by_body.setdefault(client.body.name, []).append(client)
        return {name: self._backend(federation, group) for name, group in by_body.items()}

    def explain(self, body: Body) -> str:
        """Which backend trains this body, and why, in one line."""
        _, reason = self._network(body)
        return f"body {body.name}: {reason}"

    def _backend(self, federation: Federation, clients: list[Client]) -> Backend:
        body = clients[0].body
        if self.training is not None:
            return DpSgdBackend(body, federation, self.settings, self.training)
        network, _ = self._network(body)
        if network is None:
            return LoopBackend(body, federation, self.settings)
        at_once = self.clients_at_once or max(1, CHUNK_RECORDS // self.settings.batch_size)
        return BlockBackend(body, federation, clients, self.settings, network, at_once)

    def _network(self, body: Body) -> tuple[Stacked | None, str]:
        if self.training is not None:
            return None, "one client after another: DP-SGD takes the gradient of every record"
        if self.choice is BackendChoice.LOOP:
            return None, "one client after another, as asked for"
        if self.settings.device != "cpu":
            return None, f"one client after another: stacking is for the CPU, not {self.settings.device}"
        block = None if self.choice is BackendChoice.VMAP else compile_body(body.training, body.input_shape)
        if block is not None:
            return block, "stacked clients in specialised blocks"
        if self.choice is BackendChoice.BLOCK:
            raise InputError(f"body {body.name} has a layer without a block", hint="use --backend auto")
        why_not = obstacle(body)
        if why_not is None:
            return VmapNetwork(body), f"stacked clients through vmap: {_no_block(body)}"
        if self.choice is BackendChoice.VMAP:
            raise InputError(f"body {body.name} cannot be stacked: {why_not}", hint="use --backend auto")
        return None, f"one client after another: {why_not}"


def _no_block(body: Body) -> str:
    if not convolve.AVAILABLE and any(isinstance(layer, nn.Conv2d) for layer in body.training.modules()):
        return "the compiled convolutions are missing (install fedlog where there is a C compiler)"
    return "one of its layers has no block"
