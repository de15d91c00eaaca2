"""The privacy of a federation's runs on the command line, and `fedlog federate roster`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlog.cli.subcommand import command

if TYPE_CHECKING:
    from fedlog.flower.folders.server_folder import ServerFolder
    from fedlog.flower.protocol.plan import Plan
    from fedlog.flower.protocol.promise import Promise, Secure
    from fedlog.flower.server.run_folder import RoundRules

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Nothing; the command then takes the settings of a private run."""
    privacy = parser.add_argument_group("privacy", "docs/privacy.md says what each setting promises, and to whom")
    privacy.add_argument("--privacy", choices=["record", "client"], help="what is protected: one record, or a site")
    privacy.add_argument("--epsilon", type=float, help="of the whole run")
    privacy.add_argument("--delta", type=float, help="of the whole run; 1e-5 or less")
    privacy.add_argument(
        "--trust", choices=["central", "local", "distributed"], help="who adds noise (default: central)"
    )
    privacy.add_argument("--clip", metavar="BOUND", help="clamp:B or l2:R, of each record's features")
    privacy.add_argument("--message-norm", type=float, metavar="S", help="of a site's whole message")
    privacy.add_argument("--aggregation", choices=["secure"], help="secure: the server sees sums only")
    privacy.add_argument("--honest", type=int, metavar="H", help="survivors a secure sum needs (default: over half)")


def promise_of(args: argparse.Namespace) -> Promise | None:
    """What the options promise; None without --privacy."""
    from fedlog.errors import InputError
    from fedlog.flower.protocol.promise import Promise, checked_promise

    if args.privacy is None:
        given = [
            name for name in ("epsilon", "delta", "trust", "message_norm", "clip") if getattr(args, name) is not None
        ]
        if given:
            raise InputError(
                f"the run is not private, and yet it was told: {', '.join(given)}", hint="--privacy record or client"
            )
        return None
    if args.epsilon is None or args.delta is None:
        raise InputError(f"--privacy {args.privacy} needs a budget", hint="--epsilon 1 --delta 1e-5")
    trust = args.trust or "central"
    return checked_promise(Promise(args.privacy, trust, args.epsilon, args.delta, args.clip, args.message_norm))


def secure_of(args: argparse.Namespace, folder: ServerFolder) -> Secure | None:
    """The terms of secure sums that the options ask for; as many sites as the server's list of keys has."""
    from fedlog.errors import InputError

    if args.aggregation is None and args.trust != "distributed":
        if args.honest is not None:
            raise InputError(
                f"the run has no secure sum, and yet it was told how many survivors one needs: {args.honest}",
                hint="--aggregation secure, or --trust distributed",
            )
        return None
    from fedlog.engine.protocol.secure_sums import smallest_survivors
    from fedlog.flower.folders.roster import read_roster
    from fedlog.flower.protocol.promise import Secure, checked_secure

    sites = len(read_roster(folder.path))
    return checked_secure(Secure(smallest_survivors(sites) if args.honest is None else args.honest, sites))


def terms_of(args: argparse.Namespace, plan: Plan) -> RoundRules:
    """How long the server waits and what it puts up with; InputError for a share of what nobody can see."""
    from fedlog.errors import InputError
    from fedlog.flower.server.run_folder import RoundRules

    if args.refused_share is None:
        return RoundRules(args.minimum_sites, args.deadline)
    if plan.secure is not None:
        raise InputError(
            f"a refused share needs uploads that can be checked, and under a secure sum none can: {args.refused_share}",
            hint="leave --refused-share out",
        )
    return RoundRules(args.minimum_sites, args.deadline, args.refused_share)


def add_roster(commands: Subparsers) -> None:
    """Nothing; `roster` is then among the commands."""
    text = "print a site's entry for the list of keys behind secure sums, or write the list"
    parser = command(commands, "roster", text, _roster)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a site's folder, or the server's")
    parser.add_argument("entries", nargs="*", metavar="NAME=KEY", help="of all sites, from the sites themselves")


def _roster(args: argparse.Namespace) -> int:
    from fedlog.flower.folders.roster import format_own_entry, write_roster
    from fedlog.flower.folders.site_folder import SiteFolder

    if not args.entries:
        print(format_own_entry(SiteFolder(args.folder)))
        return 0
    roster = write_roster(args.folder, args.entries)
    print(f"{args.folder}: {len(roster)} sites: {', '.join(sorted(roster))}", file=sys.stderr)
    return 0


def crossed(report: dict[str, Any]) -> str:
    """The rounds there were, of those there were to be, and the bits in them."""
    planned = f" of {report['rounds_planned']}" if "rounds_planned" in report else ""
    return f"{report['rounds']}{planned} rounds, {report['bits_up']} bits up and {report['bits_down']} down"


def print_private(report: dict[str, Any]) -> None:
    """Nothing; what a private run tells is printed, or one with secure sums alone."""
    for site in report["sites"]:
        print(f"{site['name']:<10} {site['body']}")
    print(crossed(report))
    if "ended_early" in report:
        print(f"ended early: {report['ended_early']}")
    if "privacy" in report:
        promised = report["privacy"]
        print(f"privacy: {'nothing was released' if promised is None else promised['statement']}")
    else:
        print("privacy: none; secure sums hid each site's part from the server, and the sums are exact")
    print("how well each model does is known to its site alone: `report.json` beside the model there")
