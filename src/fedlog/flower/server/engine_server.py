"""Create, restore and save the engine's `Server` of a run, and make the frames that carry its broadcasts.

The engine's `Server` sums uploads and makes broadcasts, but sends nothing itself; the simulator uses it, too.

Depending on the plan, all sites get the same broadcast, or each site gets its own, for example only the changes since
the last broadcast that the site received. The server assumes that a site has received a broadcast once the site has
answered it. If a site did not answer, or its upload could not be used, the server tells it with the next request to
forget all earlier messages. The broadcast in this request and the site's next upload are then whole, not only changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from fedlog.core.keys import Key
from fedlog.data.schema import Schema
from fedlog.engine.clients import check_method_fits_labels
from fedlog.engine.protocol import checkpoint
from fedlog.engine.protocol.server import Server
from fedlog.flower.protocol.frame import FINISH_EXCHANGE, Frame, FrameKind, make_run_tag
from fedlog.flower.protocol.greeting import SiteProfile
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.run_folder import RunFolder
from fedlog.models.body import HEAD, draw_initial_head
from fedlog.settings.promise import make_upload_limits
from fedlog.wire.codec import is_unchanged_message


def create_engine_server(plan: Plan, schema: Schema, width: int, refused_share: float = 0.0) -> Server:
    """Create the engine's server; it stops the run if over `refused_share` of a round's uploads are unusable."""
    key, transport = Key(plan.seed), plan.transport
    algorithm = plan.build_algorithm(schema.n_class, width)
    check_method_fits_labels(algorithm, numbers=schema.target_range is not None)
    initial = {HEAD: draw_initial_head(width, schema.n_class, key)}
    shape = Plan.make_model_plan(schema.n_class, width)
    guard = plan.build_protection(schema.n_class, width)
    return Server.create(
        algorithm,
        shape,
        initial,
        key.child("server"),
        guard,
        transport,
        refused_share=refused_share,
        limits=make_upload_limits(plan.clip, algorithm),
        # With secure sums the server gets no single upload, and in a private run it must not keep any.
        remembers=plan.secure is None and plan.promise is None,
        largest_share=plan.largest_share,
    )


def restore_engine_server(
    run_folder: RunFolder, plan: Plan, schema: Schema, refused_share: float = 0.0
) -> tuple[Server, int]:
    """Return the engine's server as the run's checkpoint stored it, and the number of the last finished round."""
    server = create_engine_server(plan, schema, run_folder.read_feature_width(), refused_share)
    kept = checkpoint.read(run_folder.checkpoint, _leave_out_client_files)
    server.resume(kept)
    return server, kept.round_number


def save_engine_server(run_folder: RunFolder, server: Server, round_number: int) -> None:
    """Write a checkpoint, from which the run can go on after this round."""
    checkpoint.write(run_folder.checkpoint, server.make_checkpoint_state(round_number), _leave_out_client_files)


def select_summed_uploads(
    server: Server, earlier: Mapping[str, bytes], uploads: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Return site -> its newest upload, for all sites in the newest sum.

    For a site that only said "unchanged", this is its upload in `earlier`.
    """
    summed = uploads if server.memory is None else server.memory
    newest = {**earlier, **{site: upload for site, upload in uploads.items() if not is_unchanged_message(upload)}}
    return {site: newest[site] for site in sorted(summed) if site in newest}


def make_work_frames(
    server: Server,
    run: str,
    round_and_exchange: tuple[int, int],
    participants: Mapping[str, SiteProfile],
    sites: Collection[str],
) -> dict[str, Frame]:
    """Make for each site the WORK frame that asks for its upload in this exchange, and count the broadcasts' bits."""
    number, at = round_and_exchange
    # A broadcast counts for the round that made it, as in the simulator, once for each site it is sent to.
    made = max(0, number - 1) if at == 0 else number
    link = server.downlink
    new = set() if link is None else {name for name in sites if not link.knows(name)}
    sent = _make_broadcasts(server, made, participants, sites)
    kinds = {name: FrameKind.WORK_ANEW if name in new else FrameKind.WORK for name in sites}
    return {name: Frame(kinds[name], make_run_tag(run), number, at, sent[name]) for name in sites}


def make_finish_frames(
    server: Server, run: str, number: int, participants: Mapping[str, SiteProfile], sites: Collection[str]
) -> dict[str, Frame]:
    """Make for each site the FINISH frame with the head after this round, and count the broadcasts' bits.

    The broadcast of the last WORK frame stays stored as the last one that each site received: if the run is continued,
    a broadcast with only changes holds the changes since that one.
    """
    before = None if server.downlink is None else dict(server.downlink.last_broadcasts)
    sent = _make_broadcasts(server, number, participants, sites)
    if server.downlink is not None and before is not None:
        server.downlink.last_broadcasts = before
    return {name: Frame(FrameKind.FINISH, make_run_tag(run), number + 1, FINISH_EXCHANGE, sent[name]) for name in sites}


def forget_received_broadcasts(server: Server, sites: Iterable[str]) -> None:
    """Forget which broadcasts these sites have received, so that each gets a whole broadcast next."""
    for site in sites:
        if server.downlink is not None:
            server.downlink.forget(site)


def _make_broadcasts(
    server: Server, number: int, participants: Mapping[str, SiteProfile], sites: Collection[str]
) -> dict[str, bytes]:
    """Encode for each site the broadcast with the head after this round, and count the broadcasts' bits."""
    if server.downlink is None:
        return dict.fromkeys(sites, server.encode_and_count_broadcast(number, len(sites)))
    server.downlink.clients_with_all_classes = frozenset(
        site for site, profile in participants.items() if not profile.closed_world
    )
    return server.encode_and_count_separate_broadcasts(server.downlink, number, list(sites))


def _leave_out_client_files(folder: Path) -> None:
    """Stand in for the function that writes or reads clients' files in a checkpoint: here each site keeps its own."""
