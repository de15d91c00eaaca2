"""Heads from sums against the same heads from all records in one place, and against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from torch import Tensor

from fedlog.algorithms import registry
from fedlog.algorithms.interface import ModelPlan
from fedlog.core.heads import mixtures as mixtures_module
from fedlog.core.heads.gaussian import (
    QuadraticHead,
    solve_linear_discriminant,
    solve_naive_bayes,
    solve_nearest_mean_head,
    solve_quadratic_discriminant,
)
from fedlog.core.heads.logistic import fit_logistic
from fedlog.core.heads.mean_scatter import MeanScatterSums, estimate_gram, solve_ridge_with_unit_rows
from fedlog.core.heads.mixtures import Mixtures, draw_features, fit_mixtures, join_small_gaussians
from fedlog.core.heads.personal import solve_personal_fedlog_head
from fedlog.core.heads.ridge import solve_personal_ridge_head, solve_ridge_head
from fedlog.core.heads.shrinkage import find_oracle_shrinkage
from fedlog.core.keys import Key
from fedlog.core.map_head import solve_head
from fedlog.core.packed_matrix import find_diagonal, pack_triangle, unpack_triangle
from fedlog.core.posterior import Prior
from fedlog.core.stats import Detail, Moments, Statistics
from fedlog.models.body import HEAD, QUADRATIC, logits

N_CLASS, WIDTH = 4, 6


def records(n: int = 240, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Correlated features of unbalanced classes, far from zero."""
    generator = Key(seed).child("records").torch()
    labels = torch.multinomial(torch.tensor([0.5, 0.2, 0.2, 0.1]), n, replacement=True, generator=generator)
    mixing = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)
    centres = 2 * torch.randn(N_CLASS, WIDTH, generator=generator, dtype=torch.float64) + 3
    features = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) @ mixing + centres[labels]
    return features, labels


def solve(name: str, moments: Moments) -> Tensor:
    """Every number of a head, as one vector."""
    head: Tensor | QuadraticHead = {
        "fedlog": lambda: solve_head(Prior().posterior(moments.statistics)).weights,
        "ncm": lambda: solve_nearest_mean_head(moments.statistics),
        "lda": lambda: solve_linear_discriminant(moments),
        "ridge": lambda: solve_ridge_head(moments),
        "nb": lambda: solve_naive_bayes(moments, 0.1),
        "qda": lambda: solve_quadratic_discriminant(moments),
    }[name]()
    if isinstance(head, QuadraticHead):
        return torch.cat([head.linear.reshape(-1), head.quadratic.reshape(-1)])
    return head.reshape(-1)


DETAILS = {
    "fedlog": Detail.MEANS,
    "ncm": Detail.MEANS,
    "lda": Detail.SECOND,
    "ridge": Detail.SECOND,
    "nb": Detail.SQUARES,
    "qda": Detail.CLASS_SECOND,
}


@pytest.mark.parametrize("name", DETAILS)
def test_the_federated_head_is_the_pooled_one_also_after_a_site_left(name: str) -> None:
    features, labels = records()
    order = labels.argsort(stable=True)  # sites of one or two classes, the hardest split there is
    sites = [
        Moments.from_records(features[part], labels[part], N_CLASS, DETAILS[name]) for part in torch.split(order, 40)
    ]

    def summed(some: list[Moments]) -> Moments:
        total = Moments.zeros(N_CLASS, WIDTH, DETAILS[name])
        for each in some:
            total = total + each
        return total

    pooled = Moments.from_records(features, labels, N_CLASS, DETAILS[name])
    assert (solve(name, summed(sites)) - solve(name, pooled)).abs().max() < 1e-10
    rest = torch.cat([part for at, part in enumerate(torch.split(order, 40)) if at != 2])
    left = Moments.from_records(features[rest], labels[rest], N_CLASS, DETAILS[name])
    after = solve(name, summed(sites) + sites[2] * -1.0)
    assert (after - solve(name, left)).abs().max() < 1e-10 * max(1.0, float(after.abs().max()))


def test_packing_keeps_the_matrix_and_its_length() -> None:
    vector = torch.randn(7, dtype=torch.float64, generator=Key(1).torch())
    matrix = torch.outer(vector, vector)
    assert torch.allclose(unpack_triangle(pack_triangle(matrix), 7), matrix)
    assert float(pack_triangle(matrix).norm()) == pytest.approx(float(vector @ vector))
    assert torch.allclose(pack_triangle(matrix)[find_diagonal(7)], vector.square())


def test_lda_is_scikit_learns() -> None:
    features, labels = records()
    ours = solve_linear_discriminant(Moments.from_records(features, labels, N_CLASS, Detail.SECOND), share=0.0)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.0).fit(features.numpy(), labels.numpy())
    # Its covariance divides by n, ours by n - classes.
    scale = (len(labels) - N_CLASS) / len(labels)
    assert np.allclose(ours[:, 1:].numpy() / scale, theirs.coef_, rtol=1e-8, atol=1e-8)


