"""Write into a page of the documentation, between two remarks that mark the place."""

from __future__ import annotations

from pathlib import Path

from fedlog.errors import InputError
from fedlog.files.durable import write_file


def fill_place(page: Path, start: str, end: str, content: str) -> None:
    """Replace what stands between the two remarks; InputError where the page has no such place."""
    before, begun, rest = page.read_text().partition(start)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise InputError(f"{page} has no place that is marked {start}", hint=f"add {start} and {end}")
    write_file(page, f"{before}{start}\n{content}{end}{after}")
