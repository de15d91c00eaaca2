"""Many canaries in one run: the bound of Steinke, Nasr and Jagielski, and what it finds in secure sums and DP-SGD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from fedlog.audit.canary import run_audit
from fedlog.audit.one_run import bound_epsilon_by_guesses, bound_guess_probability, find_largest_epsilon_bound
from fedlog.audit.result import AuditedPart, AuditSettings, Fault
from fedlog.cli.main import main
from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.privacy import mechanisms, protection
from fedlog.privacy.guarantee import Budget, NoiseSetting, Trust, Unit
from fedlog.privacy.mechanisms import FloatSampler
from fedlog.privacy.sgd import SgdRoundPlan

SECURE_SUM = AuditSettings(Unit.RECORD, Budget(1.0, 1e-5), Trust.DISTRIBUTED, canaries=1000)
DP_SGD = AuditSettings(Unit.RECORD, Budget(1.0, 1e-5), audited=AuditedPart.DP_SGD, canaries=1000)


CLIENTS_IN_SUM = AuditSettings(Unit.CLIENT, Budget(1.0, 1e-5), Trust.DISTRIBUTED, canaries=100)


@pytest.mark.parametrize("audit", [SECURE_SUM, DP_SGD, CLIENTS_IN_SUM], ids=["secure sum", "dp-sgd", "clients"])
def test_intact_passes_and_too_little_noise_is_caught(audit: AuditSettings) -> None:
    assert not run_audit(audit).refutes_claim
    result = run_audit(replace(audit, fault=Fault.SMALL_NOISE, too_small=10.0))
    assert result.refutes_claim
    assert f"{audit.canaries} canaries in one run" in str(result)


@pytest.mark.parametrize("audit", [SECURE_SUM, pytest.param(CLIENTS_IN_SUM, marks=pytest.mark.slow)])
def test_a_secure_sum_whose_shares_are_too_small_is_caught(
    monkeypatch: pytest.MonkeyPatch, audit: AuditSettings
) -> None:
    # The product is broken, not the audit: each client takes its share for one of a hundred.
    intended = mechanisms.count_noise_shares
    monkeypatch.setattr(mechanisms, "count_noise_shares", lambda trust, honest: 100 * intended(trust, honest))
    assert run_audit(audit).refutes_claim


def test_a_secure_sum_of_messages_that_nobody_scales_down_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "clip_client_message", lambda sums, norm, grid: sums)
    assert run_audit(CLIENTS_IN_SUM).refutes_claim


def test_a_secure_sum_whose_shares_cancel_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    signs = iter([1.0, -1.0, 1.0])

    def add(sums: torch.Tensor, std: float, sampler: FloatSampler) -> torch.Tensor:
        return sums.to(torch.float64) + next(signs) * FloatSampler(Key(0)).draw(sums.shape, std)

    monkeypatch.setattr(protection, "add_noise", add)
    assert run_audit(SECURE_SUM).refutes_claim


def _no_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FloatSampler, "draw", lambda self, shape, std: torch.zeros(shape, dtype=torch.float64))


def _no_clip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SgdRoundPlan, "clip_gradients", lambda self, gradients: gradients.to(torch.float64))


@pytest.mark.parametrize("defect", [_no_noise, _no_clip])
def test_dp_sgd_that_is_broken_is_caught(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    assert run_audit(DP_SGD).refutes_claim


@pytest.mark.slow
def test_discrete_noise_passes_too() -> None:
    for audit in (SECURE_SUM, replace(DP_SGD, canaries=200)):
        assert not run_audit(replace(audit, noise=NoiseSetting.DISCRETE)).refutes_claim


def test_the_bound_is_the_printed_one_without_delta() -> None:
    # Nine of ten coins right, epsilon 0: P(Binomial(10, 1/2) >= 9) = 11 / 1024.
    assert bound_guess_probability(10, 10, 9, 0.0, 0.0) == pytest.approx(11 / 1024)
    # delta adds 2 m delta times the steepest mean gain: of five steps, P(4 <= Binomial <= 8) = 837 / 1024.
    assert bound_guess_probability(10, 10, 9, 0.0, 1e-3) == pytest.approx(11 / 1024 + 2 * 10 * 1e-3 * 837 / 5 / 1024)


def test_the_bound_falls_with_epsilon_and_rises_with_what_is_right() -> None:
    chances = [bound_guess_probability(1000, 100, 80, epsilon, 1e-5) for epsilon in np.linspace(0, 4, 9)]
    assert all(before <= after for before, after in pairwise(chances))
    coins = Key(1).child("coins").numpy().integers(0, 2, 1000).astype(bool)
    certain = torch.from_numpy(coins.astype(float))
    assert bound_epsilon_by_guesses(certain, coins, 1e-5, 0.05) == pytest.approx(
        find_largest_epsilon_bound(1000, 1e-5, 0.05)
    )


def test_guesses_of_randomised_answers_are_rarely_above_their_epsilon() -> None:
    """Answers that are true with probability e / (1 + e) are exactly 1-private, and nothing is tighter."""
    generator = np.random.default_rng(4)
    wrong = 0
    for _ in range(60):
        coins = generator.integers(0, 2, 400).astype(bool)
        truthful = generator.random(400) < np.e / (1 + np.e)
        wrong += bound_epsilon_by_guesses(torch.from_numpy((coins == truthful).astype(float)), coins, 0.0, 0.2) > 1
    assert wrong <= 22  # P(Binomial(60, 0.2) > 22) is below 1e-3


def test_what_one_run_cannot_audit_is_refused() -> None:
    with pytest.raises(InputError, match="at most 500 canaries"):
        replace(CLIENTS_IN_SUM, canaries=501)
    for audit in (replace(DP_SGD, audited=AuditedPart.STATISTICS, trust=Trust.DISTRIBUTED), DP_SGD):
        with pytest.raises(InputError, match="does not support --privacy paper"):
            replace(audit, unit=Unit.PAPER)
    with pytest.raises(InputError, match="does not support --privacy client"):
        replace(DP_SGD, unit=Unit.CLIENT)
    with pytest.raises(InputError, match="one release"):
        replace(DP_SGD, releases=2)
    assert main(["privacy", "audit", "--audited", "dp-sgd", "--epsilon", "9", "--canaries", "200"]) == 1
