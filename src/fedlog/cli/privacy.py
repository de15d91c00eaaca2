"""`fedlog privacy`: compute the noise for a privacy promise, show what a run has spent, and audit a promise.

A promise is an epsilon and a delta: they bound what the messages of a run may reveal about one record or one client.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from fedlog.audit.result import AuditSettings
from fedlog.cli.command import Subparsers, add_command
from fedlog.core.clip import parse_clip
from fedlog.errors import InputError, RunError, add_default_hint
from fedlog.privacy.accounting import Spending, TrainingRound, explain_missing_guarantee
from fedlog.privacy.calibration import compute_sigma_by_paper_formula
from fedlog.privacy.guarantee import (
    DEFAULT_DELTA,
    NEIGHBOURS,
    PAPER_CAVEAT,
    TRUSTED,
    Budget,
    Calibration,
    Trust,
    Unit,
    format_epsilon,
    warn_of_large_delta,
)
from fedlog.privacy.mechanisms import Mechanism, compute_client_sensitivity, plan_noise
from fedlog.privacy.release_log import FILE_NAME, ReleaseLog, compute_spending_across_runs, read_log
from fedlog.privacy.secagg.terms import FEWEST
from fedlog.settings.fields import convert_value, find_setting_types, list_choices

MESSAGE = "message:"  # of a clip that bounds a client's whole message


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog privacy`."""
    commands = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    add_calibrate_command(commands)
    spend = add_command(
        commands,
        "spend",
        "show the epsilon that a finished or interrupted run has spent, release by release",
        print_spending,
    )
    spend.add_argument("run", type=Path, metavar="RUN", help=f"the folder of the run, with its file {FILE_NAME}")
    spend.add_argument("--delta", type=float, help="state epsilon at this delta (default: the run's own)")
    spend.add_argument("--json", action="store_true", help="print one JSON object")
    add_audit_command(commands)


def print_spending(args: argparse.Namespace) -> None:
    """Print the epsilon that a run has spent, release by release."""
    log = read_log(args.run / FILE_NAME)
    own = DEFAULT_DELTA if log.stated_budget is None else log.stated_budget.delta
    delta = own if args.delta is None else args.delta
    spending = compute_spending_across_runs(log.events, delta)
    if args.json:
        print(json.dumps(_make_spending_json(args.run, log, spending, delta), indent=2))
    else:
        print(_format_spending(log, spending, delta))
    for caveat in spending.caveats:
        print(f"warning: {caveat}", file=sys.stderr)


def _make_spending_json(run: Path, log: ReleaseLog, spending: Spending, delta: float) -> dict[str, Any]:
    nominal = spending.guarantee is not None and spending.guarantee.unit is Unit.PAPER
    name = "nominal_epsilon" if nominal else "epsilon"
    return {
        "run": str(run),
        "budget": None
        if log.stated_budget is None
        else {"epsilon": log.stated_budget.epsilon, "delta": log.stated_budget.delta},
        "delta": delta,
        "releases": [
            {
                "round": release.round,
                "exchange": release.exchange,
                "event": release.kind,
                "steps": release.steps if isinstance(release, TrainingRound) else None,
                "noise": release.noise,
                "sigma": release.sigma,
                # JSON has no infinity: null means that the sensitivity, or the epsilon, is not finite.
                "sensitivity": release.sensitivity if release.sensitivity < float("inf") else None,
                name: epsilon if epsilon < float("inf") else None,
            }
            for release, epsilon in zip(spending.events, spending.epsilons, strict=True)
        ],
        "guarantee": None if spending.guarantee is None else spending.guarantee.as_json(),
        "caveats": list(spending.caveats),
    }


