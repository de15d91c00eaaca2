"""The server's files of a run: plan, checkpoint, newest uploads, rounds, releases, and the report at its end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from fedlog.engine.protocol.server import Server
from fedlog.engine.software import list_software_versions
from fedlog.errors import InputError
from fedlog.files.durable import append_line, write_file
from fedlog.files.json_text import parse_json, read_json, write_json
from fedlog.files.lock import LockTakenError, lock_folder
from fedlog.flower.folders.folder import SubPath
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.protocol.frame import SAME_VERSION, Frame, SendableError
from fedlog.flower.protocol.greeting import RequiredBody, is_printable_body_name
from fedlog.flower.protocol.plan import Plan, describe_forbidden_changes, read_plan
from fedlog.privacy.accounting import compute_spending
from fedlog.privacy.protection import Protection
from fedlog.privacy.release_log import FILE_NAME, read_log, record_release, start_or_resume_log
from fedlog.privacy.secagg.terms import FEWEST
from fedlog.settings.fields import NotNegative, Share, read_dataclass
from fedlog.settings.training import REFUSED_SHARE
from fedlog.wire.ledger import Direction

PLAN, REPORT, ROUNDS = "plan.json", "report.json", "rounds.jsonl"
# A run that has just said that it is finished still holds its lock for a moment.
SECONDS_TO_WAIT_FOR_LOCK = 3.0


@dataclass(frozen=True)
class RoundRules:
    """How long the server waits in a round, for how many sites, and how many unusable uploads it accepts."""

    minimum: int = 2
    deadline_seconds: float | None = None  # None: computed from the time that the last rounds took
    refused_share: float = REFUSED_SHARE  # of a round's uploads that may be unusable before the run stops

    def __post_init__(self) -> None:
        if not 0 <= self.refused_share < 1:
            raise InputError(
                f"the refused share must be at least 0 and below 1, found: {self.refused_share}",
                hint=f"--refused-share {REFUSED_SHARE}: this share of a round's uploads may be unusable",
            )
        if self.minimum < 1:
            raise InputError(
                f"the minimum number of sites in a round must be at least 1, found: {self.minimum}",
                hint="--minimum-sites 2",
            )
        if not (self.deadline_seconds is None or self.deadline_seconds > 0):
            raise InputError(
                f"the deadline of a round must be above 0 seconds, found: {self.deadline_seconds}",
                hint="--deadline 600, or leave it out",
            )

    def find_minimum_sites(self, plan: Plan) -> int:
        """Return the fewest sites that a round of this plan needs: the operator's minimum, or more for secure sums."""
        return self.minimum if plan.secure is None else max(self.minimum, FEWEST, plan.secure.honest)


