"""Requests that a site refuses during a run, before anything leaves or is spent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import save_file
from three_sites import SCHEMA, InProcess, fill_site, make_server, quick_clock

from fedlog.cli.federate_report import print_report
from fedlog.cli.main import main
from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.keys import ROSTER, format_roster_entry, write_roster
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.frame import (
    FINISH_EXCHANGE,
    Frame,
    FrameKind,
    SendableError,
    SumAnnouncement,
    make_run_tag,
    wrap_frame,
)
from fedlog.flower.protocol.greeting import encode_hello, make_versions
from fedlog.flower.protocol.plan import Plan, SecureSumRules
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules, RunFolder
from fedlog.flower.site.answer import answer_request
from fedlog.flower.site.client_app import answer_with_frame
from fedlog.flower.site.data import check_site
from fedlog.flower.site.run_state import RunState
from fedlog.flower.site.site_release_log import describe_spending
from fedlog.models.catalog import make_body
from fedlog.privacy.accounting import UnboundedLoss
from fedlog.privacy.release_log import FILE_NAME, read_log
from fedlog.settings.promise import Promise
from fedlog.wire.codec import find_codec

CENTRAL = Promise("client", "central", 8.0, 1e-5, message_norm=20.0)
OPEN = Plan("trial", rounds=2, options={"epochs": 1, "learning_rate": 0.01}, seed=4)
SECURE = replace(OPEN, promise=replace(CENTRAL, trust="distributed"), secure=SecureSumRules(3, 3))
OPENING = SumAnnouncement(bytes(16), 0, ("east", "north", "south"))
HEAD = find_codec("f32").encode(OPEN.build_algorithm(3, 8).broadcast({"seed": torch.tensor([5])}))


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def ask(kind: FrameKind, round_number: int = 0, exchange: int = 0, payload: bytes = b"") -> Frame:
    return Frame(kind, make_run_tag("trial"), round_number, exchange, payload)


def greeting(plan: Plan) -> Frame:
    return ask(FrameKind.HELLO, payload=encode_hello(make_versions(SCHEMA.digest), plan))


@pytest.fixture
def east(tmp_path: Path) -> SiteFolder:
    return fill_site(SiteFolder(tmp_path / "east"), "east", "mlp:8")


def require(site: SiteFolder, limit: str) -> None:
    site.write_config(replace(site.read_config(), privacy=limit))


@pytest.mark.parametrize(
    ("promise", "said"),
    [(None, "private runs only"), (CENTRAL, "requires local noise, found: central")],
)
def test_a_limit_holds_in_runs_that_were_greeted_before_it_was_set(
    east: SiteFolder, promise: Promise | None, said: str
) -> None:
    plan = replace(OPEN, promise=promise)
    assert answer_request(greeting(plan), east).kind is FrameKind.WELCOME
    assert answer_request(ask(FrameKind.WORK, 1, payload=HEAD), east).kind is FrameKind.UPLOAD
    require(east, "local:8:1e-5")
    state = RunState.of_run(east, make_run_tag("trial"))
    before = sorted(path for path in state.path.rglob("*") if path.is_file())
    for request in (
        ask(FrameKind.WORK, 1, payload=HEAD),  # its answer is stored, and may never have arrived
        ask(FrameKind.WORK, 2, payload=HEAD),
        ask(FrameKind.SECURE, 1, payload=b"\1"),
        ask(FrameKind.FINISH, 2, FINISH_EXCHANGE, HEAD),
    ):
        with pytest.raises(SendableError, match=said):
            answer_request(request, east)
    assert sorted(path for path in state.path.rglob("*") if path.is_file()) == before
    assert not east.models.exists()


@pytest.fixture
def listed(east: SiteFolder) -> SiteFolder:
    """The site with a list of three keys, its own among them."""
    others = [f"{name}={bytes(31 * [1] + [at]).hex()}" for at, name in enumerate(("north", "south"))]
    assert main(["federate", "roster", str(east.path), format_roster_entry(east), *others]) == 0
    return east


@pytest.mark.parametrize(
    "wrong",
    [
        {"session": bytes(15)},
        {"number": -1},
        {"members": ("north", "south")},
        {"members": ("east", "north", "nobody")},
        {"members": ("east", "north", "south", "south")},
        {"members": ("east", "north")},
    ],
)
def test_an_announcement_from_which_no_sum_can_come_does_nothing(listed: SiteFolder, wrong: dict[str, Any]) -> None:
    answer_request(greeting(SECURE), listed)
    with pytest.raises(InputError):
        answer_request(ask(FrameKind.WORK, 1, payload=replace(OPENING, **wrong).prepend_to(HEAD)), listed)
    assert not (listed.state / FILE_NAME).exists()
    assert answer_request(ask(FrameKind.WORK, 1, payload=OPENING.prepend_to(HEAD)), listed).kind is FrameKind.UPLOAD
    assert len(read_log(listed.state / FILE_NAME).releases) == 1


def test_a_secure_sum_without_noise_is_a_loss_without_bound(listed: SiteFolder) -> None:
    """The sum hides this site among the others; nothing bounds what their sum tells to those who know the others."""
    answer_request(greeting(replace(OPEN, secure=SecureSumRules(3, 3))), listed)
    assert answer_request(ask(FrameKind.WORK, 1, payload=OPENING.prepend_to(HEAD)), listed).kind is FrameKind.UPLOAD
    (event,) = read_log(listed.state / FILE_NAME).events
    assert isinstance(event, UnboundedLoss)
    assert describe_spending(listed) == (
        "privacy spent in all runs so far: no guarantee: exact statistics of these rows left in trial"
    )


def test_an_opening_that_comes_again_with_another_head_spends_nothing_more(listed: SiteFolder) -> None:
    answer_request(greeting(SECURE), listed)
    answer_request(ask(FrameKind.WORK, 1, payload=OPENING.prepend_to(HEAD)), listed)
    other = find_codec("f32").encode(OPEN.build_algorithm(3, 8).broadcast({"seed": torch.tensor([6])}))
    with pytest.raises(SendableError, match="has sent its keys before"):
        answer_request(ask(FrameKind.WORK, 1, payload=OPENING.prepend_to(other)), listed)
    assert len(read_log(listed.state / FILE_NAME).releases) == 1


def test_a_list_without_the_sites_own_key_is_refused_where_it_is_written_and_in_every_message(
    listed: SiteFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    path = listed.path / ROSTER
    good = path.read_text()
    entries = [f"{name}={key}" for name, key in json.loads(good).items() if name != "east"]
    for given, said in (([], "found no east"), ([f"east={bytes(32).hex()}"], "found another key")):
        assert main(["federate", "roster", str(listed.path), *entries, *given]) == 2
        assert said in capsys.readouterr().err
    assert path.read_text() == good
    answer_request(greeting(SECURE), listed)
    path.write_text(json.dumps({**json.loads(good), "east": bytes(32).hex()}))
    for request in (greeting(SECURE), ask(FrameKind.WORK, 1, payload=OPENING.prepend_to(HEAD))):
        with pytest.raises(SendableError, match="with this site's key"):
            answer_request(request, listed)
    assert not (listed.state / FILE_NAME).exists()


def refusal(request: Frame, site: SiteFolder) -> str:
    """What the server reads, for a message through the app."""
    message = Message(wrap_frame(request), dst_node_id=1, message_type="train")
    message.metadata.__dict__["_message_id"] = "m1"
    frame = answer_with_frame(message, site)
    assert frame.kind is FrameKind.REFUSAL
    return frame.payload.decode()


def test_a_refusal_does_not_tell_where_a_sites_files_lie(east: SiteFolder, tmp_path: Path) -> None:
    told = refusal(greeting(SECURE), east)
    assert "list of the sites' keys" in told
    (east.path / ROSTER).write_text("[]")
    again = refusal(greeting(SECURE), east)
    weights = tmp_path / "w.safetensors"
    save_file(
        make_body("mlp:8", SCHEMA.shape).make_initial_params(Key(1)),
        weights,
        metadata={"body": "mlp:8", "method": "fedlog"},
    )
    fill_site(east, "east", f"frozen:{weights}")
    trained = refusal(greeting(replace(OPEN, promise=Promise("record", "central", 8.0, 1e-5, clip="l2:3"))), east)
    assert "bodies that never saw private data" in trained
    for said in (told, again, trained):
        assert str(tmp_path) not in said
        assert tmp_path.name not in said
    kept = [str(event["reason"]) for event in read_events(east.event_log) if event["event"] == "warning"]
    assert [str(path) in reason for path, reason in zip((east.path, east.path, weights), kept, strict=True)] == 3 * [
        True
    ]


def test_a_small_table_is_no_error_at_the_start_of_a_site_for_runs_that_protect_records(east: SiteFolder) -> None:
    path = Path(east.read_config().data or "")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    for limit in (None, "local:8:1e-5", "client:local:8:1e-5"):  # there a run may come that cannot do with so few rows
        east.write_config(replace(east.read_config(), privacy=limit))
        with pytest.raises(InputError, match="row"):
            check_site(east, east.read_config())
    require(east, "record:local:8:1e-5")
    told = check_site(east, east.read_config())
    assert "0 " in told
    assert "1 of 3 classes" in told or "0 of 3 classes" in told


def test_under_secure_sums_no_figure_of_a_site_goes_to_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = {name: fill_site(SiteFolder(tmp_path / name), name, "mlp:8") for name in OPENING.members}
    server = make_server(ServerFolder(tmp_path / "server"))
    for folder in (server.path, *(site.path for site in sites.values())):
        write_roster(folder, [format_roster_entry(site) for site in sites.values()])
    plan = replace(OPEN, rounds=1, secure=SecureSumRules(3, 3))
    Run(InProcess(sites), server, SCHEMA, plan, RoundRules(3, 20.0), quick_clock()).conduct()
    report = RunFolder.of_run(server, "trial").read_report()
    assert report is not None
    assert report["sites"] == [{"name": name, "body": "mlp:8"} for name in sites]
    print_report(report, as_json=False)
    said = capsys.readouterr().out
    assert "secure sums hid each site's part from the server, and the sums are exact" in said
    assert "only each site knows how well its model does" in said
    assert all((site.models / "trial" / "report.json").exists() for site in sites.values())


@pytest.mark.parametrize(
    ("cells", "hint"),
    [
        ('"1,5",2,p,label-one', "correct or remove the row; write it with a decimal point"),
        ("1.5,2,p,label-four", "correct or remove the row; a new class goes into the schema, the same at all sites"),
    ],
)
def test_a_site_is_told_what_to_do_with_a_decimal_comma_and_with_a_new_class(
    cells: str, hint: str, tmp_path: Path
) -> None:
    east = fill_site(SiteFolder(tmp_path / "east"), "east", "mlp:8")
    table = Path(str(east.read_config().data))
    table.write_text(table.read_text() + cells + "\n")
    with pytest.raises(InputError) as refused:
        check_site(east, east.read_config())
    assert str(refused.value.hint).startswith(hint)


def test_a_folder_without_images_is_refused_with_what_to_give_instead(tmp_path: Path) -> None:
    east = fill_site(SiteFolder(tmp_path / "east"), "east", "mlp:8")
    (tmp_path / "tables" / "label-one").mkdir(parents=True)
    with pytest.raises(InputError, match="found: a schema of columns") as refused:
        check_site(east, replace(east.read_config(), data=str(tmp_path / "tables")))
    assert str(refused.value.hint).startswith("give the file of a table as --data FILE")
