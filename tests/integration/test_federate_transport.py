"""Differences, own rows and 'nothing new' over Flower's messages: the simulator's numbers, in step after any fault."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from three_sites import (
    BODIES,
    SCHEMA,
    InProcess,
    events_named,
    fill_site,
    make_server,
    quick_clock,
    simulation,
    write_table,
)

from fedlog.engine.protocol import checkpoint
from fedlog.engine.protocol.client_store import NEVER
from fedlog.errors import InputError
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.run import remove_site
from fedlog.flower.protocol.frame import FrameKind, make_run_tag
from fedlog.flower.protocol.greeting import SiteProfile, encode_welcome, make_versions, read_welcome
from fedlog.flower.protocol.plan import Plan, check_plan
from fedlog.flower.server.engine_server import create_engine_server
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules, RunFolder
from fedlog.flower.site.run_state import RunState
from fedlog.models.body import HEAD
from fedlog.models.model_folder import load_model
from fedlog.privacy.guarantee import Trust, Unit
from fedlog.settings.promise import Promise
from fedlog.settings.training import BroadcastForm, HeadRows
from fedlog.wire.codec import find_codec, is_unchanged_message
from fedlog.wire.ledger import Direction
from fedlog.wire.message import Kind, Message

OPTIONS = {"epochs": 2, "learning_rate": 0.01}
CLASSES = {"east": (0, 1), "north": (1, 2), "south": (0, 2)}
DIFFERENCES = {"codec": "rows+q8", "codec_down": "q4", "down": BroadcastForm.DIFFERENCES}
CLOSED = {"codec": "rows+q8", "down": BroadcastForm.DIFFERENCES, "world": HeadRows.CLOSED}
SKIPPING = {**DIFFERENCES, "skip_below": 0.4}


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message takes its run and its sender from the process it is made in; here that is no Flower process."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def make_post(root: Path, world: str | None = "closed") -> InProcess:
    """Three sites with two of the three classes each, which say that they meet no other."""
    sites = {name: fill_site(SiteFolder(root / name), name, body) for name, body in BODIES.items()}
    for name, folder in sites.items():
        write_table(folder.path / "data.csv", name, classes=CLASSES[name])
        folder.write_config(replace(folder.read_config(), world=world))
    return InProcess(sites)


@pytest.fixture
def post(tmp_path: Path) -> InProcess:
    return make_post(tmp_path)


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    return make_server(ServerFolder(tmp_path / "server"))


def run(post: InProcess, server: ServerFolder, plan: Plan, minimum: int = 2) -> Run:
    return Run(post, server, SCHEMA, plan, RoundRules(minimum, 20.0), quick_clock())


def state_of(server: ServerFolder) -> checkpoint.ServerState:
    return checkpoint.read(RunFolder.of_run(server, "trial").checkpoint, lambda _: None)


def watch(post: InProcess) -> list[tuple[str, FrameKind, int, bytes]]:
    """Every request for work from now on: its site, kind, round and payload."""
    seen: list[tuple[str, FrameKind, int, bytes]] = []
    original = post.push_messages

    def watching(messages):  # type: ignore[no-untyped-def]
        messages = list(messages)
        for message in messages:
            frame = message.content["fedlog"]["frame"]
            if frame[5] in (FrameKind.WORK, FrameKind.WORK_ANEW):
                name = post.names[message.metadata.dst_node_id - 10]
                seen.append((name, FrameKind(frame[5]), frame[14], frame[23:]))
        return original(messages)

    post.push_messages = watching  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize(
    ("method", "how"),
    [
        ("fedlog", DIFFERENCES),
        ("fedlog-c", {"codec": "rows+q4+zstd", "codec_down": "q4+zstd", "down": BroadcastForm.DIFFERENCES}),
        ("fedproto", DIFFERENCES),
        ("lg-fedavg-1", {**DIFFERENCES, "codec": "q8"}),
        ("fedlog", {"codec": "rows", "world": HeadRows.CLOSED}),
        ("fedlog", CLOSED),
        ("fedlog-c", CLOSED),
        ("fedlog", SKIPPING),
        ("fedlog-c", {"codec": "rows", "skip_below": 0.3}),
        ("fedlog", {"codec": "f32", "codec_down": "f16"}),
    ],
)
def test_a_federation_computes_and_books_what_the_simulator_does(
    post: InProcess, server: ServerFolder, method: str, how: dict[str, Any]
) -> None:
    plan = check_plan(Plan("trial", method, OPTIONS, rounds=4, seed=4, **how))
    run(post, server, plan).conduct()
    simulated = simulation(post.sites.values(), plan)
    records = list(simulated.rounds())
    assert events_named(server, "refused") == []
    found = state_of(server)
    for name, value in simulated.server.state.items():
        if name != "relative_gradient":  # rounding itself
            torch.testing.assert_close(found.values[name], value, rtol=1e-6, atol=1e-7)
    assert found.ledger.entries == simulated.server.ledger.entries
    report = RunFolder.of_run(server, plan.name).read_report()
    assert report is not None
    by_name = {site["name"]: site for site in report["sites"]}
    for at, name in enumerate(post.sites):
        assert by_name[name]["federated_accuracy"] == pytest.approx(records[-1].accuracy_per_client[at])


def test_some_of_the_messages_say_that_nothing_is_new(post: InProcess, server: ServerFolder) -> None:
    """Or the comparison with the simulator above would show nothing."""
    run(post, server, Plan("trial", options=OPTIONS, rounds=4, seed=4, **SKIPPING)).conduct()
    ledger = state_of(server).ledger
    same = {
        (number, way) for number in range(5) for way in Direction if ledger.sum_bits_by_kind(number).get(f"same {way}")
    }
    assert {way for _, way in same} == set(Direction)


@pytest.mark.parametrize("how", [DIFFERENCES, CLOSED, SKIPPING])
def test_a_server_that_was_killed_goes_on_in_step_with_its_sites(
    post: InProcess, server: ServerFolder, tmp_path: Path, how: dict[str, Any]
) -> None:
    plan = Plan("trial", options=OPTIONS, rounds=4, seed=4, **how)
    run(post, server, plan).conduct()
    whole = state_of(server)
    other, again = make_post(tmp_path / "b"), make_server(ServerFolder(tmp_path / "again"))

    class KilledError(Exception):
        pass

    original = other.push_messages

    def dying(messages):  # type: ignore[no-untyped-def]
        sent = original(messages)
        if other.sent > 11:  # the sites have worked on round 3, and the server never hears of it
            raise KilledError
        return sent

    other.push_messages = dying  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        run(other, again, plan).conduct()
    other.push_messages = original  # type: ignore[method-assign]
    assert state_of(again).round_number == 2
    run(other, again, plan).conduct()
    found = state_of(again)
    assert events_named(again, "refused") == []
    assert torch.equal(found.values[HEAD], whole.values[HEAD])
    assert found.ledger.entries == whole.ledger.entries
    assert "answered again" in [event["event"] for event in read_events(other.sites["east"].event_log)]


@pytest.mark.parametrize("how", [DIFFERENCES, SKIPPING])
def test_a_run_that_is_made_longer_goes_on_in_step(
    post: InProcess, server: ServerFolder, tmp_path: Path, how: dict[str, Any]
) -> None:
    plan = Plan("trial", options=OPTIONS, rounds=4, seed=4, **how)
    run(post, server, replace(plan, rounds=2)).conduct()
    run(post, server, plan).conduct()
    other, again = make_post(tmp_path / "b"), make_server(ServerFolder(tmp_path / "again"))
    run(other, again, plan).conduct()
    assert events_named(server, "refused") == []
    assert torch.equal(state_of(server).values[HEAD], state_of(again).values[HEAD])


@pytest.mark.parametrize("how", [DIFFERENCES, CLOSED, SKIPPING])
def test_a_site_that_fell_silent_starts_anew(post: InProcess, server: ServerFolder, how: dict[str, Any]) -> None:
    """It may or may not have worked on what it was sent: the server takes neither for granted."""
    going = run(post, server, Plan("trial", options=OPTIONS, rounds=5, seed=4, **how))
    seen = watch(post)
    original = going._conduct_round

    def joining(engine, number):  # type: ignore[no-untyped-def]
        post.silent = {"east"} if number == 2 else set()
        return original(engine, number)

    going._gather_sites()
    going._conduct_round = joining  # type: ignore[method-assign]
    going.conduct()
    assert events_named(server, "refused") == []
    kinds = {(site, number): kind for site, kind, number, _ in seen}
    anew = sorted(place for place, kind in kinds.items() if kind is FrameKind.WORK_ANEW)
    assert anew == [("east", 1), ("east", 3), ("north", 1), ("south", 1)]
    down = find_codec(str(how.get("codec_down", how["codec"])))
    whole = next(payload for site, _, number, payload in seen if (site, number) == ("east", 3))
    assert down.decode(whole).kind is Kind.HEAD  # no difference: it decodes by itself
    assert [event["sites"] for event in events_named(server, "uploads")][2:] == [["east", "north", "south"]] * 3


def test_an_answer_that_came_too_late_is_not_taken_to_be_known(post: InProcess, server: ServerFolder) -> None:
    """The site worked on round 2 and its upload was lost; at round 3 it must not say that this one still stands."""
    plan = Plan("trial", options=OPTIONS, rounds=4, seed=4, codec="rows", skip_below=1e6)
    going = run(post, server, plan)
    original, pull = going._conduct_round, post.pull_messages
    now = [0]

    def counting(engine, number):  # type: ignore[no-untyped-def]
        now[0] = number
        return original(engine, number)

    def losing(message_ids):  # type: ignore[no-untyped-def]
        return [m for m in pull(message_ids) if not (now[0] == 1 and m.metadata.src_node_id == 10)]

    going._conduct_round = counting  # type: ignore[method-assign]
    post.pull_messages = losing  # type: ignore[method-assign]
    going.conduct()
    assert events_named(server, "refused") == []
    assert state_of(server).memory.keys() == {"east", "north", "south"}
    own = read_events(post.sites["east"].event_log)
    word = 8 * len(find_codec("rows").encode(Message(Kind.SAME, ())))
    assert [event["bits_up"] == word for event in own if event["event"] == "worked"] == [False, False, True, True]


def test_a_site_that_lost_its_state_says_so_and_starts_anew(post: InProcess, server: ServerFolder) -> None:
    going = run(post, server, Plan("trial", options=OPTIONS, rounds=4, seed=4, **DIFFERENCES))
    original = going._conduct_round

    def losing(engine, number):  # type: ignore[no-untyped-def]
        if number == 3:
            state = RunState.of_run(post.sites["east"], make_run_tag("trial"))
            for step in state.list_steps():
                shutil.rmtree(state._find_step_folder(step))
        return original(engine, number)

    going._conduct_round = losing  # type: ignore[method-assign]
    going.conduct()
    (refused,) = events_named(server, "refused")
    assert refused["site"] == "east"
    assert "a difference to an earlier message that the receiver does not have" in str(refused["reason"])
    assert [event["sites"] for event in events_named(server, "uploads")] == [
        ["east", "north", "south"],
        ["east", "north", "south"],
        ["north", "south"],
        ["east", "north", "south"],
    ]


def test_too_few_uploads_are_given_back_and_everyone_starts_anew(post: InProcess, server: ServerFolder) -> None:
    going = run(post, server, Plan("trial", options=OPTIONS, rounds=4, seed=4, codec="rows", skip_below=1e6), minimum=3)
    seen, original = watch(post), going._conduct_round

    def joining(engine, number):  # type: ignore[no-untyped-def]
        post.silent = {"east"} if number == 1 else set()
        return original(engine, number)

    going._gather_sites()
    going._conduct_round = joining  # type: ignore[method-assign]
    going.conduct()
    assert events_named(server, "refused") == []
    assert {(site, number) for site, kind, number, _ in seen if kind is FrameKind.WORK_ANEW} == {
        (site, number) for site in BODIES for number in (1, 2)
    }
    assert [event["sites"] for event in events_named(server, "uploads")] == [["east", "north", "south"]] * 3


def test_a_site_can_leave_after_it_said_that_nothing_is_new(
    post: InProcess, server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan("trial", options=OPTIONS, rounds=3, seed=4, codec="rows", skip_below=1e6)
    run(post, server, plan).conduct()
    kept = RunFolder.of_run(server, "trial").read_uploads()
    assert kept.keys() == set(BODIES)
    assert not any(map(is_unchanged_message, kept.values()))
    monkeypatch.setattr("fedlog.flower.ops.run.unregister_site", lambda *_: None)
    remove_site(server, "east", "trial", lambda line: None)
    found = state_of(server)
    expected = sum(find_codec("rows").decode(kept[site]).arrays[0].double() for site in ("north", "south"))
    assert torch.equal(found.values["statistics"], torch.as_tensor(expected))


def test_in_a_closed_world_a_site_gets_its_own_rows_if_it_said_so(post: InProcess, server: ServerFolder) -> None:
    east = post.sites["east"]
    east.write_config(replace(east.read_config(), world=None))
    seen = watch(post)
    run(post, server, Plan("trial", options=OPTIONS, rounds=3, seed=4, codec="rows", world=HeadRows.CLOSED)).conduct()
    rows = {
        site: find_codec("rows").decode(payload).arrays[0].any(dim=1).nonzero().flatten().tolist()
        for site, _, number, payload in seen
        if number == 3
    }
    assert rows == {"east": [0, 1, 2], "north": [1, 2], "south": [0, 2]}
    heads = {name: load_model(folder.models / "trial") for name, folder in post.sites.items()}
    told = {site["name"]: site["kept"] for site in (RunFolder.of_run(server, "trial").read_report() or {})["sites"]}
    for name, model in heads.items():
        if told[name] == "federated":
            never = (model.params[HEAD][:, 0] == NEVER).nonzero().flatten().tolist()
            assert never == ([] if name == "east" else [row for row in range(3) if row not in CLASSES[name]])


def test_a_site_that_changes_its_world_is_greeted_again(post: InProcess, server: ServerFolder) -> None:
    going = run(post, server, Plan("trial", options=OPTIONS, rounds=4, seed=4, codec="rows", world=HeadRows.CLOSED))
    east, seen, original = post.sites["east"], watch(post), going._conduct_round

    def changing(engine, number):  # type: ignore[no-untyped-def]
        if number == 3:
            east.write_config(replace(east.read_config(), world="open"))
        return original(engine, number)

    going._conduct_round = changing  # type: ignore[method-assign]
    going.conduct()
    (refused,) = events_named(server, "refused")
    assert "has changed its setting `world` since the greeting" in str(refused["reason"])
    last = next(payload for site, _, number, payload in seen if (site, number) == ("east", 4))
    assert bool(find_codec("rows").decode(last).arrays[0].any(dim=1).all())


PROMISE = Promise(Unit.CLIENT, Trust.LOCAL, 8.0, 1e-5, message_norm=20.0)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"codec": "rows"}, "codec rows cannot be used in a private run: the rows it sends show which classes"),
        ({"codec": "q8+zstd"}, "cannot be used in a private run: the length"),
        ({"codec_down": "rows+q8"}, "codec rows\\+q8 cannot be used in a private run"),
        ({"codec_down": "rows", "world": HeadRows.CLOSED}, "--world closed cannot be used in a private run: the rows"),
        ({"skip_below": 0.1}, "--skip-below cannot be used in a private run: whether a message is skipped"),
        (
            {"codec": "q8", "down": BroadcastForm.DIFFERENCES},
            "--down differences cannot be used in a deployment that is private or has secure sums",
        ),
    ],
)
def test_private_plans_refuse_what_shows_classes_or_news(how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_plan(Plan("trial", options=OPTIONS, promise=PROMISE, **how))


def test_private_plans_take_a_dense_codec_of_their_own_for_the_way_down() -> None:
    check_plan(Plan("trial", options=OPTIONS, promise=PROMISE, codec="f32", codec_down="q8"))


def test_the_server_of_a_private_run_remembers_no_site() -> None:
    """A head that used a stored contribution would be a release that the site did not count."""
    assert create_engine_server(Plan("trial", options=OPTIONS, promise=PROMISE), SCHEMA, 8).memory is None
    assert create_engine_server(Plan("trial", options=OPTIONS), SCHEMA, 8).memory == {}


@pytest.mark.parametrize(
    ("method", "how"),
    [("fedproto", {"skip_below": 0.1}), ("lg-fedavg-1", {"codec": "rows", "world": HeadRows.CLOSED})],
)
def test_methods_that_cannot_do_it_are_refused_before_a_run(method: str, how: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=method):
        check_plan(Plan("trial", method, **how))


def test_the_welcome_tells_of_the_world_only_where_it_is_closed() -> None:
    ours = make_versions("0" * 64)
    assert b"closed" not in encode_welcome(ours, SiteProfile("mlp:8", 8))
    assert read_welcome(encode_welcome(ours, SiteProfile("mlp:8", 8, closed_world=True)), ours, "east").closed_world
