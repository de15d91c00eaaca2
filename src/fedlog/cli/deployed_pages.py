"""The pages of `fedlog watch` for a server's folder: its runs, finished or under way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedlog.cli.deployed_run import find_deployed_runs, read_deployed_run
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.server.run_folder import PLAN, REPORT, ROUNDS
from fedlog.privacy.release_log import FILE_NAME
from fedlog.report.pages.deployed_page import render_deployed, render_deployed_runs
from fedlog.report.parts.render import Live


@dataclass(frozen=True)
class DeployedRuns:
    """The pages of a server's folder, or of one of its runs."""

    folder: Path

    def list_runs(self) -> list[Path]:
        """Every run of the server that has a plan."""
        return find_deployed_runs(self.folder)

    def render(self, folder: Path, live: Live) -> str:
        """The page of one run, or the list of all."""
        if (folder / PLAN).exists():
            return render_deployed(read_deployed_run(folder), live)
        runs = {f"{run.relative_to(folder).as_posix()}/": read_deployed_run(run) for run in find_deployed_runs(folder)}
        return render_deployed_runs(folder.resolve().name, runs, live)

    def list_files(self, folder: Path) -> Iterator[Path]:
        """The files that the runs have written, and the server's log, which knows who has answered."""
        runs = find_deployed_runs(folder)
        yield from (run / name for run in runs for name in (PLAN, ROUNDS, REPORT, FILE_NAME))
        yield from {ServerFolder(run.parent.parent).event_log for run in runs}
