"""The Flower ServerApp: it greets the sites of a run and asks them, within a deadline, exchange by exchange."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlog.data.schema import load_schema
from fedlog.errors import RunError
from fedlog.flower.events import note
from fedlog.flower.exchange import Clock, Outcome, Post, ask, connected_sites
from fedlog.flower.folders import ServerFolder
from fedlog.flower.frame import Frame, FrameError, FrameKind, run_tag
from fedlog.flower.handshake import Identity, check_identity, identity, read_identity

FOLDER_VARIABLE = "FEDLOG_FEDERATION"
app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """One run, with the settings of `[tool.flwr.app.config]` and `flwr run --run-config`."""
    folder = ServerFolder(Path(os.environ[FOLDER_VARIABLE]))
    settings = context.run_config
    ours = identity(load_schema(folder.schema_file).digest)
    greet(
        grid,
        ours,
        run_tag(str(settings["name"])),
        folder.logs / "events.jsonl",
        minimum=int(settings["minimum-sites"]),
        deadline_seconds=float(settings["deadline-seconds"]),
        clock=Clock(),
    )


def greet(
    post: Post, ours: Identity, run: bytes, log: Path, *, minimum: int, deadline_seconds: float, clock: Clock
) -> dict[str, int]:
    """The sites that take part, by name; a RunError when they are fewer than the minimum at the deadline."""
    nodes = wait_for_sites(post, minimum, deadline_seconds, clock)
    hello = Frame(FrameKind.HELLO, run, 0, 0, ours.to_payload())
    outcome = ask(post, nodes, dict.fromkeys(nodes, hello), FrameKind.WELCOME, deadline_seconds, clock)
    welcome = dict(nodes)
    for site, reason in (dict(outcome.refused) | _other_identities(outcome, ours)).items():
        note(log, "left out", site=site, reason=reason)
        del welcome[site]
    for site in outcome.silent:
        note(log, "left out", site=site, reason=f"no answer within {deadline_seconds:.0f} s")
        del welcome[site]
    if len(welcome) < minimum:
        raise RunError(f"expected at least {minimum} sites, found {len(welcome)}: {', '.join(welcome) or 'none'}")
    note(log, "greeted", sites=sorted(welcome))
    return welcome


def wait_for_sites(post: Post, minimum: int, deadline_seconds: float, clock: Clock) -> dict[str, int]:
    """The connected sites, as soon as there are enough of them."""
    end = clock.now() + deadline_seconds
    while len(nodes := connected_sites(post)) < minimum:
        if clock.now() >= end:
            raise RunError(
                f"expected at least {minimum} connected sites, found {len(nodes)}: {', '.join(nodes) or 'none'}"
            )
        clock.sleep(1.0)
    return nodes


def _other_identities(outcome: Outcome, ours: Identity) -> dict[str, str]:
    others = {}
    for site, frame in outcome.answers.items():
        try:
            check_identity(ours, read_identity(frame.payload), site)
        except FrameError as error:
            others[site] = error.message
    return others
