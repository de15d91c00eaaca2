"""`fedlog.compare`: several methods and seeds on one federation, side by side."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from fedlog.algorithms.registry import Factory, name_method
from fedlog.api.frames import make_frame
from fedlog.api.result import Result, describe_bits
from fedlog.api.run import run
from fedlog.data.federation import Federation
from fedlog.errors import InputError
from fedlog.experiments.run.callbacks import Callback

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS: tuple[str, ...] = ("fedlog", "fedlog-c", "fedproto", "fedavg", "local", "pooled")


@dataclass(frozen=True)
class Row:
    """One method's figures over all seeds."""

    method: str
    seeds: int
    accuracy: float  # the mean over seeds of the mean over clients
    accuracy_std: float | None  # over seeds; None for a single one
    bits: float  # up and down, all clients, mean over seeds
    seconds: float


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The outcome of `fedlog.compare`: a run for each method and seed, and a table of them."""

    data: str
    runs: Mapping[tuple[str, int], Result]

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, in the order they were given."""
        return tuple(dict.fromkeys(method for method, _ in self.runs))

    def runs_of(self, method: str) -> tuple[Result, ...]:
        """The runs of one method.

        Args:
            method: its name.

        Returns:
            One run a seed.

        """
        return tuple(result for (name, _), result in self.runs.items() if name == method)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Each method's figures over all seeds."""
        return tuple(_summarise(method, self.runs_of(method)) for method in self.methods)

    @property
    def table(self) -> Any:
        """One row a method: a pandas data frame, or a polars one where pandas is not installed.

        Columns: method, seeds, accuracy (mean over seeds and clients), accuracy_std (over seeds), bits, seconds.
        """
        return make_frame([vars(row) for row in self.rows])

    def plot(self) -> Figure:
        """Draw the accuracy of each method against the bits it sent.

        Returns:
            A matplotlib figure, which notebooks show; `figure.savefig("compare.png")` writes it.

        """
        from fedlog.report.curves import draw_methods

        return draw_methods([(row.method, row.bits, row.accuracy, row.accuracy_std) for row in self.rows])

    def __repr__(self) -> str:
        return "\n".join("  ".join(cells) for cells in self._cells(pad=True))

    def _repr_html_(self) -> str:
        head, *body = self._cells(pad=False)
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in cells) for cells in body]
        top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        return f"<table><tr>{top}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    def _cells(self, *, pad: bool) -> list[list[str]]:
        lines = [["method", "accuracy", "bits", "seconds"]]
        for row in self.rows:
            spread = "" if row.accuracy_std is None else f" ± {100 * row.accuracy_std:.2f}"
            accuracy = f"{100 * row.accuracy:.2f} %{spread}"
            lines.append([row.method, accuracy, describe_bits(round(row.bits)), f"{row.seconds:.1f}"])
        if not pad:
            return lines
        widths = [max(len(line[at]) for line in lines) for at in range(4)]
        return [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]


def compare(
    data: Federation | str,
    methods: Sequence[str | Factory] = METHODS,
    seeds: int | Iterable[int] = 3,
    *,
    out: str | Path | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
    **settings: Any,
) -> Comparison:
    """Run several methods with several seeds on one federation.

    Args:
        data: a `Federation`, or the name of a data set, as for `fedlog.run`.
        methods: names, or classes that make an `Algorithm`; training alone and `pooled` show what there is to gain.
        seeds: how many (0, 1, ...), or which.
        out: a folder to keep the runs in, one each; those that are finished there are not run again.
        options: of single methods, by the method's name: `{"fedlog": {"epochs": 3}}`.
        callbacks: who is told of every run.
        progress: whether to show how it goes; by default in terminals and notebooks.
        settings: what `fedlog.run` takes beside; the same for every method.

    Returns:
        The runs, and a table of them.

    """
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not chosen or not methods or len(set(chosen)) < len(chosen):
        raise InputError(f"expected methods and different seeds, found: {len(methods)} methods, seeds {chosen}")
    told, runs = tuple(callbacks), {}
    for method in methods:
        name = name_method(method)
        own = (options or {}).get(name, {})
        for seed in chosen:
            folder = None if out is None else Path(out) / name.replace(":", "-") / f"seed-{seed}"
            runs[name, seed] = run(
                data, method, out=folder, callbacks=told, progress=progress, seed=seed, **{**settings, **own}
            )
    return Comparison(data.name if isinstance(data, Federation) else data, runs)


def _summarise(method: str, results: Sequence[Result]) -> Row:
    shares = [result.accuracy for result in results]
    return Row(
        method=method,
        seeds=len(results),
        accuracy=mean(shares),
        accuracy_std=stdev(shares) if len(shares) > 1 else None,
        bits=mean(result.bits for result in results),
        seconds=sum(result.summary.seconds for result in results),
    )
