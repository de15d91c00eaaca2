"""Every row of the security page names a test that is there, and there are enough of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
# What nothing defends against says so in bold, and has no test.
UNDEFENDED = "**nothing here**"


def read_rows(heading: str) -> list[str]:
    """The rows of the first table under a heading."""
    part = PAGE[PAGE.index(f"\n{heading}\n") :]
    table = part[part.index("\n|") + 1 :].split("\n\n")[0]
    return table.splitlines()[2:]


@pytest.mark.parametrize(
    ("heading", "fewest"), [("## Threat model", 10), ("## Attacks tried", 20), ("## Faults survived", 20)]
)
def test_every_row_of_the_security_page_names_a_test_that_is_there(heading: str, fewest: int) -> None:
    rows = read_rows(heading)
    assert len(rows) >= fewest
    without = [row for row in rows if not TEST.search(row.rsplit("|", 2)[1]) and UNDEFENDED not in row]
    assert without == []
    assert len({row.split("|")[1] for row in rows}) == len(rows) or heading == "## Threat model"
    named = [found.groups() for row in rows for found in TEST.finditer(row)]
    missing = [f"{path}::{test}" for path, test in named if f"\ndef {test}(" not in (ROOT / path).read_text()]
    assert missing == []
