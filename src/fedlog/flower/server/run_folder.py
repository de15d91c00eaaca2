"""The server's files of a run: the plan, the checkpoint, the newest uploads, a line for each round, and the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlog.errors import InputError
from fedlog.files.durable import append_line, write_file
from fedlog.files.json_text import read_json, write_json
from fedlog.flower.folders.folder import SubPath
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.protocol.greeting import RequiredBody
from fedlog.flower.protocol.plan import Plan, read_plan
from fedlog.privacy.secagg.terms import FEWEST
from fedlog.settings.training import REFUSED_SHARE

PLAN, REPORT, ROUNDS = "plan.json", "report.json", "rounds.jsonl"


@dataclass(frozen=True)
class RoundRules:
    """How long the server waits in a round, for how many sites, and how many unusable uploads it accepts."""

    minimum: int = 2
    deadline_seconds: float | None = None  # None: computed from the time that the last rounds took
    refused_share: float = REFUSED_SHARE  # of a round's uploads that may be unusable before the run stops

    def __post_init__(self) -> None:
        if not 0 <= self.refused_share < 1:
            raise InputError(f"the refused share must be at least 0 and below 1, found: {self.refused_share}")
        if self.minimum < 1:
            raise InputError(f"the minimum number of sites in a round must be at least 1, found: {self.minimum}")
        if not (self.deadline_seconds is None or self.deadline_seconds > 0):
            raise InputError(f"the deadline of a round must be above 0 seconds, found: {self.deadline_seconds}")

    def fewest_sites(self, plan: Plan) -> int:
        """The fewest sites that a round needs: the operator's minimum, or more if a secure sum needs more."""
        return self.minimum if plan.secure is None else max(self.minimum, FEWEST, plan.secure.honest)


@dataclass(frozen=True)
class RunFolder:
    """The folder in which the server keeps a run."""

    path: Path

    checkpoint = SubPath("checkpoint")
    report_file = SubPath(REPORT)  # of a finished run
    width_file = SubPath("width.json")  # of the features of the checkpoint's head
    body_file = SubPath("body.json")  # the body that every site must have, if they must have the same
    dropped_file = SubPath("dropped.json")  # sites that the operator has dropped; a run under way notices at once
    uploads_folder = SubPath("uploads")

    @classmethod
    def of_run(cls, folder: ServerFolder, name: str) -> RunFolder:
        """The folder of the run with this name."""
        return cls(folder.runs / name)

    def accept_plan(self, plan: Plan) -> None:
        """Write the plan into the folder; refuse if the folder is that of a run with another plan."""
        path = self.path / PLAN
        if path.exists() and (changed := self.read_plan().list_changes(plan)):
            raise InputError(
                f"expected the settings with which run {plan.name} began, found other values: {', '.join(changed)}",
                hint=f"{path} has the earlier values; give a new run another --name",
            )
        write_json(path, plan.as_plain())

    def read_plan(self) -> Plan:
        """The plan of the run."""
        return read_plan(json.loads((self.path / PLAN).read_text()))

    def read_report(self) -> dict[str, Any] | None:
        """The report of a finished run; None if it is not finished."""
        found: dict[str, Any] | None = read_json(self.report_file, None)
        return found

    def add_round(self, line: Mapping[str, Any]) -> None:
        """Append the line of one round to the file of rounds."""
        append_line(self.path / ROUNDS, json.dumps(line))

    def read_rounds(self) -> list[dict[str, Any]]:
        """The lines of the rounds so far."""
        path = self.path / ROUNDS
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def count_new_heads(self) -> int:
        """The number of rounds with a new head: enough sites took part, and the sum did not drown in its noise."""
        return sum(bool(line["full"]) and not line.get("kept_old_head", 0) for line in self.read_rounds())

    def read_dropped_sites(self) -> frozenset[str]:
        """The sites that the operator has dropped from this run."""
        return frozenset(read_json(self.dropped_file, ()))

    def read_feature_width(self) -> int:
        """The feature width of the checkpoint's head."""
        return int(json.loads(self.width_file.read_text()))

    def read_required_body(self) -> RequiredBody | None:
        """The body that every site must have; None if they may differ."""
        found = read_json(self.body_file, None)
        return None if found is None else RequiredBody(**found)

    def write_uploads(self, uploads: Mapping[str, bytes]) -> None:
        """Store only the uploads that the head was made from, so that a site can be removed from the head later."""
        folder = self.uploads_folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        for site, upload in uploads.items():
            write_file(folder / f"{site}.bin", upload)
        for old in folder.glob("*.bin"):
            if old.stem not in uploads:
                old.unlink()

    def read_uploads(self) -> dict[str, bytes]:
        """The uploads that the present head was made from, by site."""
        return {path.stem: path.read_bytes() for path in sorted(self.uploads_folder.glob("*.bin"))}
