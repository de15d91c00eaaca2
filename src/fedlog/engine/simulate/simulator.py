"""Simulate a whole federation on one machine: run the rounds, record them, write and resume checkpoints.

A round consists of local work, uploads, the server's step, the broadcast and evaluation. The broadcast is sent to the
participants of the next round, and after the last round to all clients. All clients are evaluated in every round; the
evaluation is not part of the protocol, and its bits are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedlog.algorithms.interface import Algorithm, Audience, Bodies, Exchange, ModelPlan
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.engine.clients import check_method_fits_labels, list_clients, list_methods_for_different_bodies
from fedlog.engine.protocol import checkpoint
from fedlog.engine.protocol.cohort import Cohort, Score
from fedlog.engine.protocol.downlink import check_transport_fits_method
from fedlog.engine.protocol.server import Server
from fedlog.engine.simulate.workers import InProcess, Scores, WorkerProcesses, Workers
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import CLOCK, combine_times, set_learning_rates
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Body, draw_initial_head
from fedlog.privacy.limits import UploadLimits
from fedlog.privacy.protection import Protection
from fedlog.privacy.release_log import ReleaseRecorder
from fedlog.settings.training import HeldOutRecords, Initialisation, RunSettings
from fedlog.wire.ledger import Direction
from fedlog.wire.transport import Transport

if TYPE_CHECKING:
    from fedlog.engine.simulate.secure_sums import SecureSums  # not at run time: only secure runs need cryptography

# Rounding may bring a mean of 97 % over clients a little below 0.97; real differences are larger than this.
ACCURACY_ROUNDING = 1e-11


@dataclass(frozen=True)
class RoundRecord:
    """What is recorded about one round; bits are summed over all clients.

    `observed` has further numbers by name, which the method, privacy and secure sums report.
    """

    round: int
    accuracy_mean_over_clients: float
    correct_per_client: list[int]
    records_per_client: list[int]
    participants: int
    bits_up: int
    bits_down: int
    bits_by_kind: dict[str, int]
    observed: dict[str, float]
    refused: dict[str, str]
    seconds: float
    seconds_by_part: dict[str, float] = field(default_factory=dict)  # only if the run is profiled
    capped: dict[str, float] = field(default_factory=dict)  # clients that were scaled down: the share they claimed
    # If a number is predicted, in the unit of the number; "correct" then counts those inside their 90 % interval.
    rmse_per_client: list[float | None] = field(default_factory=list)
    validation_per_client: list[float | None] = field(default_factory=list)  # accuracy, with --judge both

    @property
    def accuracy_per_client(self) -> list[float | None]:
        """The accuracy of each client, in the clients' order; None for a client without held-out records."""
        pairs = zip(self.correct_per_client, self.records_per_client, strict=True)
        return [correct / records if records else None for correct, records in pairs]


