"""The record of everything that has left a site; it survives new keys and folders."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.supercore.task_identity import TaskIdentity
from three_sites import SCHEMA, InProcess, events_named, fill_site, make_server, quick_clock

from fedlog.cli.main import main
from fedlog.errors import RunError
from fedlog.flower.folders.keys import CertificateFolder, create_certificates, create_site_key
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.site import create_site
from fedlog.flower.protocol.frame import make_run_tag
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules
from fedlog.flower.site import site_release_log
from fedlog.flower.site.run_state import RunState
from fedlog.flower.site.site_release_log import describe_spending
from fedlog.privacy.accounting import UnboundedLoss
from fedlog.privacy.release_log import FILE_NAME, read_log
from fedlog.settings.promise import Promise

LOCAL = Promise("client", "local", 4.0, 1e-5, message_norm=20.0)
PLAIN = Plan("run-1", rounds=2, options={"epochs": 1, "learning_rate": 0.01}, seed=4)
PRIVATE = replace(PLAIN, name="run-2", promise=LOCAL)
NO_GUARANTEE = "no guarantee: exact statistics of these rows left in run-1"


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def post(tmp_path: Path) -> InProcess:
    return InProcess({name: fill_site(SiteFolder(tmp_path / name), name, "mlp:8") for name in ("east", "north")})


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    return make_server(ServerFolder(tmp_path / "server"))


def conduct(post: InProcess, server: ServerFolder, plan: Plan) -> None:
    Run(post, server, SCHEMA, plan, RoundRules(1, 20.0), quick_clock()).conduct()


def refusals(server: ServerFolder, site: str, run: str) -> list[str]:
    events = [event for name in ("refused", "left out") for event in events_named(server, name)]
    return [str(event["reason"]) for event in events if (event["site"], event["run"]) == (site, run)]


def test_a_plain_run_is_a_loss_without_bound_wherever_an_epsilon_would_stand(
    post: InProcess, server: ServerFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    east = post.sites["east"]
    conduct(post, server, PLAIN)
    assert [type(event) for event in read_log(east.state / FILE_NAME).events] == [UnboundedLoss]  # once a run
    conduct(post, server, PRIVATE)
    assert len(read_log(east.state / FILE_NAME).releases) == 2
    assert describe_spending(east) == f"privacy spent in all runs so far: {NO_GUARANTEE}"
    assert main(["privacy", "spend", str(east.state)]) == 0
    assert f"spent: {NO_GUARANTEE}" in capsys.readouterr().out
    assert main(["privacy", "spend", str(east.state), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["guarantee"]["epsilon"] is None
    east.write_config(replace(east.read_config(), privacy="local:100:1e-5"))
    conduct(post, server, replace(PRIVATE, name="run-3"))
    assert NO_GUARANTEE in refusals(server, "east", "run-3")[0]
    assert refusals(server, "north", "run-3") == []


def test_a_plain_run_of_before_there_was_a_record_counts(post: InProcess, server: ServerFolder) -> None:
    east = post.sites["east"]
    conduct(post, server, PLAIN)
    (east.state / FILE_NAME).unlink()
    east.took_part_file.unlink()  # which is as old as the record
    assert NO_GUARANTEE in str(describe_spending(east))
    conduct(post, server, PRIVATE)
    assert isinstance(read_log(east.state / FILE_NAME).events[0], UnboundedLoss)


def test_a_new_key_keeps_the_record_and_the_limit_holds(
    post: InProcess, server: ServerFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    east = post.sites["east"]
    before = create_site_key(east.private_key, east.public_key, "east")
    east.write_config(replace(east.read_config(), privacy="local:4:1e-5"))
    conduct(post, server, PRIVATE)
    assert main(["federate", "rekey", str(east.path)]) == 0
    said = capsys.readouterr()
    assert said.out.strip() not in ("", before)
    assert "unchanged: the data, the body, the models, and the release log" in said.err
    conduct(post, server, replace(PRIVATE, name="run-3"))
    assert "the limit of this site on all its runs together" in refusals(server, "east", "run-3")[0]


def test_a_new_folder_for_the_same_rows_brings_the_record_and_the_limit_holds(
    post: InProcess, server: ServerFolder
) -> None:
    """The documented way after a lost key: move the folder, join again."""
    east = post.sites["east"]
    conduct(post, server, PRIVATE)
    moved = SiteFolder(east.path.rename(east.path.with_name("moved")))
    certificates = CertificateFolder(server.path.parent / "certificates")
    create_certificates(certificates, ("localhost",), dt.datetime.now(dt.UTC))
    config = replace(moved.read_config(), privacy="local:4:1e-5")
    create_site(east, config, certificates.authority, moved.schema_file, moved.state / FILE_NAME)
    spent = str(describe_spending(east))
    assert spent.startswith(str(describe_spending(moved)))
    assert spent.endswith("it does not cover another release like the last one")
    conduct(post, server, replace(PRIVATE, name="run-3"))
    assert "the limit of this site on all its runs together" in refusals(server, "east", "run-3")[0]


def test_a_site_whose_record_is_missing_answers_nobody_until_someone_says_why(
    post: InProcess, server: ServerFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    east = post.sites["east"]
    conduct(post, server, PRIVATE)
    copy = shutil.copy(east.state / FILE_NAME, east.path.parent / "copy.jsonl")
    shutil.rmtree(east.state)
    for plan in (replace(PLAIN, name="run-3"), replace(PRIVATE, name="run-4")):
        conduct(post, server, plan)
        assert "cannot find its release log" in refusals(server, "east", plan.name)[0]
        assert not RunState.of_run(east, make_run_tag(plan.name)).path.exists()
    assert main(["federate", "site", str(east.path)]) == 2
    assert "hint: run `fedlog federate ledger" in capsys.readouterr().err
    assert main(["federate", "ledger", str(east.path)]) == 2
    assert main(["federate", "ledger", str(east.path), "--restore", str(copy)]) == 0
    assert "epsilon 4 at delta" in capsys.readouterr().out
    assert main(["federate", "ledger", str(east.path), "--lost"]) == 2  # it is there
    assert "if it lacks releases, move it away first" in capsys.readouterr().err
    assert "epsilon 4 at delta" in str(describe_spending(east))
    (east.state / FILE_NAME).unlink()
    assert main(["federate", "ledger", str(east.path), "--lost"]) == 0
    assert "no guarantee: the record of what left before is lost" in capsys.readouterr().out
    assert main(["federate", "ledger", str(east.path), "--new-rows"]) == 0
    assert "nothing of these rows has left" in capsys.readouterr().out
    assert (east.path / "state.earlier-1" / FILE_NAME).exists()
    conduct(post, server, replace(PRIVATE, name="run-5"))
    assert refusals(server, "east", "run-5") == []
    assert "epsilon 4 at delta" in str(describe_spending(east))


def test_a_record_that_is_lost_is_not_made_from_the_runs_that_happen_to_remain(
    post: InProcess, server: ServerFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders of old runs may be removed, since the record counts them; without it what remains is too little."""
    east = post.sites["east"]
    for name in ("run-2", "run-3"):
        conduct(post, server, replace(PRIVATE, name=name))
    shutil.rmtree(RunState.of_run(east, make_run_tag("run-2")).path)
    (east.state / FILE_NAME).unlink()
    conduct(post, server, replace(PRIVATE, name="run-4"))
    assert "cannot find its release log" in refusals(server, "east", "run-4")[0]
    assert main(["federate", "site", str(east.path)]) == 2
    assert main(["federate", "ledger", str(east.path), "--lost"]) == 0
    assert "no guarantee: the record of what left before is lost" in capsys.readouterr().out
    assert len(read_log(east.state / FILE_NAME).releases) == 2  # of the run that remains


