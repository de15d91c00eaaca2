"""One record moves first and second moments together by no more than the stated sensitivity, through every station."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedlog.core.clip import Clamp, L2Clip
from fedlog.core.keys import Key
from fedlog.core.stats import Detail, Moments, compute_moment_sensitivity
from fedlog.errors import InputError
from fedlog.privacy.guarantee import Budget, Calibration, Trust, Unit
from fedlog.privacy.mechanisms import sum_clipped_moments
from fedlog.privacy.protection import ContributionBound, Protection, make_protection
from fedlog.wire.message import Kind, Message, make_contribution

N_CLASS, WIDTH = 3, 4
DETAILS = (Detail.SQUARES, Detail.SECOND, Detail.CLASS_SECOND)
vectors = st.lists(st.floats(-50, 50), min_size=WIDTH, max_size=WIDTH)


def flat(moments: Moments) -> Tensor:
    return torch.cat([array.reshape(-1) for array in moments.arrays])


@given(
    records=st.lists(vectors, min_size=1, max_size=6),
    radius=st.floats(0.1, 10),
    detail=st.sampled_from(DETAILS),
    steps=st.integers(0, 12),
)
def test_one_record_more_moves_the_pair_by_at_most_its_sensitivity(
    records: list[list[float]], radius: float, detail: Detail, steps: int
) -> None:
    features = torch.tensor(records, dtype=torch.float64)
    labels = torch.arange(len(records)) % N_CLASS
    clip, grid = L2Clip(radius), 2.0**-steps
    whole = sum_clipped_moments(features, labels, N_CLASS, clip, grid, detail)
    without = sum_clipped_moments(features[1:], labels[1:], N_CLASS, clip, grid, detail)
    assert float((flat(whole) - flat(without)).norm()) <= compute_moment_sensitivity(radius, detail) * (1 + 1e-12)


def test_the_sensitivity_is_reached() -> None:
    one = torch.zeros(1, WIDTH, dtype=torch.float64)
    one[0, 0] = 2.0
    for detail in DETAILS:
        moved = flat(Moments.from_records(one, torch.tensor([0]), N_CLASS, detail)).norm()
        assert (
            float(moved)
            == pytest.approx(compute_moment_sensitivity(2.0, detail))
            == pytest.approx(math.sqrt(1 + 4 + 16))
        )
    assert compute_moment_sensitivity(2.0, Detail.MEANS) == pytest.approx(math.sqrt(5))


def guard(unit: Unit, trust: Trust, bound: ContributionBound) -> Protection:
    return make_protection(
        Budget(1.0, 1e-5),
        unit=unit,
        trust=trust,
        calibration=Calibration.EXACT,
        bound=bound,
        releases=1,
        statistics_shape=(N_CLASS, 1 + WIDTH),
        clients=4,
        honest_survivors=3 if trust is Trust.DISTRIBUTED else 1,
        detail=Detail.SECOND,
    )


@pytest.mark.parametrize("trust", list(Trust))
def test_noise_is_scaled_to_the_pair_and_covers_every_entry(trust: Trust) -> None:
    made = guard(Unit.RECORD, trust, ContributionBound(L2Clip(1.0)))
    assert made.mechanism.sensitivity == pytest.approx(math.sqrt(3))
    assert made.coordinates == N_CLASS * (1 + WIDTH) + 10
    exact = made.sum_moments(torch.zeros(0, WIDTH), torch.zeros(0, dtype=torch.int64), N_CLASS, Detail.SECOND)
    sent = made.protect(Message(Kind.MOMENTS, exact.arrays), Key(1))
    total = made.add_server_noise(made.convert_to_feature_units(make_contribution(sent)), Key(2))
    assert [tuple(array.shape) for array in total.arrays] == [(N_CLASS, 1 + WIDTH), (1, 10)]
    noise = torch.cat([array.reshape(-1) for array in total.arrays])
    assert len(noise.unique()) == made.coordinates  # one stream for all: no entry's noise is another's
    assert total.noise_std > 0
    features, labels = 0.4 * torch.ones(600, WIDTH), torch.arange(600) % N_CLASS
    exact = made.sum_moments(features, labels, N_CLASS, Detail.SECOND)
    message = made.protect(Message(Kind.MOMENTS, exact.arrays), Key(1))
    noisy = made.add_server_noise(made.convert_to_feature_units(make_contribution(message)), Key(2))
    for found, true in zip(noisy.arrays, exact.arrays, strict=True):
        assert float((found - true).abs().max()) < 6 * noisy.noise_std


def test_a_whole_message_is_clipped_as_one_vector() -> None:
    made = guard(Unit.CLIENT, Trust.CENTRAL, ContributionBound(message_norm=2.0))
    features = 100 * torch.randn(9, WIDTH, generator=Key(3).torch())
    exact = Moments.from_records(features, torch.arange(9) % N_CLASS, N_CLASS, Detail.SECOND)
    lifted = made.convert_to_feature_units(make_contribution(made.protect(Message(Kind.MOMENTS, exact.arrays), Key(1))))
    length = math.hypot(*(float(array.norm()) for array in lifted.arrays))
    assert 1.9 < length <= 2.0


def test_a_clamp_is_refused_and_a_message_beyond_the_clip_too() -> None:
    with pytest.raises(InputError, match="clip of each record's L2 norm"):
        guard(Unit.RECORD, Trust.CENTRAL, ContributionBound(Clamp(1.0)))
    limits = guard(Unit.RECORD, Trust.CENTRAL, ContributionBound(L2Clip(1.0))).limits
    honest = Moments.from_records(0.4 * torch.ones(5, WIDTH), torch.zeros(5, dtype=torch.int64), N_CLASS, Detail.SECOND)
    limits.check_second_moments(*honest.arrays)
    with pytest.raises(InputError, match="the upload's squared features of 5 records must sum to at most"):
        limits.check_second_moments(honest.arrays[0], 10 * honest.arrays[1])
