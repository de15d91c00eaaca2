"""An audit that could catch us: plant a canary, train with and without it, bound epsilon from below by what leaves.

The clients and the server are real ones. Bodies are trained and statistics taken by the engine; every trial then takes
them through the run's own protection, codec and server with noise of its own, and looks at all that comes out: how many
bytes, and every entry of every array. Nothing is added or taken away here, so a mechanism that adds too little noise, a
message that carries too much or a clip that does not hold shows. The data are the worst we could think of: a canary at
the very edge of the clip, and a balanced client whose body does not move at all until one more record breaks the
balance (Adam then takes a full step, however small the gradient). An attacker that tells the two worlds apart more
often than (epsilon, delta) allows proves the claim wrong, up to the stated confidence. That the bound stays below the
claim proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from fedlog.algorithms.fedlog import FedLog
from fedlog.algorithms.frozen import freeze_bodies
from fedlog.algorithms.shape import Exchange
from fedlog.audit.distinguisher import Observation, epsilon_lower_bound, largest_epsilon_lower_bound, scores
from fedlog.core.clip import parse_clip
from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.transforms import IDENTITY
from fedlog.engine.clients import clients_of, model_plan
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.protocol.server import Server
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.errors import InputError
from fedlog.models.body import Params, adopt
from fedlog.privacy.guarantee import Budget, Calibration, NoiseSource, Trust, Unit, neighbouring_relation
from fedlog.privacy.protection import Bound, Protection, protection
from fedlog.settings.execution import BackendChoice
from fedlog.wire.codec import codec
from fedlog.wire.message import Contribution, Kind, Message, total

INPUTS, WIDTH, CLASSES, RECORDS = 8, 4, 2, 128
LEARNING_RATE = 1.0
WIRE = codec("f32")


class Fault(StrEnum):
    """A mistake to plant in the protection, to see that the audit notices it."""

    NONE = "none"
    SMALL_NOISE = "small-noise"
    """A tenth of the noise."""
    UNCLIPPED = "unclipped"
    """Features, or messages, as long as they come."""
    EXACT_COUNT = "exact-count"
    """The number of records beside the noisy statistics, as the paper's protocol sends it."""


@dataclass(frozen=True)
class Audit:
    """What is claimed, and how hard to try to refute it."""

    unit: Unit
    budget: Budget
    trust: Trust = Trust.CENTRAL
    clip: str = "clamp:2"
    message_norm: float = 20.0
    noise: NoiseSource = NoiseSource.FLOAT
    fault: Fault = Fault.NONE
    trials: int = 20_000
    """Noisy messages with and as many without the canary."""
    trainings: int = 4
    """Different random numbers for the training behind them."""
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.trials < 100 or self.trainings < 1 or not 0.5 <= self.confidence < 1:
            raise InputError(
                f"an audit needs 100 trials, a training and a confidence from 0.5 up to 1: {self.trials}, "
                f"{self.trainings}, {self.confidence}"
            )
        if self.trust is Trust.DISTRIBUTED:
            raise InputError("an audit looks at what the noise is on: under distributed noise that is the sum",
                             hint="--mechanism central has the same noise on the same sum")  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """A lower bound on epsilon that holds with the stated confidence, beside what was claimed."""

    audit: Audit
    epsilon_lower: float

    @property
    def epsilon_visible(self) -> float:
        """The largest lower bound that these trials could have given, had there been no noise at all."""
        return largest_epsilon_lower_bound(self.audit.trials, self.audit.budget.delta, self.audit.confidence)

    @property
    def blind(self) -> bool:
        """Whether no defect at all could have refuted the claim: then the audit says nothing about it."""
        return self.epsilon_visible <= self.audit.budget.epsilon

    @property
    def contradicted(self) -> bool:
        """Whether the claim is refuted at the stated confidence."""
        return self.epsilon_lower > self.audit.budget.epsilon

    def as_json(self) -> dict[str, object]:
        """The same facts as plain values."""
        audit = self.audit
        return {
            "epsilon_lower": self.epsilon_lower,
            "epsilon_visible": self.epsilon_visible,
            "epsilon_claimed": audit.budget.epsilon,
            "delta": audit.budget.delta,
            "contradicted": self.contradicted,
            "confidence": audit.confidence,
            "trials": audit.trials,
            "trainings": audit.trainings,
            "unit": str(audit.unit),
            "mechanism": str(audit.trust),
            "neighbours": neighbouring_relation(audit.unit, audit.trust),
            "releases": 1,
            "fault": str(audit.fault),
            "statement": str(self),
        }

    def __str__(self) -> str:
        audit = self.audit
        verdict = "CONTRADICTED" if self.contradicted else "BLIND" if self.blind else "not contradicted"
        called = "Theorem 4's formula says" if audit.unit is Unit.PAPER else "claimed"
        fault = "" if audit.fault is Fault.NONE else f"; planted fault: {audit.fault}"
        return (
            f"{verdict}: {called} epsilon {audit.budget.epsilon:g} at delta {audit.budget.delta:g}, found at least "
            f"{self.epsilon_lower:.3g} with confidence {audit.confidence:g} from {audit.trials} trials, which "
            f"can show {self.epsilon_visible:.3g} at most; unit: "
            f"{audit.unit}; neighbours: {neighbouring_relation(audit.unit, audit.trust)}; releases: 1{fault}"
        )


