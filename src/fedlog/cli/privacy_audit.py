"""`fedlog privacy audit`: try to refute a promise."""

from __future__ import annotations

import argparse
import json

from fedlog.cli.command import Subparsers, add_command
from fedlog.errors import RunError
from fedlog.privacy.guarantee import Budget, Trust, Unit


def add_audit_command(verbs: Subparsers) -> None:
    """Add the `audit` verb."""
    summary = "try to refute a promise: train small clients with and without a canary, and compare their messages"
    audit = add_command(verbs, "audit", summary, audit_command)
    audit.add_argument("--privacy", choices=[str(unit) for unit in Unit], default="record", help="default: record")
    audit.add_argument("--epsilon", type=float, default=1.0, help="the claimed epsilon (default: %(default)s)")
    audit.add_argument("--delta", type=float, default=1e-5, help="the claimed delta (default: %(default)s)")
    audit.add_argument(
        "--mechanism",
        choices=["central", "local", "distributed"],
        default="central",
        help="distributed: a secure sum, audited in one run with many canaries (default: central)",
    )
    audit.add_argument(
        "--audited",
        choices=["statistics", "dp-sgd"],
        default="statistics",
        help="what is audited: the statistics that leave, or bodies trained by DP-SGD, in one run with many canaries "
        "(default: statistics)",
    )
    audit.add_argument("--releases", type=int, default=1, help="how many releases share the budget (default: 1)")
    audit.add_argument("--clip", default="clamp:2", help="clamp:B or l2:R (default: %(default)s)")
    audit.add_argument("--message-norm", type=float, default=20.0, help="with --privacy client (default: %(default)s)")
    audit.add_argument("--noise", choices=["float", "discrete"], default="float", help="default: float")
    audit.add_argument(
        "--fault",
        choices=["none", "small-noise", "unclipped", "exact-count"],
        default="none",
        help="make this mistake on purpose, to see that the audit finds it",
    )
    audit.add_argument(
        "--too-small",
        type=float,
        default=10.0,
        metavar="X",
        help="with --fault small-noise: how many times too small the noise is (default: %(default)g)",
    )
    audit.add_argument(
        "--trials",
        type=int,
        default=40_000,
        help="noisy messages with the canary, and as many without it (default: %(default)s)",
    )
    audit.add_argument(
        "--canaries",
        type=int,
        help="how many canaries an audit in one run has (default: 2000; 200 where they are whole clients)",
    )
    audit.add_argument(
        "--trainings", type=int, default=4, help="how many trainings the messages come from (default: %(default)s)"
    )
    audit.add_argument(
        "--confidence", type=float, default=0.95, help="confidence of the lower bound (default: %(default)s)"
    )
    audit.add_argument("--seed", type=int, default=0, help="seed of the trainings and the noise (default: 0)")
    audit.add_argument("--json", action="store_true", help="print one JSON object")


def audit_command(args: argparse.Namespace) -> int:
    """Run the audit; return 0 if the promise stands and 1 if not. RunError if the audit is too weak to refute it."""
    from fedlog.audit.canary import run_audit
    from fedlog.audit.finding import Audit, AuditedPart, Fault
    from fedlog.privacy.guarantee import NoiseSource

    finding = run_audit(
        Audit(
            unit=Unit(args.privacy),
            budget=Budget(args.epsilon, args.delta),
            trust=Trust(args.mechanism),
            clip=args.clip,
            message_norm=args.message_norm,
            noise=NoiseSource(args.noise),
            fault=Fault(args.fault),
            too_small=args.too_small,
            releases=args.releases,
            audited=AuditedPart(args.audited),
            trials=args.trials,
            trainings=args.trainings,
            canaries=args.canaries or (200 if args.privacy == "client" else 2000),
            confidence=args.confidence,
            seed=args.seed,
        )
    )
    if args.json:
        print(json.dumps(finding.as_json(), indent=2))
    else:
        print(finding)
    if finding.blind:
        raise RunError(
            f"this audit cannot find more than epsilon {finding.epsilon_visible:.3g}, so it cannot refute a claim of "
            f"{args.epsilon:g}",
            hint=f"{'more --canaries, a smaller --delta' if finding.audit.in_one_run else 'more --trials'}, or a "
            "smaller --epsilon",
        )
    # Mode paper promises nothing, so no promise is refuted there.
    return int(finding.contradicted and finding.audit.unit is not Unit.PAPER)
