"""Small conditions that a run depends on and that no other test covers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from three_sites import BODIES, SCHEMA, InProcess, events_named, fill_site, make_server, quick_clock

from fedlog.errors import RunError
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import RunCaps, SiteFolder
from fedlog.flower.protocol.frame import SendableError, SumAnnouncement, read_announcement
from fedlog.flower.protocol.plan import Plan, SecureSumRules
from fedlog.flower.server.engine_server import create_engine_server, restore_engine_server
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules, RunFolder
from fedlog.flower.site.run_state import RunState
from fedlog.settings.promise import Promise

PLAN = Plan("trial", rounds=1, options={"epochs": 1}, seed=4)
CENTRAL = Promise("record", "central", 8.0, 1e-5, clip="l2:3")


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.mark.parametrize(
    ("plan", "remembers"),
    [
        (PLAN, True),
        (Plan("trial", rounds=1, promise=CENTRAL), False),
        (Plan("trial", rounds=1, secure=SecureSumRules(3, 3)), False),
        (Plan("trial", rounds=1, method="fedproto"), False),
    ],
    ids=["plain", "private", "secure sum", "a method without memory"],
)
def test_uploads_are_remembered_only_where_the_server_may_see_them(plan: Plan, remembers: bool) -> None:
    server = create_engine_server(plan, SCHEMA, 8)
    assert (server.memory is not None) is (remembers and server.algorithm.sums_last_uploads)
    assert create_engine_server(PLAN, SCHEMA, 8).memory == {}


def test_too_few_uploads_leave_state_and_memory_as_they_were(tmp_path: Path) -> None:
    post = InProcess({name: fill_site(SiteFolder(tmp_path / name), name, body) for name, body in BODIES.items()})
    folder = make_server(ServerFolder(tmp_path / "server"))
    Run(post, folder, SCHEMA, PLAN, RoundRules(3, 20.0), quick_clock()).conduct()
    home = RunFolder.of_run(folder, "trial")
    before, _ = restore_engine_server(home, PLAN, SCHEMA)
    longer = Plan("trial", rounds=2, options=PLAN.options, seed=4)
    going = Run(post, folder, SCHEMA, longer, RoundRules(3, 20.0), quick_clock())
    going._gather_sites()
    post.silent = {"east"}  # the uploads of the other two arrive, and are not enough
    going.conduct()
    assert [event["sites"] for event in events_named(folder, "too few")] == [["north", "south"]]
    after, done = restore_engine_server(home, longer, SCHEMA)
    assert done == 2
    assert before.memory is not None
    assert after.memory is not None
    assert set(after.memory) == set(before.memory) == set(BODIES)
    for site, remembered in before.memory.items():
        for old, new in zip(remembered.arrays, after.memory[site].arrays, strict=True):
            assert torch.equal(old, new), site
    for name, value in before.state.items():
        assert torch.equal(value, after.state[name]), name


def test_a_step_is_worked_on_from_the_state_before_it_and_never_from_its_own(tmp_path: Path) -> None:
    state = RunState(tmp_path / "run")
    for step in ((1, 0), (1, 1), (2, 0)):
        state.save_step(step, b"request", b"reply", lambda path: path.write_bytes(b"state"))
    assert state.find_state_before((1, 0)) is None
    for step, before in (((1, 1), (1, 0)), ((2, 0), (1, 1)), ((2, 1), (2, 0)), ((9, 0), (2, 0))):
        found = state.find_state_before(step)
        assert found is not None
        assert found.parent.name == f"step-{before[0]:010d}-{before[1]:03d}"


OPENING = SumAnnouncement(b"s" * 16, 3, ("east", "north", "south")).prepend_to(b"broadcast")


def damaged(**changes: object) -> bytes:
    text = json.dumps({"session": "00" * 16, "number": 1, "members": ["east"], **changes}).encode()
    return len(text).to_bytes(4, "little") + text


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01",
        OPENING[:20],
        (2**31).to_bytes(4, "little") + OPENING[4:],
        damaged(session="no hex"),
        damaged(session=None),
        damaged(session="00"),
        damaged(number=2**64),
        damaged(number=2**63),
        damaged(number=-1),
        damaged(members=["east"] * 10_001),
        damaged(number="many"),
        damaged(number=None),
        damaged(number=float("inf")),
        damaged(members=None),
        (4).to_bytes(4, "little") + b"[[]]",
        (4).to_bytes(4, "little") + b"null",
    ],
)
def test_an_opening_that_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises(SendableError, match="announcement of a secure sum"):
        read_announcement(payload)
    opening, broadcast = read_announcement(OPENING)
    assert (opening.number, opening.members, broadcast) == (3, ("east", "north", "south"), b"broadcast")


def allow_untrained(post: InProcess) -> None:
    for site in post.sites.values():
        site.write_config(replace(site.read_config(), caps=RunCaps(untrained=True)))


def test_a_method_that_opens_with_untrained_features_needs_one_body_everywhere(tmp_path: Path) -> None:
    post = InProcess({name: fill_site(SiteFolder(tmp_path / name), name, body) for name, body in BODIES.items()})
    allow_untrained(post)
    folder = make_server(ServerFolder(tmp_path / "server"))
    plan = Plan("trial", "fedlog-c", {"epochs": 1, "first_head": "statistics"}, rounds=1)
    assert create_engine_server(plan, SCHEMA, 8).algorithm.schedule.opening is not None
    with pytest.raises(RunError, match=r"one body at all sites.*mlp:12,8, mlp:16,8, mlp:8"):
        Run(post, folder, SCHEMA, plan, RoundRules(2, 20.0), quick_clock()).conduct()
    assert events_named(folder, "uploads") == []
    equal = InProcess({n: fill_site(SiteFolder(tmp_path / "b" / n), n, "mlp:8") for n in BODIES})
    allow_untrained(equal)
    again = make_server(ServerFolder(tmp_path / "again"))
    Run(equal, again, SCHEMA, plan, RoundRules(2, 20.0), quick_clock()).conduct()
    assert [event["round"] for event in events_named(again, "uploads")] == [0, 1]
