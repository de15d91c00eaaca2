"""The broadcast for each site: the same bytes for all, or bytes that bring each of them up to date.

A site is taken to have what it was sent once it has answered. Of one that did not answer, or whose upload is not in the
server's memory, nothing is taken for granted: it is told to forget, gets a whole broadcast and sends a whole upload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedlog.engine.protocol.downlink import Downlink
from fedlog.engine.protocol.server import Server
from fedlog.flower.protocol.frame import FINISH_EXCHANGE, Frame, FrameKind, run_tag
from fedlog.flower.protocol.plan import Guest


def work_frames(
    server: Server, run: str, step: tuple[int, int], guests: Mapping[str, Guest], sites: Iterable[str]
) -> dict[str, Frame]:
    """Return the request for one exchange to each of these sites, and book its bits."""
    number, at = step
    names = list(sites)
    # A broadcast belongs to the round that made it, as in the simulator, and is booked for those it is sent to.
    made = max(0, number - 1) if at == 0 else number
    if server.downlink is None:
        frame = Frame(FrameKind.WORK, run_tag(run), number, at, server.broadcast(made, len(names)))
        return dict.fromkeys(names, frame)
    kinds = {name: FrameKind.WORK if server.downlink.knows(name) else FrameKind.WORK_ANEW for name in names}
    sent = _send(server, server.downlink, made, guests, names)
    return {name: Frame(kinds[name], run_tag(run), number, at, sent[name]) for name in names}


def finish_frames(
    server: Server, run: str, number: int, guests: Mapping[str, Guest], sites: Iterable[str]
) -> dict[str, Frame]:
    """Return the last request to each of these sites, with the head after that round, and book its bits.

    The server does not remember that it was sent: a run that goes on goes on from the broadcasts before it.
    """
    names = list(sites)
    if server.downlink is None:
        sent = dict.fromkeys(names, server.broadcast(number, len(names)))
    else:
        before = dict(server.downlink.copies)
        sent = _send(server, server.downlink, number, guests, names)
        server.downlink.copies = before
    return {name: Frame(FrameKind.FINISH, run_tag(run), number + 1, FINISH_EXCHANGE, sent[name]) for name in names}


def forget_sites(server: Server, sites: Iterable[str]) -> None:
    """Assume nothing of what these sites have: each gets a whole broadcast next."""
    for site in sites:
        if server.downlink is not None:
            server.downlink.forget(site)


def _send(
    server: Server, downlink: Downlink, number: int, guests: Mapping[str, Guest], names: list[str]
) -> dict[str, bytes]:
    downlink.whole = frozenset(site for site, guest in guests.items() if not guest.closed_world)
    return server.send(downlink, number, names)
