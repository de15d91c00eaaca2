"""The Laplace approximation against a dense Hessian, temperatures against a grid, regression against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedlog.core.calibration import compute_calibration_error, compute_log_loss, compute_novelty_scores, fit_temperature
from fedlog.core.classification import compute_area_under_curve
from fedlog.core.heads.regression import solve_regression, sum_regression_moments
from fedlog.core.keys import Key
from fedlog.core.laplace import LaplaceHead
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Prior
from fedlog.core.stats import Statistics
from fedlog.errors import InputError


def small_posterior() -> tuple[LaplaceHead, torch.Tensor, object]:
    generator = Key(1).torch()
    features = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    labels = torch.arange(40) % 3
    posterior = Prior().posterior(
        Statistics.from_records(features + labels[:, None], labels, 4)
    )  # class 3 has no record
    return LaplaceHead(solve_head(posterior).weights, posterior.nu), features, posterior


def test_the_logits_covariance_is_that_of_the_dense_hessian() -> None:
    head, features, posterior = small_posterior()
    flat = head.weights.reshape(-1)
    hessian = torch.autograd.functional.hessian(
        lambda eta: -posterior.log_kernel(eta.reshape(head.weights.shape)),  # type: ignore[attr-defined]
        flat,
    )
    covariance = torch.linalg.inv(hessian)
    phi = torch.cat([torch.ones(5, 1, dtype=torch.float64), features[:5]], dim=1)
    n_class, m = head.weights.shape
    for row, record in zip(phi, features[:5], strict=True):
        lift = torch.block_diag(*[row[None]] * n_class)  # (n_class, n_class * m)
        expected = lift @ covariance @ lift.mT
        own, shared = head._compute_covariance_terms(record[None])
        found = torch.diag(own[0].exp()) + torch.outer(shared[0], shared[0])
        assert torch.allclose(found, expected, rtol=1e-6, atol=1e-10)
    assert flat.numel() == n_class * m


def test_probabilities_stay_finite_far_out_and_are_unsure_with_few_records() -> None:
    head, features, _ = small_posterior()
    wild = LaplaceHead(head.weights * 300, head.nu)
    chances = wild.probabilities(features * 100)
    assert torch.isfinite(chances).all()
    assert torch.allclose(chances.sum(1), torch.ones(40, dtype=torch.float64))
    # Few records behind the head make it unsure.
    few = LaplaceHead(head.weights, 1.0).probabilities(features).max(1).values
    many = LaplaceHead(head.weights, 1e9).probabilities(features).max(1).values
    assert bool((few <= many).all())


def test_a_temperature_undoes_a_scale_and_lowers_the_error() -> None:
    generator = Key(3).torch()
    logits = 2 * torch.randn(4000, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator)[:, 0]
    found = fit_temperature(4 * logits, labels)
    assert found == pytest.approx(4.0, rel=0.1)
    grid = [compute_log_loss(4 * logits / t, labels) for t in np.linspace(1, 10, 181)]
    assert compute_log_loss(4 * logits / found, labels) <= min(grid) + 1e-6
    assert compute_calibration_error(logits, labels) < 0.03 < 0.2 < compute_calibration_error(4 * logits, labels)
    with pytest.raises(InputError, match="validation records"):
        fit_temperature(logits[:0], labels[:0])


def test_records_unlike_any_seen_score_higher() -> None:
    head, features, _ = small_posterior()
    strange = features * 6 + 20
    scores = torch.cat([compute_novelty_scores(head.logits(each), each) for each in (features, strange)])
    marks = np.array([False] * 40 + [True] * 40)
    assert compute_area_under_curve(scores.numpy(), marks) > 0.99


def test_regression_is_the_exact_posterior_and_adds_up() -> None:
    generator = Key(8).torch()
    x = torch.randn(60, 4, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.1, 2.0])
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64) + 3 + 0.3 * torch.randn(60, generator=generator)
    pooled = solve_regression(sum_regression_moments(x, y), 0.5)
    parts = [sum_regression_moments(x[a:b], y[a:b]) for a, b in ((0, 7), (7, 30), (30, 60))]
    federated = solve_regression(parts[0] + parts[1] + parts[2], 0.5)
    assert float((pooled.weights - federated.weights).abs().max()) < 1e-10
    assert federated.noise == pytest.approx(pooled.noise, rel=1e-10)
    # The same posterior by its definition, the constant's weight with a precision of almost nothing.
    phi = torch.cat([torch.ones(60, 1, dtype=torch.float64), x], 1)
    prior = torch.diag(torch.cat([torch.tensor([1e-9]), 0.5 * 60 * x.var(0, correction=0)]).double())
    precision = phi.mT @ phi + prior
    weights = torch.linalg.solve(precision, phi.mT @ y)
    assert torch.allclose(pooled.weights, weights[1:], atol=1e-8)
    assert pooled.intercept == pytest.approx(float(weights[0]), abs=1e-6)
    residual = float((y - phi @ weights).square().sum() + weights @ prior @ weights)
    assert pooled.noise**2 * pooled.degrees == pytest.approx(residual, rel=1e-2)
    new = torch.cat([torch.ones(3, 1, dtype=torch.float64), x[:3] + 1], 1)
    spread = 1 + (new * torch.linalg.solve(precision, new.mT).mT).sum(1)
    _, scale = pooled.predict(x[:3] + 1)
    assert torch.allclose((scale / pooled.noise).square(), spread, rtol=1e-6)


def test_the_strength_of_largest_evidence_shrinks_what_says_nothing() -> None:
    generator = Key(10).torch()
    x = torch.randn(80, 20, generator=generator, dtype=torch.float64)
    noise = torch.randn(80, generator=generator, dtype=torch.float64)
    nothing = solve_regression(sum_regression_moments(x, noise))
    something = solve_regression(sum_regression_moments(x, 5 * x.sum(1) + noise))
    assert nothing.strength > 100 * something.strength
    assert float(nothing.weights.norm()) < 0.2


def test_intervals_cover_as_often_as_they_say() -> None:
    generator = Key(9).torch()
    weights = torch.randn(6, generator=generator, dtype=torch.float64)
    inside = []
    for _ in range(40):
        x = torch.randn(60, 6, generator=generator, dtype=torch.float64)
        y = x @ weights + torch.randn(60, generator=generator, dtype=torch.float64)
        low, high = solve_regression(sum_regression_moments(x[:20], y[:20])).predict_interval(x[20:], 0.9)
        inside.append(float(((low <= y[20:]) & (y[20:] <= high)).double().mean()))
    assert np.mean(inside) == pytest.approx(0.9, abs=0.03)
