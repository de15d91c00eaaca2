"""Remove a site's statistics from the head of a run, as if the site had never sent them."""

from __future__ import annotations

from fedlog.algorithms.registry import find_methods
from fedlog.data.schema import load_schema
from fedlog.engine.protocol import checkpoint
from fedlog.errors import InputError
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.server.engine_server import forget_sites, restore_engine_server, save_engine_server
from fedlog.flower.server.run_folder import RunFolder


def check_removal(folder: ServerFolder, site: str, name: str) -> None:
    """Raise InputError if the site's statistics cannot be removed from the run's head, or if no other site is in it."""
    run_folder = RunFolder.of_run(folder, name)
    if not checkpoint.exists(run_folder.checkpoint):
        raise InputError(f"expected a run with a checkpoint, found none: {run_folder.path}", hint="is --run right?")
    plan = run_folder.read_plan()
    if plan.promise is not None or plan.secure is not None:
        raise InputError(
            f"{name} is private or has secure sums: its head without one site would be a release that nobody counted",
            hint="`unregister` the site and begin a new run",
        )
    able = find_methods(lambda method: method.may_leave)
    if plan.method not in able or not plan.build_algorithm(2, 2).may_leave:
        raise InputError(
            f"expected a run of {' or '.join(able)}, found: {plan.method}",
            hint="the head of this method depends on all earlier rounds: `unregister` the site and begin a new run",
        )
    uploads, registered = run_folder.read_uploads(), folder.read_known_sites()
    if site not in uploads and site not in registered:
        raise InputError(f"expected one of the sites {', '.join(sorted({*uploads, *registered}))}, found: {site}")
    if set(uploads) == {site}:
        raise InputError(
            f"expected other sites in the head of {name}, found only: {site}", hint="begin a new run instead"
        )


def remove_statistics(folder: ServerFolder, site: str, name: str) -> tuple[str, ...]:
    """Compute the run's head again from the uploads of the other sites, and return their names."""
    run_folder = RunFolder.of_run(folder, name)
    uploads = run_folder.read_uploads()
    if site not in uploads:
        return tuple(uploads)
    del uploads[site]
    server, done = restore_engine_server(run_folder, run_folder.read_plan(), load_schema(folder.schema_file))
    forget_sites(server, [site])
    server.memory = None if server.memory is None else {}  # the uploads of the remaining sites are added again
    (exchange,) = server.algorithm.schedule.round
    # The sum without one term. Nothing is sent, so the ledger must stay as it was.
    booked = dict(server.ledger.entries)
    server.receive(done, exchange, uploads.items())
    server.ledger.entries.clear()
    server.ledger.entries.update(booked)
    save_engine_server(run_folder, server, done)
    run_folder.write_uploads(uploads)
    run_folder.report_file.unlink(missing_ok=True)  # the sites report anew when the run goes on
    folder.log("left", run=name, site=site, remaining=list(uploads))
    return tuple(uploads)
