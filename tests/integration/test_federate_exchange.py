"""Frames and the exchange with sites that are late, wrong, hostile or absent; no process is started."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedlog.data.schema import Feature, FeatureKind, Schema, dump_schema
from fedlog.errors import InputError
from fedlog.flower.folders.folder import log_event, read_events
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.protocol.check_in import read_check_in_answer
from fedlog.flower.protocol.frame import (
    Frame,
    FrameKind,
    SendableError,
    decode_frame,
    make_run_tag,
    unwrap_frame,
    wrap_frame,
)
from fedlog.flower.protocol.greeting import Versions, check_versions, make_versions, read_time, read_versions
from fedlog.flower.server.site_requests import Clock, WaitingRules, ask_sites, find_connected_sites
from fedlog.flower.site.client_app import answer_with_frame

FRAMES = st.builds(
    Frame,
    st.sampled_from(FrameKind),
    st.binary(min_size=8, max_size=8),
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
    st.binary(max_size=50),
)
HELLO = Frame(FrameKind.HELLO, make_run_tag("r"), 0, 0, b"")


def payload_of(who: Versions) -> bytes:
    """A greeting of that side, without a plan."""
    return json.dumps(asdict(who)).encode()


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message takes its run and its sender from the process it is made in; here that is no Flower process."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(FRAMES)
def test_a_frame_survives_its_bytes(frame: Frame) -> None:
    assert decode_frame(frame.encode()) == frame


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(FRAMES, st.data())
def test_a_damaged_frame_is_refused_or_still_whole(frame: Frame, data: st.DataObject) -> None:
    raw = frame.encode()
    for cut in (raw[: data.draw(st.integers(0, len(raw) - 1))], raw + data.draw(st.binary(min_size=1, max_size=9))):
        with pytest.raises(SendableError):
            decode_frame(cut)
    at = data.draw(st.integers(0, len(raw) - 1))
    flipped = bytearray(raw)
    flipped[at] ^= data.draw(st.integers(1, 255))
    with suppress(SendableError):
        assert decode_frame(bytes(flipped)) != frame


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.binary(max_size=200))
def test_noise_is_never_more_than_refused(noise: bytes) -> None:
    for read in (decode_frame, read_versions):
        with pytest.raises(SendableError):
            read(noise)


def test_a_time_that_no_clock_shows_is_none() -> None:
    for told in (10**400, -(10**400), float("nan"), float("inf"), "now", [1], None):
        assert read_time(json.dumps({"time": told}).encode()) is None
    assert read_time(b'{"time": 1700000000}') == 1.7e9


def test_a_standing_that_no_gate_tells_is_refused() -> None:
    for told in (10**400, float("nan"), "0", None):
        with pytest.raises(InputError):
            read_check_in_answer(json.dumps({"registered": True, "ahead_seconds": told}).encode())


def test_an_oversized_frame_is_refused() -> None:
    with pytest.raises(SendableError, match="at most 10 bytes"):
        decode_frame(HELLO.encode(), limit_bytes=10)


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (Versions("9.1.0", 1, "s"), "expected fedlog"),
        (Versions("0.1.7", 2, "s"), "frame version"),
        (Versions("0.1.7", 1, "t"), "expected schema"),
    ],
)
def test_other_versions_and_schemas_are_refused(theirs: Versions, says: str) -> None:
    ours = Versions("0.1.0", 1, "s")
    check_versions(ours, Versions("0.1.7", 1, "s"), "north")  # a patch release may differ
    with pytest.raises(SendableError, match=says):
        check_versions(ours, read_versions(payload_of(theirs)), "north")


@dataclass(frozen=True)
class FakeNode:
    node_id: int
    name: str
    last_activated_at: str = "2030"


@dataclass
class FakePost:
    """Sites with answers that the test chooses: a frame, an error, another node's answer, or none."""

    nodes: list[FakeNode]
    behaviour: dict[int, object]
    waiting: dict[str, Message] = field(default_factory=dict)

    def get_nodes(self) -> Iterable[FakeNode]:
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{len(self.waiting)}"
            message.metadata.__dict__["_src_node_id"] = 1
            self.waiting[message.metadata.message_id] = message
            sent.append(message.metadata.message_id)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for message_id in message_ids:
            question = self.waiting[message_id]
            told = self.behaviour[question.metadata.dst_node_id]
            if told is None:
                continue
            content = told(unwrap_frame(question)) if callable(told) else told
            reply = Message(content, reply_to=question)
            if content is IMPOSTOR:
                reply.metadata.__dict__["_src_node_id"] = 99
            replies.append(reply)
        return replies


