"""Audit in one run with many canaries, for computations that are too expensive to repeat: secure sums and DP-SGD.

A coin decides for every canary whether it takes part. A canary is a record. If whole clients are protected, a canary
is a client, with one record if it takes part and none if not. No two canaries affect the same entries of the result.
From the result of the one run the attacker guesses those coins that it is surest of. Steinke, Nasr and Jagielski (2023)
bound how many guesses can be right, however the canaries depend on each other. In a run that is (epsilon,
delta)-private for one record more or less, with m canaries and f(v) = P(Binomial(guesses, q) >= v) for
q = exp(epsilon) / (1 + exp(epsilon)),

    P(right >= v) <= f(v) + 2 m delta max_i (f(v - i) - f(v)) / i.

The bound holds for any noise, so for Gaussian noise it is weaker than that of `distinguisher`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import binom
from torch import Tensor

from fedlog.algorithms.fedlog import FedLog
from fedlog.algorithms.interface import Work
from fedlog.algorithms.registry import freeze_bodies
from fedlog.audit.canary import WIDTH, make_audited_protection, make_federation, make_linear_layer, start_cohort
from fedlog.audit.result import AuditedPart, AuditResult, AuditSettings, Fault
from fedlog.core.clip import parse_clip
from fedlog.core.keys import Key
from fedlog.core.stats import Detail
from fedlog.data.federation import Federation, Records
from fedlog.engine.clients import list_clients, make_model_plan
from fedlog.engine.simulate.secure_sums import UPLOAD_CODEC, SecureSums
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.dp_sgd import DpSgdBackend, require_opacus
from fedlog.engine.training.tasks import Settings, Task
from fedlog.models.body import HEAD, Body, build_body
from fedlog.privacy.guarantee import NoiseSetting, Unit
from fedlog.privacy.mechanisms import DiscreteSampler, FloatSampler, bound_noise_distance
from fedlog.privacy.protection import Protection
from fedlog.privacy.sgd import SgdRoundPlan, SgdTraining, find_training_noise
from fedlog.settings.execution import BackendChoice
from fedlog.wire.ledger import Ledger
from fedlog.wire.message import make_contribution

INPUTS = 4
CLIENTS = 3  # a secure sum needs at least this many
SAMPLE_RATE, STEPS, GRADIENT_CLIP = 0.5, 8, 1.0
# The attacker guesses these shares of all coins, one after another: a few sure guesses show a large epsilon, many
# guesses a small one. Each share that is tried costs confidence.
GUESSED_SHARES = (0.02, 0.1, 0.5)


def audit_one_run(audit: AuditSettings) -> AuditResult:
    """Audit with one run of many canaries; return the result, with the lower bound on epsilon that the run proves."""
    coins = Key(audit.seed).child("coins").numpy().integers(0, 2, audit.canaries).astype(bool)
    scores = (
        _score_canaries_by_training(audit, coins)
        if audit.audited is AuditedPart.DP_SGD
        else _score_canaries_by_sum(audit, coins)
    )
    error, delta = 1 - audit.confidence, audit.budget.delta
    return AuditResult(
        audit,
        bound_epsilon_by_guesses(scores, coins, delta, error),
        find_largest_epsilon_bound(len(coins), delta, error),
    )


def bound_epsilon_by_guesses(scores: Tensor, coins: np.ndarray, delta: float, error: float) -> float:
    """Return a lower bound on epsilon from the number of right guesses among those that the attacker is surest of.

    `scores` (m,): the larger, the more likely it is that the canary took part.
    """
    order = np.argsort(scores.numpy(), kind="stable")
    best = 0.0
    for guesses in _list_guess_counts(len(coins)):
        out, taken = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
        right = int((~coins[out]).sum() + coins[taken].sum())
        best = max(best, _find_smallest_epsilon(len(coins), guesses, right, delta, error / len(GUESSED_SHARES)))
    return best


def find_largest_epsilon_bound(canaries: int, delta: float, error: float) -> float:
    """Return the largest lower bound on epsilon that this many canaries can give: the one if all guesses are right."""
    each = error / len(GUESSED_SHARES)
    return max(
        _find_smallest_epsilon(canaries, guesses, guesses, delta, each) for guesses in _list_guess_counts(canaries)
    )


def bound_guess_probability(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on P(`right` or more right guesses) in an (epsilon, delta)-private run."""
    q = 1 / (1 + np.exp(-epsilon))
    below = np.arange(right - 1, -1, -1)
    # (f(v - i) - f(v)) / i for i = 1 .. v: the probabilities of v - 1, v - 2, ... added up.
    gains = np.cumsum(binom.pmf(below, guesses, q)) / np.arange(1, right + 1)
    extra = float(gains.max()) if right else 0.0
    return min(1.0, float(binom.sf(right - 1, guesses, q)) + 2 * canaries * delta * extra)


