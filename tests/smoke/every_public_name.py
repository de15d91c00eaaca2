"""Every public name, used as a typed program uses it: `mypy --strict` reads this file with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

import fedlog
from fedlog.engine.simulate.simulator import RoundRecord


class Rounds(fedlog.Callback):
    """Counts the rounds."""

    def __init__(self) -> None:
        self.count = 0

    def round_ended(self, record: RoundRecord) -> None:
        """Count one more."""
        self.count = record.round


def make_body(input_shape: tuple[int, ...], width: int) -> nn.Module:
    """A body of one layer."""
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU())


def main(folder: Path) -> None:
    """Use every public name."""
    generator = np.random.default_rng(0)
    labels: NDArray[np.int64] = np.arange(60) % 2
    X: NDArray[np.float64] = generator.normal(size=(60, 3)) + labels[:, None]
    federation: fedlog.Federation = fedlog.Federation.from_arrays({"a": (X[::2], labels[::2]), "b": (X, labels)})
    told = Rounds()
    watched: list[fedlog.Callback] = [told, fedlog.TensorBoard(folder / "board"), fedlog.MLflow(folder / "mlruns")]
    result: fedlog.Result = fedlog.run(federation, "fedlog", body=make_body, rounds=1, epochs=1, callbacks=watched)
    model: fedlog.Model = result.models["a"]
    shares: NDArray[np.float64] = model.predict_proba(X)
    loaded: fedlog.Result = fedlog.load(result.save(folder / "run"))
    compared: fedlog.Comparison = fedlog.compare(federation, ["fedlog", "local"], seeds=1, rounds=1, epochs=1)
    head: fedlog.FedLogHead = fedlog.FedLogHead().fit(X, labels)
    line: fedlog.FedLinearHead = fedlog.FedLinearHead().fit(X, labels)
    fedlog.testing.check_method("fed-ncm")
    root: type[fedlog.FedlogError] = fedlog.RunError
    try:
        fedlog.run("no such data")
    except fedlog.InputError as error:
        hint: str | None = error.hint
    per_client: dict[str, float | None] = loaded.per_client
    print(told.count, shares.shape, per_client, compared.methods, head.statistics_, line.coef_, root, hint)


if __name__ == "__main__":
    main(Path())