def run_audit(audit: Audit) -> Finding:
    """The lower bound on epsilon that these trainings and draws of noise support."""
    guard = _protection(audit)
    here, elsewhere = _neighbours(audit)
    present, absent = scores(_trials(audit, guard, here, "with"), _trials(audit, guard, elsewhere, "without"))
    return Finding(audit, epsilon_lower_bound(present, absent, audit.budget.delta, audit.confidence))


def _trials(audit: Audit, guard: Protection, clients: Sequence[Records], world: str) -> list[Observation]:
    """The releases of many trials, with the canary or without it."""
    key = Key(audit.seed)
    rounds = [
        _train_clients(audit, guard, clients, key.child("training", number), key.child("noise", world, number))
        for number in range(audit.trainings)
    ]
    # Each trial draws its own training, so that trials are independent and alike.
    drawn = key.child("drawn", world).numpy().integers(0, audit.trainings, audit.trials)
    return [Observation(int(number), rounds[number].observe(trial)) for trial, number in enumerate(drawn)]


def _protection(audit: Audit) -> Protection:
    """The protection of a run with this claim, and the planted mistake in it."""
    client = audit.unit is Unit.CLIENT
    guard = protection(
        audit.budget,
        unit=audit.unit,
        trust=audit.trust,
        calibration=Calibration.PAPER if audit.unit is Unit.PAPER else Calibration.EXACT,
        bound=Bound(message_norm=audit.message_norm) if client else Bound(parse_clip(audit.clip)),
        releases=1,
        shape=(CLASSES, 1 + WIDTH),
        clients=1,
        noise=audit.noise,
    )
    if audit.fault is Fault.SMALL_NOISE:
        return replace(guard, mechanism=replace(guard.mechanism, sigma=guard.mechanism.sigma / 10))
    if audit.fault is Fault.UNCLIPPED:
        return replace(guard, bound=Bound())
    return _Counting(**_parts(guard)) if audit.fault is Fault.EXACT_COUNT else guard


def _parts(guard: Protection) -> dict[str, Any]:
    return {part.name: getattr(guard, part.name) for part in fields(Protection)}


class _Counting(Protection):
    """A protection whose messages carry the number of records beside the noisy statistics."""

    def protect(self, message: Message, key: Key) -> Message:
        """The message as it leaves, and one array more."""
        made = super().protect(message, key)
        return replace(made, arrays=(*made.arrays, message.arrays[0][:, :1].sum(0).to(torch.int64)))


@dataclass(frozen=True)
class _Tap(Protection):
    """A protection that keeps what clients hand to it: the last that is the same however often noise is drawn."""

    messages: list[Message] = field(default_factory=list)

    def protect(self, message: Message, key: Key) -> Message:
        """The message as it leaves."""
        self.messages.append(message)
        return super().protect(message, key)


class _Publishing(FedLog):
    """FedLog whose server publishes the sum it is left with; whatever else it could do is post-processing."""

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """All of the sum."""
        return {str(number): array for number, array in enumerate(total.arrays)}

    def broadcast(self, server: Params) -> Message:
        """The sum as FedLog-C sends it down."""
        return Message(Kind.STATISTICS, tuple(server.values()))


