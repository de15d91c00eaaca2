"""The outcome of a private run on the command line, and `fedlog federate roster`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fedlog.cli.command import Subparsers, command


def add_roster(commands: Subparsers) -> None:
    """Add the `roster` command."""
    text = "print a site's entry for the list of keys behind secure sums, or write the list"
    parser = command(commands, "roster", text, _roster)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a site's folder, or the server's")
    parser.add_argument(
        "entries", nargs="*", metavar="NAME=KEY", help="the entries of all sites, as the sites themselves gave them"
    )


def _roster(args: argparse.Namespace) -> int:
    from fedlog.flower.folders.roster import format_own_entry, write_roster
    from fedlog.flower.folders.site_folder import SiteFolder

    if not args.entries:
        print(format_own_entry(SiteFolder(args.folder)))
        return 0
    roster = write_roster(args.folder, args.entries)
    print(f"{args.folder}: {len(roster)} sites: {', '.join(sorted(roster))}", file=sys.stderr)
    return 0


def describe_traffic(report: dict[str, Any]) -> str:
    """How many rounds there were, of how many planned, and the bits sent in them."""
    planned = f" of {report['rounds_planned']}" if "rounds_planned" in report else ""
    plural = "" if report["rounds"] == 1 and not planned else "s"
    return f"{report['rounds']}{planned} round{plural}, {report['bits_up']} bits up and {report['bits_down']} down"


def print_private(report: dict[str, Any]) -> None:
    """Print sites, traffic and guarantee of a run that is private or has secure sums."""
    for site in report["sites"]:
        print(f"{site['name']:<10} {site['body']}")
    print(describe_traffic(report))
    if "ended_early" in report:
        print(f"ended early: {report['ended_early']}")
    if "privacy" in report:
        promised = report["privacy"]
        print(f"privacy: {'nothing was released' if promised is None else promised['statement']}")
    else:
        print("privacy: none; secure sums hid each site's part from the server, and the sums are exact")
    if report.get("new_heads") == 0:
        print(
            "learned nothing: in every round the sum drowned in its noise, and the head is the one that the run began "
            "with; more records or sites, a larger epsilon, fewer rounds or a narrower clip raise the signal"
        )
    elif "new_heads" in report:
        print(f"rounds that moved the head: {report['new_heads']} of {report['rounds']}")
    print("how well each model does is known to its site alone: `report.json` beside the model there")
