"""The settings of an audit (the claim to refute and the effort), and its result."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fedlog.errors import InputError
from fedlog.privacy.calibration import find_largest_mu
from fedlog.privacy.guarantee import NEIGHBOURS, Budget, NoiseSetting, Trust, Unit

MOST_CLIENTS = 500  # in a secure sum; its work grows with the square of their number


class Fault(StrEnum):
    """A fault to plant in the protection (clipping and noise), to check that the audit notices it."""

    NONE = "none"
    SMALL_NOISE = "small-noise"
    """Noise that is too small by a factor."""
    UNCLIPPED = "unclipped"
    """Features or messages are not clipped."""
    EXACT_COUNT = "exact-count"
    """The number of records beside the noisy statistics, as the paper's protocol sends it."""


class AuditedPart(StrEnum):
    """What is audited: the training of bodies by DP-SGD, or the statistics that clients send."""

    STATISTICS = "statistics"
    DP_SGD = "dp-sgd"


@dataclass(frozen=True)
class AuditSettings:
    """The settings of an audit: the privacy claim, and the effort to spend on refuting it."""

    unit: Unit
    budget: Budget
    trust: Trust = Trust.CENTRAL
    clip: str = "clamp:2"
    message_norm: float = 20.0
    noise: NoiseSetting = NoiseSetting.FLOAT
    fault: Fault = Fault.NONE
    too_small: float = 10.0
    """The factor by which the noise is too small under the fault `small-noise`."""
    releases: int = 1
    """How many releases share the budget."""
    audited: AuditedPart = AuditedPart.STATISTICS
    trials: int = 40_000
    """How many trials are made with the canary, and as many without it."""
    trainings: int = 4
    """How many different trainings the trials draw from."""
    canaries: int = 2000
    """How many canaries an audit in one run plants."""
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.trials < 100 or self.trainings < 1 or not 0.5 <= self.confidence < 1:
            raise InputError(
                f"an audit needs at least 100 trials, one training and a confidence from 0.5 up to 1, found: "
                f"{self.trials} trials, {self.trainings} trainings, confidence {self.confidence}",
                hint="--trials 40000 --confidence 0.95",
            )
        if self.releases < 1 or self.canaries < 100 or not self.too_small > 0:
            raise InputError(
                f"an audit needs at least one release, 100 canaries and --too-small above 0, found: "
                f"{self.releases} releases, {self.canaries} canaries, --too-small {self.too_small:g}",
                hint="--releases 1 --canaries 2000 --too-small 10",
            )
        if self.in_one_run:
            self._check_one_run()

    @property
    def in_one_run(self) -> bool:
        """Whether the audit plants many canaries in one run, because repeated runs would take too long."""
        return self.trust is Trust.DISTRIBUTED or self.audited is AuditedPart.DP_SGD

    def _check_one_run(self) -> None:
        """Refuse settings that an audit in one run does not support."""
        training = self.audited is AuditedPart.DP_SGD
        what = "DP-SGD" if training else "a secure sum"
        if self.unit is Unit.PAPER or (training and self.unit is Unit.CLIENT):
            raise InputError(
                f"an audit of {what} in one run does not support --privacy {self.unit}",
                hint="--privacy record",
            )
        if self.unit is Unit.CLIENT and self.canaries > MOST_CLIENTS:
            raise InputError(
                f"an audit of whole clients in a secure sum can have at most {MOST_CLIENTS} canaries, because its work "
                f"grows with the square of the number of clients, found: {self.canaries}",
                hint="--canaries 200",
            )
        able = (Fault.NONE, Fault.SMALL_NOISE)
        if self.releases != 1 or self.fault not in able:
            raise InputError(
                f"an audit of {what} needs one release and the fault `{Fault.SMALL_NOISE}` or `{Fault.NONE}`, found: "
                f"{self.releases} releases, fault `{self.fault}`",
                hint="--releases 1, without --fault",
            )


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit: a lower bound on epsilon, which holds with the audit's confidence.

    `epsilon_lower` is the bound that was found, `epsilon_visible` the largest bound that such an audit can find.
    """

    audit: AuditSettings
    epsilon_lower: float
    epsilon_visible: float
    """The largest lower bound that this audit can find: the one that it finds if there is no noise."""
    mu_lower: float | None = None
    """The bound on the mu of Gaussian differential privacy that gives `epsilon_lower`; None for an audit in one run."""

    @property
    def is_audit_too_weak(self) -> bool:
        """Whether the audit is too weak to refute the claim, even if no noise were added."""
        return self.epsilon_visible <= self.audit.budget.epsilon

    @property
    def refutes_claim(self) -> bool:
        """Whether the result refutes the claim, at the stated confidence."""
        return self.epsilon_lower > self.audit.budget.epsilon

    def as_json(self) -> dict[str, object]:
        """Return the result as JSON values."""
        audit = self.audit
        planted = {"too_small": audit.too_small} if audit.fault is Fault.SMALL_NOISE else {}
        trials = {"canaries": audit.canaries} if audit.in_one_run else {"trials": audit.trials}
        bounds = (
            {} if self.mu_lower is None else {"mu_lower": self.mu_lower, "mu_claimed": find_largest_mu(audit.budget)}
        )
        return {
            "epsilon_lower": self.epsilon_lower,
            "epsilon_visible": self.epsilon_visible,
            "epsilon_claimed": audit.budget.epsilon,
            **bounds,
            "delta": audit.budget.delta,
            "contradicted": self.refutes_claim,
            "confidence": audit.confidence,
            **trials,
            "trainings": 1 if audit.in_one_run else audit.trainings,
            "audited": str(audit.audited),
            "unit": str(audit.unit),
            "mechanism": str(audit.trust),
            "neighbours": NEIGHBOURS[audit.unit, audit.trust],
            "releases": audit.releases,
            "fault": str(audit.fault),
            **planted,
            "statement": str(self),
        }

    def __str__(self) -> str:
        audit = self.audit
        verdict = "CONTRADICTED" if self.refutes_claim else "BLIND" if self.is_audit_too_weak else "not contradicted"
        called = "Theorem 4's formula says" if audit.unit is Unit.PAPER else "claimed"
        times = f" ({audit.too_small:g} times too small)" if audit.fault is Fault.SMALL_NOISE else ""
        fault = "" if audit.fault is Fault.NONE else f"; planted fault: {audit.fault}{times}"
        gaussian = "" if self.mu_lower is None else f" (mu {self.mu_lower:.3g} of {find_largest_mu(audit.budget):.3g})"
        looked = f"{audit.canaries} canaries in one run" if audit.in_one_run else f"{audit.trials} trials"
        return (
            f"{verdict}: {called} epsilon {audit.budget.epsilon:g} at delta {audit.budget.delta:g}, found at least "
            f"{self.epsilon_lower:.3g}{gaussian} with confidence {audit.confidence:g} from {looked}, which "
            f"can show {self.epsilon_visible:.3g} at most; unit: {audit.unit}; neighbours: "
            f"{NEIGHBOURS[audit.unit, audit.trust]}; audited: {audit.audited}; "
            f"releases: {audit.releases}{fault}"
        )
