"""The privacy promise of a run, and the rules for privacy settings, for the simulator and for Flower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from fedlog.algorithms.interface import Algorithm, ModelPlan, predicts_numbers
from fedlog.algorithms.registry import find_methods, freeze_bodies
from fedlog.core.clip import extend_clip_to_target, parse_clip
from fedlog.errors import InputError
from fedlog.privacy.guarantee import Budget, Calibration, NoiseSetting, Trust, Unit
from fedlog.privacy.limits import UploadLimits
from fedlog.privacy.mechanisms import bound_noise_distance
from fedlog.privacy.protection import ContributionBound, Protection, choose_sampler, make_protection
from fedlog.privacy.secagg.terms import FEWEST, compute_smallest_safe_threshold
from fedlog.privacy.sgd import SgdRoundPlan, SgdTraining, find_training_noise
from fedlog.settings.fields import PositiveShare, Section
from fedlog.settings.privacy import BodyTraining, PrivacySettings, SecureSumSettings
from fedlog.wire.transport import Transport

SGD_CLIP, SAMPLE_RATE = 1.0, 0.1
SGD_SHARE = 0.5  # the share of epsilon for DP-SGD if its noise is not given
Positive = Annotated[float, Meta(gt=0)]
_NEED_PRIVACY = ("epsilon", "delta", "message_norm", "trust", "calibration", "noise", "noise_draw")
_NEED_DP_SGD = ("sgd_noise", "sgd_clip", "sample_rate")


@dataclass(frozen=True)
class Promise(Section):
    """The privacy that a run promises: what is protected, by whose noise, and with which epsilon and delta."""

    unit: Unit
    trust: Trust
    epsilon: float
    delta: float
    clip: str | None = None
    message_norm: Positive | None = None
    calibration: Calibration = Calibration.EXACT
    noise: NoiseSetting = NoiseSetting.DISCRETE

    def __post_init__(self) -> None:
        super().__post_init__()
        self.budget  # noqa: B018 (raises an InputError for an impossible epsilon or delta)
        if self.clip is not None:
            parse_clip(self.clip)

    @property
    def budget(self) -> Budget:
        """The privacy budget of the whole run."""
        return Budget(self.epsilon, self.delta)

    @property
    def needs_frozen_bodies(self) -> bool:
        """Whether the run protects single records, so that the sites of a deployed run must not train their bodies."""
        return self.unit is Unit.RECORD


@dataclass(frozen=True)
class DpSgd(Section):
    """The settings of DP-SGD: the gradient clip, the sample rate and the noise."""

    clip: float
    sample_rate: PositiveShare
    noise: float | None = None
    """As a multiple of the clip; None: as much as half of epsilon needs, once the number of parameters is known."""

    def plan_training(self, promise: Promise, algorithm: Algorithm, plan: ModelPlan, rounds: int) -> SgdTraining:
        """Plan the noise and the steps of DP-SGD for a whole run. A round has (epochs / sample rate) steps."""
        phases = [phase for exchange in algorithm.schedule.round for phase in exchange.phases]
        steps = max(1, round(phases[0].epochs / self.sample_rate))
        all_steps, coordinates = steps * rounds, plan.n_entries - plan.n_class * (1 + plan.width)
        noise = self.noise
        if noise is None:
            distance = bound_noise_distance(all_steps, coordinates)
            noise = find_training_noise(promise.budget, SGD_SHARE, self.sample_rate, all_steps, distance)
        of_round = SgdRoundPlan(noise, self.clip, self.sample_rate, steps)
        return SgdTraining(of_round, coordinates, choose_sampler(promise.noise, of_round.grid), rounds)


def resolve_promise(given: PrivacySettings, noise: NoiseSetting) -> Promise | None:
    """Return the promise that the settings ask for, or None without --privacy.

    `noise` says how noise is drawn if the settings leave it open.
    """
    if given.privacy is None:
        _refuse_settings_without(given, _NEED_PRIVACY, "--privacy", "--privacy record, or --privacy client")
        return None
    if given.epsilon is None or given.delta is None:
        raise InputError(
            f"--privacy {given.privacy} needs a budget of epsilon and delta", hint="--epsilon 1 --delta 1e-5"
        )
    formula = Calibration.PAPER if given.privacy is Unit.PAPER else Calibration.EXACT
    return Promise(
        unit=given.privacy,
        trust=given.trust or Trust.CENTRAL,
        epsilon=given.epsilon,
        delta=given.delta,
        clip=normalise_clip(given.clip),
        message_norm=given.message_norm,
        calibration=given.calibration or formula,
        noise=given.noise or noise,
    )


def resolve_dp_sgd(given: PrivacySettings, promise: Promise | None) -> DpSgd | None:
    """Return the settings of DP-SGD; None if the run does not use DP-SGD."""
    if given.body_training is not BodyTraining.DP_SGD:
        _refuse_settings_without(given, _NEED_DP_SGD, "--body-training dp-sgd", "--body-training dp-sgd")
        return None
    if promise is None or promise.unit is not Unit.RECORD:
        raise InputError(
            f"--body-training dp-sgd needs --privacy record, found: {promise.unit if promise else 'no privacy'}",
            hint="leave out --body-training: --privacy client also holds for bodies that are trained as usual",
        )
    if promise.calibration is Calibration.PAPER:
        raise InputError("--calibration paper has no formula for DP-SGD", hint="--calibration exact")
    clip = SGD_CLIP if given.sgd_clip is None else given.sgd_clip
    rate = SAMPLE_RATE if given.sample_rate is None else given.sample_rate
    return DpSgd(clip, rate, given.sgd_noise)


def resolve_secure_sums(
    given: SecureSumSettings, promise: Promise | None, refused_share: float | None
) -> SecureSumSettings | None:
    """Return the settings of the run's secure sums; None if the run has no secure sums."""
    distributed = promise is not None and promise.trust is Trust.DISTRIBUTED
    if given.aggregation is None and not distributed:
        _refuse_settings_without(
            given, ("honest", "dropout_rate"), "a secure sum", "--aggregation secure, or --trust distributed"
        )
        return None
    check_noise_fits_secure_sums(promise, secure=True)
    if refused_share is not None:
        raise InputError(
            f"--refused-share {refused_share} cannot be used with secure sums: they hide single uploads, so the server "
            "cannot refuse one",
            hint="leave out --refused-share, or --aggregation secure",
        )
    return given