def test_an_old_copy_of_the_record_is_completed_by_the_runs_since_then(post: InProcess, server: ServerFolder) -> None:
    east = post.sites["east"]
    conduct(post, server, PRIVATE)
    copy = shutil.copy(east.state / FILE_NAME, east.path.parent / "copy.jsonl")
    conduct(post, server, replace(PRIVATE, name="run-3"))
    conduct(post, server, PLAIN)
    whole = read_log(east.state / FILE_NAME)
    (east.state / FILE_NAME).unlink()
    assert main(["federate", "ledger", str(east.path), "--restore", str(copy)]) == 0
    restored = read_log(east.state / FILE_NAME)
    assert Counter(restored.releases) == Counter(whole.releases)
    assert NO_GUARANTEE in str(describe_spending(east))
    assert [event.reason for event in restored.events if isinstance(event, UnboundedLoss)] == [
        NO_GUARANTEE.removeprefix("no guarantee: ")
    ]


def test_a_whole_copy_of_the_record_is_taken_over_as_it_is(post: InProcess, server: ServerFolder) -> None:
    east = post.sites["east"]
    conduct(post, server, PRIVATE)
    conduct(post, server, PLAIN)
    whole = (east.state / FILE_NAME).read_text()
    copy = (east.state / FILE_NAME).rename(east.path.parent / "copy.jsonl")
    assert main(["federate", "ledger", str(east.path), "--restore", str(copy)]) == 0
    assert (east.state / FILE_NAME).read_text() == whole


def test_a_site_that_was_stopped_before_its_first_release_was_counted_has_lost_nothing(
    post: InProcess, server: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    east = post.sites["east"]
    with monkeypatch.context() as patch:
        patch.setattr(site_release_log.release_log, "record_site_release_unchecked", raise_interrupt)
        patch.setattr(site_release_log.release_log, "record_unbounded_losses", raise_interrupt)
        for plan in (PRIVATE, PLAIN):
            with pytest.raises(RunError, match="found none"):
                conduct(post, server, plan)
    assert not (east.state / FILE_NAME).exists()
    conduct(post, server, replace(PRIVATE, name="run-3"))
    assert refusals(server, "east", "run-3") == []
    assert east.took_part_file.exists()


def raise_interrupt(*_: object) -> None:
    raise OSError("stopped here")
