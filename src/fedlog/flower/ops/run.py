"""What an operator does with runs: start a run in Flower, follow it and return its report; drop or remove a site.

The server does not ask a dropped site any more. The statistics of a removed site also leave the head.
"""

from __future__ import annotations

import time
from typing import Any

from fedlog.algorithms.registry import find_methods
from fedlog.data.schema import load_schema
from fedlog.engine.protocol import checkpoint
from fedlog.errors import InputError, RunError
from fedlog.files.durable import is_disk_nearly_full
from fedlog.files.json_text import write_json
from fedlog.files.names import did_you_mean
from fedlog.flower.folders.folder import LineFollower, check_site_or_run_name
from fedlog.flower.folders.server_folder import CONNECTION, ServerFolder
from fedlog.flower.ops.event_text import describe_run_event
from fedlog.flower.ops.processes import Say, start_program
from fedlog.flower.ops.server import make_flwr_command, unregister_site
from fedlog.flower.protocol.plan import Plan, check_plan
from fedlog.flower.server.engine_server import forget_received_broadcasts, restore_engine_server, save_engine_server
from fedlog.flower.server.run_folder import PLAN, RoundRules, RunFolder
from fedlog.flower.server.server_app import make_app_settings, write_flower_app

FOLLOW_SECONDS = 0.3


def choose_run_name(folder: ServerFolder) -> str:
    """Return the name for a run without `--name`: the latest of run-1, run-2, ... if unfinished, else a new one."""
    numbers = [int(path.name[4:]) for path in folder.runs.glob("run-*") if path.name[4:].isdigit()]
    last = max(numbers, default=0)
    if last and RunFolder.of_run(folder, f"run-{last}").read_report() is None:
        return f"run-{last}"
    return f"run-{last + 1}"


def read_plan_of_begun_run(folder: ServerFolder, name: str) -> Plan | None:
    """Read the plan with which the run of this name began; return None for a new run."""
    run_folder = RunFolder.of_run(folder, check_site_or_run_name(name))
    return run_folder.read_plan() if (run_folder.path / PLAN).exists() else None


def find_run_with_newest_checkpoint(folder: ServerFolder) -> str:
    """Return the name of the run with the newest checkpoint."""
    found = [path for path in folder.runs.glob("*") if checkpoint.exists(RunFolder(path).checkpoint)]
    if not found:
        hint = f"`fedlog federate run {folder.path}` begins a run"
        raise InputError(f"expected a run with a checkpoint, found none: {folder.runs}", hint=hint)
    return max(found, key=lambda path: RunFolder(path).checkpoint.stat().st_mtime).name


def find_unfinished_run(folder: ServerFolder) -> str:
    """Return the name of the newest run that is not finished."""
    found = [path for path in folder.runs.glob("*") if (path / PLAN).exists() and RunFolder(path).read_report() is None]
    if not found:
        hint = "name a run with --run"
        raise InputError(f"expected a run that is not finished, found none: {folder.runs}", hint=hint)
    return max(found, key=lambda path: (path / PLAN).stat().st_mtime).name


def drop_site(folder: ServerFolder, site: str, name: str) -> None:
    """Drop a site from a run: from now on the server neither asks it nor waits for it."""
    run_folder = _check_site_and_run(folder, site, name)
    write_json(run_folder.dropped_file, sorted({*run_folder.read_dropped_sites(), site}))
    folder.log("dropped", run=name, site=site)


def take_site_back(folder: ServerFolder, site: str, name: str) -> None:
    """Undo `drop_site`: the server asks the site again from the next round on."""
    run_folder = _check_site_and_run(folder, site, name)
    if site not in run_folder.read_dropped_sites():
        dropped = ", ".join(sorted(run_folder.read_dropped_sites()))
        raise InputError(
            f"expected a site that was dropped from {name}, found: {site}",
            hint=f"name one of: {dropped}"
            if dropped
            else f"no site was dropped from {name}: name another run with --run",
        )
    write_json(run_folder.dropped_file, sorted(run_folder.read_dropped_sites() - {site}))
    folder.log("taken back", run=name, site=site)


def _check_site_and_run(folder: ServerFolder, site: str, name: str) -> RunFolder:
    """Return the folder of the run; raise InputError if there is no such run, or if the site is not registered."""
    run_folder = RunFolder.of_run(folder, name)
    if not (run_folder.path / PLAN).exists():
        raise InputError(
            f"expected a run of this server, found none with the name {name}: {run_folder.path}",
            hint="name another run with --run",
        )
    folder.find_node_number(site)  # refuses a site that is not registered
    return run_folder