def check_largest_share(share: float | None, promise: Promise | None, *, secure: bool) -> None:
    """Raise InputError for --largest-share with secure sums, which hide single uploads, or with --privacy.

    In a private run, the noise does not cover that a client's weight depends on the other clients' counts.
    """
    if share is None:
        return
    if secure:
        raise InputError(
            f"--largest-share {share:g} cannot be used with secure sums: they hide single uploads, so the server "
            "cannot weigh them",
            hint="leave out --largest-share, or --aggregation secure",
        )
    if promise is not None:
        # If weights depended on everyone's counts, one record could change all other clients' contributions.
        raise InputError(
            f"--largest-share {share:g} cannot be used with --privacy: each client's weight would depend on the "
            "others' counts, and the noise does not cover that",
            hint="leave out --largest-share; --privacy client bounds each client's whole message by --message-norm",
        )


def check_noise_fits_secure_sums(promise: Promise | None, secure: bool) -> None:
    """Raise InputError for distributed noise without a secure sum, and for any other noise with a secure sum."""
    if promise is not None and (promise.trust is Trust.DISTRIBUTED) is not secure:
        raise InputError(
            f"{promise.trust} noise {'cannot be used with' if secure else 'needs'} secure sums",
            hint="--trust distributed goes with --aggregation secure",
        )


def check_uploads_may_be_hidden(algorithm: Algorithm, secure: bool) -> None:
    """Raise InputError if secure sums would hide uploads that the method needs one by one."""
    if secure and algorithm.sums_in_the_open:
        raise InputError(
            f"method {algorithm.name} cannot be used with secure sums: it needs each client's upload separately",
            hint="use another method, for example fed-lda or fed-ridge",
        )


