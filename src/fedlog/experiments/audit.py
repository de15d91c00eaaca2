"""An audit that could catch us: plant a canary, train with and without it, bound epsilon from below by the messages.

The clients are real ones: bodies are trained and statistics taken by the engine, clipped and made ready to leave by the
same code as in a run. The data are the worst we could think of: a canary at the very edge of the clip, and a balanced
client whose body does not move at all until one more record breaks the balance (Adam then takes a full step, however
small the gradient). What leaves is compared over many draws of the noise; an attacker that tells the two worlds apart
more often than (epsilon, delta) allows proves the claim wrong, up to the stated confidence. That the bound stays below
the claim proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta
from torch import Tensor, nn

from fedlog.algorithms.fedlog import FedLog
from fedlog.algorithms.frozen import frozen
from fedlog.core.clip import Clip, clip_named
from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.transforms import IDENTITY
from fedlog.engine.backends import Choice, Engine
from fedlog.engine.clients import clients_of, model_plan
from fedlog.engine.cohort import Cohort
from fedlog.engine.local_sgd import Settings
from fedlog.errors import InputError
from fedlog.models.body import adopt
from fedlog.privacy.guarantee import Budget, Calibration, Trust, Unit, neighbouring_relation
from fedlog.privacy.protection import Bound, NoiseSource, Protection, protection
from fedlog.wire.codec import codec
from fedlog.wire.message import lift

INPUTS, WIDTH, CLASSES, RECORDS = 8, 4, 2, 128
LEARNING_RATE = 1.0
Scores = NDArray[np.float64]


class Fault(StrEnum):
    """A mistake to plant on purpose, to see that the audit notices it."""

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
    def contradicted(self) -> bool:
        """Whether the claim is refuted at the stated confidence."""
        return self.epsilon_lower > self.audit.budget.epsilon

    def as_json(self) -> dict[str, object]:
        """The same facts as plain values."""
        audit = self.audit
        return {
            "epsilon_lower": self.epsilon_lower,
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
        verdict = "CONTRADICTED" if self.contradicted else "not contradicted"
        called = "Theorem 4's formula says" if audit.unit is Unit.PAPER else "claimed"
        fault = "" if audit.fault is Fault.NONE else f"; planted fault: {audit.fault}"
        return (
            f"{verdict}: {called} epsilon {audit.budget.epsilon:g} at delta {audit.budget.delta:g}, found at least "
            f"{self.epsilon_lower:.3g} with confidence {audit.confidence:g} from {audit.trials} trials; unit: "
            f"{audit.unit}; neighbours: {neighbouring_relation(audit.unit, audit.trust)}; releases: 1{fault}"
        )


@dataclass(frozen=True, eq=False)
class _World:
    """What leaves in one of the two worlds, for one training: the sums before noise, and what goes without noise."""

    sums: Tensor
    exact: Tensor


def run_audit(audit: Audit) -> Finding:
    """The lower bound on epsilon that these trainings and draws of noise support."""
    guard = _protection(audit)
    pairs = [_worlds(audit, guard, Key(audit.seed).child("training", number)) for number in range(audit.trainings)]
    key = Key(audit.seed).child("noise")
    present = _scores(audit, guard, pairs, key.child("with"), 0)
    absent = _scores(audit, guard, pairs, key.child("without"), 1)
    return Finding(audit, epsilon_lower_bound(present, absent, audit.budget.delta, audit.confidence))


def _protection(audit: Audit) -> Protection:
    client = audit.unit is Unit.CLIENT
    return protection(
        audit.budget,
        unit=audit.unit,
        trust=audit.trust,
        calibration=Calibration.PAPER if audit.unit is Unit.PAPER else Calibration.EXACT,
        bound=Bound(message_norm=audit.message_norm) if client else Bound(clip_named(audit.clip)),
        releases=1,
        shape=(CLASSES, 1 + WIDTH),
        clients=1,
        noise=audit.noise,
    )


def _worlds(audit: Audit, guard: Protection, key: Key) -> tuple[_World, _World]:
    """With the canary and without it."""
    if audit.unit is Unit.CLIENT:
        # The canary is a whole client; under local noise another data set of its takes its place, else nothing does.
        here = _world(audit, guard, _balanced(extra=1), key)
        if audit.trust is Trust.LOCAL:
            return here, _world(audit, guard, _opposite(), key)
        return here, _World(torch.zeros_like(here.sums), torch.zeros_like(here.exact))
    canary = _balanced(extra=1) if audit.unit is Unit.PAPER else _with_far_record(_balanced(extra=0))
    return _world(audit, guard, canary, key), _world(audit, guard, _balanced(extra=0), key)


def _world(audit: Audit, guard: Protection, data: Records, key: Key) -> _World:
    counted = [float(len(data))] if audit.fault is Fault.EXACT_COUNT else []
    return _World(_message(audit, guard, data, key), torch.tensor(counted))


def _message(audit: Audit, guard: Protection, data: Records, key: Key) -> Tensor:
    """The client's sums as they leave it but for noise, after its whole round: training, statistics, clip, grid."""
    clip: Clip | None = None if audit.unit is Unit.CLIENT else clip_named(audit.clip)
    if audit.fault is Fault.UNCLIPPED:
        clip, guard = None, replace(guard, bound=Bound())
    # Noise is drawn for many trials at once afterwards, so the client itself adds none here.
    exact = replace(guard, mechanism=replace(guard.mechanism, trust=Trust.CENTRAL))
    weight = 1 / 16 if audit.unit is Unit.RECORD else 0.0
    body = adopt("canary", lambda: _Linear(weight), (INPUTS,), clip)
    everyone = torch.arange(len(data))
    shard = Shard("canary", everyone, everyone[:1], everyone[:0])
    federation = Federation("audit", CLASSES, (INPUTS,), data, data, (shard,), IDENTITY, ("0", "1"))
    plan = model_plan(federation, [body])
    method = FedLog(plan, epochs=1, learning_rate=LEARNING_RATE)
    algorithm = frozen(method) if audit.unit is Unit.RECORD else method
    # One batch of everything, in float64: the balance of the adversarial client is then exact.
    engine = Engine(Settings(batch_size=len(data), dtype=torch.float64), Choice.LOOP)
    wire = codec("f32")
    cohort = Cohort(
        algorithm, federation, clients_of(federation, [body], algorithm), engine, wire, key, protection=exact
    )
    cohort.hear(wire.encode(algorithm.broadcast(algorithm.begin(key.child("server")))))
    ((_, blob),) = cohort.exchange(1, algorithm.schedule.round[0], [0])
    assert blob is not None
    return exact.lifted(lift(wire.decode(blob))).arrays[0]


