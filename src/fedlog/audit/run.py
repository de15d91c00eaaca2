"""One door to both audits."""

from __future__ import annotations

from fedlog.audit.canary import audit_two_worlds
from fedlog.audit.finding import Audit, Finding


def run_audit(audit: Audit) -> Finding:
    """What the audit finds: with many runs and one canary, or in one run with many where runs are dear."""
    if not audit.in_one_run:
        return audit_two_worlds(audit)
    from fedlog.audit.one_run import audit_one_run  # loads cryptography

    return audit_one_run(audit)
