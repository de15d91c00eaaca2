"""For private runs: make the clipping and noise, list notices to show at the start, and summarise the spending."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlog.algorithms.interface import Algorithm, ModelPlan
from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.privacy.accounting import compute_spending
from fedlog.privacy.guarantee import PAPER_CAVEAT, NoiseSetting, Unit, warn_of_large_delta
from fedlog.privacy.protection import Protection
from fedlog.privacy.release_log import FILE_NAME, read_log, start_or_resume_log
from fedlog.settings.privacy import BodyTraining, SecureSumSettings
from fedlog.settings.promise import choose_fewest_honest_survivors, plan_protection
from fedlog.settings.resolve import ResolvedRun
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import RunSettings

if TYPE_CHECKING:
    from fedlog.engine.simulate.secure_sums import SecureSums
    from fedlog.engine.simulate.simulator import RoundRecord, Simulation

OUTSIDE_THE_PROTOCOL = "accuracies are measured by the simulator, outside the protocol; no guarantee covers them"


def make_run_protection(run: ResolvedRun, algorithm: Algorithm, plan: ModelPlan, clients: int) -> Protection | None:
    """Make the protection (clipping and noise) of a run's uploads; None for a run without privacy."""
    if run.promise is None:
        return None
    training = None
    if run.dp_sgd is not None:
        from fedlog.engine.training.dp_sgd import require_opacus

        require_opacus()
        training = run.dp_sgd.plan_training(run.promise, algorithm, plan, run.settings.rounds)
    honest = 1 if run.sums is None else _count_honest_clients_needed(run.sums, run.settings, clients)
    protection = plan_protection(
        run.promise,
        algorithm,
        plan,
        run.settings.rounds,
        clients=clients,
        honest_survivors=honest,
        training=training,
    )
    draw = run.spec.noise_draw
    return protection if protection is None or draw is None else protection.with_noise_draw(draw)


def make_secure_sums(run: ResolvedRun, protection: Protection | None, clients: int) -> SecureSums | None:
    """Make the object that computes a run's secure sums; None if the run does not use secure sums."""
    if run.sums is None:
        return None
    from fedlog.engine.simulate.secure_sums import SecureSums, SimulatedDropouts

    rate = run.sums.dropout_rate
    silent = None if rate is None else SimulatedDropouts(rate, Key(run.settings.seed).child("dropouts"))
    return SecureSums(protection, _count_honest_clients_needed(run.sums, run.settings, clients), silent)


def _count_honest_clients_needed(sums: SecureSumSettings, settings: RunSettings, clients: int) -> int:
    """Return how many honest clients must stay to the end of each round's secure sum."""
    return choose_fewest_honest_survivors(sums.honest, max(1, round(settings.participation * clients)))


def list_privacy_notices(spec: RunSpec, simulation: Simulation) -> list[str]:
    """List the lines to show before a private run starts: its noise, its sensitivity and warnings."""
    protection = simulation.protection
    if protection is None:
        return []
    unit, mechanism = protection.mechanism.unit, protection.mechanism
    lines = [
        f"privacy {unit}, {mechanism.trust}: noise std {mechanism.sigma:.5g}, sensitivity {mechanism.sensitivity:.5g}, "
        f"{protection.releases} releases planned",
    ]
    if protection.training is not None:
        sgd = protection.training.plan
        lines.append(
            f"bodies by DP-SGD: {sgd.steps} steps a round at rate {sgd.sample_rate:g}, gradients clipped to "
            f"{sgd.clip:g}, noise multiplier {sgd.noise_multiplier:.4g}"
        )
    shards = simulation.federation.shards
    protected = len(shards) if unit is Unit.CLIENT else sum(len(shard.train) for shard in shards)
    warning = warn_of_large_delta(protection.budget.delta, protected, unit)
    if unit is Unit.PAPER:
        lines.append(f"warning: {PAPER_CAVEAT}")
    if warning:
        lines.append(f"warning: {warning}")
    if spec.body_file is not None and unit is Unit.RECORD:
        lines.append(
            f"note: the guarantee takes your word that the body in {spec.body_file} never saw the private data"
        )
    lines.append(f"note: {OUTSIDE_THE_PROTOCOL}")
    if spec.noise is NoiseSetting.FLOAT:
        lines.append("warning: simulation only: the noise is not private, it comes from the run's seed")
    if spec.body_training is BodyTraining.FROZEN and protection.releases > 1:
        lines.append("note: frozen bodies have the same statistics in every round; one release has the least noise")
    return lines


def start_release_log(simulation: Simulation, folder: Path) -> None:
    """Start the log of a private run's releases; for a resumed run, check that no release is missing from it."""
    protection = simulation.protection
    if protection is None:
        return
    path = folder / FILE_NAME
    log = start_or_resume_log(path, protection.budget)
    schedule = simulation.algorithm.schedule
    made = simulation.round_number * len(schedule.round)
    if made and len(log.releases) < made + (schedule.opening is not None):
        raise InputError(
            f"{path}: found {len(log.releases)} releases, too few for a checkpoint of round {simulation.round_number}",
            hint="entries are missing, so the spent privacy is unknown: restore the file, or start a new run",
        )


def summarise_privacy(
    folder: Path, rounds: Sequence[RoundRecord], reason_for_early_end: str | None = None
) -> dict[str, Any] | None:
    """Describe the privacy guarantee, budget and caveats of the folder's run as JSON values; None if not private."""
    if not (folder / FILE_NAME).exists():
        return None
    log = read_log(folder / FILE_NAME)
    spending = compute_spending(log.events, log.budget.delta)
    stated = {} if spending.guarantee is None else spending.guarantee.as_json()
    budget = {"epsilon": log.budget.epsilon, "delta": log.budget.delta}
    kept = int(sum(record.observed.get("kept_old_head", 0.0) for record in rounds))
    kept_heads = f"{kept} of {len(rounds)} rounds kept the old head: the noisy count was below twice its own noise"
    caveats = [
        *spending.caveats,
        *([kept_heads] if kept else []),
        *([reason_for_early_end] if reason_for_early_end else []),
    ]
    spent = {"budget": budget, "rounds_with_old_head": kept, "caveats": caveats, "accuracies": OUTSIDE_THE_PROTOCOL}
    return {**stated, **spent}
