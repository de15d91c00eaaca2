"""The end of a run at the server: read the reports of the sites, and make the report of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Annotated, Any, Literal

from msgspec import Meta

from fedlog.engine.protocol.server import Server
from fedlog.engine.software import software_versions
from fedlog.errors import InputError
from fedlog.files.json_text import parse_json
from fedlog.flower.protocol.frame import Frame, FrameError
from fedlog.flower.protocol.greeting import is_body_name
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.protocol.run_privacy import read_privacy_spent
from fedlog.flower.server.run_folder import RunFolder
from fedlog.settings.fields import NotNegative, Share, read_dataclass
from fedlog.wire.ledger import Direction


@dataclass(frozen=True)
class RunEnding:
    """The last round of a run, and the reason if it ended early."""

    round: int
    reason: str | None = None  # None: it was the last planned round


@dataclass(frozen=True)
class SiteReport:
    """A site's report of its results: figures over all its test records."""

    body: str
    kept: Literal["federated", "local-only"]
    test_records: Annotated[int, Meta(ge=0, lt=2**53)]
    accuracy: Share
    federated_accuracy: Share
    local_only_accuracy: Share
    # If a number is predicted, "accuracy" is the share of test records inside their 90 % intervals.
    rmse: NotNegative | None = None
    federated_rmse: NotNegative | None = None
    local_only_rmse: NotNegative | None = None


@dataclass(frozen=True)
class PrivateSiteReport:
    """A site's report in a run that hides figures: they stay at the site."""

    body: str


def read_report(payload: bytes, kind: type[SiteReport | PrivateSiteReport]) -> dict[str, Any]:
    """Return the values in a REPORT payload; raise FrameError if they are not a report of this kind."""
    what = "a site's figures in a report" if kind is SiteReport else "the name of a body in a private report"
    try:
        report = read_dataclass(kind, parse_json(payload[:65536]), what)
        good = is_body_name(report.body)
    except (ValueError, InputError):
        good = False
    if not good:
        raise FrameError(f"expected {what}, found something else")
    return {name: value for name, value in asdict(report).items() if value is not None}


def read_reports(plan: Plan, answers: Mapping[str, Frame]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the readable reports, and for each site with an unreadable report what is wrong with it."""
    kind = PrivateSiteReport if plan.hides_figures else SiteReport
    sites: list[dict[str, Any]] = []
    wrong: dict[str, str] = {}
    for site, answer in sorted(answers.items()):
        try:
            sites.append({"name": site, **read_report(answer.payload, kind)})
        except FrameError as error:
            wrong[site] = error.message
    return sites, wrong


def make_run_report(
    plan: Plan, server: Server, ending: RunEnding, sites: list[dict[str, Any]], run_folder: RunFolder
) -> dict[str, Any]:
    """Return the report of the run; if it ended early, with the number of planned rounds and the reason."""
    early = {} if ending.reason is None else {"rounds_planned": plan.rounds, "ended_early": ending.reason}
    return {
        "run": plan.name,
        "method": plan.method,
        "rounds": ending.round,
        **early,
        "bits_up": server.ledger.bits(Direction.UP),
        "bits_down": server.ledger.bits(Direction.DOWN),
        "bits_by_kind": server.ledger.bits_by_kind_of_all_rounds(),
        "bits_opening": server.ledger.bits_by_kind(0),
        "made_with": {**software_versions(), "flwr": version("flwr")},
        "sites": sites,
        **(
            {}
            if server.protection is None
            else {"privacy": read_privacy_spent(run_folder.path), "new_heads": run_folder.count_new_heads()}
        ),
    }
