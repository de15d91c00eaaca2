"""Whole runs over Flower's messages without its processes: the simulator's numbers, and a name for every fault."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file
from three_sites import (
    BODIES,
    SCHEMA,
    InProcess,
    assert_tells_nothing_of,
    events_named,
    fill_site,
    make_server,
    quick_clock,
    simulation,
)

from fedlog.algorithms.interface import Exchange
from fedlog.engine.protocol import checkpoint
from fedlog.engine.protocol.server import Server
from fedlog.errors import InputError, RunError
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.event_text import SiteEventDescriber, describe_run_event
from fedlog.flower.ops.run import remove_site, run_federation
from fedlog.flower.protocol.frame import Frame, FrameKind, make_run_tag
from fedlog.flower.protocol.greeting import encode_hello, make_versions, read_hello
from fedlog.flower.protocol.plan import Plan, check_plan, read_plan
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules, RunFolder
from fedlog.flower.server.server_app import make_app_settings, read_settings
from fedlog.flower.server.site_requests import Clock
from fedlog.flower.site.answer import answer_request
from fedlog.flower.site.run_state import RunState
from fedlog.models.body import HEAD
from fedlog.models.model_folder import load_model
from fedlog.settings.training import AdamMoments, Decay, Optimiser
from fedlog.wire.codec import find_codec
from fedlog.wire.ledger import Direction
from fedlog.wire.message import Kind, Message

PLAN = Plan("trial", rounds=3, options={"epochs": 2, "learning_rate": 0.01}, seed=4)


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message takes its run and its sender from the process it is made in; here that is no Flower process."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def post(tmp_path: Path) -> InProcess:
    return InProcess({name: fill_site(SiteFolder(tmp_path / name), name, body) for name, body in BODIES.items()})


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    return make_server(ServerFolder(tmp_path / "server"))


def run(post: InProcess, server: ServerFolder, plan: Plan = PLAN, minimum: int = 2) -> Run:
    return Run(post, server, SCHEMA, plan, RoundRules(minimum, 20.0), quick_clock())


def state_of(server: ServerFolder, plan: Plan = PLAN) -> checkpoint.ServerState:
    return checkpoint.read(RunFolder.of_run(server, plan.name).checkpoint, lambda _: None)


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedlog", {}),
        ("fedlog-c", {"optimiser": Optimiser(AdamMoments.RUN, Decay.COSINE, weight_decay=3.0), "rounds": 3}),
        ("fedlog", {"clip": "l2:1"}),
        ("fedlog", {"codec": "rows+q4"}),
        ("fedlog", {"codec": "f16", "options": {"epochs": 2, "learning_rate": 0.01, "carry": 0.5}, "rounds": 3}),
        ("fedlog-c", {"codec": "q8+zstd"}),
        ("fedproto", {"codec": "rows+q8"}),
        ("lg-fedavg-1", {}),
        ("fedproto", {}),
        ("fedlog", {"largest_share": 0.35}),
    ],
)
def test_a_federation_computes_what_the_simulator_computes(
    post: InProcess, server: ServerFolder, tmp_path: Path, method: str, more: dict[str, Any]
) -> None:
    told = {"method": method, "rounds": 2, "options": {"epochs": 2, "learning_rate": 0.01}, "seed": 4, **more}
    plan = Plan("trial", **told)
    run(post, server, plan).conduct()
    simulated = simulation(post.sites.values(), plan)
    records = list(simulated.rounds())
    simulated.save_models(tmp_path)
    assert events_named(server, "left out") == []
    found = state_of(server, plan)
    for name, value in simulated.server.state.items():
        if name != "relative_gradient":  # rounding itself
            torch.testing.assert_close(found.values[name], value, rtol=1e-6, atol=1e-7)
    for direction in Direction:
        assert found.ledger.sum_bits(direction) == simulated.server.ledger.sum_bits(direction)
    report = RunFolder.of_run(server, plan.name).read_report()
    assert report is not None
    for at, (name, folder) in enumerate(post.sites.items()):
        saved = load_file(tmp_path / f"{name}.safetensors")
        site = next(site for site in report["sites"] if site["name"] == name)
        assert site["federated_accuracy"] == pytest.approx(records[-1].accuracy_per_client[at])
        if site["kept"] == "federated":
            for entry, value in load_model(folder.models / plan.name).params.items():
                torch.testing.assert_close(value, saved[entry], rtol=1e-5, atol=1e-6)


def test_a_site_that_states_too_large_a_share_is_capped_and_named(
    post: InProcess, server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, f32 = Server.receive_uploads, find_codec("f32")

    def receive_lies(self: Server, number: int, exchange: Exchange, uploads: Iterable[tuple[str, bytes]]) -> None:
        sent = dict(uploads)
        message = f32.decode(sent["east"])
        sent["east"] = f32.encode(Message(message.kind, (1e6 * message.arrays[0],)))
        receive(self, number, exchange, sent.items())

    monkeypatch.setattr(Server, "receive_uploads", receive_lies)
    plan = replace(PLAN, rounds=1, largest_share=0.5)
    run(post, server, plan).conduct()
    (event,) = events_named(server, "capped")
    assert event["site"] == "east"
    assert event["stated_share"] == pytest.approx(1.0, abs=1e-3)
    assert "east stated 100 % of all records; capped by --largest-share" in str(describe_run_event(event))
    assert read_plan(plan.as_json()).largest_share == 0.5


def test_a_run_that_was_cut_short_goes_on_to_the_same_numbers(
    post: InProcess, server: ServerFolder, tmp_path: Path
) -> None:
    run(post, server).conduct()
    whole = state_of(server)
    other = InProcess({n: fill_site(SiteFolder(tmp_path / "b" / n), n, body) for n, body in BODIES.items()})
    again = ServerFolder(tmp_path / "again")

    class KilledError(Exception):
        pass

    original = other.push_messages

    def dying(messages):  # type: ignore[no-untyped-def]
        sent = original(messages)
        if other.sent > 8:  # the sites have worked on round 2, and the server never hears of it
            raise KilledError
        return sent

    other.push_messages = dying  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        run(other, again).conduct()
    other.push_messages = original  # type: ignore[method-assign]
    assert state_of(again).round_number == 1
    run(other, again).conduct()
    found = state_of(again)
    assert torch.equal(found.values[HEAD], whole.values[HEAD])
    answered = read_events(other.sites["east"].event_log)
    assert "answered again" in [event["event"] for event in answered]


def test_a_round_is_announced_only_after_its_checkpoint(
    post: InProcess, server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedlog.flower.server.rounds.save_engine_server", kill)
        with pytest.raises(KeyboardInterrupt):
            run(post, server).conduct()
    run(post, server).conduct()
    assert [event["round"] for event in events_named(server, "round")] == [1, 2, 3]
    assert [line["round"] for line in RunFolder.of_run(server, "trial").read_rounds()] == [1, 2, 3]


def test_a_silent_site_and_a_failing_one_are_named_and_the_round_goes_on(post: InProcess, server: ServerFolder) -> None:
    post.silent = set()
    going = run(post, server, minimum=1)
    going._gather_sites()
    post.silent = {"east"}
    (post.sites["north"].path / "data.csv").unlink()
    going.conduct()
    assert {event["site"] for event in events_named(server, "silent")} == {"east"}
    assert {event["site"] for event in events_named(server, "refused")} == {"north"}
    assert "InputError" in str(events_named(server, "refused")[0]["reason"])
    assert [event["sites"] for event in events_named(server, "uploads")] == [["south"]] * 3


def test_a_silent_site_costs_one_deadline_and_is_awaited_again_after_it_answers(
    post: InProcess, server: ServerFolder
) -> None:
    now = [0.0]
    clock = Clock(lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    plan = Plan("trial", rounds=6, options=PLAN.options, seed=4)
    going = Run(post, server, SCHEMA, plan, RoundRules(2, 20.0), clock)
    going._gather_sites()
    original, took, late = going._conduct_round, [], {}

    def watched(engine, number):  # type: ignore[no-untyped-def]
        post.silent = {"east"} if number in (1, 2, 6) else set()
        if number == 4:
            post.replies.update(late)  # what it answered in round 3, after that was over
        before = now[0]
        full = original(engine, number)
        took.append(now[0] - before)
        return full

    pull = post.pull_messages

    def slow(message_ids):  # type: ignore[no-untyped-def]
        mine = {m: reply for m, reply in post.replies.items() if reply.metadata.src_node_id == 10}
        if len(took) == 2:  # in round 3 it works, and is slower than the others
            late.update(mine)
        held = mine if len(took) == 2 or (len(took) == 3 and now[0] == sum(took)) else {}
        post.replies = {
            m: reply for m, reply in post.replies.items() if m not in held or (m in late and len(took) == 3)
        }
        found = list(pull(message_ids))
        if len(took) == 3:  # in round 4 its answer is there at the second look
            post.replies.update({m: reply for m, reply in held.items() if m not in late})
        return found

    post.pull_messages = slow  # type: ignore[method-assign]
    going._conduct_round = watched  # type: ignore[method-assign]
    going.conduct()
    assert [seconds >= 20 for seconds in took] == [True, False, False, False, False, True]
    everyone, others = ["east", "north", "south"], ["north", "south"]
    assert [event["sites"] for event in events_named(server, "uploads")] == [
        *([others] * 3),
        *([everyone] * 2),
        others,
    ]
    assert [event["round"] for event in events_named(server, "silent")][:2] == [1, 6]
    unawaited = events_named(server, "not awaited")
    assert [(event["round"], event["since"]) for event in unawaited] == [(2, 1), (3, 1)]
    assert "did not wait for east" in str(describe_run_event(unawaited[0]))


def test_a_silent_site_is_awaited_where_the_others_are_too_few(post: InProcess, server: ServerFolder) -> None:
    going = run(post, server, minimum=3)
    going._gather_sites()
    post.silent = {"east"}
    with pytest.raises(RunError, match="fewer in 3 rounds"):
        going.conduct()
    assert [event["round"] for event in events_named(server, "silent")] == [1, 2, 3]


def test_fewer_than_the_minimum_keeps_the_old_head(post: InProcess, server: ServerFolder) -> None:
    run(post, server, Plan("trial", rounds=1, options=PLAN.options, seed=4)).conduct()
    before = state_of(server).values[HEAD]
    going = run(post, server, minimum=3)
    going._gather_sites()
    post.silent = {"east"}
    going.conduct()
    assert torch.equal(state_of(server).values[HEAD], before)
    assert [event["round"] for event in events_named(server, "too few")] == [2, 3]


def test_a_run_with_nobody_stops_and_can_be_taken_up(post: InProcess, server: ServerFolder) -> None:
    going = run(post, server, Plan("trial", rounds=9, options=PLAN.options, seed=4))
    going._gather_sites()
    post.silent = set(BODIES)
    with pytest.raises(RunError, match="fewer in 3 rounds"):
        going.conduct()
    short = run(post, ServerFolder(server.path / "short"), Plan("trial", rounds=1, options=PLAN.options, seed=4))
    post.silent = set()
    short._gather_sites()
    post.silent = set(BODIES)
    with pytest.raises(RunError, match="found none in trial"):
        short.conduct()
    post.silent = set()
    post.absent = {"east", "north"}
    with pytest.raises(RunError, match="at least 2 sites, found 1: south"):
        run(post, ServerFolder(server.path / "other")).conduct()


def test_a_late_site_joins_and_a_restarted_one_goes_on_with_its_body(post: InProcess, server: ServerFolder) -> None:
    going = run(post, server)
    post.absent = {"south"}
    original = going._conduct_round

    def joining(engine, number):  # type: ignore[no-untyped-def]
        post.absent = {"south"} if number < 2 else {"east"} if number == 2 else set()
        return original(engine, number)

    going._conduct_round = joining  # type: ignore[method-assign]
    going.conduct()
    assert [event["sites"] for event in events_named(server, "uploads")] == [
        ["east", "north"],
        ["north", "south"],
        ["east", "north", "south"],
    ]
    east = RunState.of_run(post.sites["east"], make_run_tag("trial"))
    assert [step[0] for step in east.list_steps()] == [1, 3, 4]


def test_a_site_that_was_slow_to_greet_is_asked_again(post: InProcess, server: ServerFolder) -> None:
    going = run(post, server)
    post.silent = {"east"}
    assert sorted(going._gather_sites()) == ["north", "south"]
    assert [event["site"] for event in events_named(server, "left out")] == ["east"]
    post.silent = set()
    assert sorted(going._gather_sites()) == ["east", "north", "south"]


def test_a_site_with_another_width_is_left_out_by_name(post: InProcess, server: ServerFolder, tmp_path: Path) -> None:
    post.sites["west"] = fill_site(SiteFolder(tmp_path / "west"), "west", "mlp:5")
    run(post, server).conduct()
    (event,) = events_named(server, "left out")[:1]
    assert event["site"] == "west"
    assert "expected a body with 8 features, found 5: mlp:5" in str(event["reason"])


def tamper(post: InProcess) -> None:
    """Let one of three sites send sums that are not finite."""
    original = post.pull_messages
    bad = Message(Kind.STATISTICS, (torch.full((3, 9), float("nan")),))

    def tampering(message_ids):  # type: ignore[no-untyped-def]
        for message in original(message_ids):
            record = message.content["fedlog"]
            frame = record["frame"]
            if frame[5] == FrameKind.UPLOAD and message.metadata.src_node_id == 10:
                record["frame"] = Frame(
                    FrameKind.UPLOAD, make_run_tag("trial"), frame[14], 0, find_codec("f32").encode(bad)
                ).encode()
            yield message

    post.pull_messages = tampering  # type: ignore[method-assign]


def test_an_upload_that_cannot_be_used_is_refused_by_name(post: InProcess, server: ServerFolder) -> None:
    tamper(post)
    run(post, server).conduct()  # one of three is less than the usual share
    refused = events_named(server, "refused")
    assert {event["site"] for event in refused} == {"east"}
    assert "not finite" in str(refused[0]["reason"])
    assert all(event["sites"] == ["north", "south"] for event in events_named(server, "uploads"))
    assert [line["full"] for line in rounds_of(server)] == [1, 1, 1]
    for line in rounds_of(server):
        (named,) = line["refused"]
        assert (named["site"], "not finite" in named["reason"]) == ("east", True)


def test_more_bad_uploads_than_the_stated_share_stop_the_run(post: InProcess, server: ServerFolder) -> None:
    tamper(post)
    with pytest.raises(RunError, match=r"1 of 3 uploads cannot be used.*east.*not finite"):
        Run(post, server, SCHEMA, PLAN, RoundRules(2, 20.0, refused_share=0.2), quick_clock()).conduct()
    (line,) = rounds_of(server)
    assert (line["full"], line["refused"][0]["site"]) == (0, "east")
    assert [event["site"] for event in events_named(server, "refused")] == ["east"]
    with pytest.raises(InputError, match="the refused share must be"):
        RoundRules(2, 20.0, refused_share=1.0)
    settings = {**make_app_settings(PLAN, RoundRules(2, 20.0, 0.35))}
    assert read_settings(settings, server)[1] == RoundRules(2, 20.0, 0.35)
    del settings["refused-share"]  # of an app that was written before there was one
    assert read_settings(settings, server)[1] == RoundRules(2, 20.0)


def rounds_of(server: ServerFolder) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (RunFolder.of_run(server, "trial").path / "rounds.jsonl").read_text().splitlines()
    ]


def test_leaving_gives_the_head_of_those_who_remain(post: InProcess, server: ServerFolder) -> None:
    run(post, server).conduct()
    said: list[str] = []
    assert remove_site(server, "east", "trial", said.append) == ("north", "south")
    sums = state_of(server).values["statistics"]
    blobs = RunFolder.of_run(server, "trial").read_uploads()
    expected = sum(find_codec("f32").decode(blob).arrays[0].double() for blob in blobs.values())
    torch.testing.assert_close(sums, expected)
    post.absent = {"east"}
    run(post, server).conduct()  # sends the new head
    report = RunFolder.of_run(server, "trial").read_report()
    assert report is not None
    assert [site["name"] for site in report["sites"]] == ["north", "south"]
    with pytest.raises(InputError, match="run with a checkpoint"):
        remove_site(server, "east", "nothing", said.append)


def test_the_statistics_of_a_site_that_pauses_stay_in_the_head_until_it_leaves(
    post: InProcess, server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = RunFolder.of_run(server, "trial")
    newest: dict[str, torch.Tensor] = {}
    original = Server.receive_uploads

    def receive(self, number, exchange, uploads):  # type: ignore[no-untyped-def]
        uploads = list(uploads)
        newest.update({site: find_codec("f32").decode(blob).arrays[0].double() for site, blob in uploads})
        original(self, number, exchange, uploads)

    monkeypatch.setattr(Server, "receive_uploads", receive)
    run(post, server, Plan("trial", rounds=1, options=PLAN.options, seed=4)).conduct()
    going = run(post, server, Plan("trial", rounds=2, options=PLAN.options, seed=4))  # from the checkpoint
    going._gather_sites()
    post.silent = {"east"}
    going.conduct()
    assert events_named(server, "uploads")[-1]["sites"] == ["north", "south"]
    torch.testing.assert_close(state_of(server).values["statistics"], sum(newest.values()))
    assert set(home.read_uploads()) == set(BODIES)
    # Fewer than the minimum: the old head stays, and what came is not half of the next one.
    going = run(post, server, minimum=3)
    going._gather_sites()
    going.conduct()
    torch.testing.assert_close(state_of(server).values["statistics"], sum(newest_of(home).values()))
    remove_site(server, "east", "trial", print)
    post.silent, post.absent = set(), {"east"}
    run(post, server, Plan("trial", rounds=4, options=PLAN.options, seed=4)).conduct()
    assert set(newest_of(home)) == set(state_of(server).memory) == {"north", "south"}
    torch.testing.assert_close(state_of(server).values["statistics"], sum(newest_of(home).values()))


def test_nobody_starts_or_changes_a_run_that_is_under_way(
    post: InProcess, server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second server would mix its rounds with those of the first, and a site that leaves would stay in the sum."""
    monkeypatch.setattr("fedlog.flower.server.run_folder.SECONDS_TO_WAIT_FOR_LOCK", 0.0)
    server.write_config(ServerConfig(("127.0.0.1",), "127.0.0.1", 1))
    longer, original = replace(PLAN, rounds=9), post.push_messages
    attempts = {
        "another --name": lambda: run(post, server).conduct(),
        "fedlog watch": lambda: run_federation(server, longer, RoundRules(), print),
        "fedlog federate drop": lambda: remove_site(server, "east", "trial", print),
    }

    def while_others_try(messages):  # type: ignore[no-untyped-def]
        while attempts and checkpoint.exists(RunFolder.of_run(server, "trial").checkpoint):
            hint, attempt = attempts.popitem()
            with pytest.raises(InputError, match="is conducting or changing run trial") as caught:
                attempt()
            assert hint in str(caught.value.hint)
        return original(messages)

    post.push_messages = while_others_try  # type: ignore[method-assign]
    run(post, server).conduct()
    assert attempts == {}
    assert [line["round"] for line in rounds_of(server)] == [1, 2, 3]
    assert RunFolder.of_run(server, "trial").read_plan() == PLAN
    assert remove_site(server, "east", "trial", print) == ("north", "south")


