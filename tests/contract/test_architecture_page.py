"""docs/architecture.md names every room, in the order of the imports, and its walk enters no room twice on one side."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from test_imports import LEVEL, ROOT, _room

import fedlog
from fedlog.report.pages.run_page import write_run_page

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


def _sides() -> list[list[str]]:
    """The rooms of the walk on each side of the wire."""
    (walk,) = re.findall(r"^    at a client\n.*^      a number on a page$", PAGE, re.MULTILINE | re.DOTALL)
    return [re.findall(r"-> ([\w/]+)/ ", side) for side in re.split(r"^    =+ the wire.*$", walk, flags=re.MULTILINE)]


def test_the_walk_of_a_record_enters_no_room_twice_on_one_side_of_the_wire() -> None:
    assert len(_sides()) == 3
    for rooms in _sides():
        assert len(rooms) >= 4
        assert len(set(rooms)) == len(rooms)
        assert all((ROOT / room).is_dir() for room in rooms)


# What does the work in each room of the walk, in the order in which it is drawn.
STATIONS = (
    (
        "TableEncoder.encode",
        "Body.make_initial_params",
        "BlockBackend.train",
        "Statistics.from_records",
        "FedLog.finish_exchange",
        "Protection.protect",
        "Float32Codec.encode",
    ),
    ("make_contribution", "Protection.add_server_noise", "FedLog.step", "solve_head"),
    (
        "Float32Codec.decode",
        "FedLog.deploy",
        "BlockBackend.compute_features",
        "Cohort._score",
        "append_round",
        "render_run",
    ),
)


def test_a_real_run_goes_the_way_that_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    for site in ("north", "south", "west"):
        rows = [f"{at % 7},{at % 5},{'yes' if at % 2 else 'no'}" for at in range(40)]
        (tmp_path / "sites" / f"{site}.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    promise: dict[str, Any] = {"privacy": "client", "epsilon": 8.0, "delta": 1e-3, "clip": "l2:3", "message_norm": 50.0}
    settings: dict[str, Any] = {"label": "label", "rounds": 1, "epochs": 1, "body": "mlp:4", **promise}
    called: list[tuple[str, str]] = []

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(ROOT)):
            name = frame.f_code.co_qualname
            if any(name in side for side in STATIONS):
                called.append((_room(Path(frame.f_code.co_filename)), name))

    sys.setprofile(watch)
    try:
        fedlog.run(f"sites:{tmp_path / 'sites'}", out=tmp_path / "run", **settings)
        write_run_page(tmp_path / "run")
    finally:
        sys.setprofile(None)
    remaining = iter(called)
    for rooms, stations in zip(_sides(), STATIONS, strict=True):
        for room, station in zip(rooms, stations, strict=True):
            assert (room, station) in remaining, f"{station} in {room}/ does not come after what is drawn before it"
