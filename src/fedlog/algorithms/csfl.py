"""CS-FL (Li, Li and Varshney 2021): clients and server send changes of the model, as few measurements or as signs.

A round has two exchanges. In the first, clients send measurements, as in compressed sensing: a few random linear
combinations of the large changes. The server broadcasts their average, and every client recovers the same sparse update
from it. In the second, clients train again, add the small changes that the first exchange left out, and send the sign
of each entry's change.
No parameters are sent: all clients start from the same model and add the same updates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.algorithms.interface import (
    EVERYTHING,
    Algorithm,
    Audience,
    Exchange,
    ModelPlan,
    Phase,
    Schedule,
    Work,
    WorkResult,
    cross_entropy,
)
from fedlog.core.compressed_sensing import MeasurementMatrix, recover_vector
from fedlog.core.keys import Key
from fedlog.errors import RunError
from fedlog.models.body import Params
from fedlog.wire.message import Contribution, Kind, Message

MEASURE, VOTE = "measure", "vote"
ERROR = "error"  # the changes that a client's measurements left out, kept for its vote in the same round


@dataclass(frozen=True)
class CSFL(Algorithm):
    """Sends compressed changes of the model instead of parameters, in both directions.

    Changes larger than `threshold` are measured. `reduction`, at most 1, is the number of measurements divided by the
    number of the model's entries.
    """

    plan: ModelPlan
    epochs: int = 5
    learning_rate: float = 0.001
    threshold: float = 0.005
    reduction: float = 0.1
    phase_1_rate: float = 0.001  # step size of the update that is recovered from the measurements
    phase_2_rate: float = 0.001  # step size of the update by signs
    iterations: int = 50  # of the recovery from measurements

    name = "cs-fl"

    def __post_init__(self) -> None:
        self._check_option("threshold", self.threshold >= 0, "must not be negative")
        self._check_option("reduction", 0 < self.reduction <= 1, "must be above 0 and at most 1")
        self._check_option("iterations", self.iterations >= 1, "must be at least 1")

    @property
    def schedule(self) -> Schedule:
        """Two exchanges a round: train and send measurements, then train and send signs.

        Every client needs every broadcast, because updates add up.
        """
        train = Phase(EVERYTHING, self.epochs, cross_entropy, self.learning_rate)
        return Schedule(round=(Exchange(MEASURE, (train,)), Exchange(VOTE, (train,))), audience=Audience.EVERYONE)

    def begin(self, key: Key) -> Params:
        """The server's first state: a seed for the initial model and the measurement matrix, and no update yet."""
        return {
            **super().begin(key),
            "updates": torch.zeros(1, dtype=torch.int64),
            "moved": torch.zeros(self.plan.n_entries, dtype=torch.float64),
        }

    def join(self, initial: Params) -> Params:
        """What a new client keeps at first: the initial model, and zeros for the changes not sent yet."""
        return {**initial, ERROR: torch.zeros(self.plan.n_entries)}

    def broadcast(self, server: Params) -> Message:
        """The newest update (signs or measurements) with its number.

        Before the first update, the seed of the initial model and the measurement matrix.
        """
        if "signs" in server:
            return Message(Kind.SIGNS, (server["signs"], server["updates"]))
        if "measurements" in server:
            numbers = torch.cat([server["support"], server["updates"]])
            return Message(Kind.MEASUREMENTS, (server["measurements"], numbers))
        return Message(Kind.SEED, (server["seed"],))

    def receive(self, message: Message, known: Params) -> Params:
        """The sum of all updates so far, with this one added if it is new."""
        if message.kind is Kind.SEED:
            return self.begin(Key(0)) | {"seed": message.arrays[0]}
        update, numbers = message.arrays
        new_updates = int(numbers[-1]) - int(known["updates"])
        if new_updates == 0:
            return known  # the same update again, after a resume
        if new_updates != 1:
            raise RunError(
                f"cs-fl: a client that has updates up to {int(known['updates'])} expected the next one, "
                f"found: update {int(numbers[-1])}",
                hint="every client needs every broadcast, because updates add up: use --participation 1",
            )
        if message.kind is Kind.SIGNS:
            move = self.phase_2_rate * (update.to(torch.float64) * 2 - 1)
        else:
            sparse = recover_vector(
                self._make_measurement_matrix(known["seed"]), update, int(numbers[0]), self.iterations
            )
            move = self.phase_1_rate * sparse
        return {"seed": known["seed"], "updates": numbers[-1:], "moved": known["moved"] + move}

    def start_exchange(self, exchange: str, home: Params, received: Params) -> Work:
        """The start of training: the model that all clients share; and the seed of the measurement matrix."""
        return Work(self.deploy(home, received), {"seed": received["seed"]})

    def finish_exchange(
        self, exchange: str, home: Params, work: Work, trained: WorkResult
    ) -> tuple[Params, Message | None]:
        """After the first exchange, to keep: the small changes. To send: measurements of the large changes.

        After the second exchange, to keep: zeros instead of those small changes. To send: the signs of the new changes
        with those small changes added.
        """
        change = self._flatten(trained.params) - self._flatten(work.params)
        if exchange == VOTE:
            signs = Message(Kind.SIGNS, (change + home[ERROR] >= 0, torch.tensor([trained.records])))
            return {**home, ERROR: torch.zeros_like(home[ERROR])}, signs
        large = torch.where(change.abs() > self.threshold, change, torch.zeros_like(change))
        measurements = self._make_measurement_matrix(work.constants["seed"]).measure(large).to(torch.float32)
        numbers = torch.tensor([int(large.count_nonzero()), trained.records])
        return {**home, ERROR: change - large}, Message(Kind.MEASUREMENTS, (measurements, numbers))

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The server's next state, with the update from the sum of this exchange.

        After the first exchange, the update is the mean of the clients' compressed changes (measurements), with the
        mean number of entries that clients kept, which is needed to recover the change. Both means are weighted by
        records. After the second exchange, the update is the majority sign of each entry, +1 in a tie.
        """
        news = {"updates": server["updates"] + 1}
        if exchange == VOTE:
            votes, voters = total.arrays
            if voters.item() == 0:
                return server
            news |= {"signs": votes >= 0, **({"support": server["support"]} if "support" in server else {})}
        else:
            measurements, (support, records) = total.arrays
            if records.item() == 0:
                return server
            mean_support = (support / records).round().to(torch.int64)[None]
            news |= {"measurements": (measurements / records).to(torch.float32), "support": mean_support}
        # The server updates its copy of the model as clients do: from its own broadcast.
        return {**self.receive(self.broadcast(news), server), **news}

    def deploy(self, home: Params, received: Params) -> Params:
        """The model that all clients share: the initial model plus all updates."""
        names = self.plan.list_top_params(len(self.plan.layers))
        parts = torch.split(received["moved"], [home[name].numel() for name in names])
        return {
            name: (home[name] + part.reshape(home[name].shape)).to(home[name].dtype)
            for name, part in zip(names, parts, strict=True)
        }

    def observe(self, server: Params) -> dict[str, float]:
        """The L2 norm of the sum of updates, and the number of measured changes divided by that of measurements.

        Recovery fails if there are more than 0.2 measured changes for each measurement.
        """
        moved = {"moved_norm": float(server["moved"].norm())}
        if "support" not in server:
            return moved
        return {**moved, "support_per_measurement": float(server["support"]) / self._n_measurements}

    @property
    def _n_measurements(self) -> int:
        return max(1, round(self.reduction * self.plan.n_entries))

    def _make_measurement_matrix(self, seed: Tensor) -> MeasurementMatrix:
        return MeasurementMatrix.from_seed(int(seed), self.plan.n_entries, self._n_measurements)

    def _flatten(self, params: Params) -> Tensor:
        return torch.cat([params[name].flatten() for name in self.plan.list_top_params(len(self.plan.layers))])
