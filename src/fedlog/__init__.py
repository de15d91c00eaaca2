"""Personalised federated classification by sufficient statistics.

    federation = fedlog.Federation.from_arrays({"north": (X, y), "south": (X2, y2)})
    result = fedlog.run(federation, method="fedlog", rounds=10)
    result.models["north"].predict(X_new)

docs/api.md shows every name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlog import testing as testing
    from fedlog.api.compare import Comparison as Comparison
    from fedlog.api.compare import compare as compare
    from fedlog.api.result import Result as Result
    from fedlog.api.result import load as load
    from fedlog.api.run import run as run
    from fedlog.api.trackers import MLflow as MLflow
    from fedlog.api.trackers import TensorBoard as TensorBoard
    from fedlog.data.federation import Federation as Federation
    from fedlog.errors import FedlogError as FedlogError
    from fedlog.errors import InputError as InputError
    from fedlog.errors import RunError as RunError
    from fedlog.estimators import FedLinearHead as FedLinearHead
    from fedlog.estimators import FedLogHead as FedLogHead
    from fedlog.experiments.run.callbacks import Callback as Callback
    from fedlog.models.model import Model as Model

__version__ = "0.1.0"

# Imported on first use: PyTorch takes a second to import, and `fedlog --help` does not need it.
_HOMES = {
    "Callback": "fedlog.experiments.run.callbacks",
    "Comparison": "fedlog.api.compare",
    "FedLinearHead": "fedlog.estimators",
    "FedLogHead": "fedlog.estimators",
    "Federation": "fedlog.data.federation",
    "FedlogError": "fedlog.errors",
    "InputError": "fedlog.errors",
    "MLflow": "fedlog.api.trackers",
    "Model": "fedlog.models.model",
    "Result": "fedlog.api.result",
    "RunError": "fedlog.errors",
    "TensorBoard": "fedlog.api.trackers",
    "compare": "fedlog.api.compare",
    "load": "fedlog.api.result",
    "run": "fedlog.api.run",
}

__all__ = [*_HOMES, "testing"]


def __getattr__(name: str) -> Any:
    if name == "testing":
        return import_module("fedlog.testing")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedlog' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
