"""The work of `fedlog federate ...`: one function for each command; `federate` refers to the functions by name."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from fedlog.cli.command import end_quietly_on_sigterm, say
from fedlog.cli.federate_report import print_pretrained_report, print_report
from fedlog.errors import InputError
from fedlog.flower.folders.keys import (
    KEY,
    compute_fingerprint,
    count_days_left,
    format_roster_entry,
    read_roster,
    renew_server_certificate,
    write_roster,
)
from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder, parse_server_address
from fedlog.flower.ops import run as runs
from fedlog.flower.ops import server as server_side
from fedlog.flower.ops import site as site_side
from fedlog.flower.ops.site_service import serve_site
from fedlog.flower.ops.summaries import summarise_last_run
from fedlog.flower.protocol.plan import describe_large_delta, make_plan
from fedlog.flower.server.run_folder import RoundRules
from fedlog.flower.site import site_release_log
from fedlog.flower.site.data import check_site
from fedlog.settings.flags import read_given_settings
from fedlog.settings.presets import apply_recipe
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import REFUSED_SHARE

DEMO_ROUNDS = 4


def create_server(args: argparse.Namespace) -> None:
    """Make the folder of a new server, and print the two public files that every site needs."""
    hosts = tuple(args.host)
    folder = ServerFolder(args.folder)
    config = ServerConfig(hosts, args.listen or server_side.choose_listen_address(hosts), args.port)
    server_side.create_server(folder, config, args.schema, dt.datetime.now(dt.UTC))
    say(f"made {folder.path}; keep certificates/*.key secret, and back the folder up")
    say("give every site these two public files:")
    print(folder.certificates.authority)
    print(folder.schema_file)
    say(f"next: fedlog federate server {folder.path}")


def renew_certificate(args: argparse.Namespace) -> None:
    """Make a new certificate for the server, and print how long it is valid."""
    folder = ServerFolder.open(args.folder)
    now = dt.datetime.now(dt.UTC)
    renew_server_certificate(folder.certificates, folder.read_config().hosts, now)
    days = count_days_left(folder.certificates, now)
    say(f"the new certificate is valid for {days:.0f} days: restart the server; the sites need not do anything")


def run_server(args: argparse.Namespace) -> None:
    """Run the server until Ctrl-C or SIGTERM."""
    folder = ServerFolder.open(args.folder)
    with folder.lock_against_other_commands(), end_quietly_on_sigterm("stopped"):
        server_side.serve_federation(folder, say, args.metrics)


def register_sites(args: argparse.Namespace) -> None:
    """Register one site's key, or all keys in a folder."""
    folder = ServerFolder.open(args.folder)
    if args.key.is_dir():
        if args.name is not None:
            raise InputError(
                f"expected one key file with --name {args.name}, found a folder of keys: {args.key}",
                hint="leave --name out: in a folder the file names are the sites' names",
            )
        server_side.register_sites_in_folder(folder, args.key, say)
        return
    if args.name is None:
        raise InputError(
            "expected the name of the site to register, found none", hint="--name NAME, or a folder of NAME.pub files"
        )
    if str(args.key) != "-" and not args.key.is_file():
        raise InputError(
            f"expected a public key file, found none: {args.key}",
            hint="ask the site for its site.pub, which `fedlog federate join` wrote there",
        )
    text = sys.stdin.read() if str(args.key) == "-" else args.key.read_text()
    server_side.register_site(folder, args.name, text, say)


def unregister_site(args: argparse.Namespace) -> None:
    """Unregister a site's key, so that the server refuses the site from now on."""
    folder = ServerFolder.open(args.folder)
    server_side.unregister_site(folder, args.name, say)
    say(f"{args.name} is refused from now on; what it has sent stays in the head until `fedlog federate leave`")


def print_status(args: argparse.Namespace) -> None:
    """Print which sites are connected, and what each site has done in the newest run."""
    folder = ServerFolder.open(args.folder)
    statuses, view = server_side.read_site_statuses(folder), summarise_last_run(folder)
    parts = {} if view is None else view.sites
    if args.json:
        sites = [{**asdict(s), **(asdict(parts[s.name]) if s.name in parts else {})} for s in statuses]
        print(json.dumps({"sites": sites} | ({} if view is None else {"run": view.describe()})))
        return
    for status in statuses:
        part = parts[status.name].describe() if status.name in parts else ""
        print(f"{status.name:<32} {status.state:<12} {status.since:<28} {part}".rstrip())
    if view is not None:
        say(view.describe())
    if not statuses:
        say("no site is registered yet")


