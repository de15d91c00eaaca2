"""Numbers of bits as text: the right unit, three digits, and one function for all pages and terminals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedlog
from fedlog.wire.bits_text import UNITS, describe_bits

SIZES = {"b": 1.0, **dict(UNITS)}


@pytest.mark.parametrize(
    ("bits", "text"),
    [(0, "0 b"), (934, "934 b"), (12_400, "12.4 kb"), (3.1e6, "3.10 Mb"), (165e6, "165 Mb"), (2e12, "2.00 Tb")],
)
def test_bits_are_written_in_a_unit_that_suits_them(bits: float, text: str) -> None:
    assert describe_bits(bits) == text


@given(st.integers(0, 10**15 - 10**13))
def test_what_is_written_is_the_number_to_three_digits_and_never_a_power_of_ten(bits: int) -> None:
    number, unit = describe_bits(bits).split(" ")
    assert re.fullmatch(r"\d{1,3}|\d\d\.\d|\d\.\d\d", number)
    assert float(number) * SIZES[unit] == pytest.approx(bits, rel=0.0051)
    assert float(number) >= 1 or unit == "b"


@given(st.sampled_from([size for _, size in UNITS]), st.floats(0.99, 1.01))
def test_the_next_unit_begins_where_rounding_reaches_it(size: float, times: float) -> None:
    assert float(describe_bits(size * times).split(" ")[0]) < 1000


def test_no_other_place_writes_units_of_bits() -> None:
    """Except for the paper's printed figures and for axes in a fixed unit."""
    unit = re.compile(r"""[\d})] ?[kMGT]b(?:its?)?["' ]|["'][kMGT]b["']""")
    root = Path(fedlog.__file__).parent
    found = {path.name for path in root.rglob("*.py") if unit.search(_without_docstrings(path.read_text()))}
    assert found <= {"bits_text.py", "paper.py"}, found


def _without_docstrings(text: str) -> str:
    return re.sub(r'"""(?!\n?lg-fedavg).*?"""', "", text, flags=re.DOTALL)
