"""Accuracy by round, by bits and by method, as matplotlib figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlog.engine.simulate.simulator import RoundRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_curves(lines: Sequence[RoundRecord], opening: int) -> Figure:
    """Accuracy by round and by bits, those before round 1 included."""
    figure = new_figure((10, 4))
    by_round, by_bits = figure.subplots(1, 2, sharey=True)
    accuracy = [100 * line.accuracy_mean_over_clients for line in lines]
    spent, bits = opening, []
    for line in lines:
        spent += line.bits_up + line.bits_down
        bits.append(spent / 1e6)
    by_round.plot([line.round for line in lines], accuracy, marker=".")
    by_round.set(xlabel="round", ylabel="accuracy, mean over clients (%)")
    by_bits.plot(bits, accuracy, marker=".")
    by_bits.set(xlabel="Mb up and down, all clients")
    for axes in (by_round, by_bits):
        axes.grid(alpha=0.3)
    return figure


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty figure of that size in inches, without a window."""
    # Imported here: it takes a second, and only whoever draws needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
