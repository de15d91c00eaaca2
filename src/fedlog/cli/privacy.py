"""`fedlog privacy`: compute the noise for a promise, show what a run has spent, and audit a promise."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from fedlog.cli import privacy_audit, privacy_calibrate
from fedlog.cli.command import add_command
from fedlog.privacy.accounting import Spending, TrainingRound, explain_missing_guarantee
from fedlog.privacy.guarantee import DEFAULT_DELTA, Unit
from fedlog.privacy.release_log import FILE_NAME, ReleaseLog, compute_spending_across_runs, read_log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog privacy`."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    privacy_calibrate.add_calibrate_command(verbs)
    spend = add_command(
        verbs, "spend", "show what a finished or interrupted run has spent, release by release", spend_command
    )
    spend.add_argument("run", type=Path, metavar="RUN", help=f"folder of the run (it holds {FILE_NAME})")
    spend.add_argument("--delta", type=float, help="state epsilon at this delta (default: the run's own)")
    spend.add_argument("--json", action="store_true", help="print one JSON object")
    privacy_audit.add_audit_command(verbs)


def spend_command(args: argparse.Namespace) -> int:
    """Print what the run has spent, release by release; return exit code 0."""
    log = read_log(args.run / FILE_NAME)
    own = DEFAULT_DELTA if log.limit is None else log.limit.delta
    delta = own if args.delta is None else args.delta
    spending = compute_spending_across_runs(log.events, delta)
    if args.json:
        print(json.dumps(_spending_as_json(args.run, log, spending, delta), indent=2))
    else:
        print(_format_spending(log, spending, delta))
    for caveat in spending.caveats:
        print(f"warning: {caveat}", file=sys.stderr)
    return 0


def _spending_as_json(run: Path, log: ReleaseLog, spending: Spending, delta: float) -> dict[str, Any]:
    nominal = spending.guarantee is not None and spending.guarantee.unit is Unit.PAPER
    name = "nominal_epsilon" if nominal else "epsilon"
    return {
        "run": str(run),
        "budget": None if log.limit is None else {"epsilon": log.limit.epsilon, "delta": log.limit.delta},
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
            for release, epsilon in zip(spending.releases, spending.epsilons, strict=True)
        ],
        "guarantee": None if spending.guarantee is None else spending.guarantee.as_json(),
        "caveats": list(spending.caveats),
    }


def _format_spending(log: ReleaseLog, spending: Spending, delta: float) -> str:
    limit = log.limit
    budget = "budget: none" if limit is None else f"budget: epsilon {limit.epsilon:g} at delta {limit.delta:g}"
    if spending.guarantee is None:
        return f"nothing spent: no release is recorded\n{budget}"
    column = "epsilon so far" if spending.guarantee.unit is not Unit.PAPER else "by Theorem 4's formula"
    lines = [f"{'round':>5}  {'exchange':<14} {'sigma':>10} {'sensitivity':>11}  {column}"]
    for release, epsilon in zip(spending.releases, spending.epsilons, strict=True):
        noise = f"{release.sigma:>10.5g} {release.sensitivity:>11.5g}"
        named = f"{release.steps} SGD steps" if isinstance(release, TrainingRound) else release.exchange
        lines.append(f"{release.round:>5}  {named:<14} {noise}  {epsilon:.5g}")
    return "\n".join([*lines, f"spent: {explain_missing_guarantee(spending.releases) or spending.guarantee}", budget])