@dataclass(frozen=True)
class RunFolder:
    """The folder with the server's files of one run: plan, checkpoint, uploads, release log and report."""

    path: Path

    checkpoint = SubPath("checkpoint")
    report_file = SubPath(REPORT)  # of a finished run
    width_file = SubPath("width.json")  # of the features of the checkpoint's head
    body_file = SubPath("body.json")  # the body that every site must have, if they must have the same
    dropped_file = SubPath("dropped.json")  # sites that the operator has dropped; a run under way notices at once
    uploads_folder = SubPath("uploads")
    release_log = SubPath(FILE_NAME)  # of a private run

    @classmethod
    def of_run(cls, folder: ServerFolder, name: str) -> RunFolder:
        """Return the folder of the run with this name."""
        return cls(folder.runs / name)

    @contextmanager
    def lock(self, hint: str) -> Iterator[None]:
        """Lock the run during the block; raise InputError with this hint if another process conducts or changes it."""
        try:
            with lock_folder(self.path, SECONDS_TO_WAIT_FOR_LOCK):
                yield
        except LockTakenError:
            raise InputError(f"another process is conducting or changing run {self.path.name}", hint=hint) from None

    def store_plan(self, plan: Plan) -> None:
        """Write the plan into the folder; raise InputError if the run in this folder began with another plan."""
        path = self.path / PLAN
        if path.exists() and (changed := describe_forbidden_changes(self.read_plan(), plan)):
            raise InputError(
                f"expected the settings with which run {plan.name} began, found other values: {changed}",
                hint=f"to continue the run, give --name {plan.name} and no setting; give a new run another --name",
            )
        write_json(path, plan.as_json())

    def read_plan(self) -> Plan:
        """Read the plan of the run from its folder."""
        return read_plan(json.loads((self.path / PLAN).read_text()))

    def read_report(self) -> dict[str, Any] | None:
        """Read the report of the run; return None if the run is not finished."""
        found: dict[str, Any] | None = read_json(self.report_file, None)
        return found

    def add_round(self, line: Mapping[str, Any]) -> None:
        """Append the record of one round to `rounds.jsonl`."""
        append_line(self.path / ROUNDS, json.dumps(line))

    def read_rounds(self) -> list[dict[str, Any]]:
        """Read the records of all rounds so far; of a round that was begun twice, only the last record."""
        path = self.path / ROUNDS
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return list({int(line["round"]): line for line in lines}.values())

    def count_new_heads(self) -> int:
        """Count the rounds that made a new head: enough sites took part, and their sum was not mostly noise."""
        return sum(bool(line["full"]) and not line.get("kept_old_head", 0) for line in self.read_rounds())

    def record_release(self, protection: Protection | None, round_number: int, exchange: str) -> None:
        """In a private run, record an exchange as a release; raise BudgetSpentError if the budget does not cover it."""
        if protection is not None:
            self.path.mkdir(parents=True, exist_ok=True)
            start_or_resume_log(self.release_log, protection.budget)
            record_release(self.release_log, protection.make_release_event(round_number, exchange))

    def read_privacy_spent(self) -> dict[str, object] | None:
        """Return the privacy guarantee of all releases so far, as JSON values; None if nothing was released."""
        log = read_log(self.release_log)
        found = compute_spending(log.events, log.budget.delta).guarantee
        return None if found is None else found.as_json()

    def read_dropped_sites(self) -> frozenset[str]:
        """Read the names of the sites that the operator has dropped from this run."""
        return frozenset(read_json(self.dropped_file, ()))

    def read_feature_width(self) -> int:
        """Read the number of features that the head in the checkpoint takes."""
        return int(json.loads(self.width_file.read_text()))

    def read_required_body(self) -> RequiredBody | None:
        """Read which body every site must have; return None if the sites may have different bodies."""
        found = read_json(self.body_file, None)
        return None if found is None else RequiredBody(**found)

    def write_uploads(self, uploads: Mapping[str, bytes]) -> None:
        """Store the uploads from which the present head was made, and delete all others.

        With these uploads, the head can be computed again without one of the sites.
        """
        folder = self.uploads_folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        for site, upload in uploads.items():
            write_file(folder / f"{site}.bin", upload)
        for old in folder.glob("*.bin"):
            if old.stem not in uploads:
                old.unlink()

    def read_uploads(self) -> dict[str, bytes]:
        """Read site -> upload for all uploads from which the present head was made."""
        return {path.stem: path.read_bytes() for path in sorted(self.uploads_folder.glob("*.bin"))}


@dataclass(frozen=True)
class RunEnding:
    """The last round of a run, and the reason if the run ended early."""

    round: int
    reason: str | None = None  # None: it was the last planned round


@dataclass(frozen=True)
class SiteReport:
    """A site's report of its results: the accuracy or error of its models on all its test records."""

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
    """A site's report in a run that is private or has secure sums: its body; accuracies and counts stay at the site."""

    body: str


def read_site_report(payload: bytes, kind: type[SiteReport | PrivateSiteReport]) -> dict[str, Any]:
    """Read the values in the payload of a REPORT frame; raise SendableError if they are not a report of this class."""
    what = "a site's figures in a report" if kind is SiteReport else "the name of a body in a private report"
    try:
        report = read_dataclass(kind, parse_json(payload[:65536]), what)
        good = is_printable_body_name(report.body)
    except (ValueError, InputError):
        good = False
    if not good:
        raise SendableError(f"expected {what}, found other fields, or values that are not allowed", hint=SAME_VERSION)
    return {name: value for name, value in asdict(report).items() if value is not None}


def read_site_reports(plan: Plan, answers: Mapping[str, Frame]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the reports that can be read, and site -> error for the reports that cannot be read."""
    kind = PrivateSiteReport if plan.hides_site_results else SiteReport
    sites: list[dict[str, Any]] = []
    wrong: dict[str, str] = {}
    for site, answer in sorted(answers.items()):
        try:
            sites.append({"name": site, **read_site_report(answer.payload, kind)})
        except SendableError as error:
            wrong[site] = error.one_line
    return sites, wrong


def make_run_report(
    plan: Plan, server: Server, ending: RunEnding, sites: list[dict[str, Any]], run_folder: RunFolder
) -> dict[str, Any]:
    """Make the report of the run as JSON values, with the reason if the run ended early."""
    early = {} if ending.reason is None else {"rounds_planned": plan.rounds, "ended_early": ending.reason}
    return {
        "run": plan.name,
        "method": plan.method,
        "rounds": ending.round,
        **early,
        "bits_up": server.ledger.sum_bits(Direction.UP),
        "bits_down": server.ledger.sum_bits(Direction.DOWN),
        "bits_by_kind": server.ledger.sum_bits_by_kind_after_opening(),
        "bits_opening": server.ledger.sum_bits_by_kind(0),
        "made_with": {**list_software_versions(), "flwr": version("flwr")},
        "sites": sites,
        **(
            {}
            if server.protection is None
            else {"privacy": run_folder.read_privacy_spent(), "new_heads": run_folder.count_new_heads()}
        ),
    }
