"""Clients that vanish in the middle of a simulated secure sum, and keys that come with the sum before."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.engine.simulate.secure_sums import SecureSums, SimulatedDropouts
from fedlog.errors import InputError
from fedlog.experiments.run.execute import execute
from fedlog.privacy.secagg.encoding import RoundFailedError
from fedlog.privacy.secagg.terms import Step
from fedlog.settings.spec import RunSpec
from fedlog.wire.ledger import Direction, Ledger
from fedlog.wire.message import Contribution

MakeFederation = Callable[..., Federation]


class Chosen(SimulatedDropouts):
    """Dropouts as the test wants them, sum by sum."""

    def __init__(self, silent: list[dict[int, Step]]) -> None:
        object.__setattr__(self, "silent", silent)

    def draw(self, sum_number: int, members: object) -> dict[int, Step]:
        silent: list[dict[int, Step]] = self.silent  # type: ignore[attr-defined]
        return silent[sum_number] if sum_number < len(silent) else {}


def _uploads(count: int) -> list[tuple[int, Contribution]]:
    return [(n, Contribution((torch.full((2, 3), float(n + 1), dtype=torch.float64),))) for n in range(count)]


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(st.integers(0, 6), st.sampled_from(Step), max_size=7))
def test_the_sum_is_over_those_whose_vector_came_or_there_is_none(silent: dict[int, Step]) -> None:
    sums = SecureSums(dropouts=Chosen([silent]))
    in_it = [n for n in range(7) if silent.get(n, len(Step)) > Step.MASKED]
    last = [n for n in range(7) if n not in silent]
    agreed = [n for n in range(7) if silent.get(n, len(Step)) > Step.AGREE]
    if min(len(in_it), len(agreed), len(last)) < 4:  # the threshold of seven
        with pytest.raises(RoundFailedError):
            sums.sum_uploads(1, _uploads(7), Ledger())
        assert sums.survivors == ()
        return
    total = sums.sum_uploads(1, _uploads(7), Ledger())
    assert sums.survivors == tuple(in_it)
    assert total.arrays[0].tolist() == [[float(sum(n + 1 for n in in_it))] * 3] * 2


@pytest.mark.parametrize("step", [Step.KEYS, Step.SHARES, Step.MASKED])
def test_below_the_honest_survivors_nothing_is_unmasked(step: Step) -> None:
    sums = SecureSums(honest=6, dropouts=Chosen([{0: step, 1: step}]))
    ledger = Ledger()
    with pytest.raises(RoundFailedError, match="too few clients"):
        sums.sum_uploads(1, _uploads(7), ledger)
    kinds = ledger.sum_bits_by_kind(1)
    assert not any("unmask" in kind or "agree" in kind for kind in kinds)


def test_keys_that_came_early_save_a_turn_and_are_asked_for_where_they_did_not() -> None:
    sums = SecureSums(dropouts=Chosen([{}, {2: Step.UNMASK}, {}, {}]))
    everyone = list(range(5))
    turns = []
    for number in range(1, 5):
        ledger = Ledger()
        sums.sum_uploads(number, _uploads(5), ledger, everyone if number < 4 else [])
        turns.append(int(sums.read_and_reset_counts()["secure_sum_turns"]))
        sent = ledger.sum_bits_by_kind(number).get("secure keys up", 0) > 0
        assert sent == (number < 4)
    # Client 2 was not there to reply in the second sum, so the third asks it for its keys.
    assert turns == [5, 4, 5, 4]


def test_keys_for_other_clients_or_another_shape_are_not_used() -> None:
    sums = SecureSums()
    sums.sum_uploads(1, [(n, Contribution((torch.ones(4),))) for n in range(5)], Ledger(), list(range(5)))
    assert sums.read_and_reset_counts()["secure_sum_turns"] == 5
    sums.sum_uploads(1, _uploads(5), Ledger(), list(range(4)))
    total = sums.sum_uploads(2, _uploads(4), Ledger(), [])
    assert total.arrays[0][0, 0] == 1 + 2 + 3 + 4
    assert sums.read_and_reset_counts()["secure_sum_turns"] == 10


def test_dropouts_are_drawn_from_the_key_at_their_rate() -> None:
    dropouts = SimulatedDropouts(0.3, Key(1))
    drawn = [dropouts.draw(number, range(100)) for number in range(30)]
    assert drawn[0] == dropouts.draw(0, range(100)) != drawn[1]
    assert sum(map(len, drawn)) / 3000 == pytest.approx(0.3, abs=0.04)
    assert {step for each in drawn for step in each.values()} == set(Step)
    with pytest.raises(InputError, match="dropout rate"):
        SimulatedDropouts(1.0, Key(1))


def test_a_run_goes_on_through_dropouts_and_says_which_sums_failed(tmp_path: Path) -> None:
    spec = RunSpec(
        data="digits",
        clients=10,
        body=("mlp:8",),
        train_records=400,
        options={"epochs": 1},
        rounds=4,
        aggregation="secure",
        dropout_rate=0.4,
        honest=6,
    )
    execute(spec, tmp_path / "run")
    from fedlog.experiments.run import records

    rounds = records.read_rounds(tmp_path / "run" / "records.jsonl")
    failed = [record for record in rounds if "secure sum" in record.refused]
    assert 0 < len(failed) < len(rounds)
    for record in rounds:
        survivors = record.observed["secure_sum_survivors"]
        assert survivors == 0 if record in failed else survivors >= 6
        assert not math.isnan(record.accuracy_mean_over_clients)
    with pytest.raises(InputError, match="need a secure sum: dropout_rate"):
        execute(RunSpec(dropout_rate=0.1), tmp_path / "other")


def test_what_the_server_sends_to_the_silent_is_counted_and_what_they_never_sent_is_not() -> None:
    counted = []
    for silent in ({}, {3: Step.MASKED}):
        ledger = Ledger()
        SecureSums(dropouts=Chosen([silent])).sum_uploads(1, _uploads(5), ledger)
        counted.append(ledger.sum_bits_by_kind(1))
    whole, without = counted
    assert whole["secure masked down"] == without["secure masked down"]
    assert without["secure masked up"] == whole["secure masked up"] * 4 // 5
    assert Ledger().sum_bits(Direction.UP) == 0
