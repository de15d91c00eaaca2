"""The audit catches what is wrong, leaves what is right alone, and its bound is one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedlog.cli.main import main
from fedlog.errors import InputError
from fedlog.experiments.audit import Audit, Fault, epsilon_lower_bound, run_audit
from fedlog.privacy.calibration import epsilon_of
from fedlog.privacy.guarantee import Budget, Trust, Unit
from fedlog.privacy.protection import NoiseSource

BUDGET = Budget(1.0, 1e-5)
PROMISES = [(unit, trust) for unit in (Unit.RECORD, Unit.CLIENT) for trust in (Trust.CENTRAL, Trust.LOCAL)]


@pytest.mark.parametrize(("unit", "trust"), PROMISES)
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_our_promises_are_not_contradicted_and_not_empty(unit: Unit, trust: Trust, epsilon: float) -> None:
    finding = run_audit(Audit(unit, Budget(epsilon, 1e-5), trust, confidence=0.99))
    assert not finding.contradicted
    # The canary reaches the stated sensitivity, so the bound comes near: an audit of nothing would find nothing.
    assert finding.epsilon_lower > 0.2 * epsilon


@pytest.mark.parametrize(("unit", "trust"), PROMISES)
@pytest.mark.parametrize("fault", [Fault.SMALL_NOISE, Fault.UNCLIPPED, Fault.EXACT_COUNT])
def test_planted_faults_are_caught(unit: Unit, trust: Trust, fault: Fault) -> None:
    finding = run_audit(Audit(unit, BUDGET, trust, fault=fault, confidence=0.999))
    assert finding.contradicted
    assert finding.epsilon_lower > 3 * BUDGET.epsilon


def test_the_papers_mechanism_is_refuted_on_a_small_adversarial_client() -> None:
    finding = run_audit(Audit(Unit.PAPER, BUDGET, confidence=0.999))
    assert finding.contradicted
    assert "Theorem 4" in str(finding)


def test_the_discrete_sampler_is_not_contradicted() -> None:
    finding = run_audit(Audit(Unit.RECORD, BUDGET, noise=NoiseSource.DISCRETE, trials=4000, confidence=0.999))
    assert not finding.contradicted


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_the_bound_stays_below_the_exact_epsilon_of_a_gaussian(mu: float) -> None:
    generator = np.random.default_rng(5)
    for _ in range(10):
        absent = generator.normal(size=40_000)
        found = epsilon_lower_bound(mu + generator.normal(size=40_000), absent, 1e-5, 0.999)
        assert 0.2 * mu < found < epsilon_of(mu, 1e-5)


def test_the_bound_of_two_equal_worlds_is_rarely_above_zero() -> None:
    generator = np.random.default_rng(6)
    wrong = sum(
        epsilon_lower_bound(generator.normal(size=400), generator.normal(size=400), 0.0, 0.9) > 0 for _ in range(60)
    )
    # At most one in ten on average; P(Binomial(60, 0.1) > 15) is below 2e-4.
    assert wrong <= 15


def test_certainty_is_worth_as_much_as_the_trials() -> None:
    yes, no = np.full(2000, np.inf), np.full(2000, -np.inf)
    bound = epsilon_lower_bound(yes, no, 1e-5, 0.95)
    # Rule of Clopper-Pearson with 1000 of 1000: p > 0.0125^(1/1000) for an error of 1/40 each.
    assert 5 < bound < np.log(1000)


def test_a_refuted_promise_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["privacy", "audit", "--fault", "small-noise", "--trials", "2000", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["contradicted"]
    assert facts["epsilon_lower"] > facts["epsilon_claimed"]
    assert main(["privacy", "audit", "--privacy", "paper", "--trials", "2000"]) == 0
    assert "CONTRADICTED" in capsys.readouterr().out
    assert main(["privacy", "audit", "--trials", "7"]) == 2


def test_distributed_noise_is_audited_as_central() -> None:
    with pytest.raises(InputError, match="sum"):
        Audit(Unit.RECORD, BUDGET, Trust.DISTRIBUTED)
