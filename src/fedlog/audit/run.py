"""One door to both audits."""

from __future__ import annotations

from fedlog.audit.canary import audit_two_worlds
from fedlog.audit.finding import Audit, Finding


def run_audit(audit: Audit) -> Finding:
    """Run the audit: many runs with one canary, or one run with many canaries where runs are expensive."""
    if not audit.in_one_run:
        return audit_two_worlds(audit)
    from fedlog.audit.one_run import audit_one_run  # loads cryptography

    return audit_one_run(audit)
