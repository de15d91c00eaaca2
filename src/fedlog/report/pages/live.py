"""The server behind `fedlog watch`: pages that update while runs go on, on this machine only, behind a secret token."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from fedlog.errors import FedlogError
from fedlog.experiments.run.baselines import find_baselines
from fedlog.experiments.run.calibration import CALIBRATION
from fedlog.experiments.run.client_files import CLIENTS, GEOMETRY
from fedlog.experiments.run.execute import CONFIG, RECORDS, SUMMARY, read_spec
from fedlog.experiments.run.scores import SCORES
from fedlog.report.pages.run_facts import read_run
from fedlog.report.pages.run_page import render_run
from fedlog.report.pages.runs_page import render_runs, run_folders
from fedlog.report.parts.render import Live

ADDRESS = "127.0.0.1"
FILES = (CONFIG, RECORDS, SUMMARY, SCORES, CLIENTS, GEOMETRY, CALIBRATION)
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Pages(Protocol):
    """The pages that a server offers: one for the watched folder, and one for each run in it."""

    @property
    def folder(self) -> Path:
        """The folder that is watched."""

    def list_runs(self) -> list[Path]:
        """The folders of the runs, at any depth."""

    def render(self, folder: Path, live: Live) -> str:
        """The page of the folder itself, or of one of its runs."""

    def list_files(self, folder: Path) -> Iterable[Path]:
        """The files that this page is made from, including those that do not exist yet."""


@dataclass(frozen=True)
class SimulatedRuns:
    """The pages of a run folder of `fedlog run`, or of a folder of such folders."""

    folder: Path

    def list_runs(self) -> list[Path]:
        """Every folder below this one that holds a run."""
        return run_folders(self.folder)

    def render(self, folder: Path, live: Live) -> str:
        """The page of one run, or the list of all runs."""
        if (folder / CONFIG).exists():
            return render_run(read_run(folder), live)
        links = {run: f"{run.relative_to(folder).as_posix()}/" for run in run_folders(folder)}
        return render_runs(folder, links, live)

    def list_files(self, folder: Path) -> Iterator[Path]:
        """The files of the runs and, for a single run, of the baselines beside it."""
        runs = run_folders(folder)
        if (folder / CONFIG).exists():
            runs += [Path(baseline.run_dir) for baseline in find_baselines(folder, read_spec(folder)).values()]
        return (run / name for run in runs for name in FILES)


class PageServer(ThreadingHTTPServer):
    """Serves pages on a random port of this machine until it is closed."""

    daemon_threads = True  # a browser's open connection must not keep the program alive

    def __init__(self, pages: Pages) -> None:
        super().__init__((ADDRESS, 0), _Handler)
        self.pages = pages
        self.token = secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        """The address of the page, token included."""
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: browsers close connections all the time."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with a page, or with the version of its records; without the right token, with 404."""
        folder, what = self._find_page()
        answers: dict[str, Callable[[Path], str]] = {"": self._page, "version": self._version}
        if folder is None or what not in answers:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "not found\n")
            return
        try:
            kind = "text/html" if what == "" else "text/plain"
            self._send(HTTPStatus.OK, kind, answers[what](folder))
        except (FedlogError, OSError, ValueError, LookupError, TypeError) as error:
            # Half-written files of a run under way: the page asks again in a second.
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"cannot be read now: {error}\n")

    def _find_page(self) -> tuple[Path | None, str]:
        """The folder that the address names, and its last part; None for a wrong address, host or token."""
        root, slash, rest = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        # With another host name, a page from elsewhere could read the answer (DNS rebinding).
        known_host = self.headers.get("Host") == f"{ADDRESS}:{self.server.server_port}"
        if not known_host or not slash or not secrets.compare_digest(root.encode(), self.server.token.encode()):
            return None, ""
        pages, (inner, _, what) = self.server.pages, rest.rpartition("/")
        if not inner:
            return pages.folder, what
        # Only runs below the folder are found, so an address cannot name any other file.
        return {run.relative_to(pages.folder).as_posix(): run for run in pages.list_runs()}.get(inner), what

    def _version(self, folder: Path) -> str:
        return version_of(self.server.pages.list_files(folder))

    def _page(self, folder: Path) -> str:
        return self.server.pages.render(folder, Live(self._version(folder)))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class calls it so)
        """Write nothing: the terminal shows the address and nothing else."""


def version_of(files: Iterable[Path]) -> str:
    """A text that changes when one of the files does."""
    seen = hashlib.sha256()
    for path in files:
        try:
            state = path.stat()
        except OSError:
            continue
        seen.update(f"{path} {state.st_size} {state.st_mtime_ns}\n".encode())
    return seen.hexdigest()[:16]
