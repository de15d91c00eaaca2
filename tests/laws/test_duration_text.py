"""Durations as text: a suitable unit, and one function for all pages and terminals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedlog
from fedlog.files.duration_text import describe_duration

SECONDS = {"s": 1, "min": 60, "h": 3600}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.347, "0.35 s"), (4.06, "4.1 s"), (85, "85 s"), (720, "12 min"), (9000, "2.5 h")],
)
def test_a_time_is_written_in_a_unit_that_suits_it(seconds: float, text: str) -> None:
    assert describe_duration(seconds) == text


@given(st.floats(0.01, 1e6))
def test_what_is_written_is_the_time_to_half_of_its_last_digit(seconds: float) -> None:
    number, unit = describe_duration(seconds).split(" ")
    half = {"s": 0.5 if seconds >= 9.95 else 0.051 * seconds, "min": 30, "h": 180}[unit]
    assert abs(float(number) * SECONDS[unit] - seconds) <= half + 1e-6
    assert unit == "h" or float(number) <= 120


def test_no_other_place_writes_minutes_or_hours() -> None:
    writes = re.compile(r"\} ?(min|h|hours?|minutes?)[\"' .,]")
    root = Path(fedlog.__file__).parent
    assert {path.name for path in root.rglob("*.py") if writes.search(path.read_text())} == {"duration_text.py"}
