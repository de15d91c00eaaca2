"""The server's side of a secure sum over Flower's messages: five requests to the sites, then the sum or a failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from fedlog.algorithms.interface import Exchange
from fedlog.engine.protocol.secure_sums import choose_encoding, decode_sum, make_sum_terms
from fedlog.engine.protocol.server import Server
from fedlog.errors import RunError
from fedlog.files.json_text import read_json, write_json
from fedlog.flower.folders.keys import index_member_keys, read_roster
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.protocol.frame import Frame, FrameKind, SumAnnouncement, make_run_tag
from fedlog.flower.protocol.plan import SecureSumRules
from fedlog.flower.server.run_folder import RunFolder
from fedlog.flower.server.site_requests import Replies
from fedlog.privacy.secagg.encoding import RefusalError, RoundFailedError
from fedlog.privacy.secagg.server import SecureSumResult, ServerRound, close_step, receive_message, unmask_sum
from fedlog.privacy.secagg.terms import Step, Terms
from fedlog.wire.ledger import Direction

Nodes = Mapping[str, int]
Ask = Callable[[Nodes, Mapping[str, Frame], FrameKind], Replies]


@dataclass(frozen=True)
class ServerSecureSums:
    """The server's side of the secure sums of one run; `ask` sends a frame to each site and collects the answers."""

    folder: ServerFolder
    run_folder: RunFolder
    run: str
    secure: SecureSumRules
    ask: Ask
    log: Callable[..., None]
    deadline_seconds: float  # for each request
    minimum: int  # the fewest sites in a sum

    def make_sum(
        self, server: Server, round_and_exchange: tuple[int, int], exchange: Exchange, nodes: Nodes, broadcast: bytes
    ) -> tuple[str, ...] | None:
        """Make a secure sum and apply it to the server's state; return the sites in the sum, or None if it failed."""
        round_number = round_and_exchange[0]
        roster = read_roster(self.folder.path)
        members = tuple(sorted(set(nodes) & set(roster)))
        if len(members) < self.minimum:
            self.log("too few", round=round_number, sites=list(members), minimum=self.minimum)
            return None
        template = server.templates[exchange.name]
        if template is None:
            raise RunError(
                f"secure sums have nothing to add: {server.algorithm.name} sends no uploads in {exchange.name}",
                hint="choose another --method, or leave out --aggregation secure",
            )
        shapes = [tuple(array.shape) for array in server.read_contribution(template).arrays]
        announcement = self._make_announcement(members)
        keys, coordinates = index_member_keys(roster, members), sum(prod(shape) for shape in shapes)
        value_bytes = choose_encoding(server.protection).value_bytes
        terms = make_sum_terms(
            announcement.session, announcement.number, keys, self.secure.honest, coordinates, value_bytes
        )
        names = {number: name for number, name in enumerate(sorted(roster)) if name in members}
        try:
            asked = {name: nodes[name] for name in members}
            found = self._collect_sum(
                server, terms, announcement.prepend_to(broadcast), round_and_exchange, asked, names
            )
        except RoundFailedError as error:
            self.log("secure sum failed", round=round_number, reason=error.message)
            return None
        server.apply_sum(round_number, exchange, decode_sum(found[0], server.protection, shapes))
        return found[1]

    def _collect_sum(
        self,
        server: Server,
        terms: Terms,
        payload: bytes,
        round_and_exchange: tuple[int, int],
        nodes: Nodes,
        names: Mapping[int, str],
    ) -> tuple[SecureSumResult, tuple[str, ...]]:
        """Ask the sites for all five steps of a secure sum; return the sum and the names of the sites in the sum.

        `payload` is the contents of the first request: the announcement and the broadcast. `names` maps a site's number
        in the roster to its name.
        """
        round_number, state = round_and_exchange[0], ServerRound(terms)
        frames = {name: self._make_frame(FrameKind.WORK, round_and_exchange, payload) for name in nodes}
        replies = self.ask(nodes, frames, FrameKind.UPLOAD)
        while True:
            state = self._take_replies(server, state, replies, round_number)
            if state.step is Step.UNMASK:
                total = unmask_sum(state)
                if total.left_out is not None:
                    reason = "its shares do not fit those of the others; the secure sum was made without them"
                    self.log("refused", site=names[total.left_out], round=round_number, reason=reason)
                return total, tuple(names[number] for number in total.survivors)
            state, outgoing = close_step(state)
            for part in outgoing.values():
                server.ledger.count(round_number, Direction.DOWN, f"secure {state.step.name.lower()}", part)
            frames = {
                names[n]: self._make_frame(FrameKind.SECURE, round_and_exchange, bytes([state.step]) + part)
                for n, part in outgoing.items()
            }
            replies = self.ask({name: nodes[name] for name in frames}, frames, FrameKind.SECURED)

    def _take_replies(self, server: Server, state: ServerRound, replies: Replies, round_number: int) -> ServerRound:
        """Return the state of the secure sum after these replies; log sites that refused or did not answer."""
        for site, reason in sorted(replies.refused.items()):
            self.log("refused", site=site, round=round_number, reason=reason)
        for site in replies.silent:
            step, seconds = state.step.name.lower(), self.deadline_seconds
            self.log("silent", site=site, round=round_number, step=step, deadline_seconds=seconds)
        for site, frame in sorted(replies.answers.items()):
            try:
                state = receive_message(state, frame.payload)
                server.ledger.count(round_number, Direction.UP, f"secure {state.step.name.lower()}", frame.payload)
            except RefusalError as error:
                self.log("refused", site=site, round=round_number, reason=error.message)
        return state

    def _make_frame(self, kind: FrameKind, round_and_exchange: tuple[int, int], payload: bytes) -> Frame:
        return Frame(kind, make_run_tag(self.run), *round_and_exchange, payload)

    def _make_announcement(self, members: tuple[str, ...]) -> SumAnnouncement:
        """Make the announcement of a new secure sum; store its number as taken before, so that no other sum gets it."""
        path = self.run_folder.path / "secure.json"
        stored = read_json(path, {"session": os.urandom(16).hex(), "next": 0})
        write_json(path, {**stored, "next": stored["next"] + 1})
        return SumAnnouncement(bytes.fromhex(stored["session"]), int(stored["next"]), members)
