"""The contract that every method keeps, for methods of one's own: `fedlog.testing.check_method(MyMethod)`."""

from fedlog.testing.contract import MethodBrokenError, check_method, contract_checks
from fedlog.testing.trial import Trial

__all__ = ["MethodBrokenError", "Trial", "check_method", "contract_checks"]
