"""Take a site's statistics out of the head of a run, as if it had never sent them."""

from __future__ import annotations

from fedlog.algorithms.registry import find_methods
from fedlog.data.schema import load_schema
from fedlog.engine.protocol import checkpoint
from fedlog.errors import InputError
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.server.broadcasts import forget_sites
from fedlog.flower.server.engine_state import restore_server, save_server
from fedlog.flower.server.run_folder import RunFolder


def check_leave(folder: ServerFolder, site: str, name: str) -> None:
    """Refuse if the site's part of the run's head cannot be subtracted, or if there is no other site in it."""
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
    able = find_methods(lambda method: method.may_leave)
    if plan.method not in able or not plan.algorithm(2, 2).may_leave:
        raise InputError(
            f"expected a run of {' or '.join(able)}, found: {plan.method}",
            hint="its head holds traces of every earlier round: `unregister` the site and begin a new run",
        )
    uploads, registered = home.uploads(), folder.read_known_sites()
    if site not in uploads and site not in registered:
        raise InputError(f"expected one of the sites {', '.join(sorted({*uploads, *registered}))}, found: {site}")
    if set(uploads) == {site}:
        raise InputError(f"expected another site in the head of {name}, found only: {site}")


def take_site_out(folder: ServerFolder, site: str, name: str) -> tuple[str, ...]:
    """Make the run's head that of the other sites, and return their names."""
    home = RunFolder.of(folder, name)
    uploads = home.uploads()
    if site not in uploads:
        return tuple(uploads)
    del uploads[site]
    server, done = restore_server(home, home.plan(), load_schema(folder.schema_file))
    forget_sites(server, [site])
    server.memory = None if server.memory is None else {}  # those who remain come in again with their uploads
    (exchange,) = server.algorithm.schedule.round
    # The same sum as before without one term: booked nowhere, since nothing crosses.
    booked = dict(server.ledger.entries)
    server.receive(done, exchange, uploads.items())
    server.ledger.entries.clear()
    server.ledger.entries.update(booked)
    save_server(home, server, done)
    home.write_uploads(uploads)
    home.report_file.unlink(missing_ok=True)  # the sites report anew when the run goes on
    folder.log("left", run=name, site=site, remaining=list(uploads))
    return tuple(uploads)
