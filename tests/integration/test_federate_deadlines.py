"""How long a run waits for its sites, what the operator can do, and what `status` shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity
from three_sites import BODIES, SCHEMA, InProcess, events_named, fill_site, make_server

from fedlog.cli.main import main
from fedlog.files.json_text import write_json
from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops import server as server_side
from fedlog.flower.ops.server import SiteStatus
from fedlog.flower.ops.summaries import summarise_last_run
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules, RunFolder
from fedlog.flower.server.site_requests import Clock, Deadline

OPTIONS = {"epochs": 1, "learning_rate": 0.01}


@dataclass
class Timed(InProcess):
    """Slow sites: each answers one message after the other, within the message's lifetime or never."""

    now: float = 0.0
    takes: dict[str, float] = field(default_factory=dict)
    free_at: dict[str, float] = field(default_factory=dict)
    ready_at: dict[str, float] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    at: dict[float, Callable[[], object]] = field(default_factory=dict)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        found = list(messages)
        identifiers = list(super().push_messages(found))
        for identifier, message in zip(identifiers, found, strict=True):
            site = self.names[message.metadata.dst_node_id - 10]
            self.asked.append(site)
            begin = max(self.now, self.free_at.get(site, 0.0))
            if begin > self.now + message.metadata.ttl:
                self.replies.pop(identifier, None)  # it was gone before the site was free
                continue
            done = begin + self.takes.get(site, 1.0)
            self.free_at[site] = done
            if done > self.now + message.metadata.ttl:
                self.replies.pop(identifier, None)
            self.ready_at[identifier] = done
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return super().pull_messages([m for m in message_ids if self.ready_at.get(m, 0.0) <= self.now])

    def clock(self) -> Clock:
        def sleep(seconds: float) -> None:
            self.now += 5 * seconds
            for moment in [moment for moment in self.at if moment <= self.now]:
                self.at.pop(moment)()

        return Clock(lambda: self.now, sleep)


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def post(tmp_path: Path) -> Timed:
    return Timed({name: fill_site(SiteFolder(tmp_path / name), name, body) for name, body in BODIES.items()})


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    folder = make_server(ServerFolder(tmp_path / "server"))
    folder.write_config(ServerConfig(("127.0.0.1",), "127.0.0.1", 1))
    for at, name in enumerate(BODIES, start=10):
        folder.add_registered_site(name, str(at), "a key")
    return folder


def begin(post: Timed, server: ServerFolder, rounds: int, deadline: float | None = None) -> tuple[Run, list[float]]:
    """Start a run and greet its sites; the returned list is filled with the seconds of its rounds."""
    going = Run(post, server, SCHEMA, Plan("trial", rounds=rounds, options=OPTIONS), RoundRules(2, deadline))
    going.clock = going.participants.clock = post.clock()
    going._gather_sites()
    took: list[float] = []
    original = going._conduct_round

    def timed(engine, number):  # type: ignore[no-untyped-def]
        start = post.now
        record = original(engine, number)
        took.append(post.now - start)
        return record

    going._conduct_round = timed  # type: ignore[method-assign]
    return going, took


def sums(server: ServerFolder) -> list[list[str]]:
    return [list(event["sites"]) for event in events_named(server, "uploads")]  # type: ignore[call-overload]


def test_without_a_deadline_of_the_operators_a_lost_site_costs_what_rounds_take(
    post: Timed, server: ServerFolder
) -> None:
    post.takes = dict.fromkeys(BODIES, 20.0)
    going, took = begin(post, server, 4)
    post.at[post.now + 30.0] = lambda: post.silent.add("east")  # from round 3 on
    going.conduct()
    assert [round(seconds / 20) for seconds in took] == [1, 1, 4, 1]  # 600 s is what it cost before
    assert sums(server)[2:] == [["north", "south"]] * 2
    rounds = RunFolder.of_run(server, "trial").read_rounds()
    assert rounds[0]["deadline_seconds"] == 600
    assert 70 < rounds[1]["deadline_seconds"] < 90
    assert 19 < rounds[1]["slowest_seconds"] < 22
    # Started again, the run knows at once what its rounds took.
    again = Run(post, server, SCHEMA, Plan("trial", rounds=5, options=OPTIONS), RoundRules(2), post.clock())
    again._restore_server()
    assert again.deadline.seconds == pytest.approx(going.deadline.seconds, rel=0.1)


