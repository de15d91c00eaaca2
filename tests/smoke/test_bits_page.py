"""The tables of docs/bits.md are those of the committed records."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedlog.report.bits_page import bits_tables, tables_in, write_bits_page

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_tables_of_the_records() -> None:
    found = tables_in((ROOT / "docs" / "bits.md").read_text())
    expected = {name: table.markdown() for name, table in bits_tables(ROOT / "results").items()}
    assert found == expected, "run `fedlog docs`"


def test_every_place_is_filled_and_a_missing_one_is_named(tmp_path: Path) -> None:
    page = tmp_path / "bits.md"
    page.write_text((ROOT / "docs" / "bits.md").read_text())
    write_bits_page(ROOT / "results", page)
    assert page.read_text() == (ROOT / "docs" / "bits.md").read_text()
    page.write_text("no places here")
    with pytest.raises(Exception, match="no place for bits-mnist"):
        write_bits_page(ROOT / "results", page)
