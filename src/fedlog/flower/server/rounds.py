"""Conduct a run at the server: greet the sites, ask them for uploads in each round, and let the engine sum the uploads.

If a site refuses, fails, does not answer, answers late or answers twice, the run goes on without it, and the log names
it. With fewer uploads than the minimum the old head stays. After every round a checkpoint is written: if the same run
is started again, it goes on after its last round.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fedlog.algorithms.interface import Exchange
from fedlog.data.schema import Schema
from fedlog.engine.protocol import checkpoint
from fedlog.engine.protocol.server import Server
from fedlog.errors import RunError
from fedlog.files.json_text import write_json
from fedlog.flower.folders.folder import Value
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.protocol.frame import Frame, FrameKind
from fedlog.flower.protocol.plan import Plan, SecureSumRules
from fedlog.flower.server.callers import read_connected_sites
from fedlog.flower.server.engine_server import (
    create_engine_server,
    forget_received_broadcasts,
    make_finish_frames,
    make_work_frames,
    restore_engine_server,
    save_engine_server,
    select_summed_uploads,
)
from fedlog.flower.server.participants import Participants
from fedlog.flower.server.run_folder import RoundRules, RunEnding, RunFolder, make_run_report, read_site_reports
from fedlog.flower.server.secure_sums import ServerSecureSums
from fedlog.flower.server.site_requests import (
    Clock,
    Deadline,
    MessageGrid,
    Replies,
    SilentSites,
    WaitingRules,
    ask_sites,
)
from fedlog.privacy.accounting import BudgetSpentError
from fedlog.wire.ledger import Direction

EMPTY_ROUNDS_ALLOWED = 3


@dataclass
class Run:
    """A run that the server conducts: its plan, its rules, and the state of the current round."""

    grid: MessageGrid
    folder: ServerFolder
    schema: Schema
    plan: Plan
    rules: RoundRules
    clock: Clock = field(default_factory=Clock)
    refused: list[dict[str, Value]] = field(default_factory=list)  # in the round under way: site and reason
    silent: SilentSites = field(default_factory=SilentSites)
    answer_seconds: dict[str, float] = field(default_factory=dict)  # in the round under way: how long each site took
    participants: Participants = field(init=False)
    deadline: Deadline = field(init=False)

    def __post_init__(self) -> None:
        reports = self._log_event, self._read_connected_sites
        self.participants = Participants(self.grid, self.plan, self.schema, self.run_folder, self.clock, *reports)
        self.deadline = Deadline(self.rules.deadline_seconds)

    def conduct(self) -> None:
        """Conduct the run, from its start or its checkpoint, until the sites have sent their reports."""
        with self.run_folder.lock(hint="wait until it ends, or give a new run another --name"):
            self._conduct_locked_run()

    def _conduct_locked_run(self) -> None:
        self.run_folder.store_plan(self.plan)
        server, done = self._restore_server() or (self._begin_run(), 0)
        self._conduct_exchange_before_rounds(server, done)
        empty, ending = 0, RunEnding(done)
        for number in range(done + 1, self.plan.rounds + 1):
            try:
                record = self._conduct_round(server, number)
            except BudgetSpentError as error:
                # A round that was begun twice was paid for twice, so the budget may end early: finish with this head.
                self._log_event("budget spent", round=number, reason=error.message)
                ending = RunEnding(number - 1, error.message)
                break
            empty, ending = 0 if record["full"] else empty + 1, RunEnding(number)
            self._save_checkpoint(server, number)
            # Logged last, so that a round which the log shows is never done again after a crash.
            self._log_event("round", **record)
            if empty >= EMPTY_ROUNDS_ALLOWED:
                raise RunError(
                    f"run {self.plan.name}: expected at least {self.minimum_sites} sites, found fewer in {empty} "
                    f"rounds in a row; the head of the last round with enough sites is kept",
                    hint=f"when the sites are back, the same command with --name {self.plan.name} continues the run",
                )
        self._finish_run(server, ending)

    @property
    def run_folder(self) -> RunFolder:
        """The folder with the server's files of this run."""
        return RunFolder.of_run(self.folder, self.plan.name)

    @property
    def minimum_sites(self) -> int:
        """The fewest sites that a round needs."""
        return self.rules.find_minimum_sites(self.plan)

    def _read_connected_sites(self) -> frozenset[str]:
        return read_connected_sites(self.folder.presence_file)

    def _log_event(self, event: str, **fields: Value) -> None:
        self.folder.log(event, run=self.plan.name, **fields)
        if event == "refused":
            self.refused.append({"site": fields["site"], "reason": fields["reason"]})

    def _restore_server(self) -> tuple[Server, int] | None:
        """Return the server and the last finished round from the checkpoint; None if there is no checkpoint."""
        if not checkpoint.exists(self.run_folder.checkpoint):
            return None
        self.participants.width = self.run_folder.read_feature_width()
        for line in self.run_folder.read_rounds():
            if (seconds := line.get("slowest_seconds")) is not None:
                self.deadline.learn_from_answers([seconds])
        server, done = restore_engine_server(self.run_folder, self.plan, self.schema, self.rules.refused_share)
        self._log_event("resumed", after_round=done)
        return server, done

    def _begin_run(self) -> Server:
        """Greet the sites, choose the feature width that most of them have, and return a new server."""
        present = self._gather_sites()
        if len(present) < self.minimum_sites:
            raise RunError(
                f"run {self.plan.name} cannot begin: expected at least {self.minimum_sites} sites, found "
                f"{len(present)}: {', '.join(present) or 'none'}",
                hint="start the missing sites, and repeat the command; `fedlog federate status` shows who is connected",
            )
        self.participants.choose_feature_width()
        return create_engine_server(self.plan, self.schema, self.participants.width, self.rules.refused_share)

    def _save_checkpoint(self, server: Server, number: int) -> None:
        write_json(self.run_folder.width_file, self.participants.width)
        save_engine_server(self.run_folder, server, number)

    def _gather_sites(self) -> dict[str, int]:
        """Return site -> Flower node of the sites that take part; wait for more sites if they are too few."""
        return self.participants.gather_sites(self.minimum_sites, self.deadline.gathering_seconds)

    def _conduct_exchange_before_rounds(self, server: Server, done: int) -> None:
        """Conduct the exchange before the first round, if the method has one and no round is done yet."""
        opening = server.algorithm.schedule.opening
        if opening is None or done:
            return
        participants = self.participants.profiles.values()
        if len({profile.digest or profile.body for profile in participants}) > 1:
            raise RunError(
                f"expected one body at all sites, since {self.plan.method} begins with untrained features, "
                f"found: {', '.join(sorted({profile.body for profile in participants}))}",
                hint="choose the same body at all sites, or --set first_head=random",
            )
        self._conduct_exchange(server, 0, 0, opening)

    def _conduct_round(self, server: Server, number: int) -> dict[str, Value]:
        """Conduct one round and return its record; its entry `full` is 0 if too few sites took part for a new head."""
        start = time.perf_counter()
        exchanges = server.algorithm.schedule.round
        full = all(self._conduct_exchange(server, number, at, exchange) for at, exchange in enumerate(exchanges))
        ledger = server.ledger
        record: dict[str, Value] = {
            "round": number,
            "of": self.plan.rounds,
            "full": int(full),
            "bits_up": ledger.sum_bits(Direction.UP),
            "bits_down": ledger.sum_bits(Direction.DOWN),
            "seconds": round(time.perf_counter() - start, 2),
            "slowest_seconds": round(max(taken), 2) if (taken := self.answer_seconds.values()) else None,
            "deadline_seconds": round(self.deadline.seconds, 1),
            **server.algorithm.observe(server.state),
        }
        if server.protection is not None:
            record["kept_old_head"] = int(full and server.kept_state)
        self.run_folder.add_round({**record, "refused": self.refused})
        self.deadline.learn_from_answers(self.answer_seconds.values())
        self.refused, self.answer_seconds = [], {}
        return record

    def _conduct_exchange(self, server: Server, number: int, exchange_number: int, exchange: Exchange) -> bool:
        """Ask the sites for uploads and sum them; return whether enough uploads came for a new head.

        `number` is the number of the round, and `exchange_number` counts the exchanges in this round from 0.
        """
        nodes = self._gather_sites()
        if len(nodes) < self.minimum_sites:
            self._log_event("too few", round=number, sites=sorted(nodes), minimum=self.minimum_sites)
            return False
        # Recorded first: a round that the budget does not cover must not even count a broadcast.
        self.run_folder.record_release(server.protection, number, exchange.name)
        at = (number, exchange_number)
        requests = make_work_frames(server, self.plan.name, at, self.participants.profiles, nodes)
        if self.plan.secure is not None:
            sums = self._prepare_secure_sums(self.plan.secure)
            survivors = sums.make_sum(server, at, exchange, nodes, next(iter(requests.values())).payload)
            if survivors is not None:  # the server knows no single upload, so it keeps none
                self._log_summed_sites(number, list(survivors))
            return survivors is not None
        self.deadline.learn_from_answers(self.silent.take_late_answers(self.grid, self.clock.now()))
        awaited = self.silent.select_awaited(nodes, self.minimum_sites)
        asked_at = self.clock.now()
        replies = self._ask_sites(nodes, requests, FrameKind.UPLOAD, awaited)
        self._log_sites_without_answer(replies, number, self.deadline.seconds)
        self.silent.update(number, replies, asked_at)
        uploads = {site: replies.answers[site].payload for site in sorted(replies.answers)}
        forget_received_broadcasts(server, set(nodes) - set(uploads))
        before = server.state, None if server.memory is None else dict(server.memory)
        for site in self._sum_uploads(server, number, exchange, uploads):
            del uploads[site]
        if len(uploads) < self.minimum_sites:
            server.state, server.memory = before
            forget_received_broadcasts(server, nodes)  # the sites believe that their uploads are in the sum
            self._log_event("too few", round=number, sites=sorted(uploads), minimum=self.minimum_sites)
            return False
        if self.plan.promise is None:  # in a private run no site can be removed later, so no upload is kept for that
            self.run_folder.write_uploads(select_summed_uploads(server, self.run_folder.read_uploads(), uploads))
        self._log_summed_sites(number, sorted(uploads))
        return True

    def _ask_sites(
        self,
        nodes: Mapping[str, int],
        requests: Mapping[str, Frame],
        kind: FrameKind,
        awaited: Collection[str],
        seconds: float | None = None,
    ) -> Replies:
        """Send requests to these sites, wait `seconds` (default: the deadline), and store how long each answer took."""
        lifetimes = {site: self.deadline.compute_request_lifetime(site in awaited) for site in nodes}
        patience, lives = seconds or self.deadline.seconds, lifetimes if seconds is None else {}
        wait = WaitingRules(patience, awaited, lives, self.run_folder.read_dropped_sites, self._read_connected_sites)
        replies = ask_sites(self.grid, nodes, requests, kind, wait, self.clock)
        for site, took in replies.seconds.items():
            self.answer_seconds[site] = max(took, self.answer_seconds.get(site, 0.0))
        return replies

    def _log_summed_sites(self, number: int, sites: list[str]) -> None:
        seconds = [round(self.answer_seconds.get(site, 0.0), 2) for site in sites]
        self._log_event("uploads", round=number, sites=sites, seconds=seconds)

    def _sum_uploads(self, server: Server, number: int, exchange: Exchange, uploads: Mapping[str, bytes]) -> list[str]:
        """Sum the uploads and return the sites whose uploads were unusable; raise RunError if there are too many."""
        known, weighed = len(server.refusals), len(server.capped)
        stopped: RunError | None = None
        try:
            server.receive_uploads(number, exchange, uploads.items())
        except RunError as error:
            stopped = error
        refused = [refusal for _, refusal in server.refusals[known:]]
        for refusal in refused:
            self._log_event("refused", site=refusal.client, round=number, reason=refusal.reason)
        for _, one in server.capped[weighed:]:
            self._log_event("capped", site=one.client, round=number, stated_share=round(one.stated_share, 4))
        if stopped is not None:
            line = {"round": number, "of": self.plan.rounds, "full": 0, "seconds": 0.0, "refused": self.refused}
            self.run_folder.add_round({**line, "stopped": stopped.message})
            raise stopped
        return [refusal.client for refusal in refused]

    def _prepare_secure_sums(self, secure: SecureSumRules) -> ServerSecureSums:
        """Return the object that makes the secure sums of this run, with the deadline as it is now."""

        def ask_until_deadline(nodes: Mapping[str, int], frames: Mapping[str, Frame], kind: FrameKind) -> Replies:
            return self._ask_sites(nodes, frames, kind, awaited=nodes)

        seconds, name = self.deadline.seconds, self.plan.name
        return ServerSecureSums(
            self.folder, self.run_folder, name, secure, ask_until_deadline, self._log_event, seconds, self.minimum_sites
        )

    def _log_sites_without_answer(self, replies: Replies, number: int, patience_seconds: float) -> None:
        """Log the sites that refused or did not answer, and why the server went on without them."""
        for site, reason in sorted(replies.refused.items()):
            self._log_event("refused", site=site, round=number, reason=reason)
            # It is greeted again before the next exchange: its folder may be a new one.
            self.participants.profiles.pop(site, None)
        for site in replies.silent:
            self._log_event("silent", site=site, round=number, deadline_seconds=patience_seconds)
        dropped = self.run_folder.read_dropped_sites()
        for site in replies.not_awaited:
            if site in dropped:
                self._log_event("given up", site=site, round=number)
            else:
                self._log_event("not awaited", site=site, round=number, since=self.silent.since[site])

    def _finish_run(self, server: Server, ending: RunEnding) -> None:
        """Send the last head to the sites, collect their reports, and write the report of the run."""
        rounds = self.run_folder.read_rounds()
        if not (self.run_folder.read_uploads() or any(line["full"] for line in rounds)):
            why = "" if ending.reason is None else f": {ending.reason}"
            raise RunError(
                f"expected a round with at least {self.minimum_sites} sites, found none in {self.plan.name}{why}",
                hint="`fedlog federate status` shows which sites are connected, and why others were left out",
            )
        nodes = self._gather_sites()
        number = ending.round
        requests = make_finish_frames(server, self.plan.name, number, self.participants.profiles, nodes)
        # Each site now trains its local-only model, which takes as long as its work in all rounds together.
        patience = self.deadline.seconds + sum(float(line["seconds"]) for line in rounds)
        replies = self._ask_sites(nodes, requests, FrameKind.REPORT, nodes, patience)
        forget_received_broadcasts(server, replies.refused)
        self._log_sites_without_answer(replies, number, patience)
        sites, wrong = read_site_reports(self.plan, replies.answers)
        for site, reason in wrong.items():
            self._log_event("refused", site=site, round=number, reason=reason)
        if not sites:
            raise RunError(
                f"expected reports of the sites after the last round, found none within {patience:.0f} s",
                hint=f"when the sites are back, the same command with --name {self.plan.name} asks them again",
            )
        self._save_checkpoint(server, number)
        write_json(self.run_folder.report_file, make_run_report(self.plan, server, ending, sites, self.run_folder))
        self._log_event("finished", sites=[str(site["name"]) for site in sites])
