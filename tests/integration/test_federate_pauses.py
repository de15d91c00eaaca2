"""The pauses of a SuperNode: short while a run is under way, Flower's own when nothing happens."""

from __future__ import annotations

import inspect
import re
import time

import flwr
import pytest
from flwr.supernode import start_client_internal

from fedlog.errors import RunError
from fedlog.flower.site import supernode
from fedlog.flower.site.supernode import (
    ANSWER_SECONDS,
    FIRST_PAUSE_SECONDS,
    FLOWER_ANSWER_SECONDS,
    FLOWER_IDLE_SECONDS,
    Pauses,
)


def test_a_wait_is_longer_by_little_and_the_calls_are_few() -> None:
    slept: list[float] = []
    pauses = Pauses(slept.append)
    for _ in range(30):
        pauses.sleep(FLOWER_IDLE_SECONDS)
    assert slept[0] == FIRST_PAUSE_SECONDS
    assert slept[-1] == FLOWER_IDLE_SECONDS  # as Flower has it, when nothing comes
    for at in range(1, 30):
        waited = sum(slept[:at])
        assert slept[at] <= 0.36 * waited + FIRST_PAUSE_SECONDS  # beyond the first pause a third of the wait
    assert sum(seconds < FLOWER_IDLE_SECONDS for seconds in slept) < 15
    pauses.sleep(FLOWER_ANSWER_SECONDS)  # a message is being worked on
    assert slept[-1] == ANSWER_SECONDS
    pauses.sleep(FLOWER_IDLE_SECONDS)
    assert slept[-1] == FIRST_PAUSE_SECONDS
    pauses.sleep(7.0)
    assert slept[-1] == 7.0
    assert pauses.monotonic is time.monotonic


def test_flower_still_sleeps_where_the_pauses_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.findall(r"time\.sleep\(([\d.]+)\)", inspect.getsource(start_client_internal))
    assert sorted(set(map(float, found))) == [FLOWER_ANSWER_SECONDS, FLOWER_IDLE_SECONDS]
    monkeypatch.setattr(flwr, "__version__", "9.9.9")
    with pytest.raises(RunError, match="expected flwr"):
        supernode.main()
