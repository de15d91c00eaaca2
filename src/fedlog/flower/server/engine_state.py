"""Create the engine's server for a run, restore it from a checkpoint, and save it to one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedlog.core.keys import Key
from fedlog.data.schema import Schema
from fedlog.engine.clients import check_method_fits_labels
from fedlog.engine.protocol import checkpoint
from fedlog.engine.protocol.server import Server
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.run_folder import RunFolder
from fedlog.models.body import HEAD, draw_initial_head
from fedlog.settings.promise import make_limits
from fedlog.wire.codec import is_same_message


def begin_server(plan: Plan, schema: Schema, width: int, refused_share: float = 0.0) -> Server:
    """Return a new engine server. It stops the run if more than `refused_share` of a round's uploads are unusable."""
    key, transport = Key(plan.seed), plan.transport
    algorithm = plan.algorithm(schema.n_class, width)
    check_method_fits_labels(algorithm, numbers=schema.number is not None)
    initial = {HEAD: draw_initial_head(width, schema.n_class, key)}
    shape = Plan.model_plan(schema.n_class, width)
    guard = plan.protection(schema.n_class, width)
    return Server.create(
        algorithm,
        shape,
        initial,
        key.child("server"),
        guard,
        transport,
        refused_share=refused_share,
        limits=make_limits(plan.clip, algorithm),
        # With secure sums the server gets no single upload, and in a private run it must not keep any.
        remembers=plan.secure is None and plan.promise is None,
        largest_share=plan.largest_share,
    )


def restore_server(home: RunFolder, plan: Plan, schema: Schema, refused_share: float = 0.0) -> tuple[Server, int]:
    """Return the server from the run's checkpoint, and the last round that is done."""
    server = begin_server(plan, schema, home.width(), refused_share)
    kept = checkpoint.read(home.checkpoint, _no_clients)
    server.resume(kept)
    return server, kept.round_number


def save_server(home: RunFolder, server: Server, round_number: int) -> None:
    """Write a checkpoint, from which the run can go on after this round."""
    checkpoint.write(home.checkpoint, server.make_checkpoint_state(round_number), _no_clients)


def select_summed_uploads(server: Server, known: Mapping[str, bytes], uploads: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the uploads in the newest sum, by site: the last upload of every site if the server remembers uploads."""
    summed = uploads if server.memory is None else server.memory
    newest = {**known, **{site: upload for site, upload in uploads.items() if not is_same_message(upload)}}
    return {site: newest[site] for site in sorted(summed) if site in newest}


def _no_clients(folder: Path) -> None:
    """Do nothing: a server's checkpoint holds no clients, since each site keeps its own state."""
