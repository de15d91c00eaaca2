"""`fedlog federate rekey` and `ledger`: new keys for a site, and the record of what left it, which outlives them."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedlog.cli.command import Subparsers, say, site_command


def add_commands(commands: Subparsers) -> None:
    """Add `rekey` and `ledger`."""
    site_command(commands, "rekey", "at a site: make new keys, and keep everything else", _rekey)
    parser = site_command(commands, "ledger", "at a site: show the record of what has left it, or restore it", _ledger)
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--restore", type=Path, metavar="FILE", help="take over the record of an earlier folder")
    change.add_argument("--lost", action="store_true", help="state that the record is lost: no guarantee from here on")
    change.add_argument(
        "--new-rows", action="store_true", help="state that no row that took part is among the data: a new record"
    )


def _rekey(args: argparse.Namespace) -> int:
    from fedlog.flower.folders.keys import fingerprint
    from fedlog.flower.folders.roster import KEY, format_own_entry
    from fedlog.flower.folders.site_folder import SiteFolder
    from fedlog.flower.ops.site import replace_keys

    folder = SiteFolder(args.folder)
    summed = (folder.path / KEY).exists()
    line = replace_keys(folder)
    print(line)
    name = folder.read_config().name
    say(f"fingerprint {fingerprint(line)}: read it to the operator when you send the line above ({folder.public_key})")
    say(f"the operator takes the old key off the list and registers this one: unregister {name}, register")
    if summed:
        say(f"for secure sums, all sites write their lists anew with this entry: {format_own_entry(folder)}")
    say("kept: the data, the body, the models, and the record of what has left this site")
    return 0


def _ledger(args: argparse.Namespace) -> int:
    from fedlog.flower.folders.site_folder import SiteFolder
    from fedlog.flower.site import budget

    folder = SiteFolder(args.folder)
    folder.read_config()
    if args.restore is not None:
        budget.restore_record(folder, args.restore)
    elif args.lost:
        budget.state_record_lost(folder)
    elif args.new_rows:
        budget.begin_for_new_rows(folder)
    budget.check_record(folder)
    print(budget.describe_spending(folder) or "nothing of these rows has left this site")
    return 0
