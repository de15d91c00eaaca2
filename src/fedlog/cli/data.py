"""`fedlog data list | fetch | check`: list the data sets, download them, and verify the downloaded files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from fedlog.cli.command import add_command, say
from fedlog.data.public_data_sets import (
    PUBLIC_DATA_SETS,
    PublicDataSet,
    find_data_folder,
    find_file_state,
    find_public_data_set,
)
from fedlog.errors import InputError

# Data sets that are not downloaded: name, title, and where they come from.
NOT_DOWNLOADED = (
    ("digits", "Handwritten digits, 8 x 8", "installs with scikit-learn"),
    ("wine", "178 wines of three cultivars, 13 numbers", "installs with scikit-learn"),
    ("breast-cancer", "569 tumours, 30 numbers", "installs with scikit-learn"),
    ("diabetes", "442 patients, ten columns; a number to predict", "installs with scikit-learn"),
    ("wine-alcohol", "178 wines, twelve columns; a number to predict", "installs with scikit-learn"),
    ("circle", "The paper's synthetic circle", "generated"),
    ("leaf", "A LEAF folder (CelebA and others)", "your own, by --data-dir"),
)

DIGITS_TERMS = "UCI optical recognition of handwritten digits, CC BY 4.0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog data`."""
    commands = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    known = ", ".join(PUBLIC_DATA_SETS)

    listing = add_command(commands, "list", "list the data sets, and which of them are downloaded", list_data_sets)
    listing.add_argument("--json", action="store_true", help="print one JSON object")

    fetch = add_command(
        commands, "fetch", "download data sets and verify them; continues an interrupted download", fetch_data_sets
    )
    fetch.add_argument("names", nargs="+", metavar="NAME", help=f"one or more of: {known}")
    fetch.add_argument("--quiet", action="store_true", help="show no progress bar")

    check = add_command(
        commands, "check", "verify the downloaded files; exit code 2 if one is missing or corrupt", check_data_sets
    )
    check.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {known} (default: all)")
    check.add_argument("--json", action="store_true", help="print one JSON object")

    for verb in (listing, fetch, check):
        verb.add_argument(
            "--data-dir", type=Path, metavar="DIR", help="folder of the data sets (default: $FEDLOG_DATA, or the cache)"
        )


def list_data_sets(args: argparse.Namespace) -> None:
    """Print each data set with its title, its terms of use, and whether it is downloaded."""
    folder = find_data_folder(args.data_dir)
    rows = []
    for name, title, state in NOT_DOWNLOADED:
        terms = DIGITS_TERMS if name == "digits" else ""
        rows.append({"name": name, "title": title, "state": state, "terms": terms, "citation": "", "homepage": ""})
    for data_set in PUBLIC_DATA_SETS.values():
        state = _describe_download_state(data_set, folder)
        known = {name: getattr(data_set, name) for name in ("terms", "citation", "homepage")}
        rows.append({"name": data_set.name, "title": data_set.title, "state": state, **known})
    if args.json:
        print(json.dumps({"data_dir": str(folder), "data_sets": rows}, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "title", "state", "terms"):
        table.add_column(column)
    for row in rows:
        table.add_row(row["name"], row["title"], row["state"], row["terms"])
    Console().print(table)
    say(f"data folder: {folder}")


def fetch_data_sets(args: argparse.Namespace) -> None:
    """Download and verify the data sets that the command names, and print their folder."""
    # Imported here: requests and pooch are needed by nothing but a download.
    from fedlog.data.fetch import ReportProgress, fetch_data_set

    folder = find_data_folder(args.data_dir)
    data_sets = _find_data_sets(args.names)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=args.quiet) as progress:

        def add_bar(name: str) -> ReportProgress:
            task = progress.add_task(name, total=None)
            return lambda done, total: progress.update(task, completed=done, total=total)

        try:
            for data_set in data_sets:
                fetch_data_set(data_set, folder, add_bar)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("to continue the download, run the same command again") from None
    if not args.quiet:
        for data_set in data_sets:
            unverified = any(file.sha256 is None for file in data_set.files)
            checked = "downloaded; no checksum is published for it" if unverified else "downloaded and verified"
            say(f"{data_set.name}: {checked}")
    print(folder)


def check_data_sets(args: argparse.Namespace) -> int:
    """Print the state of each downloaded file; return exit code 0 if all are complete and correct, else 2."""
    folder = find_data_folder(args.data_dir)
    data_sets: Sequence[PublicDataSet] = _find_data_sets(args.names) or list(PUBLIC_DATA_SETS.values())
    states = [(data_set, file, find_file_state(file, folder)) for data_set in data_sets for file in data_set.files]
    bad = [(data_set, file, state) for data_set, file, state in states if not state.usable]
    if args.json:
        files = [{"name": s.name, "file": file.path, "state": state.name.lower()} for s, file, state in states]
        print(json.dumps({"data_dir": str(folder), "ok": not bad, "files": files}, indent=2))
    else:
        for data_set, file, state in states:
            print(f"{data_set.name}\t{state.value}\t{folder / file.path}")
    for name in dict.fromkeys(data_set.name for data_set, _, _ in bad):
        faults = [f"{file.path} ({state.value})" for data_set, file, state in bad if data_set.name == name]
        others = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        say(f"error: {name}: {faults[0]}{others} in {folder}\nhint: fedlog data fetch {name}")
    return 2 if bad else 0


def _find_data_sets(names: Sequence[str]) -> list[PublicDataSet]:
    """Find the public data sets with these names; InputError for a data set that needs no download."""
    for name, _, origin in NOT_DOWNLOADED:
        if name in names:
            raise InputError(f"{name} needs no download: {origin}", hint=f"fedlog run --data {name}")
    return [find_public_data_set(name) for name in names]


def _describe_download_state(data_set: PublicDataSet, folder: Path) -> str:
    here = sum((folder / file.path).is_file() for file in data_set.files)
    return "fetched" if here == len(data_set.files) else "partly here" if here else "not fetched"
