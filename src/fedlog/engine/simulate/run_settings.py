"""What a run is asked to do, apart from its method, its data and its models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from fedlog.engine.protocol.cohort import Initialisation, Judge
from fedlog.engine.protocol.server import REFUSED_SHARE
from fedlog.errors import InputError

# A mean over clients that is 97 % may come out a few units in the last place below 0.97; real differences are larger.
ACCURACY_ROUNDING = 1e-11


def reaches(accuracy: float, target: float) -> bool:
    """Whether the accuracy is the target or more, up to what summing the clients' shares loses."""
    return accuracy >= target - ACCURACY_ROUNDING


class Decay(StrEnum):
    """What becomes of the learning rate over a run."""

    NONE = "none"
    """It stays as it is, as in the paper."""
    COSINE = "cosine"
    """It falls along half a cosine, from all of it in round 1 to next to nothing in the last."""


@dataclass(frozen=True)
class Course:
    """How long a run goes, who takes part, and what it is judged on."""

    rounds: int
    seed: int = 0
    participation: float = 1.0
    judge: Judge = Judge.TEST
    initialisation: Initialisation = Initialisation.SHARED
    stop_at_accuracy: float | None = None  # for measurements of cost to a threshold only
    codec: str = "f32"
    jobs: int = 1
    threads: int = 1  # of PyTorch, in each worker process
    refused_share: float = REFUSED_SHARE  # of a round's uploads that may be unusable before the run stops
    decay: Decay = Decay.NONE

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"a run needs at least one round: {self.rounds}")
        if not 0 < self.participation <= 1:
            raise InputError(f"participation must be above 0 and at most 1: {self.participation}")
        if not 0 <= self.refused_share < 1:
            raise InputError(f"the share of uploads that may be refused lies in [0, 1): {self.refused_share}")
        if self.jobs < 1 or self.threads < 1:
            raise InputError(f"processes and threads must be at least 1: {self.jobs} and {self.threads}")
        if self.stop_at_accuracy is not None and not 0 <= self.stop_at_accuracy <= 1:
            raise InputError(
                f"the accuracy to stop at is a share between 0 and 1: {self.stop_at_accuracy}", hint="0.97 for 97 %"
            )

    def share_of_rate(self, round_number: int) -> float:
        """What is left of the learning rate in that round."""
        if self.decay is Decay.NONE:
            return 1.0
        return (1 + math.cos(math.pi * (round_number - 1) / self.rounds)) / 2
