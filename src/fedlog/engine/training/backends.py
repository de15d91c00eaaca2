"""Choose a backend (a way to train clients) for each body, once for a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from torch import nn

from fedlog.data.federation import Federation
from fedlog.engine.clients import Client, group_by_body
from fedlog.engine.training import speed_trial
from fedlog.engine.training.block import library
from fedlog.engine.training.block.compile import compile_stacked_body
from fedlog.engine.training.block.generic import VmapNetwork, find_vmap_obstacle
from fedlog.engine.training.block.network import Stacked, StackedBody
from fedlog.engine.training.block.trainer import EVALUATION_RECORDS, BlockBackend
from fedlog.engine.training.dp_sgd import DpSgdBackend
from fedlog.engine.training.loop import LoopBackend
from fedlog.engine.training.tasks import Backend, Settings
from fedlog.errors import InputError, RunError
from fedlog.models.body import Body
from fedlog.models.record_independence import describe_mixing_layer, describe_tied_parameters
from fedlog.privacy.guarantee import Unit
from fedlog.privacy.protection import Protection
from fedlog.privacy.sgd import SgdTraining
from fedlog.settings.execution import BackendChoice

TIE = 1.1  # times that differ by a smaller factor count as equal; then the first backend in the list is chosen
# How many clients are trained together. With fewer, Python's overhead is large; more need memory and save no time.
CHUNK_RECORDS = 400  # clients x batch size
EQUAL_CHUNK_RECORDS = 1250  # the same for clients of equal size,
EQUAL_CHUNK_PARAMETERS = 2**22  # as long as all of them together have at most this many parameters
CHUNK_NUMBERS = 2**23  # values between the layers, in training; more memory is not kept between batches
EVALUATION_NUMBERS = 2**25  # values between the layers, in evaluation
CACHED_NUMBERS = 2**20  # values between the layers of one client that are evaluated at once, if there are that many
CACHED_RECORDS = 16  # records of a client that are evaluated at once if more do not stay in the cache: whole vectors


@dataclass(frozen=True)
class BackendDecision:
    """The backend chosen for a body, and the reason for it as text; never `AUTO`, which a user may ask for."""

    backend: BackendChoice
    reason: str


@dataclass(frozen=True)
class Engine:
    """How clients are trained: the settings of training, and the backend for each body."""

    settings: Settings = field(default_factory=Settings)
    choice: BackendChoice = BackendChoice.AUTO
    clients_at_once: int | None = None  # None: as many as are fastest
    dp_sgd: SgdTraining | None = None  # None: ordinary training
    decisions: Mapping[str, BackendDecision] = field(default_factory=dict)
    """The backends already chosen, by the body's name: by `choose_backends`, or by the run that is resumed."""
    measures: bool = True  # whether a speed trial may choose if several backends can train a body

    def adapt_to_protection(self, protection: Protection | None) -> Engine:
        """The engine for a run with this protection; in a private run, rounding must not depend on private data.

        Each backend rounds differently, and stacked clients affect each other's rounding. So a private run takes the
        first possible backend without a trial, and if whole clients are protected, each client is trained alone.
        """
        if protection is None:
            return self
        alone = protection.mechanism.unit is Unit.CLIENT
        return replace(self, measures=False, clients_at_once=1 if alone else self.clients_at_once)

    def choose_backends(self, federation: Federation, clients: Iterable[Client]) -> Engine:
        """Return the engine with a backend chosen for each body, by a speed trial if several backends are possible."""
        made = {name: self._choose_backend(federation, group) for name, group in group_by_body(clients).items()}
        return replace(self, decisions=made)

    def name_backends(self) -> dict[str, str]:
        """The name of the backend chosen for each body, to record it: a repeated run must use the same backends."""
        return {name: decision.backend.value for name, decision in self.decisions.items()}

    def make_backends(self, federation: Federation, clients: Iterable[Client]) -> dict[str, Backend]:
        """Choose and make a backend for each body; return them by the body's name."""
        decided = self.choose_backends(federation, clients := list(clients))
        return {
            name: decided.make_backend(decided.decisions[name].backend, federation, group)
            for name, group in group_by_body(clients).items()
        }

    def explain(self, body: Body) -> str:
        """One line that says which backend trains this body, and why."""
        decision = self.decisions.get(body.name) or next(iter(self._list_possible_backends(body)))
        alone = self.clients_at_once == 1 and decision.backend is not BackendChoice.LOOP
        return f"body {body.name}: {decision.reason}{', each client alone' if alone else ''}"

    def make_backend(self, backend: BackendChoice, federation: Federation, clients: list[Client]) -> Backend:
        """Make this backend for clients that all have the same body; if DP-SGD is on, make `DpSgdBackend`."""
        body = clients[0].body
        if self.dp_sgd is not None:
            return DpSgdBackend(body, federation, self.settings, self.dp_sgd)
        if backend is BackendChoice.LOOP:
            return LoopBackend(body, federation, self.settings)
        compiled = None if backend is BackendChoice.VMAP else _compile_once(body)
        if compiled is None and backend is not BackendChoice.VMAP:
            raise RunError(
                f"backend {backend.value} cannot train body {body.name}: no layer has a stacked version (block)",
                hint="use --backend auto",
            )
        network: Stacked = compiled or VmapNetwork(body)
        at_once = self.clients_at_once or self._choose_group_size(network, clients)
        evaluated = _choose_evaluation_sizes(network)
        return BlockBackend(body, federation, clients, self.settings, network, at_once, *evaluated)

    def _choose_group_size(self, network: Stacked, clients: list[Client]) -> int:
        """How many of these clients to train together: more would need more memory, and not be faster."""
        most = max(1, CHUNK_RECORDS // self.settings.batch_size)
        if not isinstance(network, StackedBody):
            return most
        if network.training.is_plain:
            # Only clients of equal size: short batches are filled up to the longest of the chunk, and sums over them
            # are rounded in another way, so records of runs with unequal clients would not repeat in larger chunks.
            if len({_count_records(client) for client in clients}) > 1:
                return most
            parameters = sum(value.numel() for value in clients[0].body.training_module.parameters())
            larger = EQUAL_CHUNK_RECORDS // self.settings.batch_size
            return max(most, min(larger, EQUAL_CHUNK_PARAMETERS // max(1, parameters)))
        numbers = network.training.numbers_per_record * self.settings.batch_size
        return max(1, min(most, CHUNK_NUMBERS // numbers))

    def _choose_backend(self, federation: Federation, clients: list[Client]) -> BackendDecision:
        body = clients[0].body
        possible = self._list_possible_backends(body)
        known = self.decisions.get(body.name)
        if known is not None and known.backend in [one.backend for one in possible]:
            return known
        if len(possible) == 1 or not self.measures:
            return possible[0]
        backends = {one.backend.value: partial(self.make_backend, one.backend, federation) for one in possible}
        seconds = speed_trial.measure_backends(body, clients, self.settings, federation.n_class, backends)
        least = min(seconds.values())
        fastest = next(one for one in possible if seconds[one.backend] <= TIE * least)
        times = ", ".join(f"{one.backend.value} {1000 * seconds[one.backend]:.2f}" for one in possible)
        return BackendDecision(fastest.backend, f"{fastest.reason} (fastest in a trial, ms a batch: {times})")

    def _list_possible_backends(self, body: Body) -> list[BackendDecision]:
        """The backends to choose from for this body, probably fastest first; only one if no speed trial is needed."""
        if self.dp_sgd is not None:
            return [_choose_loop_backend("DP-SGD needs the gradient of every record")]
        if self.choice is BackendChoice.LOOP:
            return [BackendDecision(BackendChoice.LOOP, "one client after another, as --backend loop asks for")]
        if self.settings.device != "cpu" and self.choice is not BackendChoice.VMAP:
            return [_choose_loop_backend(f"clients are stacked only on the CPU, not on {self.settings.device}")]
        mixing = describe_mixing_layer(body)
        stacked = {} if mixing else _list_stacked_backends(body, self.choice)
        if self.choice is not BackendChoice.AUTO:
            if self.choice not in stacked:
                raise InputError(
                    f"body {body.name} {_explain_refusal(body, self.choice, mixing)}", hint="use --backend auto"
                )
            return [BackendDecision(self.choice, stacked[self.choice])]
        if mixing:
            return [_choose_loop_backend(mixing)]
        network = _compile_once(body) if BackendChoice.BLOCK in stacked else None
        if network is not None and network.training.is_plain:
            return [BackendDecision(BackendChoice.BLOCK, stacked[BackendChoice.BLOCK])]
        why_not = find_vmap_obstacle(body) if not stacked else "stacking it is not faster"
        return [
            *(BackendDecision(kind, reason) for kind, reason in stacked.items()),
            _choose_loop_backend(why_not or ""),
        ]


def _count_records(client: Client) -> tuple[int, ...]:
    """The number of a client's training, test and validation records."""
    return client.records, *(sum(len(part) for part in parts) for parts in (client.tests, client.validations))


def _choose_evaluation_sizes(network: Stacked) -> tuple[int | None, int]:
    """How many clients are evaluated together (None: as many as are trained together), and how many records of each.

    Plain bodies (only linear layers, and convolutions without padding or stride) always get the same numbers, so that
    recorded results repeat to the last bit.
    """
    if not isinstance(network, StackedBody) or network.training.is_plain:
        return None, EVALUATION_RECORDS
    numbers = network.evaluating.numbers_per_record
    records = EVALUATION_RECORDS if numbers * EVALUATION_RECORDS <= CACHED_NUMBERS else CACHED_RECORDS
    return max(1, EVALUATION_NUMBERS // (numbers * records)), records


def read_decisions(recorded: Mapping[str, str]) -> dict[str, BackendDecision]:
    """The decision for each body, from the backends that an earlier run recorded; keys are the bodies' names."""
    return {
        name: BackendDecision(BackendChoice(backend), f"{backend}, as recorded by this run")
        for name, backend in recorded.items()
    }


def _list_stacked_backends(body: Body, choice: BackendChoice) -> dict[BackendChoice, str]:
    """The backends that can stack clients with this body, each with its description; probably the fastest first."""
    ways: dict[BackendChoice, str] = {}
    network = None if choice is BackendChoice.VMAP else _compile_once(body)
    without, why = _list_layers_without_block(network), _explain_layers_without_block(body, network)
    if network is not None and not without:
        ways[BackendChoice.BLOCK] = "stacked clients in specialised blocks"
    elif network is not None:
        ways[BackendChoice.MIXED] = f"stacked clients in specialised blocks, except for {without}: {why}"
    if choice in (BackendChoice.AUTO, BackendChoice.VMAP) and find_vmap_obstacle(body) is None:
        asked, whole = choice is BackendChoice.VMAP, BackendChoice.BLOCK in ways
        ending = ", as --backend vmap asks for" if asked else "" if whole else f": {why}"
        ways[BackendChoice.VMAP] = f"stacked clients through vmap{ending}"
    return ways


def _explain_refusal(body: Body, choice: BackendChoice, mixing: str | None) -> str:
    """Why the backend that the user chose cannot train this body, as the end of a sentence that begins with the body.

    `mixing` says why records affect each other in the body; None if they do not.
    """
    if mixing is not None:
        return f"cannot be stacked: {mixing}"
    if choice is BackendChoice.VMAP:
        return f"cannot be stacked: {find_vmap_obstacle(body)}"
    network = _compile_once(body)
    if network is None:
        return f"cannot be stacked in blocks: {_explain_layers_without_block(body, network)}"
    without = _list_layers_without_block(network)
    return f"has layers without a block: {without}" if without else "has a block for every layer"


def _list_layers_without_block(network: StackedBody | None) -> str:
    """The layers and functions without a stacked version (block), as text: up to three names, and "and 2 more"."""
    found = network.training.without_block or network.evaluating.without_block if network is not None else ()
    names = sorted(found, key=lambda name: "(" not in name)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _choose_loop_backend(reason: str) -> BackendDecision:
    """The decision for the loop backend (one client after another), for this reason."""
    return BackendDecision(BackendChoice.LOOP, f"one client after another: {reason}")


@lru_cache(maxsize=16)
def _compile_once(body: Body) -> StackedBody | None:
    """The body's stacked network, compiled once for each body object."""
    return compile_stacked_body(body)


def _explain_layers_without_block(body: Body, network: StackedBody | None) -> str:
    """Why some layers of the body, or all of them, are not computed by stacked versions (blocks)."""
    if not library.AVAILABLE and any(
        isinstance(layer, nn.Conv1d | nn.Conv2d) for layer in body.training_module.modules()
    ):
        return "the compiled convolutions are missing (install fedlog where there is a C compiler)"
    if network is not None:
        return "not every layer has a block"
    return describe_tied_parameters(body) or "blocks would gain nothing, or do not give its features and gradients"
