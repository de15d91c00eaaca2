"""The contract that every method keeps, for methods of one's own: `fedlog.testing.check_method(MyMethod)`."""

from fedlog.testing.contract import MethodBrokenError, check_method, contract_checks

__all__ = ["MethodBrokenError", "check_method", "contract_checks"]
