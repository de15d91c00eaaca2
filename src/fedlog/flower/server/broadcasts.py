"""The broadcast for each site: the same bytes for all sites, or only the changes since the site's last broadcast.

The server assumes that a site has received a broadcast once the site has answered it. If a site did not answer, or its
upload is not in the server's memory, the server assumes nothing: it tells the site to forget earlier messages, sends a
whole broadcast and gets a whole upload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedlog.engine.protocol.downlink import Downlink
from fedlog.engine.protocol.server import Server
from fedlog.flower.protocol.frame import FINISH_EXCHANGE, Frame, FrameKind, run_tag
from fedlog.flower.protocol.plan import SiteProfile


def work_frames(
    server: Server, run: str, step: tuple[int, int], participants: Mapping[str, SiteProfile], sites: Iterable[str]
) -> dict[str, Frame]:
    """Return the WORK frame of one exchange for each of these sites, and count its bits in the ledger."""
    number, at = step
    names = list(sites)
    # A broadcast counts for the round that made it, as in the simulator, once for each site it is sent to.
    made = max(0, number - 1) if at == 0 else number
    if server.downlink is None:
        frame = Frame(FrameKind.WORK, run_tag(run), number, at, server.broadcast(made, len(names)))
        return dict.fromkeys(names, frame)
    kinds = {name: FrameKind.WORK if server.downlink.knows(name) else FrameKind.WORK_ANEW for name in names}
    sent = _send(server, server.downlink, made, participants, names)
    return {name: Frame(kinds[name], run_tag(run), number, at, sent[name]) for name in names}


def finish_frames(
    server: Server, run: str, number: int, participants: Mapping[str, SiteProfile], sites: Iterable[str]
) -> dict[str, Frame]:
    """Return the FINISH frame for each of these sites, with the head after this round, and count its bits.

    The server does not remember these broadcasts: if the run goes on, it goes on from the ones before.
    """
    names = list(sites)
    if server.downlink is None:
        sent = dict.fromkeys(names, server.broadcast(number, len(names)))
    else:
        before = dict(server.downlink.copies)
        sent = _send(server, server.downlink, number, participants, names)
        server.downlink.copies = before
    return {name: Frame(FrameKind.FINISH, run_tag(run), number + 1, FINISH_EXCHANGE, sent[name]) for name in names}


def forget_sites(server: Server, sites: Iterable[str]) -> None:
    """Forget which broadcasts these sites have received: each gets a whole one next."""
    for site in sites:
        if server.downlink is not None:
            server.downlink.forget(site)


def _send(
    server: Server, downlink: Downlink, number: int, participants: Mapping[str, SiteProfile], names: list[str]
) -> dict[str, bytes]:
    downlink.whole = frozenset(site for site, profile in participants.items() if not profile.closed_world)
    return server.send(downlink, number, names)
