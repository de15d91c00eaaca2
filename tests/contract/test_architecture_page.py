"""docs/architecture.md names every room, in the order of the imports, and its walk enters no room twice on one side."""

from __future__ import annotations

import re
from pathlib import Path

from test_imports import LEVEL, ROOT

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()


def test_the_table_has_every_room_in_the_order_of_imports() -> None:
    rows = re.findall(r"^\| `([\w/]+)/` \|", PAGE, re.MULTILINE)
    listed = {row for room in rows for row in LEVEL if row == room or row.startswith(f"{room}/")}
    single = {room for room in LEVEL if (ROOT / f"{room}.py").exists()}  # modules beside the rooms
    assert LEVEL.keys() - listed == {*single, "engine"}  # the last is the root of three rooms
    lowest = [min(level for room, level in LEVEL.items() if room == row or room.startswith(f"{row}/")) for row in rows]
    assert lowest == sorted(lowest)


def test_every_file_to_start_at_exists() -> None:
    for room, files in re.findall(r"^\| `([\w/]+)/` \|.*\| (.*) \|$", PAGE, re.MULTILINE):
        for file in re.findall(r"`([\w/]+\.py)`", files):
            assert (ROOT / room / file).exists(), f"{room}/{file}"


def test_the_walk_of_a_record_enters_no_room_twice_on_one_side_of_the_wire() -> None:
    (walk,) = re.findall(r"^    at a client\n.*^      a number on a page$", PAGE, re.MULTILINE | re.DOTALL)
    sides = re.split(r"^    =+ the wire.*$", walk, flags=re.MULTILINE)
    assert len(sides) == 3
    for side in sides:
        rooms = re.findall(r"-> ([\w/]+)/ ", side)
        assert len(rooms) >= 4
        assert len(set(rooms)) == len(rooms)
        assert all((ROOT / room).is_dir() for room in rooms)