def _format_spending(log: ReleaseLog, spending: Spending, delta: float) -> str:
    stated = log.stated_budget
    budget = "budget: none" if stated is None else f"budget: epsilon {stated.epsilon:g} at delta {stated.delta:g}"
    if spending.guarantee is None:
        return f"nothing spent: no release is recorded\n{budget}"
    column = "epsilon so far" if spending.guarantee.unit is not Unit.PAPER else "by Theorem 4's formula"
    lines = [f"{'round':>5}  {'exchange':<14} {'sigma':>10} {'sensitivity':>11}  {column}"]
    for release, epsilon in zip(spending.events, spending.epsilons, strict=True):
        noise = f"{release.sigma:>10.5g} {release.sensitivity:>11.5g}"
        named = f"{release.steps} SGD steps" if isinstance(release, TrainingRound) else release.exchange
        lines.append(f"{release.round:>5}  {named:<14} {noise}  {format_epsilon(epsilon, 5)}")
    return "\n".join([*lines, f"spent: {explain_missing_guarantee(spending.events) or spending.guarantee}", budget])


# Setting in `AuditSettings` that has a flag of the same name -> its help text.
HELP = {
    "audited": "what is audited: the statistics that clients send, or bodies trained by DP-SGD (in one run)",
    "releases": "how many releases share the budget",
    "clip": "bound on the features: clamp:B or l2:R",
    "message_norm": "the largest norm of a client's message, with --privacy client",
    "noise": "how noise is drawn: as floating-point numbers, or discrete",
    "fault": "build in this fault, to check that the audit finds it",
    "too_small": "with --fault small-noise: how many times too small the noise is",
    "trials": "how many noisy messages with the canary the attacker sees; it sees as many without the canary",
    "trainings": "how many trainings the messages come from",
    "confidence": "confidence of the lower bound",
    "seed": "seed of the trainings and the noise",
}


def add_audit_command(commands: Subparsers) -> None:
    """Add the command `fedlog privacy audit`."""
    summary = "try to refute a promise: train small clients with and without a canary, and compare their messages"
    audit, hints = add_command(commands, "audit", summary, audit_promise), find_setting_types(AuditSettings)
    units, trusts = list_choices(hints["unit"]), list_choices(hints["trust"])
    audit.add_argument(
        "--privacy", dest="unit", choices=units, default="record", help="what the promise protects (default: record)"
    )
    audit.add_argument("--epsilon", type=float, default=1.0, help="the claimed epsilon (default: %(default)s)")
    audit.add_argument("--delta", type=float, default=1e-5, help="the claimed delta (default: %(default)s)")
    text = "who adds noise; distributed is audited in one run with many canaries (default: central)"
    audit.add_argument("--mechanism", dest="trust", choices=trusts, default="central", help=text)
    for name, text in HELP.items():
        default, words = getattr(AuditSettings, name), list_choices(hints[name]) or None
        kind = str if words else type(default)
        help_text = f"{text} (default: {default})"
        audit.add_argument(f"--{name.replace('_', '-')}", type=kind, choices=words, default=default, help=help_text)
    text = "how many canaries an audit in one run has (default: 2000; 200 with --privacy client)"
    audit.add_argument("--canaries", type=int, help=text)
    audit.add_argument("--json", action="store_true", help="print one JSON object")


def audit_promise(args: argparse.Namespace) -> int:
    """Run the audit and print its result; return exit code 1 if the audit refutes the privacy promise, else 0.

    RunError if the audit is so weak that it could not refute the promise even if no noise were added.
    """
    from fedlog.audit.canary import run_audit

    args.canaries = args.canaries or (200 if args.unit == Unit.CLIENT else 2000)
    hints = {name: hint for name, hint in find_setting_types(AuditSettings).items() if name in args}
    given = {name: convert_value(name, getattr(args, name), hint) for name, hint in hints.items()}
    result = run_audit(AuditSettings(budget=Budget(args.epsilon, args.delta), **given))
    print(json.dumps(result.as_json(), indent=2) if args.json else result)
    if result.is_audit_too_weak:
        raise RunError(
            f"this audit can prove at most epsilon {result.epsilon_visible:.3g}, so it cannot refute the claimed "
            f"epsilon of {args.epsilon:g}",
            hint=f"use {'more --canaries, a smaller --delta' if result.audit.in_one_run else 'more --trials'}, or a "
            "smaller --epsilon",
        )
    # Mode paper promises nothing, so no promise is refuted there.
    return int(result.refutes_claim and result.audit.unit is not Unit.PAPER)


