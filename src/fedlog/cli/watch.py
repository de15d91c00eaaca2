"""`fedlog watch`: the page of a run, live."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedlog.errors import InputError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `watch` command."""
    watch = subparsers.add_parser("watch", help="show the page of a run, or of a folder of runs, as rounds end")
    watch.set_defaults(handler=watch_command)
    watch.add_argument("folder", type=Path, metavar="DIR", help="a run folder, or a folder of such folders (runs/)")
    watch.add_argument("--open", action="store_true", help="open the page in the usual browser")


def watch_command(args: argparse.Namespace) -> int:
    """Serve the page on this machine until Ctrl-C; return exit code 0."""
    if not args.folder.is_dir():
        raise InputError(f"no folder to watch: {args.folder}", hint="name the --out folder of a run, or runs/")
    from fedlog.report.live import PageServer  # PyTorch takes a second: not for a mistyped folder

    try:
        with PageServer(args.folder) as server:
            print(f"watching: {server.url}", flush=True)
            print("Only this machine can reach it, with this address. Ctrl-C ends it.", file=sys.stderr)
            if args.open:
                import webbrowser

                webbrowser.open(server.url)
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    return 0
