"""The web server of `fedlog watch`: it serves pages that update during a run, at a secret address of this machine."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fedlog.errors import FedlogError
from fedlog.experiments.run.baselines import find_baselines
from fedlog.experiments.run.execute import CONFIG, RECORDS, SUMMARY, read_spec
from fedlog.experiments.run.scores import PAGE_FILES
from fedlog.report.pages.run_facts import read_run
from fedlog.report.pages.run_page import render_run
from fedlog.report.pages.runs_page import find_run_folders, render_runs

ADDRESS = "127.0.0.1"
RUN_FILES = (CONFIG, RECORDS, SUMMARY, *PAGE_FILES)
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class ServedPages:
    """The pages that the web server offers: one for the watched folder, and one for each run in the folder."""

    folder: Path
    list_runs: Callable[[Path], list[Path]]  # the folders of the runs below a folder, at any depth
    render: Callable[[Path, str], str]  # the HTML for a folder and the version of its records
    list_files: Callable[[Path], Iterable[Path]]  # the files a page is made from, also those that do not exist yet


def make_pages_of_runs(folder: Path) -> ServedPages:
    """Make the pages to serve for the folder of a run, or for a folder with many runs."""
    return ServedPages(folder, find_run_folders, _render_folder, _list_page_sources)


def _render_folder(folder: Path, records_version: str) -> str:
    """Return the HTML for the folder: the page of a run if it is a run's folder, else the list of the runs in it."""
    if (folder / CONFIG).exists():
        return render_run(read_run(folder), records_version)
    return render_runs(
        folder, {run: f"{run.relative_to(folder).as_posix()}/" for run in find_run_folders(folder)}, records_version
    )


def _list_page_sources(folder: Path) -> Iterator[Path]:
    """List the files that the folder's page is made from; for a single run, also those of its baseline runs."""
    runs = find_run_folders(folder)
    if (folder / CONFIG).exists():
        runs += [Path(baseline.run_dir) for baseline in find_baselines(folder, read_spec(folder)).values()]
    return (run / name for run in runs for name in RUN_FILES)


class PageServer(ThreadingHTTPServer):
    """A web server for the pages of runs, on a random port; only programs on this machine can reach it."""

    daemon_threads = True  # a browser's open connection must not keep the program alive

    def __init__(self, pages: ServedPages) -> None:
        super().__init__((ADDRESS, 0), _RequestHandler)
        self.pages = pages
        self.token = secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        """The address of the first page, with the secret token."""
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: it is normal that browsers close connections."""


class _RequestHandler(BaseHTTPRequestHandler):
    """The handler of HTTP requests: it answers a browser with a page."""

    server: PageServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with a page; if its address is followed by `version`, answer with the version of its records.

        The answer is 404 if the address is unknown or the token wrong, and 503 if the records cannot be read now.
        """
        folder, what = self._find_page()
        if folder is None or what not in ("", "version"):
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "not found\n")
            return
        try:
            version = hash_file_states(self.server.pages.list_files(folder))
            if what == "version":
                self._send(HTTPStatus.OK, "text/plain", version)
            else:
                self._send(HTTPStatus.OK, "text/html", self.server.pages.render(folder, version))
        except (FedlogError, OSError, ValueError, LookupError, TypeError) as error:
            # Half-written files of a run under way: the page asks again in a second.
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"cannot be read now: {error}\n")

    def _find_page(self) -> tuple[Path | None, str]:
        """Return the page's folder (None if host, token or address is wrong) and the last part of the address."""
        root, slash, rest = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        # With another host name, a page from elsewhere could read the answer (DNS rebinding).
        known_host = self.headers.get("Host") == f"{ADDRESS}:{self.server.server_port}"
        if not known_host or not slash or not secrets.compare_digest(root.encode(), self.server.token.encode()):
            return None, ""
        pages, (inner, _, what) = self.server.pages, rest.rpartition("/")
        if not inner:
            return pages.folder, what
        # Only runs below the folder are found, so an address cannot name any other file.
        return {run.relative_to(pages.folder).as_posix(): run for run in pages.list_runs(pages.folder)}.get(inner), what

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        """Send the text as the HTTP response; `kind` is its media type, such as `text/html`."""
        body = text.encode()
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class calls it so)
        """Print nothing: the terminal should show only the address of the page."""


def hash_file_states(files: Iterable[Path]) -> str:
    """Return a hash of the files' sizes and modification times; it changes when a file changes."""
    seen = hashlib.sha256()
    for path in files:
        try:
            state = path.stat()
        except OSError:
            continue
        seen.update(f"{path} {state.st_size} {state.st_mtime_ns}\n".encode())
    return seen.hexdigest()[:16]
