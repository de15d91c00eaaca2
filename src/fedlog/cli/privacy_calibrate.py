"""`fedlog privacy calibrate`: compute how much noise a promise needs."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from fedlog.cli.command import Subparsers, add_command
from fedlog.core.clip import Clamp, Clip, L2Clip
from fedlog.errors import InputError
from fedlog.privacy.calibration import sigma_by_paper
from fedlog.privacy.guarantee import (
    NEIGHBOURS,
    PAPER_CAVEAT,
    TRUSTED,
    Budget,
    Calibration,
    Trust,
    Unit,
    warn_of_large_delta,
)
from fedlog.privacy.mechanisms import Mechanism, compute_client_sensitivity, plan_noise
from fedlog.privacy.secagg.terms import FEWEST


def add_calibrate_command(verbs: Subparsers) -> None:
    """Add the `calibrate` verb."""
    summary = "compute the noise that keeps a number of releases within a budget, and say what the promise then means"
    calibrate = add_command(verbs, "calibrate", summary, calibrate_command)
    calibrate.add_argument("--epsilon", type=float, required=True, help="epsilon of the whole run")
    calibrate.add_argument(
        "--delta", type=float, required=True, help="delta of the whole run; a real promise needs 1e-5 or less"
    )
    calibrate.add_argument(
        "--releases", type=int, required=True, metavar="K", help="noisy exchanges, an opening exchange included"
    )
    calibrate.add_argument("--classes", type=int, default=10, help="rows of the statistics (default: %(default)s)")
    calibrate.add_argument(
        "--features", type=int, metavar="M", help="columns of the statistics, the constant 1 included (51 for 10x51)"
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
        "--calibration", choices=[str(kind) for kind in Calibration], help="default: exact (paper with --privacy paper)"
    )
    text = "fewest honest survivors, for distributed noise (default: 3)"
    calibrate.add_argument("--honest", type=int, metavar="H", help=text)
    calibrate.add_argument(
        "--protected", type=int, metavar="N", help="records (or clients) protected: warns when delta is above 1/N"
    )
    calibrate.add_argument("--json", action="store_true", help="print one JSON object")


def calibrate_command(args: argparse.Namespace) -> None:
    """Print the noise and what the promise means."""
    budget = Budget(args.epsilon, args.delta)
    unit, trust = Unit(args.privacy), Trust(args.mechanism)
    for name in ("classes", "features", "honest"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"--{name} must be at least 1, found: {value}")
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
    facts = _plan_as_json(mechanism, budget, args.releases, calibration, warning)
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    print(json.dumps(facts, indent=2) if args.json else _format_plan(facts))


def _find_sensitivity(args: argparse.Namespace, unit: Unit, trust: Trust) -> float:
    if args.sensitivity is not None:
        return float(args.sensitivity)
    if args.clip is None:
        raise InputError(
            "the sensitivity is unknown: neither --clip nor --sensitivity was given", hint="--clip clamp:2"
        )
    kind, bound = _read_clip(args.clip, unit)
    if unit is Unit.CLIENT:
        if kind != "message":
            raise InputError(
                f"--clip {args.clip} bounds records, but --privacy client protects whole clients",
                hint="--clip message:S",
            )
        return compute_client_sensitivity(bound, trust)
    if kind == "message":
        raise InputError(
            f"--clip {args.clip} bounds clients, but --privacy {unit} protects records", hint="--clip clamp:B or l2:R"
        )
    if args.features is None:
        raise InputError("expected --features, to compute the sensitivity, found none", hint="--features 51 for 10x51")
    clip: Clip = Clamp(bound) if kind == "clamp" else L2Clip(bound)
    return clip.sensitivity(args.features)


def _read_clip(text: str, unit: Unit) -> tuple[str, float]:
    kind, _, number = text.rpartition(":")
    kind = kind or ("message" if unit is Unit.CLIENT else "clamp")
    try:
        bound = float(number)
    except ValueError:
        bound = -1.0
    if kind not in ("clamp", "l2", "message") or not 0 < bound < float("inf"):
        raise InputError(
            f"--clip must be clamp:B, l2:R or message:S with a number above 0, found: {text}", hint="--clip clamp:2"
        )
    return kind, bound


def _plan_as_json(
    mechanism: Mechanism, budget: Budget, releases: int, calibration: Calibration, warning: str | None
) -> dict[str, Any]:
    by_formula = sigma_by_paper(budget, releases, mechanism.sensitivity)
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


def _format_plan(facts: dict[str, Any]) -> str:
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
