"""A private run that learned nothing reports it after each round and at the end, at the server and at every site."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from flwr.supercore.task_identity import TaskIdentity
from three_sites import BODIES, SCHEMA, InProcess, events_named, fill_site, make_server, quick_clock

from fedlog.cli.federate_report import print_private_report
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.event_text import describe_run_event, describe_site_event
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules, RunFolder
from fedlog.privacy import mechanisms
from fedlog.privacy.discrete import draw_discrete_gaussian
from fedlog.settings.promise import Promise

# The first example of docs/privacy-sites.md.
EXAMPLE = Plan("run-1", rounds=5, promise=Promise("record", "local", 8.0, 1e-5, clip="l2:3"))
HOPELESS = replace(EXAMPLE, rounds=2, promise=replace(EXAMPLE.promise, epsilon=0.01))  # type: ignore[type-var]


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture(autouse=True)
def _same_noise_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the noise from a seed: now and then a sum that is all noise has a head after all."""
    source = Random(0).randbytes
    monkeypatch.setattr(
        mechanisms, "draw_discrete_gaussian", lambda count, steps, _: draw_discrete_gaussian(count, steps, source)
    )


@pytest.fixture
def post(tmp_path: Path) -> InProcess:
    return InProcess({name: fill_site(SiteFolder(tmp_path / name), name, "mlp:8") for name in BODIES})


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    return make_server(ServerFolder(tmp_path / "server"))


def test_a_run_that_learned_nothing_says_so_on_both_sides(
    post: InProcess, server: ServerFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    Run(post, server, SCHEMA, HOPELESS, RoundRules(2, 20.0), quick_clock()).conduct()
    told = [str(describe_run_event(event)) for event in events_named(server, "round")]
    assert ["the sum was mostly noise" in line for line in told] == [True, True]
    report = RunFolder.of_run(server, "run-1").read_report()
    assert report is not None
    assert report["new_heads"] == 0
    print_private_report(report)
    assert "learned nothing" in capsys.readouterr().out
    east = post.sites["east"]
    lines = [str(describe_site_event(event)) for event in read_events(east.event_log)]
    assert any("round 2 of 2" in line and "the head is still the one of round 1" in line for line in lines)
    assert "the head never changed while this site took part" in lines[-1]
    assert json.loads((east.models / "run-1" / "report.json").read_text())["head_moved"] is False


def test_the_example_of_the_documentation_learns(
    post: InProcess, server: ServerFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    Run(post, server, SCHEMA, EXAMPLE, RoundRules(2, 20.0), quick_clock()).conduct()
    report = RunFolder.of_run(server, "run-1").read_report()
    assert report is not None
    assert report["new_heads"] >= 3
    print_private_report(report)
    assert f"rounds that changed the head: {report['new_heads']} of 5" in capsys.readouterr().out
    last = [describe_site_event(event) for event in read_events(post.sites["east"].event_log)][-1]
    assert "no round" not in str(last)
    assert json.loads((post.sites["east"].models / "run-1" / "report.json").read_text())["head_moved"] is True