def _find_smallest_epsilon(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """Return the smallest epsilon, up to 50, at which `right` or more right guesses may have probability `error`."""

    def compute_excess_probability(epsilon: float) -> float:
        return bound_guess_probability(canaries, guesses, right, epsilon, delta) - error

    if compute_excess_probability(0.0) >= 0:
        return 0.0
    highest = 50.0
    return (
        highest
        if compute_excess_probability(highest) < 0
        else float(brentq(compute_excess_probability, 0.0, highest, xtol=1e-6))
    )


def _list_guess_counts(canaries: int) -> list[int]:
    """Return the numbers of coins to guess: each of the `GUESSED_SHARES` of all canaries, but at least 2 coins."""
    return [max(2, int(share * canaries)) for share in GUESSED_SHARES]


def _score_canaries_by_sum(audit: AuditSettings, coins: np.ndarray) -> Tensor:
    """Return a score for each canary: the product of its row in a secure sum with the statistic that it would add.

    Each canary has a class of its own, and features far beyond every bound. If records are protected, all canaries are
    at the first client. If clients are protected, each canary is a client with one record or none. A client without
    records adds its share of the noise too. The attacker is the last client: it subtracts its own message from the sum.
    """
    classes, whole = len(coins), audit.unit is Unit.CLIENT
    sizes = [*(coins.astype(int).tolist() if whole else [int(coins.sum())]), *[1] * (CLIENTS - 1)]
    protection = make_audited_protection(audit, classes, len(sizes))
    present = torch.from_numpy(np.flatnonzero(coins))
    labels = torch.cat([present, torch.zeros(CLIENTS - 1, dtype=torch.int64)])
    data = Records(torch.cat([torch.full((len(present), INPUTS), 1000.0), torch.zeros(CLIENTS - 1, INPUTS)]), labels)
    sent = _make_protected_uploads(protection, data, sizes, classes, Key(audit.seed))
    uploads = [
        (at, protection.convert_to_feature_units(make_contribution(UPLOAD_CODEC.decode(blob)))) for at, blob in sent
    ]
    sums = SecureSums(protection, len(sizes)).sum_uploads(1, uploads, Ledger())
    statistic = protection.sum_moments(torch.full((1, WIDTH), 1e6), torch.zeros(1), 1, Detail.MEANS).statistics.sums[0]
    (own,) = (upload.arrays[0] for at, upload in uploads if at == len(sizes) - 1)
    return (sums.arrays[0] - own) @ statistic


def _make_protected_uploads(
    protection: Protection, data: Records, sizes: Sequence[int], classes: int, key: Key
) -> list[tuple[int, bytes]]:
    """Return each client's number and its protected message for the secure sum; client i has `sizes[i]` records."""
    federation = make_federation(data, sizes, classes)
    bodies = [
        build_body("canary", lambda: make_linear_layer(INPUTS, WIDTH, 1.0), (INPUTS,), protection.bound.clip)
    ] * len(sizes)
    algorithm = freeze_bodies(FedLog(make_model_plan(federation, bodies), epochs=1, learning_rate=1.0))
    engine = Engine(Settings(dtype=torch.float64), BackendChoice.LOOP)
    cohort = start_cohort(algorithm, federation, bodies, engine, key, protection)
    (exchange,) = algorithm.schedule.round
    return [(at, blob) for at, blob in cohort.make_encoded_uploads(1, exchange, range(len(sizes))) if blob is not None]


def _score_canaries_by_training(audit: AuditSettings, coins: np.ndarray) -> Tensor:
    """Return a score for each canary: how far one training by DP-SGD moved its features towards its class, class 0.

    The input of canary i is a multiple of the i-th unit vector, so its gradient changes only column i of the body's
    weights. The training may spend the whole budget, and the attacker sees the trained weights.
    """
    require_opacus()
    count = len(coins)
    noise = find_training_noise(audit.budget, 1.0, SAMPLE_RATE, STEPS, bound_noise_distance(STEPS, count * WIDTH))
    plan = SgdRoundPlan(noise, GRADIENT_CLIP, SAMPLE_RATE, STEPS)
    if audit.fault is Fault.SMALL_NOISE:
        plan = replace(plan, noise_multiplier=plan.noise_multiplier / audit.too_small)
    present = np.flatnonzero(coins)
    inputs = torch.zeros(len(present), count)
    inputs[torch.arange(len(present)), torch.from_numpy(present)] = 1000.0
    data = Records(inputs, torch.zeros(len(present), dtype=torch.int64))
    federation = make_federation(data, [len(data)], 2)
    body = build_body("canaries", lambda: make_linear_layer(count, WIDTH, 0.0), (count,), parse_clip(audit.clip))
    key = Key(audit.seed)
    algorithm = FedLog(make_model_plan(federation, [body]), epochs=1, learning_rate=1e-3)
    head = algorithm.receive(algorithm.broadcast(algorithm.begin(key.child("server"))), {})[HEAD]
    trained = _train_by_dp_sgd(audit, plan, body, federation, algorithm, head, key)
    # Minus the gradient of the loss by the features at the start: class 0 against class 1, without the constant.
    towards = (head[0] - head[1])[1:].to(torch.float64)
    return (trained.to(torch.float64) * towards[:, None]).sum(0)


def _train_by_dp_sgd(
    audit: AuditSettings,
    plan: SgdRoundPlan,
    body: Body,
    federation: Federation,
    algorithm: FedLog,
    head: Tensor,
    key: Key,
) -> Tensor:
    """Train one round by DP-SGD, and return the body's weights, (width, canaries)."""
    (client,) = list_clients(federation, [body], algorithm)
    sampler = FloatSampler if audit.noise is NoiseSetting.FLOAT else lambda _: DiscreteSampler(plan.grid)
    coordinates = sum(value.numel() for value in body.make_initial_params(key).values())
    backend = DpSgdBackend(body, federation, Settings(batch_size=1), SgdTraining(plan, coordinates, sampler))
    work = Work({**body.make_initial_params(key), HEAD: head})
    (fit,) = backend.train([Task(client, work, algorithm.schedule.round[0].phases, key.child("training"))])
    (weights,) = (value for name, value in fit.params.items() if name != HEAD)
    return weights