def create_site(args: argparse.Namespace) -> None:
    """Make the folder of a new site, and print its public key."""
    folder = SiteFolder(args.folder)
    config = SiteConfig(args.name or args.folder.resolve().name, parse_server_address(args.server))
    line = site_side.create_site(
        folder, config, args.ca or folder.authority, args.schema or folder.schema_file, args.ledger
    )
    _print_public_key(folder, line)
    say(f"the private key stays in {folder.private_key}; nobody else ever needs it")


def _print_public_key(folder: SiteFolder, public_key: str) -> None:
    print(public_key)
    mark = compute_fingerprint(public_key)
    say(f"fingerprint {mark}: read it to the operator when you send the line above ({folder.public_key})")


def run_site(args: argparse.Namespace) -> None:
    """Take part in the server's runs with the site's data, until Ctrl-C or SIGTERM."""
    folder = SiteFolder.open(args.folder)
    with folder.lock_against_other_commands():
        _check_and_run_site(folder, args)


def _check_and_run_site(folder: SiteFolder, args: argparse.Namespace) -> None:
    """Check and store the site's settings, print the privacy spent so far, and run the site."""
    site_release_log.check_site_release_log(folder)
    config = folder.make_changed_config(args.data, args.body, args.hold_out, args.world)
    if args.require_privacy is not None:
        site_release_log.PrivacyRequirement.parse(args.require_privacy)
        config = replace(config, privacy=args.require_privacy)
    say(check_site(folder, config))
    folder.write_config(config)  # only now: settings that failed the check must not be those of the next start
    if spent := site_release_log.describe_spending(folder):
        say(spent)
    with end_quietly_on_sigterm("stopped"):
        serve_site(folder, say, args.metrics)


def change_caps(args: argparse.Namespace) -> None:
    """Set or remove the site's caps (limits on what a server can ask of it) that the flags name, and print all caps."""
    folder = SiteFolder.open(args.folder)
    config = folder.read_config()
    given = {name: getattr(args, name) for name in ("rounds", "epochs", "plain_runs", "only")}
    caps = replace(config.caps, **{name: value for name, value in given.items() if value is not None})
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


def replace_keys(args: argparse.Namespace) -> None:
    """Replace the site's keys, print the new public key, and print who must be told about it."""
    folder = SiteFolder.open(args.folder)
    had_sum_key = (folder.path / KEY).exists()
    _print_public_key(folder, site_side.replace_keys(folder))
    name = folder.read_config().name
    say(f"the operator must now unregister {name} and register it again with this key")
    if had_sum_key:
        say(f"for secure sums, all sites write their lists anew with this entry: {format_roster_entry(folder)}")
    say("unchanged: the data, the body, the models, and the release log, which lists what has left this site")


def print_ledger(args: argparse.Namespace) -> None:
    """Print how much privacy the releases in the site's release log, those of all runs, have spent.

    First, `--restore FILE` takes the log from a file, `--lost` declares the log lost, and `--new-rows` begins an empty
    log.
    """
    folder = SiteFolder.open(args.folder)
    if args.restore is not None:
        site_release_log.restore_site_release_log(folder, args.restore)
    elif args.lost:
        site_release_log.declare_site_release_log_lost(folder)
    elif args.new_rows:
        site_release_log.start_site_release_log_for_new_rows(folder)
    site_release_log.check_site_release_log(folder)
    print(site_release_log.describe_spending(folder) or "nothing of these rows has left this site")


def print_or_write_roster(args: argparse.Namespace) -> None:
    """Print the site's entry for the roster, the list of all sites' keys; if entries are given, write the roster."""
    if not args.entries:
        print(format_roster_entry(SiteFolder(args.folder)))
        return
    roster = write_roster(args.folder, args.entries)
    say(f"{args.folder}: {len(roster)} sites: {', '.join(sorted(roster))}")


