"""The end of a run at the server: how far it came, what the sites tell of it, and the report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from fedlog.engine.protocol.server import Server
from fedlog.engine.software import made_with
from fedlog.flower.protocol.frame import Frame, FrameError
from fedlog.flower.protocol.plan import Plan, is_body_name
from fedlog.flower.protocol.promise import read_spending
from fedlog.flower.server.run_folder import RunFolder
from fedlog.wire.ledger import Direction


@dataclass(frozen=True)
class Ending:
    """The last round that a run went through, and why it was the last."""

    round: int
    reason: str | None = None  # None: there was to be no other


@dataclass(frozen=True)
class SiteReport:
    """What a site tells of its results: figures over its test records, none of a single record."""

    body: str
    kept: str
    test_records: int
    accuracy: float
    federated_accuracy: float
    local_only_accuracy: float
    # Where a number is predicted: "accuracy" is then the share inside the 90 % intervals.
    rmse: float | None = None
    federated_rmse: float | None = None
    local_only_rmse: float | None = None


def read_private_report(payload: bytes) -> dict[str, Any]:
    """Return the body in a REPORT payload where figures stay at the site; raise FrameError for anything more."""
    try:
        stored = json.loads(payload[:65536])
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict) or set(stored) != {"body"} or not is_body_name(stored["body"]):
        raise FrameError("expected the name of a body in a private report, found something else")
    return stored


def read_report(payload: bytes) -> dict[str, Any]:
    """Return the figures of a REPORT payload; raise FrameError when they are none."""
    try:
        stored = json.loads(payload[:65536])
        report = SiteReport(**stored)
        shares = (report.accuracy, report.federated_accuracy, report.local_only_accuracy)
        good = all(_is_number(share) and 0 <= share <= 1 for share in shares) and is_body_name(report.body)
        errors = (report.rmse, report.federated_rmse, report.local_only_rmse)
        good = good and all(error is None or (_is_number(error) and 0 <= error < math.inf) for error in errors)
        records = report.test_records
        good = good and report.kept in ("federated", "local-only") and type(records) is int and 0 <= records < 2**53
    except (ValueError, TypeError, RecursionError):
        good = False
    if not good:
        raise FrameError("expected a site's figures in a report, found something else")
    return {name: value for name, value in asdict(report).items() if value is not None}


def _is_number(value: object) -> bool:
    """Whether it can be printed and reckoned with as one: not a text that reads like a number, nor a truth value."""
    return type(value) in (int, float)


def read_reports(plan: Plan, answers: Mapping[str, Frame]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return what the sites tell, by name, and for those whose report is none what is wrong with it."""
    read = read_private_report if plan.figures_stay else read_report
    sites: list[dict[str, Any]] = []
    wrong: dict[str, str] = {}
    for site, answer in sorted(answers.items()):
        try:
            sites.append({"name": site, **read(answer.payload)})
        except FrameError as error:
            wrong[site] = error.message
    return sites, wrong


def run_report(
    plan: Plan, server: Server, ending: Ending, sites: list[dict[str, Any]], home: RunFolder
) -> dict[str, Any]:
    """Return the report of the run in the folder; one that ended early says how many rounds it was to have, and why."""
    early = {} if ending.reason is None else {"rounds_planned": plan.rounds, "ended_early": ending.reason}
    return {
        "run": plan.name,
        "method": plan.method,
        "rounds": ending.round,
        **early,
        "bits_up": server.ledger.bits(Direction.UP),
        "bits_down": server.ledger.bits(Direction.DOWN),
        "bits_by_kind": server.ledger.all_kinds(),
        "bits_opening": server.ledger.by_kind(0),
        "made_with": {**made_with(), "flwr": version("flwr")},
        "sites": sites,
        **(
            {}
            if server.protection is None
            else {"privacy": read_spending(home.path), "new_heads": home.count_new_heads()}
        ),
    }
