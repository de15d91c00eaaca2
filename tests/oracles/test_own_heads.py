"""Heads of one's own for `fedcof`, `ccvr` and `fedpft`: from the global head to the site's own records alone."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from torch import Tensor

from fedlog.algorithms import registry
from fedlog.algorithms.interface import FeatureSummary, ModelPlan, Work, WorkResult
from fedlog.algorithms.one_exchange.base import OneExchange
from fedlog.algorithms.one_exchange.heads_from_drawn_features import OWN_MIXTURES
from fedlog.core.heads import mixtures
from fedlog.core.heads.gaussian import ABSENT
from fedlog.core.heads.logistic import fit_logistic_near_head
from fedlog.core.heads.mean_scatter import MeanScatterSums, estimate_gram, solve_ridge_with_unit_rows
from fedlog.core.heads.mixtures import Mixtures, draw_features, fit_mixtures
from fedlog.core.heads.personal import STRENGTHS, fit_personal_softmax_head
from fedlog.core.keys import Key
from fedlog.core.stats import Moments, Statistics
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Message, add_contributions, make_contribution

N_CLASS, WIDTH = 3, 4
DRAWN = ("ccvr", "fedpft")


def sites(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Five sites with their own shares of the classes and their own shift; the first has two classes of the three."""
    generator = Key(seed).child("sites").torch()
    centres = 2 * torch.randn(N_CLASS, WIDTH, dtype=torch.float64, generator=generator)
    found = []
    for at in range(5):
        labels = torch.arange(40) % (2 if at == 0 else N_CLASS)
        noise = torch.randn(40, WIDTH, dtype=torch.float64, generator=generator)
        shift = torch.randn(WIDTH, dtype=torch.float64, generator=generator)
        found.append((centres[labels] + noise + shift, labels))
    return found


def make(name: str, **options: Any) -> OneExchange:
    plan = ModelPlan(N_CLASS, WIDTH, ((HEAD,),), N_CLASS * (1 + WIDTH))
    found = registry.make_method(name, plan, {"personal": True, **options})
    assert isinstance(found, OneExchange)
    return found


def work(method: OneExchange, x: Tensor, y: Tensor) -> tuple[Params, Message]:
    """What a site with these records keeps at home, and what it sends."""
    (exchange,) = method.schedule.round
    if exchange.summary is FeatureSummary.MIXTURES:
        mixtures = fit_mixtures(x, y, N_CLASS, exchange.parts, Key(1), exchange.fewest)
        trained = WorkResult(
            {}, Moments.from_records(x, y, N_CLASS, exchange.detail).statistics, len(y), mixtures=mixtures
        )
    else:
        moments = Moments.from_records(x, y, N_CLASS, exchange.detail)
        trained = WorkResult({}, moments.statistics, len(y), moments.second)
    home, message = method.finish_exchange(exchange.name, {}, Work({}), trained)
    assert message is not None
    return home, message


def hear(method: OneExchange, uploads: list[Message]) -> Params:
    """What a site learns after these uploads, without any rounding on the way."""
    (exchange,) = method.schedule.round
    state = method.step(
        exchange.name, method.begin(Key(0)), add_contributions([make_contribution(each) for each in uploads])
    )
    return method.receive(method.broadcast(state), {})


def own_head(method: OneExchange, home: Params, received: Params, strength: float) -> Tensor:
    solved = method.solve_personal_head_from_home(home, received, strength)
    assert isinstance(solved, Tensor)
    return solved


@pytest.mark.parametrize("name", ["fedcof", *DRAWN])
def test_candidates_go_from_the_global_head_to_the_own_records_alone(name: str) -> None:
    method = make(name, classes="own")
    worked = [work(method, *site) for site in sites()]
    received = hear(method, [message for _, message in worked])
    found = dict(method.candidates(worked[0][0], received))
    assert list(found) == ["global", *(f"own {s:g}" for s in STRENGTHS[1:])]
    heads = [model[HEAD] for model in found.values()]
    away = [float((head[:2, 1:] - heads[0][:2, 1:]).norm()) for head in heads]
    assert away == sorted(away)  # the weaker the prior, the farther from the global head
    assert away[1] < away[-1]
    for model in found.values():
        assert float(model[HEAD][2, 0]) == ABSENT  # the site has no record of that class
        assert not [part for part in model if part.startswith("own.")]  # that stays at home


@pytest.mark.parametrize("name", ["fedcof", *DRAWN])
def test_a_prior_of_endless_strength_is_the_global_head(name: str) -> None:
    method = make(name)
    worked = [work(method, *site) for site in sites()]
    received = hear(method, [message for _, message in worked])
    found = own_head(method, worked[0][0], received, 1e12)
    torch.testing.assert_close(found, received[HEAD].double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "options"), [("ccvr", {}), ("fedpft", {}), ("fedpft", {"parts": 3})])
def test_alone_a_site_draws_and_trains_what_the_server_would_for_it_alone(name: str, options: dict[str, Any]) -> None:
    method = make(name, **options)
    worked = [work(method, *site) for site in sites()]
    everyone, alone = (hear(method, [m for _, m in some]) for some in (worked, worked[:1]))
    found = own_head(method, worked[0][0], everyone, 0.0)
    torch.testing.assert_close(found, alone[HEAD].double(), rtol=1e-6, atol=1e-6)


def test_the_prior_is_weighed_against_all_records_where_fewer_features_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mixtures, "MOST_ENTRIES", 10 * WIDTH)
    method = make("fedpft")
    worked = [work(method, *site) for site in sites()]
    home, received = worked[0][0], hear(method, [message for _, message in worked])
    own = Mixtures(*(home[name] for name in OWN_MIXTURES))
    features, labels = draw_features(own, torch.arange(N_CLASS), Key(method.seed).child("fedpft"))
    assert len(features) < len(sites()[0][1]) == 40
    expected = fit_personal_softmax_head(features, labels, 40, received[HEAD], 30.0)
    torch.testing.assert_close(own_head(method, home, received, 30.0), expected)


