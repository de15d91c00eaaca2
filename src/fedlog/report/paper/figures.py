"""Draw figures as SVG: accuracy by round and by bits, and the six panels of the synthetic experiment."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fedlog.experiments.tables.cells import Row
from fedlog.experiments.tables.cost import count_opening_bits
from fedlog.experiments.tables.finished_cells import Collected, RunResult
from fedlog.experiments.tables.synthetic import PLOTTED_SEED, REPRESENTATIONS, IterationRecord
from fedlog.report.parts.style import COLOURS, style_of, styles_of

# Dark for client 0, light for client 1; blue and green as in the paper's figure, and a marker for each class.
CLASSES = (COLOURS["blue"], COLOURS["green"])


def curves(found: Collected) -> str:
    """A figure of every row's accuracy by round and by bits: the mean over seeds, one standard deviation shaded."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    by_round, by_bits = figure.subplots(1, 2, sharey=True)
    looks = styles_of({row.name: row.spec.method for row in found.experiment.rows if found.runs[row.name]})
    for row in found.experiment.rows:
        runs = found.runs[row.name]
        if not runs:
            continue
        look = looks[row.name].matplotlib_line
        accuracy, megabits = _over_rounds(runs)
        mean, spread = accuracy.mean(0), accuracy.std(0)
        rounds = np.arange(1, len(mean) + 1)
        by_round.plot(rounds, mean, label=f"{row.label} ({len(runs)})", linewidth=1.2, **look)
        by_round.fill_between(rounds, mean - spread, mean + spread, alpha=0.2, color=look["color"], linewidth=0)
        if megabits[-1] > 0:
            by_bits.plot(megabits, mean, linewidth=1.2, **look)
    by_round.set(xlabel="round", ylabel=f"{found.experiment.judged_on} accuracy, mean over clients (%)")
    by_bits.set(xlabel="Mb, both directions, all clients", xscale="log")
    for axes in (by_round, by_bits):
        axes.grid(alpha=0.3)
    by_round.legend(fontsize="small", title="method (seeds)", title_fontsize="small")
    return svg(figure)


def _over_rounds(runs: Sequence[RunResult]) -> tuple[np.ndarray, np.ndarray]:
    """(seeds, rounds): accuracies in per cent; (rounds,): Mb sent until then on the first seed, opening included."""
    length = min(len(run.rounds) for run in runs)
    accuracy = np.array([[100 * r.accuracy_mean_over_clients for r in run.rounds[:length]] for run in runs])
    first = runs[0]
    each = np.array([record.bits_up + record.bits_down for record in first.rounds])
    return accuracy, (sum(count_opening_bits(first.rounds, first.summary)) + np.cumsum(each))[:length] / 1e6


def synthetic(found: Collected) -> str:
    """The paper's six panels: points of one seed, accuracies over all seeds; a panel without records shows a note."""
    ours, averaged = found.experiment.rows
    figure = Figure(figsize=(12, 7), layout="constrained")
    panels = figure.subplots(2, 3)
    of_ours, of_averaged = _points_of_clients(found, ours), _points_of_clients(found, averaged)
    either = f"{ours.label} or {averaged.label}"
    if _panel(panels[0, 0], "raw data", of_ours or of_averaged, "points", either):  # both have the same
        panels[0, 0].legend(fontsize="x-small")
    title = "initial representations, FedLog's first head"
    if _panel(panels[0, 1], title, of_ours, "features_before", ours.label):
        _separators(panels[0, 1], [of_ours[0]["head_before"]], "black")
    _accuracies(panels[0, 2], found, "train_accuracy", "training accuracy (%)")
    title = "LG-FedAvg: local (black), averaged (red)"
    if _panel(panels[1, 0], title, of_averaged, "features_after", averaged.label):
        _separators(panels[1, 0], [client["head_local"] for client in of_averaged], "black")
        _separators(panels[1, 0], [of_averaged[0]["head_after"]], "red")
    if _panel(panels[1, 1], "FedLog: the server's separator (red)", of_ours, "features_after", ours.label):
        _separators(panels[1, 1], [of_ours[0]["head_after"]], "red")
    _accuracies(panels[1, 2], found, "test_accuracy", "test accuracy (%)")
    return svg(figure)


def _points_of_clients(found: Collected, row: Row) -> list[dict[str, Any]]:
    """The points to plot for each client; empty if seed PLOTTED_SEED was not run."""
    path = found.folder / row.name / f"seed-{PLOTTED_SEED}" / REPRESENTATIONS
    if PLOTTED_SEED not in found.sweeps[row.name] or not path.exists():
        return []
    clients: list[dict[str, Any]] = json.loads(path.read_text())
    return clients


def _panel(axes: Axes, title: str, clients: Sequence[dict[str, Any]], what: str, whose: str) -> bool:
    """Draw the clients into the panel and return True; if there are none, write that and return False."""
    axes.set_title(title, fontsize="medium")
    if clients:
        _scatter(axes, clients, what)
        return True
    axes.set_axis_off()
    axes.text(0.5, 0.5, f"not run: {whose}, seed {PLOTTED_SEED}", ha="center", transform=axes.transAxes)
    return False


def _scatter(axes: Axes, clients: Sequence[dict[str, Any]], what: str) -> None:
    for number, client in enumerate(clients):
        points, labels = np.array(client[what]), np.array(client["labels"])
        for label, look in enumerate(CLASSES):
            own = points[labels == label]
            colour = look.light if number == 0 else look.dark
            name = f"client {number} class {label}"
            axes.scatter(own[:, 0], own[:, 1], s=14, color=colour, marker=look.marker, label=name)


def _separators(axes: Axes, heads: Sequence[list[list[float]]], colour: str) -> None:
    """Draw the lines on which both classes are equally likely; the limits of the axes stay."""
    x_range, y_range = axes.get_xlim(), axes.get_ylim()
    for head in heads:
        bias, first, second = (b - a for a, b in zip(*head, strict=True))
        # The point of the line nearest to the origin, and the line's direction.
        scale = first**2 + second**2
        along = np.linspace(-1e3, 1e3, 2)
        length = scale**0.5
        x = -bias * first / scale - second / length * along
        y = -bias * second / scale + first / length * along
        axes.plot(x, y, "--", color=colour, linewidth=1.2)
    axes.set(xlim=x_range, ylim=y_range)


def _accuracies(axes: Axes, found: Collected, part: str, name: str) -> None:
    for row in found.experiment.rows:
        sweeps: Sequence[Sequence[IterationRecord]] = list(found.sweeps[row.name].values())
        if not sweeps:
            axes.plot([], [], " ", label=f"{row.label}: not run")
            continue
        values = np.array([[100 * getattr(line, part) for line in sweep] for sweep in sweeps])
        look = style_of(row.spec.method).matplotlib_line
        axes.plot(np.arange(1, values.shape[1] + 1), values.mean(0), label=row.label, **look)
    axes.set(xlabel="local iterations", ylabel=name)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def svg(figure: Figure) -> str:
    """The figure as SVG; the same records always give the same text."""
    written = io.StringIO()
    # Names and no date, so that the same records give the same file.
    with mpl.rc_context({"svg.hashsalt": "fedlog", "svg.fonttype": "none"}):
        FigureCanvasSVG(figure)
        figure.savefig(written, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"
