"""Laws of the mechanisms: sensitivities hold on the grid, the noise has the stated size, counts are usable."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlog.core.clip import Clamp, Clip, L2Clip
from fedlog.core.keys import Key
from fedlog.core.stats import Statistics, find_least_count_for_mean, is_count_usable
from fedlog.errors import InputError
from fedlog.privacy.accounting import (
    NoiseKind,
    RandomSource,
    Release,
    append_within_budget,
    bound_distance_from_gaussian,
    compute_spending,
)
from fedlog.privacy.calibration import find_largest_mu
from fedlog.privacy.guarantee import NEIGHBOURS, Budget, Trust, Unit
from fedlog.privacy.mechanisms import (
    Calibration,
    DiscreteSampler,
    FloatSampler,
    Mechanism,
    Sampler,
    add_noise,
    bound_noise_distance,
    clip_client_message,
    compute_client_sensitivity,
    plan_noise,
    sum_clipped_moments,
)
from fedlog.privacy.protection import ContributionBound, Protection

clips = st.one_of(st.floats(0.01, 5.0).map(Clamp), st.floats(0.01, 5.0).map(L2Clip))
grids = st.integers(-30, -1).map(lambda power: 2.0**power)


def records(seed: int, n: int, width: int, scale: float) -> tuple[Tensor, Tensor]:
    generator = Key(seed).torch()
    features = scale * torch.randn((n, width - 1), generator=generator)
    if n and seed % 5 == 0:
        features[0, 0] = math.nan
        features[-1] = math.inf
    return features, torch.randint(0, 4, (n,), generator=generator)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(2, 9), st.floats(0.01, 100.0), clips, grids)
def test_one_record_moves_the_statistics_by_at_most_the_stated_sensitivity(
    seed: int, n: int, width: int, scale: float, clip: Clip, grid: float
) -> None:
    features, labels = records(seed, n, width, scale)
    whole = sum_clipped_moments(features, labels, 4, clip, grid).statistics.sums
    for gone in range(n):
        rest = [row for row in range(n) if row != gone]
        without = sum_clipped_moments(features[rest], labels[rest], 4, clip, grid).statistics.sums
        moved = float(torch.linalg.vector_norm(whole - without))
        assert 1.0 <= moved <= clip.sensitivity(width) * (1 + 1e-15)
    assert torch.equal(whole, torch.round(whole / grid) * grid)
    assert torch.isfinite(whole).all()


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**6), st.floats(1e-3, 1e6), st.floats(0.01, 100.0), grids)
def test_a_message_is_never_longer_than_its_bound(seed: int, scale: float, norm: float, grid: float) -> None:
    message = scale * torch.randn((5, 7), generator=Key(seed).torch(), dtype=torch.float64)
    if seed % 3 == 0:
        message[2, 2] = math.nan
    clipped = clip_client_message(message, norm, grid)
    assert float(torch.linalg.vector_norm(clipped)) <= norm
    assert torch.equal(clipped, torch.round(clipped / grid) * grid)


def _length_squared(vector: Tensor) -> Fraction:
    """Without any rounding."""
    return sum((Fraction(value) ** 2 for value in vector.flatten().tolist()), Fraction(0))


@pytest.mark.parametrize("entries", [510, 2040, 10100])
@pytest.mark.parametrize("value", [1.7, 3.3, 5.9, 9.1])
def test_the_bound_on_a_message_holds_without_rounding(entries: int, value: float) -> None:
    # Equal entries are rounded the same way in every addition of their squares, and lie on the grid all together.
    grid, steps = 2.0**-20, 2**18 + 1
    longest = steps * grid * math.sqrt(entries)
    for short_by in (0.0, 1e-16, 1e-15, 5e-15, 1e-14):
        norm = longest * (1 - short_by)
        clipped = clip_client_message(torch.full((entries,), value, dtype=torch.float64), norm, grid)
        assert _length_squared(clipped) <= Fraction(norm) ** 2


def test_rounding_to_nearest_would_have_broken_the_bound() -> None:
    # The bound above is not slack: with ordinary rounding this record exceeds its sensitivity.
    features, clip = torch.full((1, 8), 0.5), Clamp(0.3)
    rounded = torch.round(clip(features.double()) * 2) / 2
    assert float(torch.linalg.vector_norm(rounded)) > math.sqrt(clip.sensitivity(9) ** 2 - 1)
    kept = sum_clipped_moments(features, torch.tensor([0]), 2, clip, 0.5).statistics.sums
    assert float(torch.linalg.vector_norm(kept)) <= clip.sensitivity(9)


@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("clients", [5, 12])
def test_noise_on_the_sum_is_what_the_mechanism_says(trust: Trust, clients: int) -> None:
    mechanism = Mechanism(Unit.RECORD, trust, 3.0, 1.0, honest_survivors=5 if trust is Trust.DISTRIBUTED else 1)
    expected = {
        Trust.CENTRAL: 3.0,
        Trust.LOCAL: 3.0 * math.sqrt(clients),
        Trust.DISTRIBUTED: 3 * math.sqrt(clients / 4),
    }
    assert mechanism.compute_std_of_sum(clients) == pytest.approx(expected[trust], rel=1e-12)
    total = torch.zeros((20, 101), dtype=torch.float64)
    for client in range(clients):
        if mechanism.client_std:
            total = add_noise(total, mechanism.client_std, FloatSampler(Key(1).child(str(trust), client)))
    if mechanism.server_std:
        total = add_noise(total, mechanism.server_std, FloatSampler(Key(1).child("server")))
    assert float(total.std()) == pytest.approx(expected[trust], rel=0.1)
    # With H survivors the distributed sum carries the noise of the guarantee even without the share of whoever looks.
    assert mechanism.compute_std_of_sum(max(clients, 5)) ** 2 - mechanism.client_std**2 >= mechanism.sigma**2 * (
        1 - 1e-12
    )


def test_more_epsilon_never_needs_more_noise_whatever_the_grid_costs() -> None:
    told = {"releases": 100, "sensitivity": 1.0, "coordinates": 10_100, "unit": Unit.RECORD, "trust": Trust.CENTRAL}
    sigmas = [plan_noise(Budget(epsilon, 1e-5), **told).sigma for epsilon in (5.0, 12.0, 17.5, 18.0, 30.0, 900.0)]  # type: ignore[arg-type]
    assert sigmas == sorted(sigmas, reverse=True)


def test_distributed_noise_needs_another_to_hide_behind() -> None:
    with pytest.raises(InputError, match="needs at least 2 honest clients that do not drop out"):
        Mechanism(Unit.RECORD, Trust.DISTRIBUTED, 3.0, 1.0, honest_survivors=1)


def release_of(mechanism: Mechanism, coordinates: int, sampler: Sampler) -> Release:
    return Protection(
        Budget(1.0, 1e-5), mechanism, ContributionBound(), 1, coordinates, lambda _: sampler
    ).make_release_event(1, "sums")


def test_distributed_noise_does_not_claim_to_hide_who_takes_part() -> None:
    """Ten clients, or nine: the squares of 10,100 noisy entries tell the two apart far better than epsilon 1 allows."""
    coordinates, clients, budget = 10_100, 10, Budget(1.0, 1e-5)
    mechanism = plan_noise(
        budget,
        releases=1,
        sensitivity=compute_client_sensitivity(1.0, Trust.DISTRIBUTED),
        coordinates=coordinates,
        unit=Unit.CLIENT,
        trust=Trust.DISTRIBUTED,
        honest_survivors=6,
    )
    with_it, without = (mechanism.compute_std_of_sum(number) ** 2 for number in (clients, clients - 1))
    # The mean of d squares of variance v has mean v and std v * sqrt(2 / d), and is nearly normal.
    told_apart = (with_it - without) / (with_it * math.sqrt(2 / coordinates))
    assert told_apart > 10 * find_largest_mu(budget)
    told = NEIGHBOURS[Unit.CLIENT, Trust.DISTRIBUTED]
    assert "known to take part" in told
    assert "added or removed" not in told


def test_the_discrete_sampler_stays_on_the_grid_and_says_where_it_comes_from() -> None:
    mechanism = Mechanism(Unit.RECORD, Trust.DISTRIBUTED, 31.4, 14.2, honest_survivors=10)
    sampler = DiscreteSampler(mechanism.grid)
    noise = sampler.draw(torch.Size((10, 51)), mechanism.client_std)
    assert noise.shape == (10, 51)
    assert torch.equal(noise, torch.round(noise / mechanism.grid) * mechanism.grid)
    assert float(noise.std()) == pytest.approx(mechanism.client_std, rel=0.2)
    assert sampler.entropy is RandomSource.SYSTEM
    assert DiscreteSampler(mechanism.grid, lambda count: bytes(count)).entropy is RandomSource.SEED
    release = release_of(mechanism, 510, sampler)
    assert compute_spending([release], 1e-5).caveats == ()
    assert release.shares == 9
    simulated = release_of(mechanism, 510, FloatSampler(Key(0)))
    assert (simulated.noise, simulated.entropy, simulated.grid) == (NoiseKind.FLOAT, RandomSource.SEED, None)


@settings(deadline=None, max_examples=30)
@given(
    st.floats(0.1, 8.0),
    st.sampled_from([0.01, 1e-5, 1e-8]),
    st.integers(1, 50),
    st.sampled_from([(Trust.CENTRAL, 1), (Trust.LOCAL, 1), (Trust.DISTRIBUTED, 7)]),
    st.sampled_from(["discrete", "float"]),
)
def test_a_plan_is_within_its_budget_to_the_last_release(
    epsilon: float, delta: float, k: int, trust: tuple[Trust, int], noise: str
) -> None:
    budget = Budget(epsilon, delta)
    mechanism = plan_noise(
        budget,
        releases=k,
        sensitivity=2.0,
        coordinates=10_100,
        unit=Unit.RECORD,
        trust=trust[0],
        honest_survivors=trust[1],
    )
    sampler = DiscreteSampler(mechanism.grid) if noise == "discrete" else FloatSampler(Key(0))
    release = release_of(mechanism, 10_100, sampler)
    assert bound_distance_from_gaussian([release] * k) <= bound_noise_distance(k, 10_100, trust[1])
    append_within_budget([release] * (k - 1), release, budget)
    assert compute_spending([release] * k, delta).epsilons[-1] == pytest.approx(epsilon, rel=1e-2)


def test_the_papers_calibration_is_theorem_4() -> None:
    budget = Budget(0.5, 0.01)
    sigma = math.sqrt(8 * 100 * (1 + 50 * 4) * math.log(math.e + 50)) / 0.5
    for unit in (Unit.PAPER, Unit.RECORD):
        mechanism = plan_noise(
            budget,
            releases=100,
            sensitivity=Clamp(2.0).sensitivity(51),
            coordinates=510,
            unit=unit,
            trust=Trust.CENTRAL,
            calibration=Calibration.PAPER,
        )
        assert mechanism.sigma == pytest.approx(sigma, rel=1e-12)


def test_a_local_message_stands_for_any_other_of_its_client() -> None:
    assert compute_client_sensitivity(3.0, Trust.CENTRAL) == 3.0
    assert compute_client_sensitivity(3.0, Trust.DISTRIBUTED) == 3.0
    assert compute_client_sensitivity(3.0, Trust.LOCAL) == 6.0


def test_counts_below_their_own_noise_keep_the_old_head() -> None:
    sums = torch.zeros((9, 4), dtype=torch.float64)
    sums[:, 0] = torch.tensor([30.0, 31, 0, 0, 0, 0, 0, 0, 0])
    # sum 61; the noise of the sum is std * sqrt(9).
    assert is_count_usable(Statistics(sums), noise_std=61 / 6)
    assert not is_count_usable(Statistics(sums), noise_std=61 / 6 + 0.01)
    assert not is_count_usable(Statistics(-sums), noise_std=0.1)
    _, present = Statistics(sums).means(find_least_count_for_mean(10.0))
    assert present.tolist() == [False, True] + [False] * 7


def test_impossible_mechanisms_are_refused() -> None:
    with pytest.raises(InputError):
        Mechanism(Unit.RECORD, Trust.CENTRAL, 0.0, 1.0)
    with pytest.raises(InputError):
        Mechanism(Unit.RECORD, Trust.LOCAL, 1.0, 1.0, honest_survivors=3)
    with pytest.raises(InputError):
        sum_clipped_moments(torch.zeros((1, 2)), torch.tensor([0]), 2, Clamp(1.0), grid=2.0)
