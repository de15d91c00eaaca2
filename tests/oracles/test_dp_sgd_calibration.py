"""The noise of DP-SGD and of the releases beside it, for budgets large and small, against another accountant."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from fedlog.core.clip import parse_clip
from fedlog.errors import InputError
from fedlog.privacy.accounting import (
    Event,
    TrainingRound,
    append_within_budget,
    bound_distance_from_gaussian,
    compute_spending,
)
from fedlog.privacy.calibration import find_smallest_sigma
from fedlog.privacy.guarantee import Budget, Calibration, NoiseSetting, Trust, Unit
from fedlog.privacy.mechanisms import bound_noise_distance
from fedlog.privacy.protection import ContributionBound, Protection, choose_sampler, make_protection
from fedlog.privacy.sgd import SgdRoundPlan, SgdTraining, find_release_noise_with_training, find_training_noise


def _planned(epsilon: float, noise: float | None) -> Protection:
    """Three rounds of fifty steps on 1210 parameters, with discrete noise."""
    budget, rate, steps, rounds, parameters = Budget(epsilon, 1e-5), 0.1, 50, 3, 1210
    if noise is None:
        noise = find_training_noise(budget, 0.5, rate, steps * rounds, bound_noise_distance(steps * rounds, parameters))
    plan = SgdRoundPlan(noise, 1.0, rate, steps)
    return make_protection(
        budget,
        unit=Unit.RECORD,
        trust=Trust.CENTRAL,
        calibration=Calibration.EXACT,
        bound=ContributionBound(parse_clip("l2:3")),
        releases=rounds,
        statistics_shape=(10, 11),
        clients=10,
        noise=NoiseSetting.DISCRETE,
        training=SgdTraining(plan, parameters, choose_sampler(NoiseSetting.DISCRETE, plan.grid), rounds),
    )


@pytest.mark.parametrize(("epsilon", "noise"), [(8.0, 20.0), (8.0, None), (20.0, None), (100.0, None), (20.0, 5.0)])
def test_any_epsilon_and_any_noise_of_the_training_leave_a_guarantee_that_another_accountant_confirms(
    epsilon: float, noise: float | None
) -> None:
    guard = _planned(epsilon, noise)
    log: tuple[Event, ...] = ()
    for number in range(1, 4):
        trained = guard.make_training_event(number, "statistics")
        assert trained is not None
        for event in (trained, guard.make_release_event(number, "statistics")):
            log = append_within_budget(log, event, guard.budget)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for event in log:
        if isinstance(event, TrainingRound):
            one = dp_accounting.PoissonSampledDpEvent(
                event.sample_rate, dp_accounting.GaussianDpEvent(event.noise_multiplier)
            )
            accountant.compose(dp_accounting.SelfComposedDpEvent(one, event.steps))
        else:
            accountant.compose(dp_accounting.GaussianDpEvent(event.sigma / event.sensitivity))
    # The grid's cost grows with e^epsilon: what is promised is the smallest epsilon that holds, not the budget's.
    promised = compute_spending(log, 1e-5).epsilons[-1]
    assert promised <= epsilon * (1 + 1e-6)
    assert accountant.get_delta(promised) + (1 + math.exp(promised)) * bound_distance_from_gaussian(log) <= 1e-5


def test_less_noise_for_the_releases_beside_more_for_the_training() -> None:
    sigmas = [
        find_release_noise_with_training(Budget(8.0, 1e-5), SgdRoundPlan(noise, 1.0, 0.1, 50), 3, 3, 3.0, 0.0)
        for noise in (1.5, 3.0, 20.0, 1000.0)
    ]
    assert sigmas == sorted(sigmas, reverse=True)
    # In the end the training costs nothing, and moments of Gaussian releases are near their exact composition.
    assert sigmas[-1] == pytest.approx(find_smallest_sigma(Budget(8.0, 1e-5), 3, 3.0), rel=0.1)
    assert sigmas[-1] >= find_smallest_sigma(Budget(8.0, 1e-5), 3, 3.0)


def test_a_refusal_says_whether_the_training_or_the_grid_is_in_the_way() -> None:
    with pytest.raises(InputError, match=r"DP-SGD alone .* cost epsilon .*, but the budget is epsilon 3"):
        _planned(3.0, 0.9)
    with pytest.raises(InputError, match=r"DP-SGD alone .*, but of the budget's epsilon 60, .* at most 18.5"):
        _planned(60.0, 0.3)
    plan = SgdRoundPlan(5.0, 1.0, 0.1, 50)
    with pytest.raises(InputError, match="leaves no room for the grid"):
        find_release_noise_with_training(Budget(20.0, 1e-5), plan, 3, 3, 3.0, 1e-6)