def add_calibrate_command(commands: Subparsers) -> None:
    """Add the command `fedlog privacy calibrate`."""
    summary = (
        "compute the noise that keeps a number of releases within epsilon and delta, and say what is then promised"
    )
    calibrate = add_command(commands, "calibrate", summary, print_calibrated_noise)
    calibrate.add_argument("--epsilon", type=float, required=True, help="epsilon of the whole run")
    calibrate.add_argument(
        "--delta", type=float, required=True, help="delta of the whole run; a real promise needs 1e-5 or less"
    )
    calibrate.add_argument(
        "--releases",
        type=int,
        required=True,
        metavar="K",
        help="the number of noisy exchanges; count the one before the first round too, if the method has one",
    )
    calibrate.add_argument(
        "--classes", type=int, default=10, help="number of classes: the rows of the statistics (default: %(default)s)"
    )
    calibrate.add_argument(
        "--features",
        type=int,
        metavar="M",
        help="number of columns of the statistics: the features and the constant 1 (51 for 50 features)",
    )
    calibrate.add_argument(
        "--clip",
        metavar="BOUND",
        help="clamp:B (each feature), l2:R (each record) or message:S (each client); a bare number means clamp:B, "
        "or message:S with --privacy client",
    )
    calibrate.add_argument("--sensitivity", type=float, help="use this L2 sensitivity instead of the computed one")
    calibrate.add_argument(
        "--privacy", choices=[str(unit) for unit in Unit], default="record", help="what is protected (default: record)"
    )
    text = "who adds noise (default: central)"
    calibrate.add_argument("--mechanism", choices=[str(trust) for trust in Trust], default="central", help=text)
    calibrate.add_argument(
        "--calibration",
        choices=[str(kind) for kind in Calibration],
        help="how noise follows from the budget (default: exact; paper with --privacy paper)",
    )
    text = "the fewest honest clients that stay to the end of a round, for distributed noise (default: 3)"
    calibrate.add_argument("--honest", type=int, metavar="H", help=text)
    calibrate.add_argument(
        "--protected", type=int, metavar="N", help="number of protected records or clients: warn if delta is above 1/N"
    )
    calibrate.add_argument("--json", action="store_true", help="print one JSON object")


def print_calibrated_noise(args: argparse.Namespace) -> None:
    """Print the noise that keeps a privacy promise, and what the promise means."""
    budget = Budget(args.epsilon, args.delta)
    unit, trust = Unit(args.privacy), Trust(args.mechanism)
    for name, example in (("classes", 10), ("features", 51), ("honest", 3)):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"--{name} must be at least 1, found: {value}", hint=f"--{name} {example}")
    sensitivity = _find_sensitivity(args, unit, trust)
    calibration = Calibration(args.calibration or (Calibration.PAPER if unit is Unit.PAPER else Calibration.EXACT))
    mechanism = plan_noise(
        budget,
        releases=args.releases,
        sensitivity=sensitivity,
        coordinates=args.classes * (args.features or 1),
        unit=unit,
        trust=trust,
        calibration=calibration,
        honest_survivors=args.honest or (FEWEST if trust is Trust.DISTRIBUTED else 1),
    )
    warning = None if args.protected is None else warn_of_large_delta(budget.delta, args.protected, unit)
    facts = _make_noise_json(mechanism, budget, args.releases, calibration, warning)
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    print(json.dumps(facts, indent=2) if args.json else _format_noise(facts))


