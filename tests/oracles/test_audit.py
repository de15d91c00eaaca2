"""The audit finds planted faults, does not contradict correct runs, and its bound holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fedlog.audit.canary import run_audit
from fedlog.audit.distinguisher import THRESHOLDS, Observation, bound_mu_from_below, count_learning_trials, score_trials
from fedlog.audit.result import AuditSettings, Fault
from fedlog.cli.main import main
from fedlog.core.clip import Clamp
from fedlog.core.keys import Key
from fedlog.privacy import mechanisms, protection
from fedlog.privacy.calibration import find_smallest_sigma
from fedlog.privacy.guarantee import Budget, NoiseSetting, Trust, Unit
from fedlog.privacy.mechanisms import FloatSampler, Mechanism
from fedlog.privacy.protection import Protection
from fedlog.wire.message import Message

BUDGET = Budget(1.0, 1e-5)
PROMISES = [(unit, trust) for unit in (Unit.RECORD, Unit.CLIENT) for trust in (Trust.CENTRAL, Trust.LOCAL)]


@pytest.mark.parametrize(("unit", "trust"), PROMISES)
def test_our_promises_are_not_contradicted_and_not_empty(unit: Unit, trust: Trust) -> None:
    result = run_audit(AuditSettings(unit, Budget(4.0, 1e-5), trust, trials=2000, confidence=0.99))
    assert not result.refutes_claim
    # The canary reaches the stated sensitivity, so the bound comes near: an audit of nothing would find nothing.
    assert result.epsilon_lower > 2


@pytest.mark.parametrize(("unit", "trust"), PROMISES)
def test_half_the_noise_is_caught_at_a_large_epsilon(unit: Unit, trust: Trust) -> None:
    large = AuditSettings(unit, Budget(8.0, 1e-5), trust, trials=1500)
    intact, broken = (
        run_audit(replace(large, fault=fault, too_small=2.0)) for fault in (Fault.NONE, Fault.SMALL_NOISE)
    )
    assert not intact.refutes_claim
    assert broken.refutes_claim
    assert broken.epsilon_visible > 8


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "trust"), PROMISES)
def test_noise_that_is_a_little_too_small_is_caught_at_a_small_epsilon(unit: Unit, trust: Trust) -> None:
    intact = run_audit(AuditSettings(unit, BUDGET, trust))
    assert 0.7 < intact.epsilon_lower <= BUDGET.epsilon
    assert run_audit(AuditSettings(unit, BUDGET, trust, fault=Fault.SMALL_NOISE, too_small=1.3)).refutes_claim


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
def test_several_releases_share_the_budget(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    several = AuditSettings(unit, Budget(4.0, 1e-5), releases=3, trials=1500, trainings=1)
    result = run_audit(several)
    assert not result.refutes_claim
    assert result.epsilon_lower > 1.5
    # The noise of a single release, in each of three.
    monkeypatch.setattr(
        mechanisms, "find_smallest_sigma", lambda budget, releases, *rest: find_smallest_sigma(budget, 1, *rest)
    )
    assert run_audit(several).refutes_claim


@pytest.mark.parametrize(("unit", "trust"), PROMISES)
@pytest.mark.parametrize("fault", [Fault.SMALL_NOISE, Fault.UNCLIPPED, Fault.EXACT_COUNT])
def test_planted_faults_are_caught(unit: Unit, trust: Trust, fault: Fault) -> None:
    result = run_audit(AuditSettings(unit, BUDGET, trust, fault=fault, trials=600, confidence=0.999))
    assert result.refutes_claim
    assert result.epsilon_lower > 2 * BUDGET.epsilon


def _no_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protection, "add_noise", lambda sums, std, sampler: sums.to(torch.float64))


def _a_hundredth_of_the_noise(patch: pytest.MonkeyPatch) -> None:
    client, server = Mechanism.client_std.fget, Mechanism.server_std.fget  # type: ignore[attr-defined]
    patch.setattr(Mechanism, "client_std", property(lambda self: client(self) / 100))
    patch.setattr(Mechanism, "server_std", property(lambda self: server(self) / 100))


def _the_same_noise_every_time(patch: pytest.MonkeyPatch) -> None:
    drawn = FloatSampler.draw
    patch.setattr(FloatSampler, "draw", lambda self, shape, std: drawn(FloatSampler(Key(0)), shape, std))


def _an_exact_count_beside(patch: pytest.MonkeyPatch) -> None:
    outgoing = Protection.protect

    def leaking(self: Protection, message: Message, key: Key) -> Message:
        made = outgoing(self, message, key)
        return Message(made.kind, (*made.arrays, message.arrays[0][:, 0].sum().to(torch.int64).reshape(1)))

    patch.setattr(Protection, "protect", leaking)


def _nothing_is_clipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Clamp, "__call__", lambda self, features: features)
    patch.setattr(mechanisms, "clip_client_sums", lambda sums, norm: sums)


DEFECTS = [
    _no_noise,
    _a_hundredth_of_the_noise,
    _the_same_noise_every_time,
    _an_exact_count_beside,
    _nothing_is_clipped,
]


@pytest.mark.parametrize(("unit", "trust"), PROMISES)
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_product_is_caught(
    unit: Unit, trust: Trust, defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break what runs themselves use; the audit, which is as in use, must notice."""
    defect(monkeypatch)
    result = run_audit(AuditSettings(unit, BUDGET, trust, trials=400, confidence=0.999))
    assert result.refutes_claim
    assert result.epsilon_lower > 3 * BUDGET.epsilon