def test_alone_fedcof_takes_every_own_record_for_a_client() -> None:
    method = make("fedcof", gamma=0.7)
    x, y = sites()[0]
    worked = [work(method, *site) for site in sites()]
    found = own_head(method, worked[0][0], hear(method, [m for _, m in worked]), 0.0)
    each = []
    for row, label in zip(x, y, strict=True):
        means = torch.zeros(N_CLASS, WIDTH, dtype=torch.float64).index_copy(0, label[None], row[None])
        each.append(MeanScatterSums.from_means(means, torch.nn.functional.one_hot(label, N_CLASS)))
    summed = MeanScatterSums(*(reduce(add, [getattr(s, part) for s in each]) for part in ("sums", "outer", "holders")))
    torch.testing.assert_close(
        found, solve_ridge_with_unit_rows(Statistics(summed.sums), estimate_gram(summed, 0.7)), rtol=1e-9, atol=1e-9
    )


def test_fedcof_adds_own_and_everyones_sums_and_gram_matrices_by_hand() -> None:
    """Class by class in NumPy, from the records and from the means that were sent."""
    gamma, strength = 0.5, 30.0
    method = make("fedcof", gamma=gamma)
    data = [(x.numpy(), y.numpy()) for x, y in sites()]
    worked = [work(method, *site) for site in sites()]
    found = own_head(method, worked[0][0], hear(method, [m for _, m in worked]), strength)

    def gram_of(groups: list[tuple[Any, Any]]) -> tuple[Any, Any, int]:
        records = sum(len(y) for _, y in groups)
        sums = np.stack([sum(x[y == k].sum(0) for x, y in groups) for k in range(N_CLASS)])
        gram = np.outer(sums.sum(0), sums.sum(0)) / records
        for k in range(N_CLASS):
            means = [(x[y == k].mean(0), int((y == k).sum())) for x, y in groups if (y == k).any()]
            count = sum(n for _, n in means)
            if not count:
                continue
            scatter = sum(n * np.outer(m - sums[k] / count, m - sums[k] / count) for m, n in means)
            gram += (count - 1) * (scatter / max(1, len(means) - 1) + gamma * np.eye(WIDTH))
        return sums, gram, records

    sums, gram, records = gram_of(data)
    x, y = data[0]
    own_sums, own_gram, _ = gram_of([(x[at : at + 1], y[at : at + 1]) for at in range(len(y))])
    share = strength / records
    weights = np.linalg.solve(own_gram + share * gram, (own_sums + share * sums).T).T
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    assert np.allclose(found[:, 1:].numpy(), weights, atol=1e-6)  # class means are sent as float32
    assert found[:, 0].tolist() == [0.0] * N_CLASS


def test_a_softmax_head_around_another_is_the_minimum_that_scipy_finds() -> None:
    x, y = sites()[0]
    head = torch.randn(N_CLASS, 1 + WIDTH, dtype=torch.float64, generator=Key(5).torch())
    pull = 0.05
    found = fit_logistic_near_head(x, y, head, pull)
    raw, labels = x.numpy(), y.numpy()
    centre, spread = raw.mean(0), raw.std(0)

    def loss(flat: Any) -> float:
        """In the units of the raw features: a bias is compared at the records' centre, a weight per spread."""
        own = flat.reshape(N_CLASS, 1 + WIDTH)
        logits = raw @ own[:, 1:].T + own[:, 0]
        moved = own - head.numpy()
        bias, slope = moved[:, 0] + moved[:, 1:] @ centre, moved[:, 1:] * spread
        entropy = np.mean(logsumexp(logits, axis=1) - logits[np.arange(len(labels)), labels])
        return float(entropy + pull / 2 * (np.sum(bias**2) + np.sum(slope**2)))

    expected = minimize(loss, np.zeros(head.numel()), method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
    assert loss(found.numpy().reshape(-1)) < expected.fun + 1e-8
    assert np.allclose(found.numpy().reshape(-1), expected.x, atol=1e-3)


def test_a_class_that_nobody_had_wins_only_where_it_has_records() -> None:
    x, y = sites()[0]
    head = torch.zeros(N_CLASS, 1 + WIDTH, dtype=torch.float64)
    head[1:, 0] = ABSENT
    found = fit_logistic_near_head(x, y, head, 1e-3)
    assert (found[:, 0] == ABSENT).tolist() == [False, False, True]
    assert float(((x @ found[:, 1:].mT + found[:, 0]).argmax(1) == y).double().mean()) > 0.8


@pytest.mark.parametrize("name", ["fedcof", *DRAWN])
def test_a_site_without_records_uses_the_global_head(name: str) -> None:
    method = make(name)
    worked = [work(method, *site) for site in sites()]
    home, nothing = work(method, torch.zeros(0, WIDTH, dtype=torch.float64), torch.zeros(0, dtype=torch.int64))
    received = hear(method, [*(m for _, m in worked), nothing])
    assert [label for label, _ in method.candidates(home, received)] == ["global"]


def test_without_two_records_of_a_class_there_is_no_fedcof_head_of_ones_own_alone() -> None:
    method = make("fedcof")
    x, y = sites()[0]
    home, message = work(method, x[:2], y[:2])
    received = hear(method, [message, *(work(method, *site)[1] for site in sites()[1:])])
    assert [label for label, _ in method.candidates(home, received)] == ["global", "own 1000", "own 100", "own 10"]