def test_the_closed_form_of_shrinkage_is_scikit_learns() -> None:
    features, _ = records(30)
    centred = features - features.mean(0)
    theirs = OAS(assume_centered=True).fit(centred.numpy())
    assert find_oracle_shrinkage(centred.mT @ centred / 30, 30) == pytest.approx(theirs.shrinkage_, rel=0.1)


def test_naive_bayes_is_scikit_learns() -> None:
    features, labels = records()
    head = solve_naive_bayes(Moments.from_records(features, labels, N_CLASS, Detail.SQUARES))
    ours = torch.log_softmax(logits(features, {HEAD: head.linear, QUADRATIC: head.quadratic}), dim=1)
    theirs = GaussianNB().fit(features.numpy(), labels.numpy()).predict_log_proba(features.numpy())
    assert np.allclose(ours.numpy(), theirs, rtol=1e-6, atol=1e-6)


def test_quadratic_discriminants_are_log_densities() -> None:
    features, labels = records()
    head = solve_quadratic_discriminant(
        Moments.from_records(features, labels, N_CLASS, Detail.CLASS_SECOND), 0.0, share=0.0
    )
    logs = []
    for y in range(N_CLASS):
        own = features[labels == y]
        centred = own - own.mean(0)
        normal = torch.distributions.MultivariateNormal(own.mean(0), centred.mT @ centred / len(own))
        logs.append(normal.log_prob(features) + np.log(len(own) / len(labels)))
    expected = torch.log_softmax(torch.stack(logs, dim=1), dim=1)
    found = torch.log_softmax(logits(features, {HEAD: head.linear, QUADRATIC: head.quadratic}), dim=1)
    assert torch.allclose(found, expected, rtol=1e-8, atol=1e-8)


def test_ridge_is_scikit_learns() -> None:
    features, labels = records()
    moments = Moments.from_records(features, labels, N_CLASS, Detail.SECOND)
    centred = features - features.mean(0)
    penalty = 0.02 * float(centred.square().sum()) / WIDTH
    theirs = Ridge(alpha=penalty).fit(features.numpy(), np.eye(N_CLASS)[labels.numpy()])
    ours = solve_ridge_head(moments, 0.02)
    assert np.allclose(ours[:, 1:].numpy(), theirs.coef_, atol=1e-10)
    assert np.allclose(ours[:, 0].numpy(), theirs.intercept_, atol=1e-10)


def test_an_own_ridge_stands_where_its_gradient_is_zero() -> None:
    features, labels = records(50)
    own = Moments.from_records(features, labels, N_CLASS, Detail.SECOND)
    head = torch.randn(N_CLASS, 1 + WIDTH, dtype=torch.float64, generator=Key(3).torch())
    found = solve_personal_ridge_head(own, head, 0.5).requires_grad_(True)
    phi = torch.cat([torch.ones(50, 1, dtype=torch.float64), features], dim=1)
    weight = 0.5 * float((phi.mT @ phi).trace()) / (1 + WIDTH)
    onehot = torch.nn.functional.one_hot(labels, N_CLASS).double()
    loss = (phi @ found.mT - onehot).square().sum() + weight * (found - head).square().sum()
    (gradient,) = torch.autograd.grad(loss, found)
    assert float(gradient.abs().max()) < 1e-9 * weight


def test_an_own_fedlog_head_goes_from_the_global_head_to_the_own_records() -> None:
    features, labels = records()
    everyone = solve_head(Prior(nu=0.0).posterior(Statistics.from_records(features, labels, N_CLASS))).weights
    own = Statistics.from_records(features[:20], labels[:20], N_CLASS)
    assert torch.equal(solve_personal_fedlog_head(own, everyone, float("inf")), everyone)
    near = solve_personal_fedlog_head(own, everyone, 1e9)
    assert torch.allclose(near, everyone, atol=1e-4)
    alone = solve_head(Prior(nu=1.0).posterior(own)).weights
    assert torch.equal(solve_personal_fedlog_head(own, everyone, 0.0), alone)
    # With everyone's records as its own and no strength beside them, the head of maximum likelihood comes back.
    again = solve_personal_fedlog_head(Statistics.from_records(features, labels, N_CLASS), everyone, 50.0)
    assert torch.allclose(again, everyone, atol=1e-8)


def test_class_means_of_clients_estimate_the_covariance() -> None:
    generator = Key(2).torch()
    mixing = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    totals: list[MeanScatterSums] = []
    for _ in range(4000):
        own = torch.randn(5, 3, generator=generator, dtype=torch.float64) @ mixing
        totals.append(MeanScatterSums.from_means(own.mean(0)[None], torch.tensor([5])))
    parts = [torch.stack([getattr(t, name) for t in totals]).sum(0) for name in ("sums", "outer", "holders")]
    summed = MeanScatterSums(*parts)
    mean = summed.sums[0, 1:] / summed.sums[0, 0]
    found = (unpack_triangle(summed.outer[0], 3) - summed.sums[0, 0] * torch.outer(mean, mean)) / (
        summed.holders[0] - 1
    )
    expected = mixing.mT @ mixing
    assert float((found - expected).norm() / expected.norm()) < 0.1
    head = solve_ridge_with_unit_rows(Statistics(summed.sums), estimate_gram(summed))
    assert float(head[0, 1:].norm()) == pytest.approx(1.0)


