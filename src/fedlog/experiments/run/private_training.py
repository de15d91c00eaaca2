"""The settings of DP-SGD in a run: what they mean, and which cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedlog.algorithms.shape import Algorithm, ModelPlan
from fedlog.errors import InputError
from fedlog.privacy.guarantee import Budget, Calibration, Unit
from fedlog.privacy.sgd import SgdPlan, TrainingPlan, grid_closeness, noise_for_share

if TYPE_CHECKING:
    from fedlog.experiments.run.spec import RunSpec

DP_SGD = "dp-sgd"
SGD_CLIP, SAMPLE_RATE = 1.0, 0.1
SGD_SHARE = 0.5  # of epsilon, for the training, where its noise is not given


def settled_training(spec: RunSpec) -> RunSpec:
    """The specification with the settings of DP-SGD written out, if it is asked for."""
    if spec.body_training != DP_SGD:
        given = [name for name in ("sgd_noise", "sgd_clip", "sample_rate") if getattr(spec, name) is not None]
        if given:
            raise InputError(f"bodies are not trained by DP-SGD, and yet the run was told: {', '.join(given)}")
        return spec
    if spec.privacy != Unit.RECORD:
        raise InputError(
            f"DP-SGD is for --privacy record, found: {spec.privacy or 'no privacy'}",
            hint="--privacy client holds however bodies are trained",
        )
    if len(spec.body) > 1:
        raise InputError(f"DP-SGD is accounted for with one body for everyone: {', '.join(spec.body)}")
    if spec.calibration == Calibration.PAPER:
        raise InputError("the paper's calibration knows no training under noise", hint="--calibration exact")
    if spec.moments is not None:
        raise InputError(f"DP-SGD makes its optimiser anew for each round: --moments {spec.moments}")
    if spec.weight_decay:
        raise InputError(f"DP-SGD has no weight decay: --weight-decay {spec.weight_decay:g}")
    rate = SAMPLE_RATE if spec.sample_rate is None else spec.sample_rate
    clip = SGD_CLIP if spec.sgd_clip is None else spec.sgd_clip
    return replace(spec, sgd_clip=clip, sample_rate=rate)


def training_of(spec: RunSpec, algorithm: Algorithm, plan: ModelPlan) -> TrainingPlan | None:
    """All DP-SGD of a run that asks for it: the steps of a round are its epochs over the sample rate."""
    if spec.body_training != DP_SGD:
        return None
    from fedlog.engine.training.dp_sgd import require_opacus

    require_opacus()
    assert spec.rounds is not None
    assert spec.epsilon is not None
    assert spec.delta is not None
    assert spec.sgd_clip is not None
    assert spec.sample_rate is not None
    phases = [phase for exchange in algorithm.schedule.round for phase in exchange.phases]
    if not 0 < spec.sample_rate <= 1:
        raise InputError(f"the sample rate of DP-SGD must lie in (0, 1]: {spec.sample_rate}", hint="--sample-rate 0.1")
    steps = max(1, round(phases[0].epochs / spec.sample_rate))
    all_steps, coordinates = steps * spec.rounds, plan.entries - plan.n_class * (1 + plan.width)
    noise = spec.sgd_noise
    if noise is None:
        distance = grid_closeness(all_steps, coordinates)
        noise = noise_for_share(Budget(spec.epsilon, spec.delta), SGD_SHARE, spec.sample_rate, all_steps, distance)
    sgd = SgdPlan(noise, spec.sgd_clip, spec.sample_rate, steps)
    return TrainingPlan(sgd, spec.rounds, coordinates)
