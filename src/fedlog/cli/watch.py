"""`fedlog watch`: serve the page of a run, simulated or deployed, while it is under way."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedlog.cli.report import is_deployed
from fedlog.errors import InputError

if TYPE_CHECKING:
    from fedlog.report.pages.live import ServedPages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog watch`."""
    parser.set_defaults(handler=serve_pages)
    parser.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="the folder of a run, a folder of such folders (runs/), or a server's folder",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the default browser")


def serve_pages(args: argparse.Namespace) -> None:
    """Serve the pages of the watched folder on this machine until Ctrl-C."""
    if not args.folder.is_dir():
        raise InputError(
            f"expected a folder to watch, found none: {args.folder}", hint="name the --out folder of a run, or runs/"
        )
    from fedlog.report.pages.live import PageServer  # PyTorch takes a second: not for a mistyped folder

    try:
        with PageServer(find_pages(args.folder)) as server:
            print(f"watching: {server.url}", flush=True)
            print("Only this machine can reach it, with this address. Ctrl-C ends it.", file=sys.stderr)
            if args.open:
                import webbrowser

                webbrowser.open(server.url)
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)


def find_pages(folder: Path) -> ServedPages:
    """Return the pages to serve for this folder: those of simulated runs, or those of a server's deployed runs."""
    if is_deployed(folder):
        from fedlog.cli.deployed_run import make_deployed_pages  # needs the extra `federate`, as the server does

        return make_deployed_pages(folder)
    from fedlog.report.pages.live import make_pages_of_runs

    return make_pages_of_runs(folder)
