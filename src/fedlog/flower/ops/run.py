"""What the operator does with runs: hand one to Flower, follow it and bring its report back; let a site leave."""

from __future__ import annotations

import time
from typing import Any

from fedlog.engine.protocol import checkpoint
from fedlog.errors import InputError, RunError
from fedlog.flower.folders.event_log import EventFollower
from fedlog.flower.folders.server_folder import CONNECTION, ServerFolder
from fedlog.flower.ops.app import app_settings, write_app
from fedlog.flower.ops.event_text import describe_run_event
from fedlog.flower.ops.processes import start
from fedlog.flower.ops.server import Say, flwr_command, unregister
from fedlog.flower.protocol.plan import Plan, check_plan
from fedlog.flower.server.leave import check_leave, take_site_out
from fedlog.flower.server.run_folder import RoundRules, RunFolder

FOLLOW_SECONDS = 0.3


def choose_run_name(folder: ServerFolder) -> str:
    """Return the name of the newest run that is not finished, else the next free number: run-1, run-2, ..."""
    numbers = [int(path.name[4:]) for path in folder.runs.glob("run-*") if path.name[4:].isdigit()]
    last = max(numbers, default=0)
    if last and RunFolder.of(folder, f"run-{last}").report() is None:
        return f"run-{last}"
    return f"run-{last + 1}"


def find_newest_run(folder: ServerFolder) -> str:
    """Return the name of the run with the newest checkpoint."""
    found = [path for path in folder.runs.glob("*") if checkpoint.exists(RunFolder(path).checkpoint)]
    if not found:
        raise InputError(f"expected a run with a checkpoint, found none: {folder.runs}")
    return max(found, key=lambda path: RunFolder(path).checkpoint.stat().st_mtime).name


def run_federation(folder: ServerFolder, plan: Plan, rules: RoundRules, say: Say) -> dict[str, Any]:
    """Let Flower go through the run and return its report; a RunError says how to go on when it did not."""
    folder.read_config()
    home = RunFolder.of(folder, check_plan(plan).name)
    home.claim(plan)
    if checkpoint.exists(home.checkpoint):
        say(f"{plan.name} goes on from its checkpoint")
    write_app(folder.app, app_settings(plan, rules))
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


def leave(folder: ServerFolder, site: str, name: str, say: Say) -> tuple[str, ...]:
    """Take a site's key off the list and its statistics out of the head of a run; return the sites that remain."""
    check_leave(folder, site, name)
    if site in folder.read_known_sites():
        unregister(folder, site, say)
    if site not in RunFolder.of(folder, name).uploads():
        say(f"{site} has no part in the present head of {name}")
    return take_site_out(folder, site, name)