def train_with_sites(args: argparse.Namespace) -> None:
    """Train with the connected sites, print the report of the run, and write it as an HTML page."""
    folder = ServerFolder.open(args.folder)
    given = read_given_settings(args)
    spec = apply_recipe(RunSpec(**given), given)
    name = args.name or runs.choose_run_name(folder)
    # Without settings a run continues with those it began with: the usual ones may differ.
    begun = None if given.keys() - {"refused_share"} else runs.read_plan_of_begun_run(folder, name)
    plan = begun or make_plan(spec, name, lambda: len(read_roster(folder.path)))
    share = REFUSED_SHARE if spec.refused_share is None else spec.refused_share
    rules = RoundRules(args.minimum_sites, args.deadline, share)
    # A site whose records are protected is warned at the site: only the site knows how many it has.
    if warning := describe_large_delta(plan.promise, 1, len(folder.read_registered_sites())):
        say(f"warning: {warning}")
    with end_quietly_on_sigterm(f"stopped following {plan.name}, which continues at the server"):
        print_report(runs.run_federation(folder, plan, rules, say), args.json)
        _write_page(args, folder.runs / plan.name)


def _write_page(args: argparse.Namespace, run: Path) -> None:
    """Write the page of a finished run, and print its path."""
    from fedlog.cli.deployed_run import write_page_of_deployed_run

    page = write_page_of_deployed_run(run)
    print(f"report: {page}", file=sys.stderr if args.json else sys.stdout)


def run_demo(args: argparse.Namespace) -> None:
    """Run a server and several sites with example data on this machine, and print the report of their run."""
    from fedlog.cli.deployed_run import find_deployed_runs
    from fedlog.flower.ops import demo

    if args.pretrained and args.rounds is not None:
        raise InputError(
            f"--pretrained always runs one round, found: --rounds {args.rounds}", hint="leave out --rounds"
        )
    if args.folder is not None and args.folder.exists() and any(args.folder.iterdir()):
        raise InputError(
            f"expected a new or empty folder, found one with files: {args.folder}", hint="name another folder"
        )
    show_step = say if args.verbose else lambda line: None
    if not (args.verbose or args.json):
        say("a server and three sites start on this machine: about a minute; --verbose shows every step")
    with tempfile.TemporaryDirectory(prefix="fedlog-demo-") as temporary:
        root = args.folder or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        if args.pretrained:
            report = demo.run_pretrained_demo(root, args.seed, show_step)
        else:
            report = demo.run_demo(root, DEMO_ROUNDS if args.rounds is None else args.rounds, args.seed, show_step)
    if args.pretrained and not args.json:
        print_pretrained_report(report)
        print(demo.describe_comparison_with_pooled(report["pooled"]))
    else:
        print_report(report, args.json)
    if args.folder is not None:
        for run in find_deployed_runs(args.folder / "server"):
            _write_page(args, run)


def drop_site(args: argparse.Namespace) -> None:
    """Drop a site from a run or, with `--back`, take a dropped site back; what it has sent stays in the head."""
    folder = ServerFolder.open(args.folder)
    run = args.run or runs.find_unfinished_run(folder)
    if args.back:
        runs.take_site_back(folder, args.name, run)
        say(f"{run} asks {args.name} again from the next round on")
        return
    runs.drop_site(folder, args.name, run)
    say(f"{run} goes on without {args.name}; its key stays registered, and what it has sent stays in the head")
    say("`--back` asks it again; `unregister` locks it out; `leave` takes its statistics out of the head")


def remove_site(args: argparse.Namespace) -> None:
    """Unregister a site and remove its statistics from the head of a run."""
    folder = ServerFolder.open(args.folder)
    run = args.run or runs.find_run_with_newest_checkpoint(folder)
    remaining = runs.remove_site(folder, args.name, run, say)
    say(f"the head of {run} is now that of {', '.join(remaining)}")
    say(f"next: `fedlog federate run {args.folder} --name {run}` sends it to them")
    say(
        "not undone: bodies that were trained under earlier heads, models the sites already use, copies of earlier "
        f"heads, and what {args.name} itself has received"
    )
