"""Audit a privacy claim: run with and without a canary record, and see whether an attacker can tell the two apart.

The clients and the server are those of a real run. The engine trains the bodies and takes the statistics a few times.
Every trial then sends these statistics through the run's protection, codec and server with fresh noise, and the
attacker sees everything that leaves: the number of bytes, and every entry of every array. So the audit notices a
mechanism with too little noise, a message that carries too much, and a clip that does not work.

The data are chosen to be as revealing as possible. The canary is as large as the clip allows. If bodies are trained,
the client has equally many records of two classes, whose gradients cancel. So without the canary the body does not
change. With the canary Adam takes a full step, however small the gradient. An attacker that tells runs with the canary
from runs without it more often than (epsilon, delta) allows proves the claim wrong, up to the stated confidence. How
often the attacker is right gives a lower bound on epsilon. A bound below the claimed epsilon proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedlog.algorithms.fedlog import FedLog
from fedlog.algorithms.interface import Algorithm, Exchange
from fedlog.algorithms.registry import freeze_bodies
from fedlog.audit.distinguisher import Observation, bound_mu_from_below, find_largest_mu_bound, score_trials
from fedlog.audit.result import AuditResult, AuditSettings, Fault
from fedlog.core.clip import parse_clip
from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.transforms import IDENTITY
from fedlog.engine.clients import list_clients, make_model_plan
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.protocol.server import Server
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.models.body import Body, Params, build_body
from fedlog.privacy.calibration import compute_epsilon
from fedlog.privacy.guarantee import Calibration, Trust, Unit
from fedlog.privacy.protection import ContributionBound, Protection, make_protection
from fedlog.settings.execution import BackendChoice
from fedlog.wire.codec import find_codec
from fedlog.wire.message import Contribution, Kind, Message, add_contributions

INPUTS, WIDTH, CLASSES, RECORDS = 8, 4, 2, 128
LEARNING_RATE = 1.0
WIRE = find_codec("f32")


def run_audit(audit: AuditSettings) -> AuditResult:
    """Run the audit and return its result, with a lower bound on epsilon.

    Many trials with and without one canary give a lower bound on the mu of Gaussian differential privacy, and so on
    epsilon. If it is too expensive to repeat the trial, one run with many canaries gives a lower bound on epsilon.
    """
    if audit.in_one_run:
        from fedlog.audit.one_run import audit_one_run  # loads cryptography

        return audit_one_run(audit)
    protection = make_audited_protection(audit, CLASSES, clients=1)
    here, elsewhere = _make_neighbouring_clients(audit)
    present, absent = score_trials(
        _run_trials(audit, protection, here, "with"), _run_trials(audit, protection, elsewhere, "without")
    )
    found = bound_mu_from_below(present, absent, audit.confidence)
    visible, delta = find_largest_mu_bound(audit.trials, audit.confidence), audit.budget.delta
    return AuditResult(audit, compute_epsilon(found, delta), compute_epsilon(visible, delta), found)


def _run_trials(
    audit: AuditSettings, protection: Protection, clients: Sequence[Records], key_name: str
) -> list[Observation]:
    """Run all trials and return what the attacker sees in each.

    `key_name`, "with" or "without" (the canary), gives the two sets of trials different random numbers.
    """
    key = Key(audit.seed)
    rounds = [
        _train_clients(audit, protection, clients, key.child("training", number), key.child("noise", key_name, number))
        for number in range(audit.trainings)
    ]
    # Each trial draws one of the trainings at random, so that trials are independent and identically distributed.
    drawn = key.child("drawn", key_name).numpy().integers(0, audit.trainings, audit.trials)
    return [Observation(int(number), rounds[number].observe(trial)) for trial, number in enumerate(drawn)]


def make_audited_protection(audit: AuditSettings, classes: int, clients: int) -> Protection:
    """Make the protection of a real run with the audit's settings; if the audit plants a fault, it has this fault."""
    norm, clip = (audit.message_norm, None) if audit.unit is Unit.CLIENT else (None, parse_clip(audit.clip))
    protection = make_protection(
        audit.budget,
        unit=audit.unit,
        trust=audit.trust,
        calibration=Calibration.PAPER if audit.unit is Unit.PAPER else Calibration.EXACT,
        bound=ContributionBound(clip, norm),
        releases=audit.releases,
        statistics_shape=(classes, 1 + WIDTH),
        clients=clients,
        honest_survivors=clients,
        noise=audit.noise,
    )
    if audit.fault is Fault.SMALL_NOISE:
        return replace(
            protection, mechanism=replace(protection.mechanism, sigma=protection.mechanism.sigma / audit.too_small)
        )
    if audit.fault is Fault.UNCLIPPED:
        return replace(protection, bound=ContributionBound())
    return _CountLeakingProtection(**_copy_fields(protection)) if audit.fault is Fault.EXACT_COUNT else protection