def newest_of(home: RunFolder) -> dict[str, torch.Tensor]:
    return {site: find_codec("f32").decode(blob).arrays[0].double() for site, blob in home.read_uploads().items()}


def test_what_a_site_keeps_can_be_used_and_says_where_it_comes_from(post: InProcess, server: ServerFolder) -> None:
    run(post, server).conduct()
    folder = post.sites["south"]
    model = load_model(folder.models / "trial")
    rows = str(folder.path / "data.csv")
    assert np.allclose(model.predict_proba(rows).sum(1), 1, atol=1e-5)
    assert set(model.predict(rows)) <= set(SCHEMA.label_values)
    assert model.provenance["site"] == "south"
    report = json.loads((folder.models / "trial" / "report.json").read_text())
    kept = report[report["kept"]]
    assert kept["validation"]["accuracy"] >= report["local-only"]["validation"]["accuracy"]
    assert sum(map(sum, kept["test"]["confusion"])) == kept["test"]["records"] > 0


def test_logs_hold_no_record_feature_or_label(post: InProcess, server: ServerFolder) -> None:
    run(post, server).conduct()
    allowed = {"time", "event", "run", "method", "rounds", "body", "round", "of", "validation_accuracy", "bits_up"}
    allowed |= {"bits_down", "load_seconds", "work_seconds", "model", "kept", "test_accuracy"}
    allowed |= {"local_only_test_accuracy", "test_records", "own_state_of_round", "head_since"}
    for folder in post.sites.values():
        for event in read_events(folder.event_log):
            assert set(event) <= allowed
        assert_tells_nothing_of(folder, [server.logs, folder.logs])