def test_the_softmax_head_is_scikit_learns() -> None:
    features, labels = records()
    ours = fit_logistic(features, labels, N_CLASS, 0.01)
    standard = (features - features.mean(0)) / features.std(0, correction=0)
    theirs = LogisticRegression(C=1 / (0.01 * len(labels)), max_iter=5000, tol=1e-10).fit(standard, labels)
    logits = features @ ours[:, 1:].mT + ours[:, 0]
    found = torch.softmax(logits, dim=1).numpy()
    assert np.allclose(found, theirs.predict_proba(standard), atol=1e-4)


def test_one_gaussian_a_class_has_its_mean_and_variance_and_more_fit_no_worse() -> None:
    features, labels = records()
    one = fit_mixtures(features, labels, N_CLASS, 1, Key(0))
    own = features[labels == 1]
    assert torch.allclose(one.means[1], own.mean(0))
    assert torch.allclose(one.variances[1], own.var(0, correction=0))
    far = torch.cat([torch.randn(100, 2, generator=Key(4).torch()) + 20, torch.randn(100, 2, generator=Key(5).torch())])
    two = fit_mixtures(far, torch.zeros(200, dtype=torch.int64), 1, 2, Key(7))
    assert sorted(round(float(mean)) for mean in two.means[:, 0]) == [0, 20]
    assert float(two.counts.sum()) == pytest.approx(200)


def test_joined_gaussians_have_the_moments_of_all_their_records_and_none_is_small() -> None:
    generator = Key(8).torch()
    sizes = torch.tensor([3, 40, 1, 12, 7])
    groups = [torch.randn(int(n), 3, dtype=torch.float64, generator=generator) + 5 * at for at, n in enumerate(sizes)]
    apart = Mixtures(
        sizes.double(), torch.stack([g.mean(0) for g in groups]), torch.stack([g.var(0, correction=0) for g in groups])
    )
    joined = join_small_gaussians(apart, 10)
    assert len(joined.counts) > 1
    assert float(joined.counts.min()) >= 10
    # The records lie on a line, so the neighbours of each joined Gaussian are known: 3 + 40, and 1 + 12 + 7.
    expected = [torch.cat(groups[:2]), torch.cat(groups[2:])]
    for at, every in zip(joined.means[:, 0].argsort().tolist(), expected, strict=True):
        assert float(joined.counts[at]) == len(every)
        torch.testing.assert_close(joined.means[at], every.mean(0))
        torch.testing.assert_close(joined.variances[at], every.var(0, correction=0))
    (alone,) = join_small_gaussians(apart, 1000).counts.tolist()
    assert alone == 63


def test_a_mixture_with_a_bound_has_no_small_gaussian_and_all_records() -> None:
    features, labels = records(200)
    found = fit_mixtures(features, labels, N_CLASS, 6, Key(1), fewest=10)
    of_class = found.counts.reshape(N_CLASS, 6)
    counts = torch.bincount(labels, minlength=N_CLASS)
    torch.testing.assert_close(of_class.sum(1), counts.double())
    for row in of_class:
        used = row[row > 0]
        assert len(used) == 1 or float(used.min()) >= 10
    assert int((of_class > 0).sum()) > N_CLASS
    assert float(fit_mixtures(features, labels, N_CLASS, 40, Key(1)).counts[:40].clamp_min(1e-9).min()) < 10


def test_whoever_states_a_billion_records_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixtures_module, "MOST_ENTRIES", 3000)
    stated = Mixtures(torch.tensor([1e15, 5.0]), torch.zeros(2, 3, dtype=torch.float64), torch.ones(2, 3).double())
    features, labels = draw_features(stated, torch.tensor([0, 1]), Key(0))
    assert features.shape == (1001, 3)
    assert labels.tolist().count(1) == 1


def test_ccvr_draws_the_same_features_whatever_order_the_sums_were_added_in() -> None:
    generator = Key(4).torch()
    x = torch.randn(90, 5, dtype=torch.float64, generator=generator)
    x[:, 3], x[:, 4] = 0.1, x[:, 0]  # a column without spread but for rounding, and one that is another's
    y = torch.arange(90) % 3
    method = registry.make_method("ccvr", ModelPlan(3, 5, ((HEAD,),), 18), {})
    whole = Moments.from_records(x, y, 3, Detail.CLASS_SECOND)
    parts = [Moments.from_records(x[own], y[own], 3, Detail.CLASS_SECOND) for own in torch.split(torch.arange(90), 7)]
    added = parts[-1]
    for part in parts[-2::-1]:
        added = added + part
    heads = [method.solve(each) for each in (whole, added)]  # type: ignore[attr-defined]
    assert float(heads[0].abs().max()) < 1e3
    torch.testing.assert_close(heads[0], heads[1], rtol=1e-9, atol=1e-9)
