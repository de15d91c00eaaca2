"""The privacy settings of a run: what they mean, which contradict each other, and what may be said at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlog.algorithms.frozen import freeze_bodies
from fedlog.algorithms.shape import Algorithm, ModelPlan
from fedlog.core.clip import clip_named
from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.experiments.run.private_training import DP_SGD, settled_training, training_of
from fedlog.models.frozen import FROZEN as FROZEN_FILE
from fedlog.models.frozen import refuse_trained
from fedlog.privacy.accounting import spent
from fedlog.privacy.guarantee import PAPER_CAVEAT, Budget, Calibration, Trust, Unit, delta_warning
from fedlog.privacy.limits import Limits
from fedlog.privacy.protection import Bound, NoiseSource, Protection, protection
from fedlog.privacy.release_log import FILE_NAME, read_log, record_release, start_log
from fedlog.privacy.secagg.terms import FEWEST
from fedlog.wire.codec import refuse_open_codec

if TYPE_CHECKING:
    from fedlog.engine.protocol.secure_sums import SecureSums
    from fedlog.engine.simulate.simulator import RoundRecord, Simulation
    from fedlog.experiments.run.spec import RunSpec

FROZEN = "frozen"
SECURE = "secure"
OUTSIDE_THE_PROTOCOL = "accuracies are measured by the simulator, outside the protocol; no guarantee covers them"
_ONLY_WITH_PRIVACY = ("epsilon", "delta", "message_norm", "trust", "calibration", "noise")


def settled(spec: RunSpec) -> RunSpec:
    """The specification with its privacy settings written out; contradictions are refused by name."""
    if spec.clip is not None:
        clip_named(spec.clip)
        kind, _, number = spec.clip.partition(":")
        spec = replace(spec, clip=f"{kind}:{float(number):g}")  # 2 and 2.0 are one experiment
    _one_of("body training", spec.body_training, (FROZEN, DP_SGD))
    if spec.body_training == FROZEN and (len(spec.body) > 1 or spec.initialisation == "separate"):
        raise InputError(
            "frozen bodies must all be the same, or their features mean different things and cannot be added up",
            hint="one body and --initialisation shared",
        )
    _one_of("aggregation", spec.aggregation, (SECURE,))
    spec = replace(spec, body_file_sha256=_digest_of(_parameter_files(spec)))
    spec = settled_training(spec)
    if spec.privacy is None:
        _refuse_without_privacy(spec)
    else:
        spec = _settled_privacy(spec)
    if spec.aggregation == SECURE:
        refuse_open_codec(spec.codec, "a secure sum")
    if spec.aggregation == SECURE and spec.refused_share is not None:
        raise InputError(
            f"a refused share needs uploads that can be checked, and under a secure sum none can: {spec.refused_share}",
            hint="leave out --refused-share, or --aggregation secure",
        )
    for name in ("honest", "dropout_rate"):
        value = getattr(spec, name)
        if value is not None and spec.aggregation != SECURE:
            raise InputError(
                f"{name.replace('_', ' ')} is a setting of secure sums only: {value}",
                hint="--aggregation secure, or --trust distributed",
            )
    return spec


def _refuse_without_privacy(spec: RunSpec) -> None:
    given = [name for name in _ONLY_WITH_PRIVACY if getattr(spec, name) is not None]
    if given:
        raise InputError(
            f"the run is not private, and yet it was told: {', '.join(given)}", hint="--privacy record, client or paper"
        )


def _settled_privacy(spec: RunSpec) -> RunSpec:
    unit = Unit(_one_of("privacy", spec.privacy, list(Unit)))
    if spec.epsilon is None or spec.delta is None:
        raise InputError(f"--privacy {unit} needs a budget", hint="--epsilon 1 --delta 1e-5")
    Budget(spec.epsilon, spec.delta)
    trust = Trust(_one_of("trust", spec.trust or Trust.CENTRAL, list(Trust)))
    formula = Calibration.PAPER if unit is Unit.PAPER else Calibration.EXACT
    calibration = Calibration(_one_of("calibration", spec.calibration or formula, list(Calibration)))
    if spec.message_norm is not None and not 0 < spec.message_norm < float("inf"):
        raise InputError(f"the message norm must be a finite number above 0: {spec.message_norm}")
    if unit is Unit.RECORD and spec.body_training not in (FROZEN, DP_SGD):
        raise InputError(
            f"--privacy record holds only for bodies that never saw the private data, and {spec.method} trains "
            f"body {', '.join(spec.body) or 'of the preset'} on it",
            hint="--body-training frozen (with --body-file for one made elsewhere), --body-training dp-sgd, "
            "or --privacy client",
        )
    if unit is Unit.RECORD:
        _refuse_trained_files(spec)
    if unit is Unit.CLIENT and trust is not Trust.LOCAL and len(spec.body) > 1:
        raise InputError(
            f"--privacy client with {trust} noise needs one body for everyone: with several, one client more changes "
            f"which client gets which: {', '.join(spec.body)}",
            hint="--trust local, or one body",
        )
    if unit is Unit.CLIENT and trust is not Trust.LOCAL and spec.participation < 1:
        # Who is drawn depends on who is there, so one client more would move other clients' messages too.
        raise InputError(
            f"--privacy client with {trust} noise needs every client in every round: participation {spec.participation}"
        )
    if spec.stop_at_accuracy is not None:
        raise InputError(
            "stopping at an accuracy is a decision made by looking at private data, which no guarantee covers",
            hint="leave out --stop-at-accuracy",
        )
    refuse_open_codec(spec.codec, "a private run")
    return replace(
        spec,
        trust=str(trust),
        calibration=str(calibration),
        noise=str(_one_of("noise", spec.noise or NoiseSource.FLOAT, list(NoiseSource))),
        aggregation=SECURE if trust is Trust.DISTRIBUTED else spec.aggregation,
    )


def _refuse_trained_files(spec: RunSpec) -> None:
    for path in _parameter_files(spec):
        refuse_trained(path)


def _parameter_files(spec: RunSpec) -> list[Path]:
    """The files that bodies come from, those in a body's name first."""
    named = [name.partition("@")[0].removeprefix(FROZEN_FILE) for name in spec.body if name.startswith(FROZEN_FILE)]
    return [Path(path) for path in (*named, *([spec.body_file] if spec.body_file else []))]