def choose_fewest_honest_survivors(honest: int | None, clients: int) -> int:
    """Return the number of honest survivors that a secure sum needs: honest clients that stay to its end.

    This is `honest`, or if that is None the smallest number with which the sum is safe.
    """
    if clients < FEWEST:
        raise InputError(
            f"a secure sum needs at least {FEWEST} clients in every round, found: {clients}",
            hint="let more clients take part: in a sum of two, each client can compute the other's upload",
        )
    fewest = max(FEWEST, compute_smallest_safe_threshold(clients, 0)) if honest is None else honest
    if not FEWEST <= fewest <= clients:
        raise InputError(
            f"--honest must be {FEWEST} to {clients}, the number of clients in a round, found: {fewest}",
            hint="leave out --honest; the default needs over half of the clients to be honest",
        )
    return fewest


def check_transport(transport: Transport, promise: Promise | None, secure: bool) -> None:
    """Raise InputError for transport settings that would reveal clients' classes in a private run or a secure sum."""
    if promise is not None:
        transport.refuse_revealing_settings("a private run")
    if secure:
        transport.refuse_revealing_settings("a secure sum")


def apply_body_training(algorithm: Algorithm, method: str, training: BodyTraining | None) -> Algorithm:
    """Return the method, with frozen bodies if `training` says so; raise InputError if the method cannot use DP-SGD."""
    if training is BodyTraining.FROZEN:
        trains = any(exchange.phases for exchange in algorithm.schedule.round)
        return freeze_bodies(algorithm) if trains else algorithm
    if training is BodyTraining.DP_SGD and not algorithm.sends_statistics:
        raise InputError(
            f"method {method} cannot be used with DP-SGD: it sends no statistics", hint="use fedlog or fedlog-c"
        )
    return algorithm


def plan_protection(
    promise: Promise | None,
    algorithm: Algorithm,
    plan: ModelPlan,
    rounds: int,
    *,
    clients: int = 1,
    honest_survivors: int = 1,
    training: SgdTraining | None = None,
) -> Protection | None:
    """Plan the noise and clipping of a run's uploads; return None for a run without a privacy promise."""
    if promise is None:
        return None
    schedule = algorithm.schedule
    if not algorithm.sends_statistics:
        raise InputError(
            f"method {algorithm.name} cannot be used with --privacy: it sends no statistics",
            hint=f"use one of: {', '.join(find_methods(lambda method: method.sends_statistics))}",
        )
    clip = None if promise.clip is None else parse_clip(promise.clip)
    if clip is not None and predicts_numbers(algorithm):
        clip = extend_clip_to_target(clip)
    return make_protection(
        promise.budget,
        unit=promise.unit,
        trust=promise.trust,
        calibration=promise.calibration,
        bound=ContributionBound(clip, promise.message_norm),
        releases=rounds * len(schedule.round) + (schedule.opening is not None),
        statistics_shape=(plan.n_class, 1 + schedule.round[0].count_summed_features(plan.width)),
        clients=clients,
        honest_survivors=honest_survivors if promise.trust is Trust.DISTRIBUTED else 1,
        noise=promise.noise,
        training=training,
        detail=schedule.round[0].detail,
    )


def make_upload_limits(clip: str | None, algorithm: Algorithm) -> UploadLimits | None:
    """Make the limits against which the server checks uploads in a run without privacy.

    Return None if there is no clip, or if the method predicts numbers: without privacy, its targets have no bound.
    """
    return None if clip is None or predicts_numbers(algorithm) else UploadLimits(parse_clip(clip))


def normalise_clip(clip: str | None) -> str | None:
    """Return the clip in one standard form, so that `clamp:2` and `clamp:2.0` count as the same experiment."""
    if clip is None:
        return None
    parse_clip(clip)
    kind, _, number = clip.partition(":")
    return f"{kind}:{float(number):g}"


def _refuse_settings_without(given: Section, names: tuple[str, ...], needed: str, hint: str) -> None:
    found = [name for name in names if getattr(given, name) is not None]
    if found:
        raise InputError(f"these settings need {needed}: {', '.join(found)}", hint=hint)
