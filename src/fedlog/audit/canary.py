"""An audit that could catch us: plant a canary, train with and without it, bound mu from below by what leaves.

The clients and the server are real ones. Bodies are trained and statistics taken by the engine; every trial then takes
them through the run's own protection, codec and server with noise of its own, and looks at all that comes out: how many
bytes, and every entry of every array. Nothing is added or taken away here, so a mechanism that adds too little noise, a
message that carries too much or a clip that fails is seen. The data are the worst we could think of: a canary at
the very edge of the clip, and a balanced client whose body does not move at all until one more record breaks the
balance (Adam then takes a full step, however small the gradient). An attacker that tells the two worlds apart more
often than (epsilon, delta) allows proves the claim wrong, up to the stated confidence. That the bound stays below the
claim proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedlog.algorithms.fedlog import FedLog
from fedlog.algorithms.frozen import freeze_bodies
from fedlog.algorithms.shape import Exchange
from fedlog.audit.distinguisher import Observation, largest_mu_lower_bound, mu_lower_bound, scores
from fedlog.audit.finding import Audit, Fault, Finding
from fedlog.core.clip import parse_clip
from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.transforms import IDENTITY
from fedlog.engine.clients import clients_of, model_plan
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.protocol.server import Server
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.models.body import Params, adopt
from fedlog.privacy.guarantee import Calibration, Trust, Unit
from fedlog.privacy.protection import Bound, Protection, protection
from fedlog.settings.execution import BackendChoice
from fedlog.wire.codec import codec
from fedlog.wire.message import Contribution, Kind, Message, total

INPUTS, WIDTH, CLASSES, RECORDS = 8, 4, 2, 128
LEARNING_RATE = 1.0
WIRE = codec("f32")


def run_audit(audit: Audit) -> Finding:
    """Run the audit: many runs with one canary, or one run with many canaries where runs are expensive."""
    if not audit.in_one_run:
        return audit_two_worlds(audit)
    from fedlog.audit.one_run import audit_one_run  # loads cryptography

    return audit_one_run(audit)


def audit_two_worlds(audit: Audit) -> Finding:
    """A lower bound on mu, and so on epsilon, from many trials with and without the canary."""
    guard = _make_protection(audit)
    here, elsewhere = _make_neighbours(audit)
    present, absent = scores(_run_trials(audit, guard, here, "with"), _run_trials(audit, guard, elsewhere, "without"))
    found = mu_lower_bound(present, absent, audit.confidence)
    return Finding.from_mu(audit, found, largest_mu_lower_bound(audit.trials, audit.confidence))


def _run_trials(audit: Audit, guard: Protection, clients: Sequence[Records], world: str) -> list[Observation]:
    """The releases of many trials, with the canary or without it."""
    key = Key(audit.seed)
    rounds = [
        _train_clients(audit, guard, clients, key.child("training", number), key.child("noise", world, number))
        for number in range(audit.trainings)
    ]
    # Each trial draws its own training, so that trials are independent and alike.
    drawn = key.child("drawn", world).numpy().integers(0, audit.trainings, audit.trials)
    return [Observation(int(number), rounds[number].observe(trial)) for trial, number in enumerate(drawn)]


def _make_protection(audit: Audit) -> Protection:
    """The protection of a run with this claim, and the planted mistake in it."""
    client = audit.unit is Unit.CLIENT
    guard = protection(
        audit.budget,
        unit=audit.unit,
        trust=audit.trust,
        calibration=Calibration.PAPER if audit.unit is Unit.PAPER else Calibration.EXACT,
        bound=Bound(message_norm=audit.message_norm) if client else Bound(parse_clip(audit.clip)),
        releases=audit.releases,
        shape=(CLASSES, 1 + WIDTH),
        clients=1,
        noise=audit.noise,
    )
    if audit.fault is Fault.SMALL_NOISE:
        return replace(guard, mechanism=replace(guard.mechanism, sigma=guard.mechanism.sigma / audit.too_small))
    if audit.fault is Fault.UNCLIPPED:
        return replace(guard, bound=Bound())
    return _Counting(**_take_parts(guard)) if audit.fault is Fault.EXACT_COUNT else guard


def _take_parts(guard: Protection) -> dict[str, Any]:
    return {part.name: getattr(guard, part.name) for part in fields(Protection)}


class _Counting(Protection):
    """A protection whose messages carry the number of records beside the noisy statistics."""

    def protect(self, message: Message, key: Key) -> Message:
        """The message as it leaves, and one array more."""
        made = super().protect(message, key)
        return replace(made, arrays=(*made.arrays, message.arrays[0][:, :1].sum(0).to(torch.int64)))


@dataclass(frozen=True)
class _Tap(Protection):
    """A protection that stores the messages it is given, as they are before noise is added."""

    messages: list[Message] = field(default_factory=list)

    def protect(self, message: Message, key: Key) -> Message:
        """The message as it leaves."""
        self.messages.append(message)
        return super().protect(message, key)


class _Publishing(FedLog):
    """FedLog whose server publishes the whole sum: all that a real server could do with it is post-processing."""

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The whole sum, as the server's next state."""
        return {str(number): array for number, array in enumerate(total.arrays)}

    def broadcast(self, server: Params) -> Message:
        """The sum as FedLog-C sends it down."""
        return Message(Kind.STATISTICS, tuple(server.values()))


@dataclass(frozen=True, eq=False)
class _Rounds:
    """Rounds after their training: the clients' unprotected messages, and the server that will receive them."""

    messages: Sequence[Sequence[Message]]
    guard: Protection
    exchange: Exchange
    server: Server
    key: Key

    def observe(self, trial: int) -> Tensor:
        """The attacker's view of all releases, each with fresh noise: the number of bytes, and every entry."""
        return torch.cat([self._observe_release(trial, number) for number in range(len(self.messages))])

    def _observe_release(self, trial: int, number: int) -> Tensor:
        """The attacker's view of one release, (1 + entries,): the number of bytes, then every entry."""
        messages = self.messages[number]
        trial = trial * len(self.messages) + number
        keys = [self.key.child("client", at, trial) for at in range(len(messages))]
        blobs = [WIRE.encode(self.guard.protect(m, key)) for m, key in zip(messages, keys, strict=True)]
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


def _train_clients(audit: Audit, guard: Protection, clients: Sequence[Records], key: Key, noise: Key) -> _Rounds:
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
    tap = _Tap(**_take_parts(guard))
    members = clients_of(federation, bodies, algorithm)
    cohort = Cohort(algorithm, federation, members, engine, key, protection=tap)
    cohort.hear(WIRE.encode(algorithm.broadcast(algorithm.begin(key.child("server")))))
    (exchange,) = algorithm.schedule.round
    for number in range(audit.releases):
        cohort.exchange(1 + number, exchange, [member.index for member in members])
    server = Server(_Publishing(plan), {}, {}, protection=guard, noise_key=noise.child("server"))
    each = len(members)
    handed = [tap.messages[number * each : (number + 1) * each] for number in range(audit.releases)]
    return _Rounds(handed, guard, exchange, server, noise)


def _make_neighbours(audit: Audit) -> tuple[list[Records], list[Records]]:
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
