"""The end of a run at the server: how far it came, what the sites tell of it, and the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlog.engine.protocol.server import Server
from fedlog.flower.protocol.frame import Frame, FrameError
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.protocol.promise import spent_in
from fedlog.flower.server.run_folder import read_private_report, read_report
from fedlog.wire.ledger import Direction


@dataclass(frozen=True)
class Ending:
    """The last round that a run went through, and why it was the last."""

    round: int
    reason: str | None = None  # None: there was to be no other


def read_reports(plan: Plan, answers: Mapping[str, Frame]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What the sites tell, by name, and for those whose report is none what is wrong with it."""
    read = read_private_report if plan.figures_stay else read_report
    sites: list[dict[str, Any]] = []
    wrong: dict[str, str] = {}
    for site, answer in sorted(answers.items()):
        try:
            sites.append({"name": site, **read(answer.payload)})
        except FrameError as error:
            wrong[site] = error.message
    return sites, wrong


def run_report(plan: Plan, server: Server, ending: Ending, sites: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """The report of the run in the folder; one that ended early says how many rounds it was to have, and why."""
    early = {} if ending.reason is None else {"rounds_planned": plan.rounds, "ended_early": ending.reason}
    return {
        "run": plan.name,
        "method": plan.method,
        "rounds": ending.round,
        **early,
        "bits_up": server.ledger.bits(Direction.UP),
        "bits_down": server.ledger.bits(Direction.DOWN),
        "sites": sites,
        **({} if server.protection is None else {"privacy": spent_in(folder)}),
    }