def with_body_training(algorithm: Algorithm, spec: RunSpec) -> Algorithm:
    """The method as it is, or on frozen bodies if the run asks for them."""
    if spec.body_training is None:
        return algorithm
    if spec.body_training == FROZEN:
        return freeze_bodies(algorithm)
    if not algorithm.sends_statistics:
        raise InputError(
            f"method {spec.method} cannot be accounted for under DP-SGD", hint="fedlog or fedlog-c can do it"
        )
    return algorithm


def protection_of(spec: RunSpec, algorithm: Algorithm, plan: ModelPlan, clients: int) -> Protection | None:
    """The protection that a resolved specification asks for; None for a run without privacy."""
    if spec.privacy is None:
        return None
    assert spec.epsilon is not None
    assert spec.delta is not None
    assert spec.rounds is not None
    assert spec.trust is not None
    assert spec.calibration is not None
    assert spec.noise is not None
    schedule = algorithm.schedule
    if not algorithm.sends_statistics:
        raise InputError(f"--privacy is for methods that send statistics: {spec.method}", hint="fedlog or fedlog-c")
    trust = Trust(spec.trust)
    return protection(
        Budget(spec.epsilon, spec.delta),
        unit=Unit(spec.privacy),
        trust=trust,
        calibration=Calibration(spec.calibration),
        bound=Bound(None if spec.clip is None else clip_named(spec.clip), spec.message_norm),
        releases=spec.rounds * len(schedule.round) + (schedule.opening is not None),
        shape=(plan.n_class, 1 + plan.width),
        clients=clients,
        honest_survivors=_honest(spec, clients) if trust is Trust.DISTRIBUTED else 1,
        noise=NoiseSource(spec.noise),
        training=training_of(spec, algorithm, plan),
    )


def secure_sums(spec: RunSpec, guard: Protection | None, clients: int) -> SecureSums | None:
    """The secure sums of a run that asks for them."""
    if spec.aggregation is None:
        return None
    from fedlog.engine.protocol.secure_sums import Dropouts, SecureSums

    if guard is not None and guard.fixed_point is None:
        raise InputError(
            f"--aggregation secure with {spec.trust} noise: the secure sum is for distributed noise",
            hint="--trust distributed",
        )
    silent = None if spec.dropout_rate is None else Dropouts(spec.dropout_rate, Key(spec.seed).child("dropouts"))
    return SecureSums(guard, _honest(spec, clients), silent)


