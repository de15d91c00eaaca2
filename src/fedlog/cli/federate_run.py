"""`fedlog federate run | drop | leave | demo`: train with the sites, go on without one, remove one, show a demo."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlog.cli.command import Subparsers, add_command, add_server_command, say
from fedlog.errors import InputError
from fedlog.files.duration_text import describe_duration
from fedlog.settings.flags import add_flags, read_given_settings
from fedlog.settings.presets import apply_recipe
from fedlog.settings.spec import RunSpec, list_deployed_settings
from fedlog.settings.training import REFUSED_SHARE

if TYPE_CHECKING:
    from fedlog.flower.folders.server_folder import ServerFolder

DEMO_ROUNDS = 4


def add_commands(commands: Subparsers) -> None:
    """Add the four commands."""
    parser = add_server_command(commands, "run", "at the server: train with the connected sites", _run_at_server)
    parser.add_argument("--name", help="a new name, or that of a run to go on with (default: run-1, run-2, ...)")
    parser.add_argument(
        "--minimum-sites",
        type=int,
        default=2,
        help="fewest sites for a new head; with fewer the old one stays (default: 2)",
    )
    parser.add_argument(
        "--deadline",
        type=float,
        help="seconds the server waits for answers (default: 600, then four times the slowest of the last rounds)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    add_flags(parser, [entry.name for entry in list_deployed_settings()])
    parser = add_server_command(
        commands, "drop", "go on without a site that does not answer: not asked, not waited for", _drop_site
    )
    parser.add_argument("name", metavar="SITE", help="the name of the site")
    parser.add_argument("--run", help="the run that goes on without it (default: the newest that is not finished)")
    parser.add_argument("--back", action="store_true", help="ask it again, from the next round on")
    parser = add_server_command(
        commands, "leave", "take a site's key off the list and its statistics out of the head", _remove_site
    )
    parser.add_argument("name", metavar="SITE", help="the name of the site that leaves")
    parser.add_argument("--run", help="the run whose head it is (default: the newest)")
    parser = add_command(commands, "demo", "a server and three sites on this machine, with real records", _run_demo)
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="keep everything here (default: nowhere)")
    parser.add_argument("--rounds", type=int, help="rounds of training (default: 4)")
    parser.add_argument(
        "--pretrained",
        action="store_true",
        help="images and a frozen pretrained body: one exchange, epsilon 1, a secure sum (needs fedlog[pretrained])",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the division of the records and of the training")
    parser.add_argument("--verbose", action="store_true", help="show every step, and the commands of Flower behind it")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _run_at_server(folder: ServerFolder, args: argparse.Namespace) -> None:
    from fedlog.flower.folders.roster import read_roster
    from fedlog.flower.ops.processes import StopRequestedError, stop_on_sigterm
    from fedlog.flower.ops.run import choose_run_name, run_federation
    from fedlog.flower.protocol.plan import make_plan
    from fedlog.flower.protocol.run_privacy import describe_large_delta
    from fedlog.flower.server.run_folder import RoundRules

    given = read_given_settings(args)
    spec = apply_recipe(RunSpec(**given), given)
    plan = make_plan(spec, args.name or choose_run_name(folder), lambda: len(read_roster(folder.path)))
    share = REFUSED_SHARE if spec.refused_share is None else spec.refused_share
    rules = RoundRules(args.minimum_sites, args.deadline, share)
    # A site whose records are protected is warned at the site: only the site knows how many it has.
    if warning := describe_large_delta(plan.promise, 1, len(folder.read_known_sites())):
        say(f"warning: {warning}")
    try:
        with stop_on_sigterm():
            report = run_federation(folder, plan, rules, say)
    except StopRequestedError:
        say(f"no longer following {plan.name}; at the server it goes on")
    else:
        _print_report(args, report)
        _write_page(args, folder.runs / plan.name)


def _write_page(args: argparse.Namespace, run: Path) -> None:
    """Write the page of a finished run, and print its path."""
    from fedlog.cli.deployed_run import read_and_write_page

    page = read_and_write_page(run)
    print(f"report: {page}", file=sys.stderr if args.json else sys.stdout)


def _run_demo(args: argparse.Namespace) -> None:
    import tempfile

    from fedlog.cli.deployed_run import find_deployed_runs
    from fedlog.flower.ops.demo import run_demo
    from fedlog.flower.ops.demo_pretrained import describe_pooled, run_pretrained_demo

    if args.pretrained and args.rounds is not None:
        raise InputError(
            f"--pretrained has exactly one exchange, found: --rounds {args.rounds}", hint="leave out --rounds"
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
            report = run_pretrained_demo(root, args.seed, show_step)
        else:
            report = run_demo(root, DEMO_ROUNDS if args.rounds is None else args.rounds, args.seed, show_step)
    if args.pretrained and not args.json:
        _print_pretrained(report)
        print(describe_pooled(report["pooled"]))
    else:
        _print_report(args, report)
    if args.folder is not None:
        for run in find_deployed_runs(args.folder / "server"):
            _write_page(args, run)


def _print_pretrained(report: dict[str, Any]) -> None:
    """Print the figures of the private demo; in a real run only each site knows its own."""
    print(f"{'site':<10} {'test accuracy':>13} {'95 % interval':>16} {'test rows':>10}  body")
    for site in report["sites"]:
        between = _describe_interval(site["accuracy"], site["test_records"])
        print(f"{site['name']:<10} {site['accuracy']:>13.3f} {between:>16} {site['test_records']:>10}  {site['body']}")
    print(f"{_describe_traffic(report)}, {describe_duration(report['seconds'])}")
    print(f"privacy: {report['privacy']['statement']}")


def _print_report(args: argparse.Namespace, report: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(report))
        return
    if any("accuracy" not in site for site in report["sites"]):
        print_private_report(report)
        return
    figure = "rmse" if any("rmse" in site for site in report["sites"]) else "accuracy"
    what = "test error" if figure == "rmse" else "test accuracy"
    print(
        f"{'site':<10} {'body':<16} {what:>13} {'95 % interval':>16} {'local-only':>11} {'test rows':>10}  model kept"
    )
    for site in report["sites"]:
        between = _describe_interval(site["accuracy"], site["test_records"]) if figure == "accuracy" else ""
        print(
            f"{site['name']:<10} {site['body']:<16} {site[figure]:>13.3f} {between:>16} "
            f"{site[f'local_only_{figure}']:>11.3f} {site['test_records']:>10}  {site['kept']}"
        )
    wire = f", {report['wire_bytes']} bytes on the wire with TLS and Flower" if "wire_bytes" in report else ""
    seconds = f", {describe_duration(report['seconds'])}" if "seconds" in report else ""
    print(f"{_describe_traffic(report)}{wire}{seconds}")


def print_private_report(report: dict[str, Any]) -> None:
    """Print sites, traffic and guarantee of a run that is private or has secure sums."""
    for site in report["sites"]:
        print(f"{site['name']:<10} {site['body']}")
    print(_describe_traffic(report))
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


def _describe_traffic(report: dict[str, Any]) -> str:
    """In words, the number of rounds, also of planned ones if the run ended early, and the bits that were sent."""
    planned = f" of {report['rounds_planned']}" if "rounds_planned" in report else ""
    plural = "" if report["rounds"] == 1 and not planned else "s"
    return f"{report['rounds']}{planned} round{plural}, {report['bits_up']} bits up and {report['bits_down']} down"


def _describe_interval(share: float, records: int) -> str:
    """The 95 % interval of an accuracy on `records` test rows, as text."""
    from fedlog.core.classification import wilson_interval

    if records == 0:
        return "of no rows"
    low, high = wilson_interval(share, records)
    return f"{low:.3f} to {high:.3f}"


def _drop_site(folder: ServerFolder, args: argparse.Namespace) -> None:
    from fedlog.flower.ops.run import drop_site, find_open_run, take_site_back

    run = args.run or find_open_run(folder)
    if args.back:
        take_site_back(folder, args.name, run)
        say(f"{run} asks {args.name} again from the next round on")
        return
    drop_site(folder, args.name, run)
    say(f"{run} goes on without {args.name}; its key stays registered, and what it has sent stays in the head")
    say("`--back` asks it again; `unregister` locks it out; `leave` takes its statistics out of the head")


def _remove_site(folder: ServerFolder, args: argparse.Namespace) -> None:
    from fedlog.flower.ops.run import find_newest_run, remove_site

    run = args.run or find_newest_run(folder)
    remaining = remove_site(folder, args.name, run, say)
    say(f"the head of {run} is now that of {', '.join(remaining)}")
    say(f"next: `fedlog federate run {args.folder} --name {run}` sends it to them")
    say(
        "not undone: bodies that were trained under earlier heads, models the sites already use, copies of earlier "
        f"heads, and what {args.name} itself has received"
    )