def _copy_fields(protection: Protection) -> dict[str, Any]:
    """Return the protection's fields by name: the arguments to construct a subclass with the same values."""
    return {part.name: getattr(protection, part.name) for part in fields(Protection)}


class _CountLeakingProtection(Protection):
    """A faulty protection: its messages also carry the exact number of records."""

    def protect(self, message: Message, key: Key) -> Message:
        """Protect the message, and add the exact number of records as another array."""
        made = super().protect(message, key)
        return replace(made, arrays=(*made.arrays, message.arrays[0][:, :1].sum(0).to(torch.int64)))


@dataclass(frozen=True)
class _StoringProtection(Protection):
    """A protection that also stores each message before noise is added."""

    messages: list[Message] = field(default_factory=list)

    def protect(self, message: Message, key: Key) -> Message:
        """Store the message, and return it with clipping and noise."""
        self.messages.append(message)
        return super().protect(message, key)


class _SumPublishingFedLog(FedLog):
    """FedLog with a server that sends the whole noisy sum: the attacker sees at least as much as in a real run."""

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """Return the whole sum of the uploads as the server's next state."""
        return {str(number): array for number, array in enumerate(total.arrays)}

    def broadcast(self, server: Params) -> Message:
        """Return the sum as a message of statistics, like the broadcasts of FedLog-C."""
        return Message(Kind.STATISTICS, tuple(server.values()))


@dataclass(frozen=True, eq=False)
class _TrainedRounds:
    """The result of one training: the clients' messages of each round before noise, and the server that gets them."""

    messages: Sequence[Sequence[Message]]
    protection: Protection
    exchange: Exchange
    server: Server
    key: Key

    def observe(self, trial: int) -> Tensor:
        """Return what the attacker sees with fresh noise: the number of bytes and every entry of each release."""
        return torch.cat([self._observe_release(trial, release) for release in range(len(self.messages))])

    def _observe_release(self, trial: int, release: int) -> Tensor:
        """Return what the attacker sees of one release, (1 + entries,): the number of bytes, then every entry."""
        messages = self.messages[release]
        trial = trial * len(self.messages) + release
        keys = [self.key.child("client", at, trial) for at in range(len(messages))]
        blobs = [WIRE.encode(self.protection.protect(m, key)) for m, key in zip(messages, keys, strict=True)]
        beside: list[Tensor] = []
        if self.protection.mechanism.trust is Trust.CENTRAL:
            uploads = [WIRE.decode(blob) for blob in blobs]
            # The server adds noise to the statistics only, so the attacker sees any other array exactly.
            beside = [array for upload in uploads for array in upload.arrays[1:]]
            sums = [self.server.read_contribution(replace(upload, arrays=upload.arrays[:1])) for upload in uploads]
            self.server.apply_sum(trial, self.exchange, add_contributions(sums))
            blobs = [self.server.encode_and_count_broadcast(trial, receivers=1)]
        (blob,) = blobs
        arrays = [*WIRE.decode(blob).arrays, *beside]
        return torch.cat([torch.tensor([len(blob)]), *(array.reshape(-1).to(torch.float64) for array in arrays)])