@dataclass
class Simulation:
    """One simulated run; `rounds()` runs it round by round.

    The workers, which may be processes, run from `start` to `stop`, or within a `with` statement.
    """

    algorithm: Algorithm
    federation: Federation
    bodies: Sequence[Body]
    plan: ModelPlan
    engine: Engine
    settings: RunSettings
    protection: Protection | None = None
    secure: SecureSums | None = None
    limits: UploadLimits | None = None  # bounds on statistics, in a run with a clip and without privacy
    releases: ReleaseRecorder = field(default_factory=ReleaseRecorder)
    round_number: int = 0
    profiles: bool = False  # whether records have the seconds of each part of a round
    workers: Workers = field(init=False)
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        key = Key(self.settings.seed)
        transport = self.settings.transport
        self._key = key
        self._clients = list_clients(self.federation, self.bodies, self.algorithm)
        self._check_settings()
        # Before workers are forked, so that all use the backend that was chosen once.
        self.engine = self.engine.adapt_to_protection(self.protection).choose_backends(self.federation, self._clients)
        initial = {
            HEAD: draw_initial_head(self.plan.width, self.plan.n_class, key),
            **self.bodies[0].make_initial_params(key),
        }
        self.server = Server.create(
            self.algorithm,
            self.plan,
            initial,
            key.child("server"),
            self.protection,
            transport,
            refused_share=self.settings.refused_share,
            limits=self.limits,
            # With secure sums the server sees no single upload that it could keep.
            remembers=(self.settings.participation < 1 or transport.skip_below is not None) and self.secure is None,
            largest_share=self.settings.largest_share,
        )
        self.workers = self._make_workers(transport)

    def start(self) -> Simulation:
        """Start the workers and return the simulation."""
        self.workers.start()
        return self

    def stop(self) -> None:
        """Stop the workers."""
        self.workers.stop()

    def __enter__(self) -> Simulation:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _check_settings(self) -> None:
        """Refuse settings with which the run would fail later."""
        for kind in self.settings.judge.kinds:
            held_out = [c.tests if kind is HeldOutRecords.TEST else c.validations for c in self._clients]
            if not any(len(part) for parts in held_out for part in parts):
                hint = "hold out some training records: --validation-fraction 0.2"
                raise InputError(
                    f"data set {self.federation.name}: no client has a {kind.value} record to measure accuracy on",
                    hint=hint if kind is HeldOutRecords.VALIDATION else f"{hint} --judge validation",
                )
        check_method_fits_labels(self.algorithm, numbers=self.federation.target_range is not None)
        self._check_bodies()
        check_transport_fits_method(self.algorithm, self.settings.transport)

    def _check_bodies(self) -> None:
        """Refuse bodies, and ways to initialise them, that the method cannot use."""
        differ = len({body.name for body in self.bodies}) > 1
        separate = self.settings.initialisation is Initialisation.SEPARATE
        if separate and self.algorithm.bodies is Bodies.SAME:
            raise InputError(
                f"method {self.algorithm.name} cannot be used with --initialisation separate: all clients must start "
                "from the same model",
                hint=f"these methods accept it: {list_methods_for_different_bodies()}",
            )
        fixed = sorted(self.bodies[0].untrained_params)
        if fixed and self.algorithm.schedule.audience is Audience.EVERYONE:
            raise InputError(
                f"method {self.algorithm.name} changes all parameters, but body {self.bodies[0].name} has some that "
                f"must not be trained: {fixed[0]}",
                hint="use another method, or a body without requires_grad=False",
            )
        if self.algorithm.schedule.opening and (differ or separate):
            raise InputError(
                f"method {self.algorithm.name} begins with an exchange of statistics, "
                "which can be added up only if all bodies start equal, "
                f"found: {'different bodies' if differ else '--initialisation separate'}",
                hint="use one body and --initialisation shared; or, for FedLog, --set first_head=random",
            )

    def _make_workers(self, transport: Transport) -> Workers:
        if self.secure is not None:  # masked words are sent instead of encoded uploads
            transport = replace(transport, codec="f32", codec_down=transport.broadcast_codec.name)

        make = partial(
            Cohort,
            self.algorithm,
            self.federation,
            engine=self.engine,
            key=self._key,
            transport=transport,
            initialisation=self.settings.initialisation,
            protection=self.protection,
        )
        if self.settings.execution.jobs == 1 or len(self._clients) == 1:
            return InProcess(make, self._clients)
        return WorkerProcesses(make, self._clients, self.settings.execution.jobs, self.settings.execution.threads)

    def rounds(self, last: RoundRecord | None = None) -> Iterator[RoundRecord]:
        """Run the remaining rounds, and yield a `RoundRecord` for each.

        `last` is the record of the last round before a resume; if it reached the target accuracy, no round is run.
        """
        if self.round_number == 0:
            self._run_opening()
        elif self.server.downlink is None:  # otherwise each client's last broadcast is in the checkpoint
            # Not sent again: the bits of this broadcast are already in the ledger.
            self.workers.receive_broadcast(self.server.encode_broadcast(self.round_number))
        target = self.settings.stop_at_accuracy
        while self.round_number < self.settings.rounds:
            if last is not None and target is not None and reaches_target(last.accuracy_mean_over_clients, target):
                return
            last = self._run_round(self.round_number + 1)
            self.round_number += 1
            yield last

    def evaluate_after_closing(self) -> list[float] | None:
        """The accuracy of each client after the training that ends a run (`closing`); None if the method has none."""
        closing = self.algorithm.schedule.closing
        if not closing:
            return None
        scores = self.workers.evaluate(self._all_client_numbers, self.settings.judge.kinds[0], closing)
        return [score.correct / score.records for score in _flatten(scores) if score.records]

    def save_models(self, folder: Path) -> None:
        """Write every client's personal model into the folder."""
        self.workers.save_models(self.algorithm.schedule.closing, folder)

    def save(self, folder: Path) -> None:
        """Write a checkpoint into the folder; the older one is deleted when the new one is complete."""
        sums = None if self.secure is None else self.secure.get_progress()
        checkpoint.write(folder, self.server.make_checkpoint_state(self.round_number, sums), self.workers.save)

    def resume(self, folder: Path) -> None:
        """Continue from the checkpoint in the folder."""
        kept = checkpoint.read(folder, self.workers.load)
        self.round_number = kept.round_number
        self.server.resume(kept)
        if self.secure is not None:
            self.secure.resume_from(kept.sums, folder)

    @property
    def _all_client_numbers(self) -> list[int]:
        return [client.index for client in self._clients]

    def draw_participants(self, round_number: int) -> list[int]:
        """The numbers of the clients that take part in a round, drawn with the seed and the number of the round."""
        everyone = self._all_client_numbers
        count = max(1, round(self.settings.participation * len(everyone)))
        if count == len(everyone):
            return everyone
        # Sorted by name, so that the order of the clients does not matter.
        by_name = sorted(everyone, key=lambda index: self._clients[index].name)
        order = self._key.child("round", round_number, "participants").numpy().permutation(len(everyone))
        return sorted(by_name[at] for at in order[:count])

    def _run_opening(self) -> None:
        """Send the first broadcast, then run the method's opening exchange if it has one; bits count for round 0."""
        opening = self.algorithm.schedule.opening
        if not any(self.server.templates.values()):
            # A method without uploads has no broadcasts either, so nothing is counted.
            self.workers.receive_broadcast(self.server.encode_broadcast(0))
            return
        # To all clients, so that those that take part later start from the same seed.
        self._broadcast(0, self._all_client_numbers)
        if opening is not None:
            following = self.draw_participants(1)
            self._run_exchange(0, opening, self._all_client_numbers, self._find_receivers(following), following)

    def _read_and_reset_times(self, seconds: float) -> dict[str, float]:
        """How the round's `seconds` were spent, by part of the work; `other` is the rest. All stopwatches are reset."""
        workers = self.workers.read_and_reset_times()
        return combine_times(seconds, CLOCK.read_and_reset(), workers)

    def _broadcast(self, round_number: int, receivers: list[int]) -> None:
        """Send the broadcast to these clients, and count its bits.

        If all clients get the same bytes, other clients get them too, uncounted, so that they can be evaluated.
        """
        downlink = self.server.downlink
        if downlink is None:
            with CLOCK.time("encode"):
                blob = self.server.encode_and_count_broadcast(round_number, len(receivers))
            self.workers.receive_broadcast(blob)
            return
        names = {index: self._clients[index].name for index in receivers}
        unknown = [index for index, name in names.items() if not downlink.knows(name)]
        with CLOCK.time("encode"):
            sent = self.server.encode_and_count_separate_broadcasts(downlink, round_number, list(names.values()))
        self.workers.receive_own_broadcasts({index: sent[name] for index, name in names.items()}, unknown)

    def _run_round(self, round_number: int) -> RoundRecord:
        if self.profiles:
            self._read_and_reset_times(0.0)  # the time between two rounds is not counted
        start = time.perf_counter()
        participants = self.draw_participants(round_number)
        exchanges = self.algorithm.schedule.round
        for at, exchange in enumerate(exchanges):
            last = at == len(exchanges) - 1
            receivers = self._find_receivers_after_round(round_number) if last else self._find_receivers(participants)
            following = self._draw_participants_after_round(round_number) if last else participants
            slowed = set_learning_rates(exchange, self.settings.optimiser, round_number, self.settings.rounds)
            self._run_exchange(round_number, slowed, participants, receivers, following)
        # The first scores give the accuracy; with --judge both, there are also scores on validation records.
        kinds = self.settings.judge.kinds
        scores, *validated = (_flatten(self.workers.evaluate(self._all_client_numbers, kind)) for kind in kinds)
        measured = [score for score in scores if score.records]
        ledger = self.server.ledger
        seconds = time.perf_counter() - start
        return RoundRecord(
            round=round_number,
            accuracy_mean_over_clients=sum(score.correct / score.records for score in measured) / len(measured),
            correct_per_client=[score.correct for score in scores],
            records_per_client=[score.records for score in scores],
            participants=len(participants),
            bits_up=ledger.sum_bits(Direction.UP, round_number=round_number),
            bits_down=ledger.sum_bits(Direction.DOWN, round_number=round_number),
            bits_by_kind=ledger.sum_bits_by_kind(round_number),
            observed=self._collect_observed_numbers(),
            # The opening exchange is recorded with round 1.
            refused={r.client: r.reason for at, r in self.server.refusals if max(at, 1) == round_number},
            capped={one.client: one.stated_share for at, one in self.server.capped if max(at, 1) == round_number},
            seconds=seconds,
            seconds_by_part=self._read_and_reset_times(seconds) if self.profiles else {},
            rmse_per_client=[score.rmse for score in scores] if self.federation.target_range is not None else [],
            validation_per_client=[score.share_correct for held_out in validated for score in held_out],
        )

    def _collect_observed_numbers(self) -> dict[str, float]:
        """The numbers that the method, privacy and secure sums report about the last round, by name."""
        kept = {} if self.protection is None else {"kept_old_head": float(self.server.kept_state)}
        sums = {} if self.secure is None else self.secure.read_and_reset_counts()
        return {**self.algorithm.observe(self.server.state), **kept, **sums}

    def count_receivers(self, round_number: int) -> int:
        """How many clients get the last broadcast of a round: the next participants or, after the last round, all."""
        return len(self._find_receivers_after_round(round_number))

    def _find_receivers_after_round(self, round_number: int) -> list[int]:
        """The clients that get the last broadcast of this round; after the last round, these are all clients."""
        return self._find_receivers(self._draw_participants_after_round(round_number) or self._all_client_numbers)

    def _draw_participants_after_round(self, round_number: int) -> list[int]:
        """The participants of the round after this one; none after the last round."""
        return self.draw_participants(round_number + 1) if round_number < self.settings.rounds else []

    def _find_receivers(self, following: list[int]) -> list[int]:
        """The clients that get a broadcast: all if the method asks for it, else `following`, the next participants."""
        return self._all_client_numbers if self.algorithm.schedule.audience is Audience.EVERYONE else following

    def _run_exchange(
        self, round_number: int, exchange: Exchange, participants: list[int], receivers: list[int], following: list[int]
    ) -> None:
        self._record_releases(round_number, exchange)
        uploads = self.workers.make_encoded_uploads(round_number, exchange, participants)
        sent = [(index, blob) for index, blob in uploads if blob is not None]
        if not sent:
            return  # a method without communication
        with CLOCK.time("head"):
            if self.secure is None:
                self.server.receive_uploads(
                    round_number, exchange, [(self._clients[index].name, blob) for index, blob in sent]
                )
            else:
                self.secure.receive_uploads(self.server, round_number, exchange, sent, following)
        self._broadcast(round_number, receivers)

    def _record_releases(self, round_number: int, exchange: Exchange) -> None:
        """Record the privacy cost of this exchange before anything is sent; RunError if the budget is too small."""
        if self.protection is None:
            return
        trained = self.protection.make_training_event(round_number, exchange.name) if exchange.phases else None
        for upcoming in (trained, self.protection.make_release_event(round_number, exchange.name)):
            if upcoming is not None:
                self.releases.record(upcoming, self.protection.budget)


def reaches_target(accuracy: float, target: float) -> bool:
    """Whether the accuracy is at least the target, up to rounding errors."""
    return accuracy >= target - ACCURACY_ROUNDING


def _flatten(scores: Scores) -> list[Score]:
    return [score for _, parts in scores for score in parts]