IMPOSTOR = wrap_frame(replace(HELLO, kind=FrameKind.WELCOME, payload=b""))


class FakeClock:
    """Time that passes only when someone sleeps."""

    def __init__(self) -> None:
        self.time = 0.0

    def clock(self) -> Clock:
        return Clock(lambda: self.time, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def welcome(question: Frame) -> RecordDict:
    return wrap_frame(replace(question, kind=FrameKind.WELCOME, payload=b"hi"))


def test_every_site_is_answered_refused_or_silent() -> None:
    behaviour: dict[str, object] = {
        "good": welcome,
        "silent": None,
        "expired": Error(3, "Message expired"),
        "failed": Error(2, "<class 'ValueError'>:<'patient 42'>"),
        "gone": Error(5, "Node Unavailable"),
        "other-run": lambda q: wrap_frame(Frame(FrameKind.WELCOME, make_run_tag("x"), 0, 0, b"")),
        "other-round": lambda q: wrap_frame(Frame(FrameKind.WELCOME, q.run, 7, 0, b"")),
        "other-kind": lambda q: wrap_frame(replace(q, kind=FrameKind.UPLOAD, payload=b"")),
        "refuses": lambda q: wrap_frame(replace(q, kind=FrameKind.REFUSAL, payload=b"no")),
        "noise": RecordDict({"fedlog": ConfigRecord({"frame": b"noise"})}),
        "many": RecordDict({"fedlog": ConfigRecord({"frame": b"", "more": b""})}),
        "text": RecordDict({"fedlog": ConfigRecord({"frame": "text"})}),
        "empty": RecordDict(),
        "impostor": IMPOSTOR,
    }
    nodes = {name: number for number, name in enumerate(behaviour, start=10)}
    post = FakePost([], {nodes[name]: told for name, told in behaviour.items()})
    clock = FakeClock()
    outcome = ask_sites(post, nodes, dict.fromkeys(nodes, HELLO), FrameKind.WELCOME, WaitingRules(5.0), clock.clock())
    assert {site: frame.payload for site, frame in outcome.answers.items()} == {"good": b"hi"}
    assert outcome.silent == ("expired", "silent")
    assert set(outcome.refused) == set(behaviour) - {"good", "expired", "silent"}
    assert "expected an answer from the site's Flower node" in outcome.refused["impostor"]
    assert "patient" not in json.dumps(outcome.refused)
    assert 5.0 <= clock.time < 5.5


@dataclass
class OverduePost(FakePost):
    """Flower reports a site as gone at the first request, and lists it again a second later."""

    clock: FakeClock = field(default_factory=FakeClock)

    def get_nodes(self) -> Iterable[FakeNode]:
        return self.nodes if self.clock.time >= 1.0 else []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        first = [Message(Error(5, ""), reply_to=self.waiting[each]) for each in message_ids if each == "m0"]
        return first or super().pull_messages(message_ids)


@pytest.mark.parametrize(
    ("heard", "behaviour", "asked", "outcome", "time"),
    [
        (lambda time: {"a"}, welcome, 2, "answered", 1.0),
        (lambda time: {"a"}, None, 2, "silent", 5.0),
        (lambda time: set(), welcome, 1, "refused", 0.0),  # nobody hears it: gone
        (lambda time: {"a"} if time < 0.5 else set(), welcome, 1, "refused", 0.5),
    ],
)
def test_a_site_whose_heartbeat_is_late_is_asked_again_while_it_is_heard(
    heard: Callable[[float], set[str]], behaviour: object, asked: int, outcome: str, time: float
) -> None:
    clock = FakeClock()
    post = OverduePost([FakeNode(9, "a")], {9: behaviour}, clock=clock)
    wait = WaitingRules(5.0, seen_at_gate=lambda: heard(clock.time))
    replies = ask_sites(post, {"a": 9}, {"a": HELLO}, FrameKind.WELCOME, wait, clock.clock())
    assert len(post.waiting) == asked
    found = {"answered": replies.answers, "silent": replies.silent, "refused": replies.refused}
    assert {name: list(sites) for name, sites in found.items() if sites} == {outcome: ["a"]}
    assert time <= clock.time < time + 0.5
    ends = [message.metadata.ttl + at for message, at in zip(post.waiting.values(), (0.0, 1.0), strict=False)]
    assert max(ends) <= 5.0 + 0.5  # the second question lives no longer than the first


def test_messages_that_flower_does_not_take_are_refused() -> None:
    post = FakePost([], {})
    post.push_messages = lambda messages: []  # type: ignore[method-assign] # what Flower returns for too large a push
    outcome = ask_sites(post, {"a": 1}, {"a": HELLO}, FrameKind.WELCOME, WaitingRules(5.0), FakeClock().clock())
    assert outcome.refused == {"a": "Flower did not take the message"}


def test_a_site_listed_twice_counts_once() -> None:
    post = FakePost([FakeNode(9, "a", "2031"), FakeNode(12, "a", "2030"), FakeNode(3, "b"), FakeNode(4, "")], {})
    assert find_connected_sites(post) == {"a": 9, "b": 3}


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    folder = SiteFolder(tmp_path)
    folder.schema_file.write_text(dump_schema(Schema("y", ("a", "b"), (Feature("x", FeatureKind.NUMERIC),))))
    folder.write_config(SiteConfig("a", "127.0.0.1:1"))
    return folder


def question(content: RecordDict) -> Message:
    message = Message(content, 5, MessageType.TRAIN)
    message.metadata.__dict__["_message_id"] = "m"
    return message


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"fedlog": ConfigRecord({"frame": b"noise"})}),
        wrap_frame(HELLO),
        wrap_frame(replace(HELLO, kind=FrameKind.REPORT, payload=b"")),
        wrap_frame(replace(HELLO, kind=FrameKind.HELLO, payload=payload_of(Versions("7.0", 1, "x")))),
    ],
)
def test_a_site_refuses_what_it_cannot_use_and_says_why(site: SiteFolder, content: RecordDict) -> None:
    assert answer_with_frame(question(content), site).kind is FrameKind.REFUSAL
    assert read_events(site.event_log)[-1]["event"] == "refused"


def test_an_error_at_a_site_tells_nothing_of_its_data(site: SiteFolder) -> None:
    site.schema_file.write_text('version = 1\n[label]\ncolumn = "secret-disease"\nvalues = ["a"]\n')
    frame = answer_with_frame(
        question(wrap_frame(replace(HELLO, kind=FrameKind.HELLO, payload=payload_of(make_versions("s"))))), site
    )
    assert frame.kind is FrameKind.REFUSAL
    assert frame.payload == b"InputError; see the log at the site"
    logged = (site.event_log).read_text()
    assert "secret" not in logged
    assert "schema.py" in logged


def test_a_line_that_is_still_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    log_event(path, "one", round=1)
    with path.open("a") as file:
        file.write('{"event": "tw')
    assert [event["event"] for event in read_events(path)] == ["one"]
