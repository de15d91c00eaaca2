"""CS-FL against a computation by hand: a dense matrix, and the best sparse vector by trying every support."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import (
    CLASSES,
    CLOSE,
    EVERYTHING,
    LAYERS,
    ROUNDS,
    SEED,
    SIZES,
    WIDTH,
    Array,
    Model,
    client_key,
    gap,
    initial,
    records,
    run,
    train,
)

from fedlog.algorithms.csfl import CSFL
from fedlog.algorithms.interface import ModelPlan
from fedlog.core.keys import Key
from fedlog.errors import RunError
from fedlog.wire.message import Kind, Message

OPTIONS = {"threshold": 0.262, "reduction": 0.9, "phase_1_rate": 0.8, "phase_2_rate": 0.03}
ENTRIES = 9 + 3 + 6 + 2 + 9
ROWS = round(0.9 * ENTRIES)


def flat(model: Model) -> Array:
    return np.concatenate([model[name].ravel() for name in EVERYTHING])


def shaped(vector: Array) -> Model:
    start, model = 0, {}
    for name in EVERYTHING:
        value = initial()[name]
        model[name] = vector[start : start + value.size].reshape(value.shape)
        start += value.size
    return model


def matrix() -> Array:
    """(rows, entries): rows of the Hartley matrix with random signs on its columns, entry by entry."""
    generator = Key(Key(SEED).child("server").integer()).child("sensing").torch()
    signs = torch.randint(0, 2, (ENTRIES,), generator=generator).numpy() * 2.0 - 1
    taken = torch.randperm(ENTRIES, generator=generator)[:ROWS].numpy()
    angle = 2 * np.pi * np.outer(taken, np.arange(ENTRIES)) / ENTRIES
    return (np.cos(angle) + np.sin(angle)) / np.sqrt(ENTRIES) * signs


def best_sparse(dense: Array, measured: Array, support: int) -> Array:
    """The vector with that many non-zero entries whose measurements are nearest, by trying every support."""
    best, found = np.inf, np.zeros(ENTRIES)
    for at in combinations(range(ENTRIES), support):
        values, *_ = np.linalg.lstsq(dense[:, at], measured, rcond=None)
        error = float(((dense[:, at] @ values - measured) ** 2).sum())
        if error < best:
            best, found = error, np.zeros(ENTRIES)
            found[list(at)] = values
    return found


def by_hand(recovered: str = "exhaustive", error_feedback: float = 1.0, votes: float = 1.0) -> Model:
    dense = matrix()
    w = flat(initial())
    for round_number in range(1, ROUNDS + 1):
        measured, support, errors = np.zeros(ROWS), 0.0, []
        for at, share in enumerate(np.array(SIZES) / sum(SIZES)):
            change = flat(train(shaped(w), records()[at], client_key(at, round_number, "measure"))) - w
            large = np.where(np.abs(change) > OPTIONS["threshold"], change, 0)
            errors.append(change - large)
            measured += share * (dense @ large)
            support += share * np.count_nonzero(large)
        assert 1 <= round(support) <= 3  # or every support could not be tried
        if recovered == "exhaustive":
            w = w + OPTIONS["phase_1_rate"] * best_sparse(dense, measured, round(support))
        elif recovered == "wrong end":  # the smallest entries instead of the largest
            spread = dense.T @ measured
            w = w + OPTIONS["phase_1_rate"] * np.where(
                np.abs(spread) <= np.sort(np.abs(spread))[round(support)], spread, 0
            )
        tally = np.zeros(ENTRIES)
        for at in (0, 1):
            change = flat(train(shaped(w), records()[at], client_key(at, round_number, "vote"))) - w
            tally += np.where(change + error_feedback * errors[at] >= 0, 1, -1)
        w = w + votes * OPTIONS["phase_2_rate"] * np.where(tally >= 0, 1, -1)
    return shaped(w)


def test_two_clients_two_rounds(tmp_path: Path) -> None:
    found = run("cs-fl", tmp_path, **OPTIONS)
    expected = by_hand()
    assert gap(found, [expected, expected]) < CLOSE
    for wrong in (
        by_hand(recovered="nothing"),
        by_hand(recovered="wrong end"),
        by_hand(error_feedback=0.0),
        by_hand(votes=0.0),
    ):
        assert gap(found, [wrong, wrong]) > 100 * CLOSE


def algorithm() -> CSFL:
    return CSFL(ModelPlan(CLASSES, WIDTH, LAYERS, ENTRIES), **OPTIONS)


def signs(number: int) -> Message:
    return Message(Kind.SIGNS, (torch.arange(ENTRIES) % 2 == 0, torch.tensor([number])))


def test_an_update_heard_twice_counts_once_and_a_missed_one_is_noticed() -> None:
    method = algorithm()
    known = method.receive(method.broadcast(method.begin(Key(0))), {})
    once = method.receive(signs(1), known)
    again = method.receive(signs(1), once)
    assert torch.equal(once["moved"], again["moved"])
    assert torch.allclose(once["moved"].abs(), torch.tensor(OPTIONS["phase_2_rate"], dtype=torch.float64))
    with pytest.raises(RunError, match="has updates up to 1 expected the next one, found: update 3"):
        method.receive(signs(3), once)
