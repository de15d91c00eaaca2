"""Secure sums over Flower's messages: the sum and nothing else, sites that vanish or restart, and lists of keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from three_sites import SCHEMA, InProcess, events_named, fill_site, make_server, quick_clock

from fedlog.cli.main import main
from fedlog.engine.protocol import checkpoint
from fedlog.engine.protocol.secure_sums import decode_sum
from fedlog.errors import InputError, RunError
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.keys import ROSTER, format_roster_entry, write_roster
from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops import run as ops_run
from fedlog.flower.ops.event_text import describe_run_event
from fedlog.flower.ops.processes import Command
from fedlog.flower.protocol.frame import (
    Frame,
    FrameKind,
    SumAnnouncement,
    decode_frame,
    make_run_tag,
    read_announcement,
)
from fedlog.flower.protocol.plan import Plan, SecureSumRules
from fedlog.flower.server import secure_sums
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules, RunFolder
from fedlog.flower.site.answer import answer_request
from fedlog.flower.site.run_state import RunState
from fedlog.privacy.release_log import FILE_NAME, read_log
from fedlog.privacy.secagg.terms import Step
from fedlog.settings.promise import Promise
from fedlog.wire.codec import WireError, find_codec
from fedlog.wire.message import Contribution

NAMES = ("east", "north", "south", "west")
PLAIN = Plan("trial", rounds=2, options={"epochs": 1, "learning_rate": 0.01}, seed=4)
SUMS = replace(PLAIN, secure=SecureSumRules(3, 4))
PRIVATE = replace(SUMS, promise=Promise("client", "distributed", 20.0, 1e-5, message_norm=20.0))


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Watched(InProcess):
    """Keeps what was asked and answered, and lets sites fall silent at a step of a round."""

    asked: list[tuple[str, Frame]]
    answered: list[tuple[str, Frame]]
    silent_from: dict[str, tuple[int, Step]]

    def push_messages(self, messages):  # type: ignore[no-untyped-def]
        identifiers = []
        for message in messages:
            name = self.names[message.metadata.dst_node_id - 10]
            frame = decode_frame(message.content["fedlog"]["frame"])
            self.asked.append((name, frame))
            step = {FrameKind.WORK: Step.KEYS}.get(frame.kind, frame.payload[0] if frame.kind == 8 else None)
            gone = self.silent_from.get(name)
            self.silent = {name} if gone and step is not None and (frame.round_number, step) >= gone else set()
            (identifier,) = super().push_messages([message])
            if identifier in self.replies:
                self.answered.append((name, decode_frame(self.replies[identifier].content["fedlog"]["frame"])))
            identifiers.append(identifier)
        self.silent = set()
        return identifiers


@pytest.fixture
def post(tmp_path: Path) -> Watched:
    made = Watched({name: fill_site(SiteFolder(tmp_path / name), name, "mlp:8") for name in NAMES})
    made.asked, made.answered, made.silent_from = [], [], {}
    entries = [format_roster_entry(folder) for folder in made.sites.values()]
    for folder in made.sites.values():
        write_roster(folder.path, entries)
    return made


@pytest.fixture
def server(tmp_path: Path, post: Watched) -> ServerFolder:
    folder = make_server(ServerFolder(tmp_path / "server"))
    write_roster(folder.path, [format_roster_entry(site) for site in post.sites.values()])
    return folder


def conduct(post: InProcess, server: ServerFolder, plan: Plan) -> checkpoint.ServerState:
    Run(post, server, SCHEMA, plan, RoundRules(3, 20.0), quick_clock()).conduct()
    return checkpoint.read(RunFolder.of_run(server, plan.name).checkpoint, lambda _: None)


def test_a_secure_sum_gives_the_head_of_the_plain_one_and_shows_no_sites_part(
    post: Watched, server: ServerFolder, tmp_path: Path
) -> None:
    found = conduct(post, server, SUMS)
    others = InProcess({name: fill_site(SiteFolder(tmp_path / "b" / name), name, "mlp:8") for name in NAMES})
    bare = ServerFolder(tmp_path / "bare")
    expected = conduct(others, bare, PLAIN)
    torch.testing.assert_close(found.values["statistics"], expected.values["statistics"], rtol=1e-4, atol=1e-4)
    assert RunFolder.of_run(server, "trial").read_uploads() == {}
    for _, frame in post.answered:
        if frame.kind in (FrameKind.UPLOAD, FrameKind.SECURED):
            with pytest.raises((WireError, InputError)):
                find_codec("f32").decode(frame.payload)
    # Keys come with the work, so that a round has five questions.
    turns = [frame for name, frame in post.asked if name == "east" and frame.round_number == 1]
    assert [frame.kind for frame in turns] == [FrameKind.WORK] + [FrameKind.SECURE] * 4
    kinds = found.ledger.sum_bits_by_kind(1)
    assert {"secure keys up", "secure shares down", "secure masked up", "secure unmask up"} <= set(kinds)
    assert "statistics up" not in kinds


def test_distributed_noise_is_counted_at_every_site_and_only_a_noisy_sum_comes_out(
    post: Watched, server: ServerFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums: list[torch.Tensor] = []

    def seen(*given: Any) -> Contribution:
        found = decode_sum(*given)
        sums.append(found.arrays[0])
        return found

    monkeypatch.setattr(secure_sums, "decode_sum", seen)
    conduct(post, server, PRIVATE)
    guard = PRIVATE.build_protection(3, 8)
    assert guard is not None
    std = guard.mechanism.compute_std_of_sum(len(NAMES))
    assert std > guard.mechanism.sigma
    # 27 draws: a std beyond these bounds has a probability below 1e-6.
    noise = sums[0] - clipped_sum_of_round_1(tmp_path / "twins")
    assert 0.4 * std < float(noise.square().mean().sqrt()) < 1.9 * std
    shares = guard.make_release_event(1, "statistics").shares
    for folder in post.sites.values():
        log = read_log(RunState.of_run(folder, make_run_tag("trial")).path / FILE_NAME)
        assert [(release.round, release.shares) for release in log.releases] == [(1, shares), (2, shares)]
        assert log.releases[0].wrap_probability > 0
    report = RunFolder.of_run(server, "trial").read_report()
    assert report is not None
    assert report["privacy"]["mechanism"] == "distributed"
    assert [set(site) for site in report["sites"]] == [{"name", "body"}] * 4


def clipped_sum_of_round_1(folder: Path) -> torch.Tensor:
    """The sum of what the sites would send in the first round without noise: under central noise messages are exact."""
    folder.mkdir()
    central = replace(PLAIN, promise=Promise("client", "central", 20.0, 1e-5, message_norm=20.0))
    guard = central.build_protection(3, 8)
    assert guard is not None
    twins = Watched({name: fill_site(SiteFolder(folder / name), name, "mlp:8") for name in NAMES})
    twins.asked, twins.answered, twins.silent_from = [], [], {}
    conduct(twins, make_server(ServerFolder(folder / "server")), central)
    sent = [f.payload for _, f in twins.answered if f.kind is FrameKind.UPLOAD and f.round_number == 1]
    assert len(sent) == len(NAMES)
    return (
        torch.stack([find_codec("f32").decode(blob).arrays[0].double() for blob in sent]).sum(0) * guard.mechanism.grid
    )


@pytest.mark.parametrize("step", list(Step))
def test_a_site_that_vanishes_is_in_the_sum_if_its_vector_came(post: Watched, server: ServerFolder, step: Step) -> None:
    post.silent_from = {"west": (1, step)}
    conduct(post, server, SUMS)
    first = events_named(server, "uploads")[0]
    assert first["sites"] == (list(NAMES) if step > Step.MASKED else list(NAMES[:3]))
    silent = events_named(server, "silent")[0]
    assert silent["site"] == "west"
    told = f"round 1: no answer to step {step.name.lower()} of the secure sum from west within 20 s"
    assert describe_run_event(silent) == told


@pytest.mark.parametrize("step", [Step.KEYS, Step.SHARES, Step.MASKED])
def test_below_the_honest_survivors_nothing_is_unmasked_and_the_old_head_stays(
    post: Watched, server: ServerFolder, step: Step
) -> None:
    post.silent_from = {"west": (2, step), "south": (2, step)}
    found = conduct(post, server, SUMS)
    (failed,) = events_named(server, "secure sum failed")
    assert failed["round"] == 2
    assert str(describe_run_event(failed)).startswith("round 2: the secure sum failed; the head stays as it was: ")
    for event in read_events(server.event_log):
        describe_run_event(event)  # whatever happens, the operator's command can say it
    steps = [frame.payload[0] for _, frame in post.asked if frame.kind is FrameKind.SECURE and frame.round_number == 2]
    assert Step.UNMASK not in steps
    assert found.values["statistics"] is not None
    assert RunFolder.of_run(server, "trial").read_report() is not None


def test_a_site_sends_one_vector_under_its_masks_however_often_it_is_asked(post: Watched, server: ServerFolder) -> None:
    conduct(post, server, SUMS)
    east = post.sites["east"]
    used = sorted(path.name.rpartition("-")[2] for path in (_home(east) / "used").iterdir())
    assert used == sorted(2 * [step.name.lower() for step in Step])
    masked = next(
        f for n, f in post.asked if n == "east" and f.kind is FrameKind.SECURE and f.payload[0] == Step.MASKED
    )
    with pytest.raises(InputError, match="announcement of a secure sum first"):
        answer_request(masked, east)
    assert not (_home(east) / "sum").exists()


def test_a_site_that_lost_track_sits_the_sum_out(post: Watched, server: ServerFolder) -> None:
    """The state goes back to where it was before the vector was sent, as from a backup; the mark on disk does not."""
    kept: dict[str, bytes] = {}
    original = post.push_messages

    def restoring(messages):  # type: ignore[no-untyped-def]
        sent = []
        for message in messages:
            name = post.names[message.metadata.dst_node_id - 10]
            frame = decode_frame(message.content["fedlog"]["frame"])
            folder = _home(post.sites["east"]) / "sum"
            if name == "east" and frame.kind is FrameKind.SECURE and frame.payload[0] == Step.MASKED and not kept:
                kept.update({path.name: path.read_bytes() for path in folder.iterdir()})
                sent += original([message])
                for file, content in kept.items():
                    (folder / file).write_bytes(content)
                with pytest.raises(RunError, match="answered before"):
                    answer_request(frame, post.sites["east"])
                continue
            sent += original([message])
        return sent

    post.push_messages = restoring  # type: ignore[method-assign]
    conduct(post, server, SUMS)
    assert kept


def test_what_a_site_remembers_of_a_sum_is_for_its_owner_alone_and_the_vector_goes_once_it_is_sent(
    post: Watched, server: ServerFolder
) -> None:
    remembered: list[set[str]] = []
    original = post.push_messages

    def looking(messages):  # type: ignore[no-untyped-def]
        sent = []
        for message in messages:
            sent += original([message])
            folder = _home(post.sites["east"]) / "sum"
            files = set(folder.iterdir()) if folder.exists() else set()
            if post.asked[-1][0] == "east" and post.asked[-1][1].kind in (FrameKind.WORK, FrameKind.SECURE):
                remembered.append({path.name for path in files})
            assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *files) if files)
        return sent

    post.push_messages = looking  # type: ignore[method-assign]
    conduct(post, server, replace(SUMS, rounds=1))
    before, after = {"opening", "state", "vector"}, {"opening", "state"}
    assert remembered == [before, before, after, after, set()]


def test_a_sum_of_more_sites_than_the_plan_names_is_refused(post: Watched, server: ServerFolder) -> None:
    # The room in a word and the noise that each site adds are for no more than these.
    post.absent = {"west"}
    conduct(post, server, replace(SUMS, rounds=1, secure=SecureSumRules(3, 3)))
    everyone = SumAnnouncement(bytes(16), 9, NAMES)
    with pytest.raises(InputError, match="at most 3 sites in a sum, found: 4"):
        answer_request(
            Frame(FrameKind.WORK, make_run_tag("trial"), 1, 0, everyone.prepend_to(_seed())), post.sites["east"]
        )


def test_who_is_not_on_the_lists_takes_no_part(post: Watched, server: ServerFolder, tmp_path: Path) -> None:
    (post.sites["west"].path / ROSTER).unlink()
    conduct(post, server, SUMS)
    assert events_named(server, "left out")[0]["site"] == "west"
    assert "list of the sites' keys" in str(events_named(server, "left out")[0]["reason"])
    assert all(event["sites"] == list(NAMES[:3]) for event in events_named(server, "uploads"))


def test_a_server_with_keys_of_its_own_gets_do_nothing(post: Watched, server: ServerFolder) -> None:
    own = [
        format_roster_entry(post.sites["east"]),
        *(f"{name}={bytes(31 * [1] + [at]).hex()}" for at, name in enumerate(NAMES[1:])),
    ]
    write_roster(server.path, own)
    with pytest.raises(RunError):
        conduct(post, server, SUMS)
    assert not [frame for _, frame in post.answered if frame.kind is FrameKind.SECURED]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--honest", "0"], "--honest must be 3 to 4"),
        (["--honest", "5"], "--honest must be 3 to 4"),
        (["--refused-share", "0.1"], "they hide single uploads"),
    ],
)
def test_the_command_refuses_terms_that_no_secure_sum_can_keep(
    server: ServerFolder, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    server.write_config(ServerConfig(("127.0.0.1",), "127.0.0.1", 1))
    assert main(["federate", "run", str(server.path), "--aggregation", "secure", *given]) == 2
    assert said in capsys.readouterr().err


def test_announcements_and_rosters_are_read_strictly(post: Watched, server: ServerFolder) -> None:
    opening = SumAnnouncement(bytes(16), 3, ("a", "b"))
    assert read_announcement(opening.prepend_to(b"rest")) == (opening, b"rest")
    for wrong in (b"", b"\0\0\0\0", opening.prepend_to(b"")[:9], (9).to_bytes(4, "little") + b"not json!"):
        with pytest.raises(InputError):
            read_announcement(wrong)
    for entry in ("east", "east=12", "EAST=" + 64 * "0"):
        with pytest.raises(InputError):
            write_roster(server.path, [entry])
    conduct(post, server, SUMS)
    outside = Frame(FrameKind.SECURE, make_run_tag("trial"), 1, 0, bytes([Step.SHARES]))
    with pytest.raises(InputError, match="announcement of a secure sum first"):
        answer_request(outside, post.sites["east"])
    unknown = SumAnnouncement(bytes(16), 9, ("east", "north", "nobody"))
    with pytest.raises(InputError, match="the same roster"):
        answer_request(
            Frame(FrameKind.WORK, make_run_tag("trial"), 2, 0, unknown.prepend_to(_seed())), post.sites["east"]
        )


def _seed() -> bytes:
    return find_codec("f32").encode(PLAIN.build_algorithm(3, 8).broadcast({"seed": torch.tensor([5])}))


def _home(folder: SiteFolder) -> Path:
    return RunState.of_run(folder, make_run_tag("trial")).path / "secure"


def test_one_number_says_how_many_sites_a_secure_run_needs(post: Watched, server: ServerFolder) -> None:
    assert SUMS.secure is not None
    needed = max(SUMS.secure.honest, 3)
    assert RoundRules(2).find_minimum_sites(SUMS) == needed > 2
    assert RoundRules(9).find_minimum_sites(SUMS) == 9
    assert RoundRules(2).find_minimum_sites(replace(SUMS, secure=SecureSumRules(5, 6))) == 5
    going = Run(post, server, SCHEMA, SUMS, RoundRules(2, 20.0), quick_clock())
    post.absent = set(NAMES[2:])
    with pytest.raises(RunError, match=f"expected at least {needed} sites, found 2"):
        going.conduct()
    post.absent = set()
    conduct(post, server, replace(SUMS, rounds=1))
    post.absent = set(NAMES[2:])
    with pytest.raises(RunError, match=f"expected at least {needed} sites, found fewer"):
        Run(post, server, SCHEMA, replace(SUMS, rounds=9), RoundRules(2, 20.0), quick_clock()).conduct()
    assert {event["minimum"] for event in events_named(server, "too few")} == {needed}


def test_the_operator_is_told_how_many_sites_a_secure_run_needs(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.write_config(ServerConfig(("127.0.0.1",), "127.0.0.1", 1))
    monkeypatch.setattr(ops_run, "make_flwr_command", lambda *_: Command(("true",)))  # Flower ends at once
    for minimum, told in ((2, True), (3, False)):
        said = list[str]()
        with pytest.raises(RunError, match="Flower ended run"):
            ops_run.run_federation(server, SUMS, RoundRules(minimum, 20.0), said.append)
        assert ("a round needs at least 3 sites, because of the secure sums of this run" in said) is told
