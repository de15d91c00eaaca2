"""`fedlog federate join | site | caps | rekey | ledger | roster`: the commands of a site."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedlog.cli.command import Subparsers, add_allow_code, add_command, add_site_command, say

if TYPE_CHECKING:
    from fedlog.flower.folders.site_folder import SiteFolder


def add_commands(commands: Subparsers) -> None:
    """Add the commands of a site."""
    text = "at a site: make its key and folder, print the public key"
    parser = add_command(commands, "join", text, _create_site, "the site's folder")
    parser.add_argument("--server", required=True, metavar="HOST[:PORT]", help="the address of the server")
    parser.add_argument("--name", help="the site's name (default: the folder's)")
    parser.add_argument("--ca", type=Path, help="the authority's certificate from the operator (default: DIR/ca.crt)")
    parser.add_argument("--schema", type=Path, help="the agreed schema file (default: DIR/schema.toml)")
    parser.add_argument(
        "--ledger", type=Path, metavar="FILE", help="rows that took part from another folder: its state/privacy.jsonl"
    )
    parser = add_site_command(commands, "site", "at a site: take part with this site's data until Ctrl-C", _run_site)
    parser.add_argument("--data", help="a table, a folder of images, an .npz file, or package.module:function")
    parser.add_argument("--body", help="this site's own body, e.g. mlp:64,64 (default: mlp:64,64, or the one before)")
    parser.add_argument(
        "--hold-out", metavar="V,T", help="shares of the rows for validation and test (default: 0.2,0.2)"
    )
    parser.add_argument(
        "--world",
        choices=("open", "closed"),
        help="closed: this site meets no other classes than those in its training rows, and never predicts one "
        "(used in runs with --world closed)",
    )
    parser.add_argument(
        "--require-privacy",
        metavar="[U:]T:E:D",
        help="noise and budget for all runs together, e.g. local:8:1e-5, or client:local:8:1e-5 for that unit only",
    )
    add_metrics(parser)
    add_allow_code(parser)
    _add_caps(commands)
    add_site_command(commands, "rekey", "at a site: make new keys, and keep everything else", _replace_keys)
    parser = add_site_command(
        commands, "ledger", "at a site: show the record of what has left it, or restore it", _print_ledger
    )
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--restore", type=Path, metavar="FILE", help="take over the record of an earlier folder")
    change.add_argument("--lost", action="store_true", help="state that the record is lost: no guarantee from here on")
    change.add_argument(
        "--new-rows", action="store_true", help="state that no row that took part is among the data: a new record"
    )
    text = "print a site's entry for the list of keys for secure sums, or write the list"
    parser = add_command(commands, "roster", text, _print_or_write_roster, "a site's folder, or the server's")
    parser.add_argument(
        "entries", nargs="*", metavar="NAME=KEY", help="the entries of all sites, as the sites themselves gave them"
    )


def _add_caps(commands: Subparsers) -> None:
    parser = add_site_command(
        commands, "caps", "at a site: show, set or remove the most that a server can ask for", _change_caps
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="the most rounds of a run (default: 1000)")
    parser.add_argument("--epochs", type=int, metavar="N", help="the most epochs of a round (default: 100)")
    parser.add_argument("--plain-runs", type=int, metavar="N", help="new runs without noise in 24 hours (default: 10)")
    parser.add_argument(
        "--only",
        choices=("secure", "private"),
        help="secure: take part only in runs with a secure sum or local noise; private: only in runs with --privacy",
    )
    parser.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="NAME",
        help="remove a cap: rounds, epochs, plain-runs, only, or untrained (features that nobody trained)",
    )


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """Add `--metrics`, for a server or a site."""
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="serve Prometheus metrics and a status page there (HOST: the loopback unless you give another)",
    )


def _create_site(args: argparse.Namespace) -> None:
    from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder, parse_server_address
    from fedlog.flower.ops.site import create_site

    folder = SiteFolder(args.folder)
    config = SiteConfig(args.name or args.folder.resolve().name, parse_server_address(args.server))
    line = create_site(folder, config, args.ca or folder.authority, args.schema or folder.schema_file, args.ledger)
    _print_public_key(folder, line)
    say(f"the private key stays in {folder.private_key}; nobody else ever needs it")


def _print_public_key(folder: SiteFolder, line: str) -> None:
    from fedlog.flower.folders.keys import compute_fingerprint

    print(line)
    mark = compute_fingerprint(line)
    say(f"fingerprint {mark}: read it to the operator when you send the line above ({folder.public_key})")


def _run_site(folder: SiteFolder, args: argparse.Namespace) -> None:
    from fedlog.flower.ops.processes import StopRequestedError, stop_on_sigterm
    from fedlog.flower.ops.site_service import serve_site
    from fedlog.flower.protocol.run_privacy import PrivacyRequirement
    from fedlog.flower.site.data import check_site
    from fedlog.flower.site.privacy_record import check_record, describe_spending

    check_record(folder)
    config = folder.propose_config(args.data, args.body, args.hold_out, args.world)
    if args.require_privacy is not None:
        PrivacyRequirement.read(args.require_privacy)
        config = replace(config, privacy=args.require_privacy)
    say(check_site(folder, config))
    folder.write_config(config)  # only now: settings that failed the check must not be those of the next start
    if spent := describe_spending(folder):
        say(spent)
    try:
        with stop_on_sigterm():
            serve_site(folder, say, args.metrics)
    except StopRequestedError:
        say("stopped")


def _change_caps(folder: SiteFolder, args: argparse.Namespace) -> None:
    from fedlog.flower.folders.caps import AcceptedRuns, read_caps

    config = folder.read_config()
    given = {name: getattr(args, name) for name in ("rounds", "epochs", "plain_runs")}
    counts = {name: value for name, value in given.items() if value is not None}
    read_caps(counts, "the command line")
    caps = replace(config.caps, **counts)
    if args.only is not None:
        caps = replace(caps, only=AcceptedRuns(args.only))
    for name in args.remove:
        caps = caps.without_cap(name)
    if caps != config.caps:
        folder.write_config(replace(config, caps=caps))
    shown = {
        "rounds of a run": caps.rounds,
        "epochs of a round": caps.epochs,
        "plain runs a day": caps.plain_runs,
        "runs it takes part in": caps.only,
        "features that nobody trained, in plain runs": "allowed" if caps.untrained else "refused",
    }
    for name, value in shown.items():
        print(f"{name}: {'no cap' if value is None else value}")


def _replace_keys(folder: SiteFolder, args: argparse.Namespace) -> None:
    from fedlog.flower.folders.roster import KEY, format_own_entry
    from fedlog.flower.ops.site import replace_keys

    had_sum_key = (folder.path / KEY).exists()
    _print_public_key(folder, replace_keys(folder))
    name = folder.read_config().name
    say(f"the operator takes the old key off the list and registers this one: unregister {name}, register")
    if had_sum_key:
        say(f"for secure sums, all sites write their lists anew with this entry: {format_own_entry(folder)}")
    say("kept: the data, the body, the models, and the record of what has left this site")


def _print_ledger(folder: SiteFolder, args: argparse.Namespace) -> None:
    from fedlog.flower.site import privacy_record

    if args.restore is not None:
        privacy_record.restore_record(folder, args.restore)
    elif args.lost:
        privacy_record.declare_record_lost(folder)
    elif args.new_rows:
        privacy_record.start_record_for_new_rows(folder)
    privacy_record.check_record(folder)
    print(privacy_record.describe_spending(folder) or "nothing of these rows has left this site")


def _print_or_write_roster(args: argparse.Namespace) -> None:
    from fedlog.flower.folders.roster import format_own_entry, write_roster
    from fedlog.flower.folders.site_folder import SiteFolder

    if not args.entries:
        print(format_own_entry(SiteFolder(args.folder)))
        return
    roster = write_roster(args.folder, args.entries)
    say(f"{args.folder}: {len(roster)} sites: {', '.join(sorted(roster))}")