@add_default_hint("--clip clamp:2")
def _find_sensitivity(args: argparse.Namespace, unit: Unit, trust: Trust) -> float:
    if args.sensitivity is not None:
        return float(args.sensitivity)
    if args.clip is None:
        raise InputError(
            "the sensitivity is unknown: neither --clip nor --sensitivity was given",
            hint="--clip message:20" if unit is Unit.CLIENT else "--clip clamp:2",
        )
    usual = "message" if unit is Unit.CLIENT else "clamp"
    text = args.clip if ":" in args.clip else f"{usual}:{args.clip}"
    if unit is Unit.CLIENT:
        if not text.startswith(MESSAGE):
            raise InputError(
                f"--clip {args.clip} bounds records, but --privacy client protects whole clients",
                hint="--clip message:20",
            )
        return compute_client_sensitivity(_parse_message_clip(text), trust)
    if text.startswith(MESSAGE):
        raise InputError(
            f"--clip {args.clip} bounds clients, but --privacy {unit} protects records",
            hint="--clip clamp:2, or --clip l2:1",
        )
    clip = parse_clip(text)
    if args.features is None:
        raise InputError(
            "the sensitivity is unknown: --features was not given",
            hint="--features 51 for 50 features and the constant 1",
        )
    return clip.sensitivity(args.features)


def _parse_message_clip(text: str) -> float:
    try:
        norm = float(text.removeprefix(MESSAGE))
    except ValueError:
        norm = -1.0
    if not 0 < norm < float("inf"):
        raise InputError(f"--clip message:S needs a number S above 0, found: {text}", hint="--clip message:20")
    return norm


def _make_noise_json(
    mechanism: Mechanism, budget: Budget, releases: int, calibration: Calibration, warning: str | None
) -> dict[str, Any]:
    by_formula = compute_sigma_by_paper_formula(budget, releases, mechanism.sensitivity)
    return {
        "sigma": mechanism.sigma,
        "sensitivity": mechanism.sensitivity,
        "noise_multiplier": mechanism.sigma / mechanism.sensitivity,
        "releases": releases,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "calibration": str(calibration),
        "guarantee": mechanism.unit is not Unit.PAPER,
        "unit": str(mechanism.unit),
        "neighbours": NEIGHBOURS[mechanism.unit, mechanism.trust],
        "mechanism": str(mechanism.trust),
        "trusted": TRUSTED[mechanism.trust],
        "client_std": mechanism.client_std,
        "server_std": mechanism.server_std,
        "honest_survivors": mechanism.honest_survivors,
        "paper_sigma": by_formula,
        "times_less_noise_than_paper": by_formula / mechanism.sigma,
        "caveat": PAPER_CAVEAT if mechanism.unit is Unit.PAPER else None,
        "warnings": [warning] if warning else [],
    }


def _format_noise(facts: dict[str, Any]) -> str:
    promise = f"epsilon {facts['epsilon']:g} at delta {facts['delta']:g} in total"
    if facts["caveat"]:
        promise = f"{facts['caveat']} (Theorem 4 calls it {promise})"
    rows = [
        ("promise", promise),
        ("sigma", f"{facts['sigma']:.6g}"),
        ("sensitivity", f"{facts['sensitivity']:.6g}"),
        ("noise multiplier", f"{facts['noise_multiplier']:.6g}"),
        ("releases", str(facts["releases"])),
        ("unit", facts["unit"]),
        ("neighbours", facts["neighbours"]),
        ("trusted", facts["trusted"]),
        ("calibration", facts["calibration"]),
        ("paper's formula", f"{facts['paper_sigma']:.6g}: {facts['times_less_noise_than_paper']:.3g} times this noise"),
    ]
    if facts["mechanism"] == Trust.DISTRIBUTED:
        share = (
            f"std {facts['client_std']:.6g}, for at least {facts['honest_survivors']} honest survivors a round, each "
            "hidden by the others' noise"
        )
        rows.insert(2, ("each client adds", share))
    return "\n".join(f"{name:<17} {value}" for name, value in rows)