def test_the_papers_mechanism_is_refuted_on_a_small_adversarial_client() -> None:
    result = run_audit(AuditSettings(Unit.PAPER, BUDGET, trials=1000, confidence=0.999))
    assert result.refutes_claim
    assert "Theorem 4" in str(result)


def test_the_discrete_sampler_is_not_contradicted() -> None:
    result = run_audit(AuditSettings(Unit.RECORD, BUDGET, noise=NoiseSetting.DISCRETE, trials=1000, confidence=0.999))
    assert not result.refutes_claim


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_the_bound_stays_below_the_mu_of_a_gaussian_and_comes_near(mu: float) -> None:
    generator = np.random.default_rng(5)
    for _ in range(10):
        absent = generator.normal(size=40_000)
        found = bound_mu_from_below(mu + generator.normal(size=40_000), absent, 0.999)
        assert mu - 0.12 < found < mu


def test_a_leak_that_shows_in_one_trial_of_ten_is_found() -> None:
    """In the middle of the curve the two worlds are hardly apart: one threshold there would find mu 0.1."""
    generator = np.random.default_rng(7)
    absent, present = generator.normal(size=(2, 20_000))
    leaked = generator.random(20_000) < 0.1
    assert bound_mu_from_below(present + 20 * leaked, absent, 0.95) > 1


def test_the_bound_of_two_equal_worlds_is_rarely_above_zero() -> None:
    generator = np.random.default_rng(6)
    wrong = sum(bound_mu_from_below(generator.normal(size=400), generator.normal(size=400), 0.9) > 0 for _ in range(60))
    # At most one in ten on average; P(Binomial(60, 0.1) > 15) is below 2e-4.
    assert wrong <= 15


def test_the_attacker_is_judged_on_trials_it_did_not_learn_from() -> None:
    generator = torch.Generator().manual_seed(7)
    wrong = 0
    for _ in range(40):
        # Forty entries of nothing but noise, and few trials: whoever judged where it learnt would find a difference.
        here, there = (
            [Observation(at % 2, torch.randn(40, generator=generator, dtype=torch.float64)) for at in range(200)]
            for _ in range(2)
        )
        wrong += bound_mu_from_below(*score_trials(here, there), 0.9) > 0
    assert wrong <= 11  # P(Binomial(40, 0.1) > 11) is below 4e-4


@pytest.mark.parametrize("length", [2, 3])
def test_an_entry_without_noise_and_a_longer_message_decide_alone(length: int) -> None:
    generator = torch.Generator().manual_seed(8)

    def trials(*exact: float) -> list[Observation]:
        noisy = 1e6 * torch.randn(400, 1, generator=generator, dtype=torch.float64)
        return [Observation(0, torch.cat([row, torch.tensor(exact, dtype=torch.float64)])) for row in noisy]

    present, absent = score_trials(trials(*[1.0] * (length - 1)), trials(1 + 1e-6))
    assert present.min() > 0 > absent.max()


def test_certainty_is_worth_as_much_as_the_trials() -> None:
    yes, no = np.full(2000, np.inf), np.full(2000, -np.inf)
    judged, error = 2000 - count_learning_trials(2000), 0.05 / (2 * THRESHOLDS)
    # Clopper and Pearson: what never happened in n trials has a probability below 1 - error^(1/n).
    assert bound_mu_from_below(yes, no, 0.95) == pytest.approx(2 * norm.isf(1 - error ** (1 / judged)))


def test_a_refuted_promise_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["privacy", "audit", "--fault", "small-noise", "--trials", "2000", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["contradicted"]
    assert facts["epsilon_lower"] > facts["epsilon_claimed"]
    assert main(["privacy", "audit", "--privacy", "paper", "--trials", "2000"]) == 0
    assert "CONTRADICTED" in capsys.readouterr().out
    assert main(["privacy", "audit", "--trials", "7"]) == 2


def test_an_audit_that_could_show_nothing_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    blind = ["privacy", "audit", "--epsilon", "30", "--trials", "200", "--fault", "unclipped"]
    assert main(blind) == 1
    said = capsys.readouterr()
    assert said.out.startswith("BLIND")
    assert "cannot refute the claimed epsilon of 30" in said.err
    result = run_audit(AuditSettings(Unit.RECORD, BUDGET, fault=Fault.UNCLIPPED, trials=400))
    assert result.epsilon_lower == pytest.approx(result.epsilon_visible)
    assert not result.is_audit_too_weak


def test_an_unclipped_feature_is_caught_at_a_large_epsilon() -> None:
    assert main(["privacy", "audit", "--epsilon", "8", "--trials", "2000", "--fault", "unclipped"]) == 1
