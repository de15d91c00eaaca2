"""`fedlog federate caps`: what a site lets a server ask of it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from fedlog.cli.command import Subparsers, site_command

if TYPE_CHECKING:
    from fedlog.flower.folders.caps import Caps


def add_commands(commands: Subparsers) -> None:
    """Add `caps`."""
    parser = site_command(commands, "caps", "at a site: show, set or remove the most that a server can ask for", _caps)
    parser.add_argument("--rounds", type=int, metavar="N", help="the most rounds of a run (default: 1000)")
    parser.add_argument("--epochs", type=int, metavar="N", help="the most epochs of a round (default: 100)")
    parser.add_argument("--plain-runs", type=int, metavar="N", help="new runs without noise in 24 hours (default: 10)")
    parser.add_argument(
        "--only", choices=("secure", "private"), help="take part only with a secure sum or local noise, or in privacy"
    )
    parser.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="NAME",
        help="remove a cap: rounds, epochs, plain-runs, only, or untrained (features that nobody trained)",
    )


def _caps(args: argparse.Namespace) -> int:
    from fedlog.flower.folders.caps import Only, read_caps
    from fedlog.flower.folders.site_folder import SiteFolder

    folder = SiteFolder(args.folder)
    config = folder.read_config()
    given = {name: getattr(args, name) for name in ("rounds", "epochs", "plain_runs")}
    counts = {name: value for name, value in given.items() if value is not None}
    read_caps(counts, "the command line")
    caps = replace(config.caps, **counts)
    if args.only is not None:
        caps = replace(caps, only=Only(args.only))
    for name in args.remove:
        caps = caps.without(name)
    if caps != config.caps:
        folder.write_config(replace(config, caps=caps))
    print(_describe(caps))
    return 0


def _describe(caps: Caps) -> str:
    told = {
        "rounds of a run": caps.rounds,
        "epochs of a round": caps.epochs,
        "plain runs a day": caps.plain_runs,
        "runs it takes part in": caps.only,
        "features that nobody trained, in plain runs": "allowed" if caps.untrained else "refused",
    }
    return "\n".join(f"{name}: {'no cap' if value is None else value}" for name, value in told.items())
