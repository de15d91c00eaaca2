"""What `fedlog federate run` does: hand the run to Flower, follow it, and bring its report back; and `leave`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fedlog.algorithms.registry import methods_that
from fedlog.data.schema import load_schema
from fedlog.engine.protocol import checkpoint
from fedlog.errors import InputError, RunError
from fedlog.flower.folders.event_log import EventFollower, log_event
from fedlog.flower.folders.server_folder import CONNECTION, ServerFolder
from fedlog.flower.ops.app import app_settings, write_app
from fedlog.flower.ops.event_text import describe_run_event
from fedlog.flower.ops.processes import start
from fedlog.flower.ops.server import Say, flwr_command, unregister
from fedlog.flower.protocol.plan import Plan, check_plan
from fedlog.flower.server.engine_state import begin_server, save_server
from fedlog.flower.server.run_folder import RoundRules, RunFolder

FOLLOW_SECONDS = 0.3


def choose_run_name(folder: ServerFolder) -> str:
    """The name of the newest run that is not finished, else the next free number: run-1, run-2, ..."""
    numbers = [int(path.name[4:]) for path in folder.runs.glob("run-*") if path.name[4:].isdigit()]
    last = max(numbers, default=0)
    if last and RunFolder.of(folder, f"run-{last}").report() is None:
        return f"run-{last}"
    return f"run-{last + 1}"


def find_newest_run(folder: ServerFolder) -> str:
    """The name of the run with the newest checkpoint."""
    found = [path for path in folder.runs.glob("*") if checkpoint.exists(RunFolder(path).checkpoint)]
    if not found:
        raise InputError(f"expected a run with a checkpoint, found none: {folder.runs}")
    return max(found, key=lambda path: RunFolder(path).checkpoint.stat().st_mtime).name


def run_federation(folder: ServerFolder, plan: Plan, terms: RoundRules, say: Say) -> dict[str, Any]:
    """The report of the run, after Flower went through it; a RunError says how to go on when it did not."""
    folder.read_config()
    home = RunFolder.of(folder, check_plan(plan).name)
    home.claim(plan)
    if checkpoint.exists(home.checkpoint):
        say(f"{plan.name} goes on from its checkpoint")
    write_app(folder.app, app_settings(plan, terms))
    follower = EventFollower.from_now(folder.event_log)
    command = flwr_command(folder, "run", str(folder.app.resolve()), CONNECTION, "--stream")
    say(f"$ {command}")
    running = start(command, folder.logs / "run.log")
    try:
        while True:
            ended = running.exit_code is not None
            for event in follower.read_new():
                if event.get("run") != plan.name:
                    continue
                if line := describe_run_event(event):
                    say(line)
                if event["event"] == "failed":
                    raise RunError(str(event["reason"]), hint=str(event["hint"]) if event["hint"] else None)
                if event["event"] == "finished" and (report := home.report()) is not None:
                    return report
            if ended:
                raise RunError(
                    f"expected {plan.name} to finish, found that Flower ended it; the log ends:\n{running.log_tail()}",
                    hint=f"when the server runs again, the same command with --name {plan.name} goes on",
                )
            time.sleep(FOLLOW_SECONDS)
    finally:
        running.stop()


@dataclass(frozen=True)
class Departure:
    """What `leave` did."""

    run: str
    remaining: tuple[str, ...]


def leave(folder: ServerFolder, site: str, name: str, say: Say) -> Departure:
    """Who remains, after a site's statistics were taken out of the head of a run and its key off the list."""
    home = RunFolder.of(folder, name)
    if not checkpoint.exists(home.checkpoint):
        raise InputError(f"expected a run with a checkpoint, found none: {home.path}")
    plan = home.plan()
    if plan.promise is not None or plan.secure is not None:
        raise InputError(
            f"the head of {name} is of a private run or a secure sum: taking a site out of it would be a release "
            "that nobody counted",
            hint="`unregister` the site and begin a new run",
        )
    able = methods_that(lambda method: method.may_leave)
    if plan.method not in able:
        raise InputError(
            f"expected a run of {' or '.join(able)}, found: {plan.method}",
            hint="its head holds traces of every earlier round: `unregister` the site and begin a new run",
        )
    uploads = home.uploads()
    if site not in uploads and site not in folder.known_sites():
        raise InputError(
            f"expected one of the sites {', '.join(sorted({*uploads, *folder.known_sites()}))}, found: {site}"
        )
    if set(uploads) == {site}:
        raise InputError(f"expected another site in the head of {name}, found only: {site}")
    if site in folder.known_sites():
        unregister(folder, site, say)
    if site not in uploads:
        say(f"{site} has no part in the present head of {name}")
        return Departure(name, tuple(uploads))
    del uploads[site]
    state = checkpoint.read(home.checkpoint, lambda _: None)
    server = begin_server(plan, load_schema(folder.schema_file), home.width())
    server.state, server.ledger = state.values, state.ledger
    # The same sum as before without one term: booked nowhere, since nothing crosses.
    (exchange,) = server.algorithm.schedule.round
    before = dict(server.ledger.entries)
    server.receive(state.round_number, exchange, uploads.items())
    server.ledger.entries.clear()
    server.ledger.entries.update(before)
    save_server(home, server, state.round_number)
    home.keep_uploads(uploads)
    home.forget_report()
    log_event(folder.event_log, "left", run=name, site=site, remaining=list(uploads))
    return Departure(name, tuple(uploads))