def _honest(spec: RunSpec, clients: int) -> int:
    from fedlog.engine.protocol.secure_sums import smallest_survivors

    taking_part = max(1, round(spec.participation * clients))
    fewest = smallest_survivors(taking_part)
    honest = fewest if spec.honest is None else spec.honest
    if not FEWEST <= honest <= taking_part:
        raise InputError(f"honest survivors must be {FEWEST} to {taking_part}, the clients of a round: {honest}")
    return honest


def limits_of(spec: RunSpec) -> Limits | None:
    """What the server can hold statistics against in a run with a clip."""
    return None if spec.clip is None else Limits(clip_named(spec.clip))


def notes(spec: RunSpec, simulation: Simulation) -> list[str]:
    """What a user should know before a private run starts."""
    guard = simulation.protection
    if guard is None:
        return []
    unit, mechanism = guard.mechanism.unit, guard.mechanism
    said = [
        f"privacy {unit}, {mechanism.trust}: noise std {mechanism.sigma:.5g}, sensitivity {mechanism.sensitivity:.5g}, "
        f"{guard.releases} releases planned",
    ]
    if guard.training is not None:
        sgd = guard.training.plan
        said.append(
            f"bodies by DP-SGD: {sgd.steps} steps a round at rate {sgd.sample_rate:g}, gradients clipped to "
            f"{sgd.clip:g}, noise multiplier {sgd.noise_multiplier:.4g}"
        )
    shards = simulation.federation.shards
    protected = len(shards) if unit is Unit.CLIENT else sum(len(shard.train) for shard in shards)
    warning = delta_warning(guard.budget.delta, protected, unit)
    if unit is Unit.PAPER:
        said.append(f"warning: {PAPER_CAVEAT}")
    if warning:
        said.append(f"warning: {warning}")
    if spec.body_file is not None and unit is Unit.RECORD:
        said.append(f"note: the guarantee takes your word that the body in {spec.body_file} never saw the private data")
    said.append(f"note: {OUTSIDE_THE_PROTOCOL}")
    if spec.noise == NoiseSource.FLOAT:
        said.append("warning: simulation only: the noise is not private, it comes from the run's seed")
    if spec.body_training == FROZEN and guard.releases > 1:
        said.append("note: frozen bodies have the same statistics in every round; one release has the least noise")
    return said


def watch_budget(simulation: Simulation, folder: Path) -> None:
    """Nothing; the releases of the simulation are then recorded in the folder, and held to the budget there."""
    guard = simulation.protection
    if guard is None:
        return
    path = folder / FILE_NAME
    log = start_log(path, guard.budget)
    schedule = simulation.algorithm.schedule
    made = simulation.round_number * len(schedule.round)
    if made and len(log.releases) < made + (schedule.opening is not None):
        raise InputError(
            f"{path}: {len(log.releases)} releases recorded, but the checkpoint is of round {simulation.round_number}",
            hint="without the record nobody knows what the run has spent; start a new one",
        )
    simulation.record_release = partial(record_release, path)


def promise(folder: Path, rounds: Sequence[RoundRecord], ended_early: str | None = None) -> dict[str, Any] | None:
    """What the run in the folder has spent and promises, as plain values; None for a run without privacy."""
    if not (folder / FILE_NAME).exists():
        return None
    log = read_log(folder / FILE_NAME)
    spending = spent(log.events, log.budget.delta)
    stated = {} if spending.guarantee is None else spending.guarantee.as_json()
    budget = {"epsilon": log.budget.epsilon, "delta": log.budget.delta}
    kept = int(sum(record.observed.get("kept_old_head", 0.0) for record in rounds))
    drowned = f"{kept} of {len(rounds)} rounds kept the old head: the noisy count was below twice its own noise"
    caveats = [*spending.caveats, *([drowned] if kept else []), *([ended_early] if ended_early else [])]
    told = {"budget": budget, "rounds_with_old_head": kept, "caveats": caveats, "accuracies": OUTSIDE_THE_PROTOCOL}
    return {**stated, **told}


def _digest_of(files: list[Path]) -> str | None:
    """Of one file's content, or of all of theirs; None without any."""
    found = hashlib.sha256()
    for path in files:
        try:
            found.update(path.read_bytes())
        except OSError as error:
            raise InputError(f"cannot read the body's parameters {path}: {error.strerror}") from error
    return found.hexdigest() if files else None


def _one_of(name: str, value: Any, known: Any) -> Any:
    if value is not None and value not in known:
        raise InputError(f"unknown {name}: {value}", hint=f"one of {', '.join(known)}")
    return value