def test_both_sides_are_told_the_round_the_bits_and_the_time_left(post: InProcess, server: ServerFolder) -> None:
    run(post, server).conduct()
    lines = [describe_run_event(event) for event in events_named(server, "round")]
    assert [line.split(":")[0] for line in lines if line] == ["round 1 of 3", "round 2 of 3", "round 3 of 3"]
    assert all(line and "kb up" in line for line in lines)
    assert "left" in str(lines[0])
    teller = SiteEventDescriber()
    told = [teller.describe(event) for event in read_events(post.sites["east"].event_log)]
    rounds = [line for line in told if line and "round" in line and "validation accuracy" in line]
    assert len(rounds) == 3
    assert all("kb sent" in line for line in rounds)
    assert ["left" in line for line in rounds] == [False, True, False]  # a pace needs two rounds, and none is left


@pytest.fixture
def greeted(post: InProcess, server: ServerFolder) -> SiteFolder:
    run(post, server)._gather_sites()
    return post.sites["east"]


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (Frame(FrameKind.WORK, make_run_tag("other"), 1, 0, b""), "greeting first"),
        (Frame(FrameKind.WORK, make_run_tag("trial"), 1, 3, b""), "an exchange of fedlog in round 1, found: 3"),
        (Frame(FrameKind.WORK, make_run_tag("trial"), 1, 0, b"noise"), "a message must have at least"),
        (Frame(FrameKind.UPLOAD, make_run_tag("trial"), 1, 0, b""), "expected a request"),
    ],
)
def test_questions_out_of_place_are_refused(greeted: SiteFolder, frame: Frame, says: str) -> None:
    with pytest.raises(InputError, match=says):
        answer_request(frame, greeted)
    assert RunState.of_run(greeted, make_run_tag("trial")).list_steps() == []


@pytest.mark.parametrize(
    "values",
    [
        {"method": "fedavg"},
        {"method": "os:system"},
        {"rounds": 0},
        {"name": "../up"},
        {"options": {"nothing": 1}},
        {"rounds": "3"},
        {"codec": "none"},
        {"optimiser": {**asdict(Optimiser()), "moments": "for ever"}},
        {"optimiser": {**asdict(Optimiser()), "weight_decay": float("inf")}},
        {"optimiser": {**asdict(Optimiser()), "weight_decay": True}},
        {"optimiser": {**asdict(Optimiser()), "momentum": 1.0}},
        {"optimiser": {"moments": "run"}},
        {"optimiser": None},
        {"clip": "l2:-1"},
        {"batch_size": 10**6},
        {"unknown": 1},
    ],
)
def test_a_plan_that_a_site_would_not_follow_is_refused(values: dict[str, object]) -> None:
    ours = make_versions(SCHEMA.digest)
    payload = json.dumps({**asdict(ours), "plan": {**PLAN.as_json(), **values}}).encode()
    with pytest.raises(InputError):
        read_hello(payload, ours)
    assert read_hello(encode_hello(ours, PLAN), ours) == PLAN
    assert check_plan(PLAN) == PLAN