class _Linear(nn.Linear):
    """A linear body whose weights are all the same."""

    def __init__(self, weight: float) -> None:
        super().__init__(INPUTS, WIDTH)
        nn.init.constant_(self.weight, weight)
        nn.init.zeros_(self.bias)


def _balanced(extra: int) -> Records:
    """As many records of either class, all with the same inputs, and some more of class 0."""
    labels = torch.cat([torch.arange(RECORDS) % CLASSES, torch.zeros(extra, dtype=torch.int64)])
    return Records(torch.ones(len(labels), INPUTS), labels)


def _opposite() -> Records:
    """Another data set of the same client: more of the other class, which turns its training around."""
    data = _balanced(extra=3)
    return Records(data.inputs, 1 - data.labels)


def _with_far_record(data: Records) -> Records:
    """The data and one record whose features lie far beyond any clip."""
    far = torch.full((1, INPUTS), 1000.0)
    return Records(torch.cat([data.inputs, far]), torch.cat([data.labels, torch.zeros(1, dtype=torch.int64)]))


def _scores(audit: Audit, guard: Protection, pairs: Sequence[tuple[_World, _World]], key: Key, world: int) -> Scores:
    """How much each trial's message looks like one with the canary: its place on the line between the two worlds."""
    # Each trial draws its own training, so that trials are independent and alike.
    chosen = torch.from_numpy(key.child("training").numpy().integers(0, len(pairs), audit.trials))
    std = guard.mechanism.sigma / (10 if audit.fault is Fault.SMALL_NOISE else 1)
    sampler = guard.sampler(key.child("draws"))
    # A discrete sampler's grid is made for the right noise: less of it is scaled, as a faulty program would.
    noise = sampler.draw(torch.Size((audit.trials, CLASSES * (1 + WIDTH))), guard.mechanism.sigma)
    noise = noise * (std / guard.mechanism.sigma)
    here, other = (torch.stack([pair[at].sums.reshape(-1) for pair in pairs]) for at in (0, 1))
    seen = (here, other)[world][chosen] + noise
    along = here - other
    along = along / along.norm(dim=1, keepdim=True).clamp_min(1e-300)
    scores = ((seen - other[chosen]) * along[chosen]).sum(1)
    # Whatever leaves without noise settles the matter where it differs between the worlds.
    telling = torch.tensor([not torch.equal(a.exact, b.exact) for a, b in pairs])
    certain = torch.where(telling[chosen], math.inf if world == 0 else -math.inf, scores)
    return certain.numpy()


def epsilon_lower_bound(present: Scores, absent: Scores, delta: float, confidence: float) -> float:
    """A lower bound on epsilon that is wrong with probability at most 1 - confidence.

    A test (score above a threshold, or below it) that says yes with probability p in one world and q in the other
    shows epsilon >= ln((p - delta) / q). The test is chosen on one half of the trials and judged on the other, with
    Clopper-Pearson bounds on p and q, half of the error to each.
    """
    half, rest = len(present) // 2, len(absent) // 2
    error = (1 - confidence) / 2
    levels = np.concatenate([present[:half], absent[:rest], [0.0]])
    thresholds = np.quantile(levels[np.isfinite(levels)], np.linspace(0.001, 0.999, 199))
    best, test = -math.inf, (0.0, 1)
    for threshold in thresholds:
        for sign in (1, -1):
            found = _bound(present[:half], absent[:rest], float(threshold), sign, delta, error)
            if found > best:
                best, test = found, (float(threshold), sign)
    return max(0.0, _bound(present[half:], absent[rest:], test[0], test[1], delta, error))


def _bound(present: Scores, absent: Scores, threshold: float, sign: int, delta: float, error: float) -> float:
    # Above the threshold speaks for the canary, below it against: the two worlds change places.
    likely, unlikely = (present, absent) if sign > 0 else (absent, present)
    hits, misses = (int(np.sum(sign * scores > sign * threshold)) for scores in (likely, unlikely))
    p = float(beta.ppf(error, hits, len(likely) - hits + 1)) if hits else 0.0
    q = float(beta.ppf(1 - error, misses + 1, len(unlikely) - misses)) if misses < len(unlikely) else 1.0
    return math.log((p - delta) / q) if p > delta else -math.inf
