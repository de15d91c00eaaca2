"""Check that your own method keeps the contract of all methods: `fedlog.testing.check_method(MyMethod)`."""

from fedlog.testing.contract import MethodBrokenError, check_method, contract_checks
from fedlog.testing.trial import Trial

__all__ = ["MethodBrokenError", "Trial", "check_method", "contract_checks"]