def test_sites_that_need_longer_than_the_first_deadline_are_waited_for_in_the_end(
    post: Timed, server: ServerFolder
) -> None:
    going, _ = begin(post, server, 5)
    post.takes = dict.fromkeys(BODIES, 700.0)  # from the first round on; a greeting is quick
    going.conduct()
    assert sums(server)[-1] == sorted(BODIES)
    assert [line["full"] for line in RunFolder.of_run(server, "trial").read_rounds()][-2:] == [1, 1]


def test_a_site_much_slower_than_the_others_is_found_out_and_awaited(post: Timed, server: ServerFolder) -> None:
    going, took = begin(post, server, 60)
    post.takes = {"east": 100.0, "north": 10.0, "south": 10.0}
    going.deadline.learn_from_answers([10.0])
    going.conduct()
    assert sums(server)[0] == ["north", "south"]
    assert sums(server)[-1] == sorted(BODIES)
    assert max(took) < 400


def test_a_fixed_deadline_stays_as_it_is() -> None:
    deadline = Deadline(20.0)
    deadline.learn_from_answers([100.0])
    assert (deadline.seconds, deadline.gathering_seconds) == (20, 20)
    assert deadline.compute_request_lifetime(awaited=True) == deadline.compute_request_lifetime(awaited=False) == 20


def test_a_dropped_site_is_given_up_at_once_and_not_asked_until_it_is_back(
    post: Timed, server: ServerFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    going, took = begin(post, server, 4, deadline=500.0)
    post.silent = {"east"}
    command = ["federate", "drop", str(server.path), "east"]
    post.at[post.now + 30.0] = lambda: main(command)
    counted: list[int] = []
    inner = going._conduct_round

    def counting(engine, number):  # type: ignore[no-untyped-def]
        if number == 3:
            post.silent = set()
            assert main([*command, "--back"]) == 0
        record = inner(engine, number)
        counted.append(post.asked.count("east"))
        return record

    going._conduct_round = counting  # type: ignore[method-assign]
    going.conduct()
    assert 29 < took[0] < 35  # and not 500
    assert sums(server) == [["north", "south"]] * 2 + [sorted(BODIES)] * 2
    assert counted[1] == counted[0]  # not asked in round 2
    assert counted[2] > counted[1]
    assert [event["site"] for event in events_named(server, "given up")] == ["east"]
    said = capsys.readouterr().err
    assert "trial goes on without east" in said
    assert main([*command[:-1], "west"]) == 2  # no such site
    assert main([*command, "--back", "--run", "trial"]) == 2  # not dropped
    assert main([*command, "--run", "other"]) == 2


def test_status_shows_who_misses_who_lags_and_who_is_dropped(
    post: Timed, server: ServerFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert summarise_last_run(server) is None
    post.takes = {"east": 1.0, "north": 1.0, "south": 40.0}
    going, _ = begin(post, server, 2, deadline=100.0)
    post.at[post.now + 20.0] = lambda: post.silent.add("east")
    going.conduct()
    write_json(RunFolder.of_run(server, "trial").dropped_file, ["west"])
    listed = (*(SiteStatus(name, "online", "2030") for name in BODIES), SiteStatus("west", "offline", ""))
    # Flower's own list, which only a running server has.
    monkeypatch.setattr(server_side, "read_site_statuses", lambda folder: listed)
    assert main(["federate", "status", str(server.path)]) == 0
    printed = capsys.readouterr()
    east, north, south, west = printed.out.splitlines()
    assert "missed the deadline of round 2 and has not answered since; its last answer was in round 1" in east
    assert "in round 2, after" in north
    assert "slower" not in north
    assert south.endswith("s, much slower than the others")
    assert west.endswith("dropped: not asked")
    assert "trial: round 2 of 2; finished" in printed.err
    assert main(["federate", "status", str(server.path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [site["missing_since"] for site in told["sites"]] == [2, None, None, None]
    assert told["sites"][2]["lagging"]
