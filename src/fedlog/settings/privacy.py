"""The privacy settings of a run; `settings/promise.py` checks them and makes a `Promise` of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fedlog.privacy.guarantee import Calibration, NoiseSetting, Trust, Unit
from fedlog.settings.fields import Section, setting


class BodyTraining(StrEnum):
    """How bodies are trained with --privacy record: not at all, or by DP-SGD."""

    FROZEN = "frozen"
    """Not at all: they stay as they were initialised or loaded."""
    DP_SGD = "dp-sgd"
    """By stochastic gradient descent with clipped gradients and noise."""


class Aggregation(StrEnum):
    """How uploads are added up so that the server does not see the upload of a single client."""

    SECURE = "secure"


@dataclass(frozen=True)
class PrivacySettings(Section):
    """The privacy settings: what is protected and how strongly, and how noise is added and bodies are trained.

    `trust` says who adds the noise, `calibration` how much of it a budget needs, and `noise` how it is drawn. `clip`
    bounds the features of a record, `message_norm` the whole upload of a client. `sgd_noise`, `sgd_clip` and
    `sample_rate` are settings of DP-SGD.
    """

    privacy: Unit | None = setting(
        None, "what is protected: one record, or a whole client or site; paper is no formal guarantee", deployed=True
    )
    epsilon: float | None = setting(None, "epsilon of the whole run", deployed=True, metavar="E")
    delta: float | None = setting(
        None, "delta of the whole run; a real promise needs 1e-5 or less", deployed=True, metavar="D"
    )
    trust: Trust | None = setting(None, "who adds noise (default: central)", deployed=True, aliases=("--mechanism",))
    calibration: Calibration | None = setting(None, "how noise follows from the budget (default: exact)")
    noise: NoiseSetting | None = setting(None, "how noise is drawn; float (default) is for simulation only")
    noise_draw: int | None = setting(
        None, "another draw of float noise, all else equal: 1, 2, ... (default: the seed's own draw)", metavar="N"
    )
    clip: str | None = setting(
        None, "bound on the features: clamp:B (each) or l2:R (each record)", deployed=True, metavar="BOUND"
    )
    message_norm: float | None = setting(
        None, "bound on the L2 norm of a client's or site's whole message", deployed=True, metavar="S"
    )
    body_training: BodyTraining | None = setting(None, "how bodies are trained with --privacy record")
    sgd_noise: float | None = setting(
        None, "noise of DP-SGD as a multiple of its clip (default: as much as half of epsilon needs)", metavar="Z"
    )
    sgd_clip: float | None = setting(
        None, "bound on the norm of each record's gradient in DP-SGD (default: 1)", metavar="C"
    )
    sample_rate: float | None = setting(
        None, "the chance that a record is in a step of DP-SGD (default: 0.1)", metavar="Q"
    )


@dataclass(frozen=True)
class SecureSumSettings(Section):
    """Settings of secure sums: whether to use them, how many honest clients they need, and how many clients drop out.

    `dropout_rate`, the chance that a client drops out, is for simulated runs only.
    """

    aggregation: Aggregation | None = setting(
        None, "secure: the server sees only the sum of the uploads", deployed=True
    )
    honest: int | None = setting(
        None, "honest survivors that a secure sum needs (default: over half)", deployed=True, metavar="H"
    )
    dropout_rate: float | None = setting(
        None, "the chance that a client stops answering during a secure sum (default: 0)", metavar="P"
    )
