"""FedLog-C's push: refused, announced or stopped before it can run away."""

from __future__ import annotations

import math

import pytest

from fedlog.algorithms.fedlog import FedLogC
from fedlog.algorithms.interface import ModelPlan
from fedlog.errors import InputError

PLAN = ModelPlan(n_class=10, width=4, layers=(("0.weight", "0.bias"), ("head",)), n_entries=100)


def test_an_unbounded_push_that_outweighs_the_pull_is_refused_with_the_largest_beta():
    with pytest.raises(InputError, match=r"diverges unless alpha is above \(classes - 1\) \* beta") as refusal:
        FedLogC(PLAN, alpha=0.009, beta=0.001, margin=None)
    assert "0.001" in (refusal.value.hint or "")
    FedLogC(PLAN, alpha=0.009, beta=0.001)  # a margin bounds it


def test_a_push_that_is_exactly_as_strong_as_the_pull_is_refused_too():
    alpha, beta = 9 / 1024, 1 / 1024  # 9 * beta is alpha to the last bit
    with pytest.raises(InputError, match="fedlog-c diverges unless alpha is above"):
        FedLogC(PLAN, alpha=alpha, beta=beta, margin=None)
    FedLogC(PLAN, alpha=math.nextafter(alpha, 1), beta=beta, margin=None)
    assert math.isinf(FedLogC(PLAN, alpha=alpha, beta=beta).growth_factor)


def test_the_growth_factor_is_that_of_the_auxiliary_terms_minimum():
    """Where alpha |z - m_y|^2 - beta sum |z - m_k|^2 is least, two classes' z differ by g times what their means do."""
    alpha, beta, means = 0.5, 0.01, [float(at) for at in range(10)]
    stretch = alpha - 9 * beta
    best = [(alpha * m - beta * (sum(means) - m)) / stretch for m in means]
    assert FedLogC(PLAN, alpha=alpha, beta=beta, margin=None).growth_factor == pytest.approx(
        (best[7] - best[2]) / (means[7] - means[2])
    )
    assert FedLogC(PLAN, alpha=0.01, beta=0.0, margin=None).growth_factor == 1.0
    assert math.isinf(FedLogC(PLAN, alpha=0.001, beta=0.001).growth_factor)


@pytest.mark.parametrize(
    ("beta", "margin", "warned"), [(0.0001, None, True), (0.00001, None, False), (0.0001, 5.0, False)]
)
def test_growth_is_said_always_and_warned_of_above_a_hundred(beta: float, margin: float | None, warned: bool):
    said = FedLogC(PLAN, alpha=0.01, beta=beta, margin=margin).advice(100)
    assert "g^100 = " in said[0]
    assert any("warning" in line for line in said) == warned


def test_growth_beyond_every_number_is_infinite_and_warned_of():
    said = FedLogC(PLAN, alpha=0.1, beta=0.01, margin=None).advice(4000)
    assert "g^4000 = inf" in said[0]
    assert "warning" in said[1]
