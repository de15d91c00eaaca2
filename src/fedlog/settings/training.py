"""Settings of training: the optimiser, and the rounds (who takes part, what is sent, how accuracy is measured)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from fedlog.settings.execution import Execution
from fedlog.settings.fields import (
    AtLeastOne,
    InDigest,
    NotNegative,
    PositiveShare,
    Section,
    Share,
    ShareBelowOne,
    late_setting,
    setting,
)

if TYPE_CHECKING:
    from fedlog.wire.transport import Transport

# The share of a round's uploads that may be unusable before the run stops. A private run tolerates some, because
# stopping would reveal something about the records. Others stop at once, so that no table silently lacks a client.
REFUSED_SHARE = 0.5
REFUSED_SHARE_WITHOUT_PRIVACY = 0.0


class AdamMoments(StrEnum):
    """When a client's Adam forgets its moments: at each epoch, at each round, or never during the run."""

    EPOCH = "epoch"
    """As in the authors' code."""
    ROUND = "round"
    RUN = "run"


class Decay(StrEnum):
    """How the learning rate falls over a run."""

    NONE = "none"
    """It stays the same, as in the paper."""
    COSINE = "cosine"
    """It falls along half a cosine, from its full value in round 1 to almost 0 in the last round."""


class Recipe(StrEnum):
    """Which default settings a run uses: those of the paper, or tuned ones."""

    PAPER = "paper"
    """Those of the paper's tables."""
    TUNED = "tuned"
    """Those chosen on MNIST images that no table uses, with the same number of trials for every method."""


class HeldOutRecords(StrEnum):
    """The held-out records on which a client's accuracy is measured: the values of the setting `judge`."""

    TEST = "test"
    VALIDATION = "validation"
    BOTH = "both"
    """Test records, and also validation records, on which each client chooses its best round."""

    @property
    def kinds(self) -> tuple[HeldOutRecords, ...]:
        """The kinds of held-out records on which accuracy is measured; the first kind gives the run's accuracy."""
        return (HeldOutRecords.TEST, HeldOutRecords.VALIDATION) if self is HeldOutRecords.BOTH else (self,)


class Initialisation(StrEnum):
    """Whether all clients of one architecture start from the same parameters."""

    SHARED = "shared"
    SEPARATE = "separate"


class BroadcastForm(StrEnum):
    """Whether the server broadcasts whole values, or only their differences from earlier values."""

    WHOLE = "whole"
    DIFFERENCES = "differences"
    """For each client, the differences from the last broadcast that it has."""


class HeadRows(StrEnum):
    """Which rows of the head a client gets (a row belongs to a class): the values of the setting `world`."""

    OPEN = "open"
    """The rows of all classes."""
    CLOSED = "closed"
    """Only the rows of the classes in its own records; it can then never predict another class."""


@dataclass(frozen=True)
class Optimiser(Section):
    """Settings of the optimiser, the same in the simulator and over Flower.

    To add a setting, add a field here and use it in `engine/training`.
    """

    moments: AdamMoments = late_setting(
        AdamMoments.EPOCH,
        "how long Adam's moments last: an epoch, a round, or the whole run (they stay at the client); "
        "the tuned recipe has its own",
    )
    decay: Decay = late_setting(
        Decay.NONE,
        "how the learning rate falls: not at all, or along half a cosine to the last round; "
        "the tuned recipe has its own",
    )
    weight_decay: NotNegative = late_setting(
        0.0, "AdamW's weight decay: each step shrinks the parameters by this share times the learning rate", metavar="W"
    )


@dataclass(frozen=True, kw_only=True)
class RoundSettings(Section):
    """Settings of the rounds: who takes part, what is sent, and on which records accuracy is measured.

    Settings of what is sent: `codec` is how uploads are written, `codec_down` how broadcasts are. `down` is whether
    broadcasts are whole or differences, `world` which rows of the head a client gets. A message that changed too little
    for `skip_below` is replaced by a note. `largest_share` limits the weight of one client, and `carry` is the share of
    the old posterior in the next prior.
    """

    seed: int = setting(0, "seed of everything random except private noise", deployed=True, metavar="N")
    participation: PositiveShare = setting(1.0, "share of the clients in each round", metavar="F")
    judge: HeldOutRecords = setting(
        HeldOutRecords.TEST,
        "held-out records that accuracy is measured on; both: on test, and each client also chooses its best round on "
        "validation",
    )
    initialisation: Initialisation = setting(
        Initialisation.SHARED, "how bodies start: all from the same parameters, or each from its own"
    )
    stop_at_accuracy: Share | None = setting(
        None, "stop at this accuracy (0.97 for 97 %); only to measure the cost of reaching it", metavar="F"
    )
    codec: str = setting(
        "f32",
        "how messages are written: f32, rows, f16, q8, q4, rows+q8, rows+q8+zstd, ... (docs/wire.md)",
        deployed=True,
        metavar="NAME",
    )
    codec_down: str | None = late_setting(None, "how broadcasts are written (default: as uploads are)", metavar="NAME")
    down: BroadcastForm = late_setting(
        BroadcastForm.WHOLE, "broadcasts: whole, or the difference to what each client has"
    )
    world: HeadRows = late_setting(
        HeadRows.OPEN, "closed: a client gets only the rows of the classes it holds (over Flower: each site decides)"
    )
    skip_below: NotNegative | None = late_setting(
        None, "replace a message by a short note if it changed by less than this share of its norm", metavar="T"
    )
    largest_share: PositiveShare | None = late_setting(
        None,
        "upper limit on one client's weight in a sum, as a share of all records, whatever count it claims",
        metavar="F",
    )
    carry: Share | None = setting(
        None,
        "use this share of the old posterior as the next prior; the server then keeps no client's upload",
        in_digest=InDigest.NEVER,  # it becomes one of the method's `options`, which are in the digest
        deployed=True,
        metavar="G",
    )

    @property
    def transport(self) -> Transport:
        """How messages are encoded and sent; InputError if its settings contradict each other."""
        from fedlog.wire.transport import Transport  # here, because codecs import PyTorch, and flags must not

        return Transport(
            codec=self.codec,
            codec_down=self.codec_down,
            differences=self.down is BroadcastForm.DIFFERENCES,
            closed_world=self.world is HeadRows.CLOSED,
            skip_below=self.skip_below,
        )


@dataclass(frozen=True, kw_only=True)
class RunSettings(RoundSettings):
    """The settings of a run's rounds, optimiser and computation, with every default filled in."""

    rounds: AtLeastOne = 10
    batch_size: AtLeastOne = 10
    refused_share: ShareBelowOne = REFUSED_SHARE
    optimiser: Optimiser = field(default_factory=Optimiser)
    execution: Execution = field(default_factory=Execution)
