"""The server's part in a run: greet, ask for uploads round by round, sum them with the engine's server, keep going.

Whatever a site does (refuse, fail, fall silent, come late, come twice), the others go on without it and the log says
its name. With fewer uploads than the minimum the old head stays. After every round a checkpoint is written, so that the
same run, started again, goes on after its last round.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedlog.algorithms.shape import Exchange
from fedlog.data.schema import Schema
from fedlog.engine.protocol import checkpoint
from fedlog.engine.protocol.server import Server
from fedlog.errors import RunError
from fedlog.flower.folders.event_log import Value, log_event
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.protocol.frame import FINISH_EXCHANGE, Frame, FrameError, FrameKind, run_tag
from fedlog.flower.protocol.handshake import check_identity, identity, read_identity
from fedlog.flower.protocol.plan import Guest, Plan, hello, read_welcome
from fedlog.flower.protocol.promise import release
from fedlog.flower.server.engine_state import (
    begin_server,
    copy_memory,
    restore_server,
    save_server,
    select_summed_uploads,
)
from fedlog.flower.server.exchange import Clock, Post, Replies, SilentSites, ask, find_connected_sites
from fedlog.flower.server.run_folder import RoundRules, RunFolder
from fedlog.flower.server.run_report import Ending, read_reports, run_report
from fedlog.flower.server.secure_rounds import SumAtServer
from fedlog.privacy.accounting import BudgetSpentError
from fedlog.wire.ledger import Direction

# A newcomer to a run under way is greeted between two rounds, and the others wait for its answer.
GREETING_SECONDS = 60.0
EMPTY_ROUNDS_ALLOWED = 3


@dataclass
class Run:
    """One run under way at the server."""

    post: Post
    folder: ServerFolder
    schema: Schema
    plan: Plan
    rules: RoundRules
    clock: Clock = field(default_factory=Clock)
    guests: dict[str, Guest] = field(default_factory=dict)
    width: int = 0  # of the features, common to all sites; 0 until the first greeting has settled it
    refused: list[dict[str, Value]] = field(default_factory=list)  # in the round under way: site and reason
    silent: SilentSites = field(default_factory=SilentSites)

    def conduct(self) -> None:
        """Go through the run, from its checkpoint if it has one, to the sites' reports."""
        self.home.claim(self.plan)
        server, done = self._restore() or (self._begin(), 0)
        self._open(server, done)
        empty, ending = 0, Ending(done)
        for number in range(done + 1, self.plan.rounds + 1):
            try:
                record = self._round(server, number)
            except BudgetSpentError as error:
                # A round that was begun twice is paid for twice; what there is is finished.
                self._log_event("budget spent", round=number, reason=error.message)
                ending = Ending(number - 1, error.message)
                break
            empty, ending = 0 if record["full"] else empty + 1, Ending(number)
            self._save(server, number)
            # Last: a round that the log announces is never done again after a kill.
            self._log_event("round", **record)
            if empty >= EMPTY_ROUNDS_ALLOWED:
                raise RunError(
                    f"expected at least {self.rules.minimum} sites, found fewer in {empty} rounds in a row; "
                    f"the head of the last full round is kept",
                    hint="start the same run again when the sites are back; it goes on from there",
                )
        self._finish(server, ending)

    @property
    def home(self) -> RunFolder:
        """The run's folder."""
        return RunFolder.of(self.folder, self.plan.name)

    @property
    def _log(self) -> Path:
        return self.folder.event_log

    def _log_event(self, event: str, **fields: Value) -> None:
        log_event(self._log, event, run=self.plan.name, **fields)
        if event == "refused":
            self.refused.append({"site": fields["site"], "reason": fields["reason"]})

    def _restore(self) -> tuple[Server, int] | None:
        """Return the server and the last finished round of the checkpoint; None without one."""
        if not checkpoint.exists(self.home.checkpoint):
            return None
        self.width = self.home.width()
        server, done = restore_server(self.home, self.plan, self.schema, self.rules.refused_share)
        self._log_event("resumed", after_round=done)
        return server, done

    def _begin(self) -> Server:
        """Greet the sites and return a new server, for the feature width that most of them have."""
        present = self._gather_sites()
        if len(present) < self.rules.minimum:
            raise RunError(
                f"expected at least {self.rules.minimum} sites, found {len(present)}: {', '.join(present) or 'none'}",
                hint="`fedlog federate status` shows who is connected",
            )
        # The first site by name decides between widths that are equally common.
        widths = Counter(self.guests[name].width for name in sorted(self.guests))
        self.width = widths.most_common(1)[0][0]
        for site, guest in sorted(self.guests.items()):
            if guest.width != self.width:
                self._log_event("left out", site=site, reason=_other_width(guest, self.width))
                del self.guests[site]
        self._leave_out_other_bodies()
        return begin_server(self.plan, self.schema, self.width, self.rules.refused_share)

    def _leave_out_other_bodies(self) -> None:
        """Leave out sites with another untrained body: their features mean different things and cannot be added up."""
        if not self.plan.equal_bodies:
            return
        found = Counter(guest.digest for _, guest in sorted(self.guests.items())).most_common(1)[0][0]
        usual = next(guest.equal_body for _, guest in sorted(self.guests.items()) if guest.digest == found)
        self.home.keep_body(usual)
        for site, guest in sorted(self.guests.items()):
            if reason := usual.difference(guest):
                self._log_event("left out", site=site, reason=reason)
                del self.guests[site]

    def _save(self, server: Server, number: int) -> None:
        self.home.keep_width(self.width)
        save_server(self.home, server, number)

    def _gather_sites(self) -> dict[str, int]:
        """Greet newcomers and return the connected sites that take part; fewer than the minimum when patience ends."""
        end = self.clock.now() + self.rules.deadline_seconds
        refused: set[str] = set()
        while True:
            nodes = find_connected_sites(self.post)
            newcomers = {name: node for name, node in nodes.items() if name not in self.guests and name not in refused}
            if newcomers:
                refused |= self._greet(newcomers, end - self.clock.now())
            present = {name: node for name, node in nodes.items() if name in self.guests}
            if len(present) >= self.rules.minimum or self.clock.now() >= end:
                return present
            self.clock.sleep(1.0)

    def _greet(self, newcomers: Mapping[str, int], patience_seconds: float) -> set[str]:
        """Make guests of the newcomers that can take part, and return those that refused or cannot."""
        ours = identity(self.schema.digest)
        frame = Frame(FrameKind.HELLO, run_tag(self.plan.name), 0, 0, hello(ours, self.plan))
        others_wait = len(self.guests) >= self.rules.minimum
        seconds = max(1.0, min(GREETING_SECONDS, patience_seconds) if others_wait else patience_seconds)
        replies = self._ask(newcomers, frame, FrameKind.WELCOME, seconds)
        reasons = dict(replies.refused)
        for site, answer in sorted(replies.answers.items()):
            try:
                check_identity(ours, read_identity(answer.payload), site)
                guest = read_welcome(answer.payload)
                if self.width and guest.width != self.width:
                    raise FrameError(_other_width(guest, self.width))
                if (body := self.home.body()) is not None and (reason := body.difference(guest)):
                    raise FrameError(reason)
                self.guests[site] = guest
            except FrameError as error:
                reasons[site] = error.message
        for site, reason in sorted(reasons.items()):
            self._log_event("left out", site=site, reason=reason)
        for site in replies.silent:
            self._log_event("left out", site=site, reason=f"no answer within {seconds:.0f} s")
        if welcome := sorted(set(newcomers) & set(self.guests)):
            self._log_event("greeted", sites=welcome)
        return set(reasons)

    def _ask(self, nodes: Mapping[str, int], frame: Frame, kind: FrameKind, seconds: float) -> Replies:
        return ask(self.post, nodes, dict.fromkeys(nodes, frame), kind, seconds, self.clock)

    def _open(self, server: Server, done: int) -> None:
        opening = server.algorithm.schedule.opening
        if opening is None or done:
            return
        if len({guest.digest or guest.body for guest in self.guests.values()}) > 1:
            raise RunError(
                f"expected one body at all sites, since {self.plan.method} opens with untrained features, "
                f"found: {', '.join(sorted({guest.body for guest in self.guests.values()}))}",
                hint="--set first_head=random",
            )
        self._exchange(server, 0, 0, opening)

    def _round(self, server: Server, number: int) -> dict[str, Value]:
        """Conduct one round and return its record; `full` is 0 where too few sites took part for a new head."""
        start = time.perf_counter()
        exchanges = server.algorithm.schedule.round
        full = all(self._exchange(server, number, at, exchange) for at, exchange in enumerate(exchanges))
        ledger = server.ledger
        record: dict[str, Value] = {
            "round": number,
            "of": self.plan.rounds,
            "full": int(full),
            "bits_up": ledger.bits(Direction.UP),
            "bits_down": ledger.bits(Direction.DOWN),
            "seconds": round(time.perf_counter() - start, 2),
            **server.algorithm.observe(server.state),
        }
        if server.protection is not None:
            record["kept_old_head"] = int(full and server.kept_state)
        self.home.record({**record, "refused": self.refused})
        self.refused = []
        return record

    def _exchange(self, server: Server, number: int, at: int, exchange: Exchange) -> bool:
        nodes = self._gather_sites()
        if len(nodes) < self.rules.minimum:
            self._log_event("too few", round=number, sites=sorted(nodes), minimum=self.rules.minimum)
            return False
        # First, so that a round which the budget does not cover leaves no trace, not even a booked broadcast.
        release(self.home.path, server.protection, number, exchange.name)
        # A broadcast belongs to the round that made it, as in the simulator, and is booked for those it is sent to.
        broadcast = server.broadcast(max(0, number - 1) if at == 0 else number, len(nodes))
        if self.plan.secure is not None:
            return self._sum_securely(server, (number, at), exchange, nodes, broadcast)
        frame = Frame(FrameKind.WORK, run_tag(self.plan.name), number, at, broadcast)
        seconds, requests = self.rules.deadline_seconds, dict.fromkeys(nodes, frame)
        awaited = self.silent.select_awaited(self.post, nodes, self.rules.minimum)
        replies = ask(self.post, nodes, requests, FrameKind.UPLOAD, seconds, self.clock, awaited)
        self._log_missing(replies, number, seconds)
        self.silent.update(number, replies)
        uploads = {site: replies.answers[site].payload for site in sorted(replies.answers)}
        before = server.state, copy_memory(server)
        for site in self._receive(server, number, exchange, uploads):
            del uploads[site]
        if len(uploads) < self.rules.minimum:
            server.state, server.memory = before
            self._log_event("too few", round=number, sites=sorted(uploads), minimum=self.rules.minimum)
            return False
        if self.plan.promise is None:  # else no site can be taken out of the sum, so nothing is kept for that
            self.home.keep_uploads(select_summed_uploads(server, {**self.home.uploads(), **uploads}, uploads))
        self._log_event("uploads", round=number, sites=sorted(uploads))
        return True

    def _receive(self, server: Server, number: int, exchange: Exchange, uploads: Mapping[str, bytes]) -> list[str]:
        """Sum the uploads and return the sites whose uploads were refused; raise RunError where they are too many."""
        known = len(server.refusals)
        stopped: RunError | None = None
        try:
            server.receive(number, exchange, uploads.items())
        except RunError as error:
            stopped = error
        refused = [refusal for _, refusal in server.refusals[known:]]
        for refusal in refused:
            self._log_event("refused", site=refusal.client, round=number, reason=refusal.reason)
        if stopped is not None:
            line = {"round": number, "of": self.plan.rounds, "full": 0, "seconds": 0.0, "refused": self.refused}
            self.home.record({**line, "stopped": stopped.message})
            raise stopped
        return [refusal.client for refusal in refused]

    def _sum_securely(
        self, server: Server, step: tuple[int, int], exchange: Exchange, nodes: Mapping[str, int], broadcast: bytes
    ) -> bool:
        """Take a secure sum and return whether it moved the server's state; no site's part is known or kept."""

        def ask_some(some: Mapping[str, int], frames: Mapping[str, Frame], kind: FrameKind) -> Replies:
            return ask(self.post, some, frames, kind, self.rules.deadline_seconds, self.clock)

        sums = SumAtServer(self.folder, self.home, self.plan, ask_some, self._log_event, self.rules.deadline_seconds)
        survivors = sums.take(server, step, exchange, nodes, broadcast)
        if survivors is not None:
            self._log_event("uploads", round=step[0], sites=list(survivors))
        return survivors is not None

    def _log_missing(self, replies: Replies, number: int, patience_seconds: float) -> None:
        for site, reason in sorted(replies.refused.items()):
            self._log_event("refused", site=site, round=number, reason=reason)
            # Greeted again before the next exchange: its folder may be a new one.
            self.guests.pop(site, None)
        for site in replies.silent:
            self._log_event("silent", site=site, round=number, deadline_seconds=patience_seconds)
        for site in replies.not_awaited:
            self._log_event("not awaited", site=site, round=number, since=self.silent.since[site])

    def _finish(self, server: Server, ending: Ending) -> None:
        """Send the last head, and keep what the sites tell of their results."""
        if not (self.home.uploads() or self.home.had_full_round()):
            why = "" if ending.reason is None else f": {ending.reason}"
            raise RunError(
                f"expected a round with at least {self.rules.minimum} sites, found none in {self.plan.name}{why}"
            )
        nodes = self._gather_sites()
        number = ending.round
        broadcast = server.broadcast(number, len(nodes))
        frame = Frame(FrameKind.FINISH, run_tag(self.plan.name), number + 1, FINISH_EXCHANGE, broadcast)
        # Each site now trains its local-only model, which takes as long as its part in all rounds together.
        patience = self.rules.deadline_seconds + self.home.seconds()
        replies = self._ask(nodes, frame, FrameKind.REPORT, patience)
        self._log_missing(replies, number, patience)
        sites, wrong = read_reports(self.plan, replies.answers)
        for site, reason in wrong.items():
            self._log_event("refused", site=site, round=number, reason=reason)
        if not sites:
            raise RunError(f"expected reports of the sites after the last round, found none within {patience:.0f} s")
        self._save(server, number)
        self.home.keep_report(run_report(self.plan, server, ending, sites, self.home))
        self._log_event("finished", sites=[str(site["name"]) for site in sites])


def _other_width(guest: Guest, width: int) -> str:
    return f"expected a body with {width} features, found {guest.width}: {guest.body}"
