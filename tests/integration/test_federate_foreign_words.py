"""Texts from the other side of a federation are shown on a terminal as plain text, or not at all."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fedlog.flower.folders.folder import log_event, read_events
from fedlog.flower.ops.event_text import describe_run_event
from fedlog.flower.protocol.frame import SendableError
from fedlog.flower.protocol.greeting import make_versions, read_welcome
from fedlog.flower.server.run_folder import PrivateSiteReport, SiteReport, read_site_report

STEERING = "mlp:8\x1b]0;owned\x07\x1b[2J"
REPORT = {
    "body": "mlp:8",
    "kept": "federated",
    "test_records": 6,
    "accuracy": 0.5,
    "federated_accuracy": 0.5,
    "local_only_accuracy": 1,
}


def test_a_reason_from_elsewhere_cannot_steer_the_terminal(tmp_path: Path) -> None:
    log_event(tmp_path / "events.jsonl", "refused", site="east", round=1, reason=f"the site refused: {STEERING}")
    (event,) = read_events(tmp_path / "events.jsonl")
    assert describe_run_event(event) == "round 1: without east: the site refused: mlp:8?]0;owned??[2J"


@pytest.mark.parametrize(
    "change",
    [
        {"accuracy": "0.5"},
        {"accuracy": True},
        {"accuracy": float("nan")},
        {"federated_accuracy": 1.5},
        {"rmse": "1"},
        {"rmse": float("inf")},
        {"test_records": -1},
        {"test_records": 10**400},
        {"test_records": 6.0},
        {"kept": "mine"},
        {"body": STEERING},
        {"body": "x" * 1001},
        {"body": 5},
        {"more": 1},
    ],
)
def test_a_report_of_other_things_than_figures_is_refused(change: dict[str, object]) -> None:
    assert read_site_report(json.dumps(REPORT).encode(), SiteReport) == REPORT
    with pytest.raises(SendableError, match="expected a site's figures"):
        read_site_report(json.dumps({**REPORT, **change}).encode(), SiteReport)


@pytest.mark.parametrize("body", [STEERING, "x" * 1001, 5, None])
def test_a_name_of_a_body_that_is_none_is_refused(body: object) -> None:
    with pytest.raises(SendableError, match="expected the name of a body"):
        read_site_report(json.dumps({"body": body}).encode(), PrivateSiteReport)
    ours = make_versions("0" * 64)
    with pytest.raises(SendableError, match="expected a body and its number of features"):
        read_welcome(json.dumps({**asdict(ours), "body": body, "width": 8}).encode(), ours, "east")