def _train_clients(
    audit: AuditSettings, protection: Protection, clients: Sequence[Records], key: Key, noise_key: Key
) -> _TrainedRounds:
    """Train the clients as in a run, and keep their messages before noise; trials draw the noise from `noise_key`."""
    data = Records(torch.cat([own.inputs for own in clients]), torch.cat([own.labels for own in clients]))
    federation = make_federation(data, [len(own) for own in clients], CLASSES)
    weight = 1 / 16 if audit.unit is Unit.RECORD else 0.0
    bodies = [
        build_body(
            "canary", lambda: make_linear_layer(INPUTS, WIDTH, weight, bias=True), (INPUTS,), protection.bound.clip
        )
    ] * len(clients)
    plan = make_model_plan(federation, bodies)
    method = FedLog(plan, epochs=1, learning_rate=LEARNING_RATE)
    algorithm = freeze_bodies(method) if audit.unit is Unit.RECORD else method
    # One batch of all records, in float64, so that the balance of the client is exact.
    engine = Engine(Settings(batch_size=len(data), dtype=torch.float64), BackendChoice.LOOP)
    tap = _StoringProtection(**_copy_fields(protection))
    cohort = start_cohort(algorithm, federation, bodies, engine, key, tap)
    (exchange,) = algorithm.schedule.round
    for number in range(audit.releases):
        cohort.make_encoded_uploads(1 + number, exchange, range(len(clients)))
    server = Server(_SumPublishingFedLog(plan), {}, {}, protection=protection, noise_key=noise_key.child("server"))
    each = len(clients)
    by_round = [tap.messages[number * each : (number + 1) * each] for number in range(audit.releases)]
    return _TrainedRounds(by_round, protection, exchange, server, noise_key)


def _make_neighbouring_clients(audit: AuditSettings) -> tuple[list[Records], list[Records]]:
    """Make the clients' records twice: with the canary, and without the canary."""
    balanced = _make_balanced_records(extra=0)
    if audit.unit is Unit.RECORD:
        return [_add_far_record(balanced)], [balanced]
    if audit.unit is Unit.PAPER:
        return [_make_balanced_records(extra=1)], [balanced]
    # The canary is a whole client. Under local noise its data are replaced by others; in a sum the client is missing.
    if audit.trust is Trust.LOCAL:
        # More records of class 1 instead of class 0, so that training moves the other way.
        data = _make_balanced_records(extra=3)
        return [_make_balanced_records(extra=1)], [Records(data.inputs, 1 - data.labels)]
    return [balanced, _make_balanced_records(extra=1)], [balanced]


def make_federation(data: Records, sizes: Sequence[int], classes: int) -> Federation:
    """Make a federation in which client i has the next `sizes[i]` records; the first of them is its test record."""
    parts = torch.split(torch.arange(len(data)), list(sizes))
    shards = tuple(Shard(f"client {at}", part, part[:1], part[:0]) for at, part in enumerate(parts))
    names = tuple(str(label) for label in range(classes))
    return Federation("audit", classes, data.inputs.shape[1:], data, data, shards, IDENTITY, names)


def make_linear_layer(inputs: int, width: int, weight: float, bias: bool = False) -> nn.Linear:
    """Make a linear layer with equal weights, to use as a body; the bias, if there is one, is 0."""
    layer = nn.Linear(inputs, width, bias=bias)
    nn.init.constant_(layer.weight, weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def start_cohort(
    algorithm: Algorithm,
    federation: Federation,
    bodies: Sequence[Body],
    engine: Engine,
    key: Key,
    protection: Protection,
) -> Cohort:
    """Make a cohort of all clients of the federation, and give it the server's first broadcast."""
    cohort = Cohort(
        algorithm, federation, list_clients(federation, bodies, algorithm), engine, key, protection=protection
    )
    cohort.receive_broadcast(WIRE.encode(algorithm.broadcast(algorithm.begin(key.child("server")))))
    return cohort


def _make_balanced_records(extra: int) -> Records:
    """Make equally many records of the two classes, all with the same inputs, and `extra` more of class 0."""
    labels = torch.cat([torch.arange(RECORDS) % CLASSES, torch.zeros(extra, dtype=torch.int64)])
    return Records(torch.ones(len(labels), INPUTS), labels)


def _add_far_record(data: Records) -> Records:
    """Return the data and one more record, with features far beyond any clip."""
    far = torch.full((1, INPUTS), 1000.0)
    return Records(torch.cat([data.inputs, far]), torch.cat([data.labels, torch.zeros(1, dtype=torch.int64)]))