@dataclass(frozen=True, eq=False)
class _Round:
    """A round after its training: what the clients hand to the protection, and a server that waits for it."""

    messages: Sequence[Message]
    guard: Protection
    exchange: Exchange
    server: Server
    key: Key

    def observe(self, trial: int) -> Tensor:
        """(1 + entries,): what whoever is not trusted sees, with noise of its own: the bytes, and all they say."""
        keys = [self.key.child("client", at, trial) for at in range(len(self.messages))]
        blobs = [WIRE.encode(self.guard.protect(m, key)) for m, key in zip(self.messages, keys, strict=True)]
        beside: list[Tensor] = []
        if self.guard.mechanism.trust is Trust.CENTRAL:
            uploads = [WIRE.decode(blob) for blob in blobs]
            # The server's noise is for the statistics. Whatever comes beside them has none: it counts as seen.
            beside = [array for upload in uploads for array in upload.arrays[1:]]
            sums = [self.server.lift_upload(replace(upload, arrays=upload.arrays[:1])) for upload in uploads]
            self.server.take(trial, self.exchange, total(sums))
            blobs = [self.server.broadcast(trial, copies=1)]
        (blob,) = blobs
        arrays = [*WIRE.decode(blob).arrays, *beside]
        return torch.cat([torch.tensor([len(blob)]), *(array.reshape(-1).to(torch.float64) for array in arrays)])


def _train_clients(audit: Audit, guard: Protection, clients: Sequence[Records], key: Key, noise: Key) -> _Round:
    """The clients' local work, done by the engine as in a run."""
    data = Records(torch.cat([own.inputs for own in clients]), torch.cat([own.labels for own in clients]))
    parts = torch.split(torch.arange(len(data)), [len(own) for own in clients])
    shards = tuple(Shard(f"client {at}", part, part[:1], part[:0]) for at, part in enumerate(parts))
    federation = Federation("audit", CLASSES, (INPUTS,), data, data, shards, IDENTITY, ("0", "1"))
    weight = 1 / 16 if audit.unit is Unit.RECORD else 0.0
    bodies = [adopt("canary", lambda: _Linear(weight), (INPUTS,), guard.bound.clip)] * len(clients)
    plan = model_plan(federation, bodies)
    method = FedLog(plan, epochs=1, learning_rate=LEARNING_RATE)
    algorithm = freeze_bodies(method) if audit.unit is Unit.RECORD else method
    # One batch of everything, in float64: the balance of the adversarial client is then exact.
    engine = Engine(Settings(batch_size=len(data), dtype=torch.float64), BackendChoice.LOOP)
    tap = _Tap(**_parts(guard))
    members = clients_of(federation, bodies, algorithm)
    cohort = Cohort(algorithm, federation, members, engine, WIRE, key, protection=tap)
    cohort.hear(WIRE.encode(algorithm.broadcast(algorithm.begin(key.child("server")))))
    (exchange,) = algorithm.schedule.round
    cohort.exchange(1, exchange, [member.index for member in members])
    server = Server(_Publishing(plan), WIRE, {}, {}, protection=guard, noise_key=noise.child("server"))
    return _Round(tap.messages, guard, exchange, server, noise)


def _neighbours(audit: Audit) -> tuple[list[Records], list[Records]]:
    """The clients' records with the canary and without it."""
    balanced = _make_balanced(extra=0)
    if audit.unit is Unit.RECORD:
        return [_add_far_record(balanced)], [balanced]
    if audit.unit is Unit.PAPER:
        return [_make_balanced(extra=1)], [balanced]
    # The canary is a whole client. Under local noise another data set of its takes its place; in a sum nothing does.
    if audit.trust is Trust.LOCAL:
        return [_make_balanced(extra=1)], [_make_opposite()]
    return [balanced, _make_balanced(extra=1)], [balanced]


class _Linear(nn.Linear):
    """A linear body whose weights are all the same."""

    def __init__(self, weight: float) -> None:
        super().__init__(INPUTS, WIDTH)
        nn.init.constant_(self.weight, weight)
        nn.init.zeros_(self.bias)


def _make_balanced(extra: int) -> Records:
    """As many records of either class, all with the same inputs, and some more of class 0."""
    labels = torch.cat([torch.arange(RECORDS) % CLASSES, torch.zeros(extra, dtype=torch.int64)])
    return Records(torch.ones(len(labels), INPUTS), labels)


def _make_opposite() -> Records:
    """Another data set of the same client: more of the other class, which turns its training around."""
    data = _make_balanced(extra=3)
    return Records(data.inputs, 1 - data.labels)


def _add_far_record(data: Records) -> Records:
    """The data and one record whose features lie far beyond any clip."""
    far = torch.full((1, INPUTS), 1000.0)
    return Records(torch.cat([data.inputs, far]), torch.cat([data.labels, torch.zeros(1, dtype=torch.int64)]))
