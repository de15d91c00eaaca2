"""Laws of FedLog's first head, and the options that it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.algorithms.fedlog import FedLog, FedLogC, FirstHead, make_random_head
from fedlog.algorithms.interface import Algorithm, ModelPlan
from fedlog.algorithms.registry import make_method
from fedlog.core.keys import Key
from fedlog.core.stats import Statistics
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Contribution

PLAN = ModelPlan(n_class=3, width=5, layers=(("a.weight",), (HEAD,)), n_entries=38)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 30), st.integers(2, 40), st.floats(0.1, 20.0), st.integers(0, 2**40))
def test_rows_have_the_norm_no_bias_and_are_orthogonal_where_they_can_be(
    n_class: int, width: int, norm: float, seed: int
) -> None:
    head = make_random_head(n_class, width, norm, seed).double()
    assert head.shape == (n_class, 1 + width)
    assert not head[:, 0].any()
    torch.testing.assert_close(head.norm(dim=1), torch.full((n_class,), norm, dtype=torch.float64), rtol=1e-5, atol=0)
    if n_class <= width:
        products = head @ head.T / norm**2
        torch.testing.assert_close(products, torch.eye(n_class, dtype=torch.float64), rtol=0, atol=1e-5)
    assert torch.equal(head, make_random_head(n_class, width, norm, seed).double())
    assert not torch.equal(head, make_random_head(n_class, width, norm, seed + 1).double())


def test_the_default_first_head_is_drawn_from_the_seed_that_was_sent_with_rows_of_norm_five() -> None:
    algorithm = FedLog(PLAN)
    assert algorithm.first_head is FirstHead.RANDOM
    message = algorithm.broadcast(algorithm.begin(Key(3)))
    received = algorithm.receive(message, {})
    assert torch.equal(received[HEAD], make_random_head(3, 5, 5.0, int(message.arrays[0])))
    torch.testing.assert_close(received[HEAD].norm(dim=1), torch.full((3,), 5.0))


def test_a_class_without_records_has_no_mean_in_fedlog_c() -> None:
    algorithm = FedLogC(PLAN)
    sums = Statistics.from_records(torch.ones(4, 5), torch.tensor([0, 0, 2, 2]), 3).sums
    server = algorithm.step("statistics", algorithm.begin(Key(1)), Contribution((sums,)))
    received = algorithm.receive(algorithm.broadcast(server), {})
    work = algorithm.start_exchange("statistics", {}, received)
    assert work.constants["present"].tolist() == [True, False, True]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("fedlog", {"nu": -1.0}, "must not be negative, found: -1"),
    ("fedlog", {"head_norm": -1.0}, "head_norm of fedlog must be above 0"),
    ("fedlog-c", {"nu": -1.0}, "must not be negative, found: -1"),
    ("fedlog", {"head_norm": "nan"}, "option head_norm of fedlog cannot be"),
    ("fed-nb", {"share": "1.5"}, "option share of fed-nb must be 0 to 1, found: 1.5"),
    ("fed-lda", {"share": "-0.5"}, "option share of fed-lda must be 0 to 1, found: -0.5"),
    ("fed-qda", {"share": "2"}, "option share of fed-qda must be 0 to 1, found: 2"),
    ("fed-qda", {"towards_pooled": "2"}, "option towards_pooled of fed-qda must be 0 to 1, found: 2"),
    ("fedlog-c", {"alpha": "nan"}, "option alpha of fedlog-c cannot be"),
    ("fedproto", {"regularisation": "inf"}, "option regularisation of fedproto cannot be"),
]


@pytest.mark.parametrize(("method", "told", "said"), REFUSED)
def test_options_that_cannot_be_are_refused_before_anything_is_trained(
    method: str, told: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        make_method(method, PLAN, told)


class NoAlgorithm:
    """What a user may name by mistake: it is made from a plan, and can do nothing."""

    name = "nothing"

    def __init__(self, plan: ModelPlan) -> None:
        self.plan = plan


@dataclass(frozen=True)
class Unfinished(Algorithm):
    """What a user may have written so far: it has the defaults, and nothing of its own."""

    plan: ModelPlan

    name = "unfinished"

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        return server


def test_a_users_method_that_lacks_a_part_is_refused_with_what_it_lacks() -> None:
    with pytest.raises(InputError, match=r"is incomplete: it lacks bodies, training, .*schedule, .*begin, .*advice"):
        make_method(f"{__name__}:NoAlgorithm", PLAN, {})
    with pytest.raises(InputError, match=r"is incomplete: it lacks broadcast, deploy, finish_exchange, receive"):
        make_method(f"{__name__}:Unfinished", PLAN, {})
