"""`fedlog privacy`: compute the noise for a promise, show what a run has spent, and audit a promise."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from fedlog.audit.finding import Audit
from fedlog.cli import privacy_calibrate
from fedlog.cli.command import Subparsers, add_command
from fedlog.errors import RunError
from fedlog.privacy.accounting import Spending, TrainingRound, explain_missing_guarantee
from fedlog.privacy.guarantee import DEFAULT_DELTA, Budget, Unit
from fedlog.privacy.release_log import FILE_NAME, ReleaseLog, compute_spending_across_runs, read_log
from fedlog.settings.fields import check_value, list_choices, type_hints


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
    add_audit_command(verbs)


def spend_command(args: argparse.Namespace) -> None:
    """Print what the run has spent, release by release."""
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


# Setting of an `Audit` that has a flag of the same name -> its help text.
HELP = {
    "audited": "what is audited: the statistics that leave, or bodies trained by DP-SGD, in one run with many canaries",
    "releases": "how many releases share the budget",
    "clip": "clamp:B or l2:R",
    "message_norm": "the largest norm of a client's message, with --privacy client",
    "noise": "noise from floating-point numbers, or discrete noise",
    "fault": "make this mistake on purpose, to see that the audit finds it",
    "too_small": "with --fault small-noise: how many times too small the noise is",
    "trials": "noisy messages with the canary, and as many without it",
    "trainings": "how many trainings the messages come from",
    "confidence": "confidence of the lower bound",
    "seed": "seed of the trainings and the noise",
}


def add_audit_command(verbs: Subparsers) -> None:
    """Add the `audit` verb."""
    summary = "try to refute a promise: train small clients with and without a canary, and compare their messages"
    audit, hints = add_command(verbs, "audit", summary, audit_command), type_hints(Audit)
    units, trusts = list_choices(hints["unit"]), list_choices(hints["trust"])
    audit.add_argument("--privacy", dest="unit", choices=units, default="record", help="default: record")
    audit.add_argument("--epsilon", type=float, default=1.0, help="the claimed epsilon (default: %(default)s)")
    audit.add_argument("--delta", type=float, default=1e-5, help="the claimed delta (default: %(default)s)")
    text = "distributed: a secure sum, audited in one run with many canaries (default: central)"
    audit.add_argument("--mechanism", dest="trust", choices=trusts, default="central", help=text)
    for name, text in HELP.items():
        default, words = getattr(Audit, name), list_choices(hints[name]) or None
        kind = str if words else type(default)
        help_text = f"{text} (default: {default})"
        audit.add_argument(f"--{name.replace('_', '-')}", type=kind, choices=words, default=default, help=help_text)
    text = "how many canaries an audit in one run has (default: 2000; 200 where they are whole clients)"
    audit.add_argument("--canaries", type=int, help=text)
    audit.add_argument("--json", action="store_true", help="print one JSON object")


def audit_command(args: argparse.Namespace) -> int:
    """Run the audit; return 0 if the promise stands and 1 if not. RunError if the audit is too weak to refute it."""
    from fedlog.audit.canary import run_audit

    args.canaries = args.canaries or (200 if args.unit == Unit.CLIENT else 2000)
    hints = {name: hint for name, hint in type_hints(Audit).items() if name in args}
    given = {name: check_value(name, getattr(args, name), hint) for name, hint in hints.items()}
    finding = run_audit(Audit(budget=Budget(args.epsilon, args.delta), **given))
    print(json.dumps(finding.as_json(), indent=2) if args.json else finding)
    if finding.blind:
        raise RunError(
            f"this audit cannot find more than epsilon {finding.epsilon_visible:.3g}, so it cannot refute a claim of "
            f"{args.epsilon:g}",
            hint=f"{'more --canaries, a smaller --delta' if finding.audit.in_one_run else 'more --trials'}, or a "
            "smaller --epsilon",
        )
    # Mode paper promises nothing, so no promise is refuted there.
    return int(finding.contradicted and finding.audit.unit is not Unit.PAPER)
