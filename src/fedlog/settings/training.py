"""How long a run goes, who takes part in a round, and how clients take their steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from fedlog.settings.execution import Execution
from fedlog.settings.fields import (
    AtLeastOne,
    NotNegative,
    PositiveShare,
    Recorded,
    Section,
    Share,
    ShareBelowOne,
    late_setting,
    setting,
)

# Of a round's uploads that may be unusable before the run stops. An error that depends on the records would be a
# release of its own, so private runs go on; elsewhere a table must not quietly lose a client.
REFUSED_SHARE = 0.5
REFUSED_SHARE_WITHOUT_PRIVACY = 0.0


class AdamMoments(StrEnum):
    """How long a client's Adam remembers: its moments restart with each epoch, with each round, or never."""

    EPOCH = "epoch"
    """As in the authors' code."""
    ROUND = "round"
    RUN = "run"


class Decay(StrEnum):
    """The course of the learning rate over a run."""

    NONE = "none"
    """It stays as it is, as in the paper."""
    COSINE = "cosine"
    """It falls along half a cosine, from all of it in round 1 to next to nothing in the last."""


class Recipe(StrEnum):
    """Which default settings a run takes."""

    PAPER = "paper"
    """Those of the paper's tables."""
    TUNED = "tuned"
    """Those that a selection of equal size for every method supports, on MNIST images that no table uses."""


class Judge(StrEnum):
    """Which held-out records a client is judged on."""

    TEST = "test"
    VALIDATION = "validation"
    BOTH = "both"
    """Test records, and validation records beside them, on which each client chooses its round."""

    @property
    def parts(self) -> tuple[Judge, ...]:
        """The kinds of records that are judged; a run's accuracy is taken on the first."""
        return (Judge.TEST, Judge.VALIDATION) if self is Judge.BOTH else (self,)


class Initialisation(StrEnum):
    """Whether all clients of one architecture start from the same parameters."""

    SHARED = "shared"
    SEPARATE = "separate"


class Down(StrEnum):
    """The content of a broadcast: whole values, or differences."""

    WHOLE = "whole"
    DIFFERENCES = "differences"
    """To what each client has."""


class World(StrEnum):
    """Of which classes a client gets the head's rows."""

    OPEN = "open"
    CLOSED = "closed"
    """Its own: it says that it will never see others."""


@dataclass(frozen=True)
class Optimiser(Section):
    """How clients take their steps: the same in the simulator and over Flower.

    A new setting of the optimiser is one more field here, and its use in `engine/training`.
    """

    moments: AdamMoments = late_setting(
        AdamMoments.EPOCH, "how long Adam's moments last: an epoch, a round, or the whole run (kept at home)"
    )
    decay: Decay = late_setting(
        Decay.NONE, "how the learning rate falls: not at all, or along half a cosine to the last round"
    )
    weight_decay: NotNegative = late_setting(
        0.0, "AdamW's weight decay: each step shrinks the parameters by this share times the learning rate", metavar="W"
    )


@dataclass(frozen=True, kw_only=True)
class RoundSettings(Section):
    """Settings of a round: who takes part, what is sent, and which records judge the outcome."""

    seed: int = setting(0, "seed of everything random except private noise", deployed=True, metavar="N")
    participation: PositiveShare = setting(1.0, "share of the clients in each round", metavar="F")
    judge: Judge = setting(
        Judge.TEST, "held-out records the accuracy is taken on; both: test, with rounds chosen on validation beside it"
    )
    initialisation: Initialisation = setting(
        Initialisation.SHARED, "how bodies start: all from the same parameters, or each from its own"
    )
    stop_at_accuracy: Share | None = setting(
        None, "stop at this accuracy (0.97 for 97 %); only to measure the cost to a threshold", metavar="F"
    )
    codec: str = setting(
        "f32",
        "how messages are written: f32, rows, f16, q8, q4, rows+q8, rows+q8+zstd, ... (docs/wire.md)",
        deployed=True,
        metavar="NAME",
    )
    codec_down: str | None = late_setting(None, "how broadcasts are written (default: as uploads are)", metavar="NAME")
    down: Down = late_setting(Down.WHOLE, "broadcasts: whole, or the difference to what each client has")
    world: World = late_setting(
        World.OPEN, "closed: a client gets the rows of its own classes only (over Flower: a site that says so)"
    )
    skip_below: NotNegative | None = late_setting(
        None, "replace a message by a short note if it changed by less than this share of its norm", metavar="T"
    )
    largest_share: PositiveShare | None = late_setting(
        None,
        "the most that one client can weigh in a sum, as a share of all records, whatever count it states",
        metavar="F",
    )
    carry: Share | None = setting(
        None,
        "take this share of the old posterior as the next prior; the server then remembers no client",
        recorded=Recorded.NEVER,  # it is an option of the method, and recorded as such
        deployed=True,
        metavar="G",
    )


@dataclass(frozen=True, kw_only=True)
class RunSettings(RoundSettings):
    """All settings of a run apart from its method, its data and its models. None is left open."""

    rounds: AtLeastOne = 10
    batch_size: AtLeastOne = 10
    refused_share: ShareBelowOne = REFUSED_SHARE
    optimiser: Optimiser = field(default_factory=Optimiser)
    execution: Execution = field(default_factory=Execution)
