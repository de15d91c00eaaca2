"""The sites that take part in a run: who is connected, how they are greeted, and who is left out and why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field

from fedlog.data.schema import Schema
from fedlog.files.json_text import write_json
from fedlog.flower.protocol.check_in import describe_clock
from fedlog.flower.protocol.frame import Frame, FrameError, FrameKind, run_tag
from fedlog.flower.protocol.handshake import check_identity, identity, read_identity, read_time
from fedlog.flower.protocol.plan import Guest, Plan, encode_hello, read_welcome
from fedlog.flower.server.exchange import Clock, Post, Wait, ask, find_connected_sites
from fedlog.flower.server.run_folder import RunFolder

# A newcomer to a run under way is greeted between two rounds, and the others wait for its answer.
GREETING_SECONDS = 60.0
LOOK_SECONDS = 1.0


@dataclass
class Guests:
    """The greeted sites of one run."""

    post: Post
    plan: Plan
    schema: Schema
    home: RunFolder
    clock: Clock
    log: Callable[..., None]
    heard: Callable[[], Collection[str]] = frozenset  # the sites whose calls the gate hears
    known: dict[str, Guest] = field(default_factory=dict)
    wall_clock: Callable[[], float] = time.time
    width: int = 0  # of the features, common to all sites; 0 until the first greeting has settled it

    def gather(self, minimum: int, patience_seconds: float) -> dict[str, int]:
        """Greet newcomers and return the connected sites that take part; fewer than the minimum when patience ends."""
        end = self.clock.now() + patience_seconds
        refused: set[str] = set()
        while True:
            dropped = self.home.dropped()
            nodes = {name: node for name, node in find_connected_sites(self.post).items() if name not in dropped}
            newcomers = {name: node for name, node in nodes.items() if name not in self.known and name not in refused}
            if newcomers:
                refused |= self._greet(newcomers, end - self.clock.now(), others_wait=len(self.known) >= minimum)
            present = {name: node for name, node in nodes.items() if name in self.known}
            if len(present) >= minimum or self.clock.now() >= end:
                return present
            self.clock.sleep(LOOK_SECONDS)

    def settle_width(self) -> None:
        """Take the feature width that most sites have, and leave the others out."""
        # The first site by name decides between widths that are equally common.
        widths = Counter(self.known[name].width for name in sorted(self.known))
        self.width = widths.most_common(1)[0][0]
        for site, guest in sorted(self.known.items()):
            if guest.width != self.width:
                self._leave_out(site, _other_width(guest, self.width))
        self._leave_out_other_bodies()

    def _leave_out_other_bodies(self) -> None:
        """Leave out sites with another untrained body: their features mean different things and cannot be added up."""
        if not self.plan.equal_bodies:
            return
        found = Counter(guest.digest for _, guest in sorted(self.known.items())).most_common(1)[0][0]
        usual = next(guest.equal_body for _, guest in sorted(self.known.items()) if guest.digest == found)
        write_json(self.home.body_file, asdict(usual))
        for site, guest in sorted(self.known.items()):
            if reason := usual.difference(guest):
                self._leave_out(site, reason)

    def _check_clock(self, site: str, payload: bytes, sent: float) -> None:
        """Log how far a clock is off at least, where the travel time of the message does not explain it."""
        told, now = read_time(payload), self.wall_clock()
        if told is None:
            return
        ahead = told - now if told > now else min(0.0, told - sent)
        if describe_clock(ahead) is not None:
            self.log("clock", site=site, ahead_seconds=round(ahead, 1))

    def _leave_out(self, site: str, reason: str) -> None:
        self.log("left out", site=site, reason=reason)
        del self.known[site]

    def _greet(self, newcomers: Mapping[str, int], patience_seconds: float, others_wait: bool) -> set[str]:
        """Make guests of the newcomers that can take part, and return those that refused or cannot."""
        ours = identity(self.schema.digest)
        sent = self.wall_clock()
        frame = Frame(FrameKind.HELLO, run_tag(self.plan.name), 0, 0, encode_hello(ours, self.plan, sent))
        seconds = max(1.0, min(GREETING_SECONDS, patience_seconds) if others_wait else patience_seconds)
        wait = Wait(seconds, dropped=self.home.dropped, heard=self.heard)
        replies = ask(self.post, newcomers, dict.fromkeys(newcomers, frame), FrameKind.WELCOME, wait, self.clock)
        reasons = dict(replies.refused)
        for site, answer in sorted(replies.answers.items()):
            try:
                check_identity(ours, read_identity(answer.payload), site)
                guest = read_welcome(answer.payload)
                if self.width and guest.width != self.width:
                    raise FrameError(_other_width(guest, self.width))
                if (body := self.home.body()) is not None and (reason := body.difference(guest)):
                    raise FrameError(reason)
                self.known[site] = guest
                self._check_clock(site, answer.payload, sent)
            except FrameError as error:
                reasons[site] = error.message
        for site, reason in sorted(reasons.items()):
            self.log("left out", site=site, reason=reason)
        for site in replies.silent:
            self.log("left out", site=site, reason=f"no answer within {seconds:.0f} s")
        if welcome := sorted(set(newcomers) & set(self.known)):
            self.log("greeted", sites=welcome)
        return set(reasons)


def _other_width(guest: Guest, width: int) -> str:
    return f"expected a body with {width} features, found {guest.width}: {guest.body}"