def run_federation(folder: ServerFolder, plan: Plan, rules: RoundRules, say: Say) -> dict[str, Any]:
    """Run this plan with Flower, and return the report; if the run fails, the RunError says how to continue it."""
    folder.read_config()
    run_folder = RunFolder.of_run(folder, check_plan(plan).name)
    hint = f"`fedlog watch {folder.path}` shows it; wait until it ends, or give a new run another --name"
    with run_folder.lock(hint):
        run_folder.store_plan(plan)
    if checkpoint.exists(run_folder.checkpoint):
        say(f"{plan.name} continues from its checkpoint")
    if (fewest := rules.find_minimum_sites(plan)) > rules.minimum:
        say(f"a round needs at least {fewest} sites, because of the secure sums of this run")
    if dropped := run_folder.read_dropped_sites():
        say(f"without {', '.join(sorted(dropped))}: dropped; `fedlog federate drop --back` asks them again")
    write_flower_app(folder.app, make_app_settings(plan, rules))
    follower = LineFollower.from_end(folder.event_log)
    command = make_flwr_command(folder, "run", str(folder.app.resolve()), CONNECTION, "--stream")
    running = start_program(command, folder.logs / f"run.{plan.name}.log", say)
    try:
        while True:
            ended = running.exit_code is not None
            for event in follower.read_new_events():
                if event.get("run") != plan.name:
                    continue
                if line := describe_run_event(event):
                    say(line)
                if event["event"] == "failed":
                    raise RunError(str(event["reason"]), hint=str(event["hint"]) if event["hint"] else None)
                if event["event"] == "finished" and (report := run_folder.read_report()) is not None:
                    return report
            if ended and is_disk_nearly_full(folder.path):
                raise RunError(
                    f"the disk of the server is full: {folder.path}",
                    hint=f"make room; then the same command with --name {plan.name} continues the run",
                )
            if ended:
                raise RunError(
                    f"Flower ended run {plan.name} before it was finished; its log ends:\n{running.read_log_end()}",
                    hint=f"when the server runs again, the same command with --name {plan.name} continues the run",
                )
            time.sleep(FOLLOW_SECONDS)
    finally:
        running.stop()


def remove_site(folder: ServerFolder, site: str, name: str, say: Say) -> tuple[str, ...]:
    """Unregister a site and remove its statistics from the head of a run; return the sites that remain."""
    check_removal(folder, site, name)
    run_folder = RunFolder.of_run(folder, name)
    # A run under way has the site's statistics in its memory, and would write them into its next checkpoint.
    hint = f"`fedlog federate drop {folder.path} {site} --run {name}` stops asking it; repeat `leave` after the run"
    with run_folder.lock(hint):
        if site in folder.read_registered_sites():
            unregister_site(folder, site, say)
        if site not in run_folder.read_uploads():
            say(f"the present head of {name} has no statistics of {site}")
        return remove_statistics(folder, site, name)


def check_removal(folder: ServerFolder, site: str, name: str) -> None:
    """Raise InputError if a site's statistics cannot be removed from the run's head, or if no site would remain."""
    run_folder = RunFolder.of_run(folder, name)
    if not checkpoint.exists(run_folder.checkpoint):
        raise InputError(
            f"expected a run with a checkpoint, found none: {run_folder.path}", hint="name another run with --run"
        )
    plan = run_folder.read_plan()
    if plan.promise is not None or plan.secure is not None:
        raise InputError(
            f"expected a run with neither privacy nor secure sums, found: {name}; with privacy, a new head without "
            f"{site} would be a further release, which the privacy promise of the run does not cover; with secure "
            f"sums, the server has no upload of {site} alone",
            hint="`unregister` the site and begin a new run",
        )
    able = find_methods(lambda method: method.can_remove_client)
    if plan.method not in able or not plan.build_algorithm(2, 2).can_remove_client:
        raise InputError(
            f"expected a run whose method can remove a site ({', '.join(able)}), found: {plan.method}",
            hint="the head of this method depends on all earlier rounds: `unregister` the site and begin a new run",
        )
    uploads, registered = run_folder.read_uploads(), folder.read_registered_sites()
    if site not in uploads and site not in registered:
        names = sorted({*uploads, *registered})
        hint = did_you_mean(site, names, "give the name under which the site is registered")
        raise InputError(
            f"expected a site that is registered or in the head of {name} ({', '.join(names)}), found: {site}",
            hint=hint,
        )
    if set(uploads) == {site}:
        raise InputError(
            f"cannot remove {site} from the head of {name}: this head was made of {site} alone",
            hint="begin a new run instead",
        )


def remove_statistics(folder: ServerFolder, site: str, name: str) -> tuple[str, ...]:
    """Compute the run's head again without the upload of this site, and return the names of the remaining sites."""
    run_folder = RunFolder.of_run(folder, name)
    uploads = run_folder.read_uploads()
    if site not in uploads:
        return tuple(uploads)
    del uploads[site]
    server, done = restore_engine_server(run_folder, run_folder.read_plan(), load_schema(folder.schema_file))
    forget_received_broadcasts(server, [site])
    server.memory = None if server.memory is None else {}  # the uploads of the remaining sites are added again
    (exchange,) = server.algorithm.schedule.round
    # The sum without one term. Nothing is sent, so the ledger must stay as it was.
    booked = dict(server.ledger.entries)
    server.receive_uploads(done, exchange, uploads.items())
    server.ledger.entries.clear()
    server.ledger.entries.update(booked)
    save_engine_server(run_folder, server, done)
    run_folder.write_uploads(uploads)
    run_folder.report_file.unlink(missing_ok=True)  # the sites report anew when the run goes on
    folder.log("left", run=name, site=site, remaining=list(uploads))
    return tuple(uploads)
