"""Draw figures as SVG: accuracy by round and by bits, and the six panels of the synthetic experiment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedlog.experiments.tables.cells import TableRow
from fedlog.experiments.tables.finished_cells import FinishedRuns, RunResult
from fedlog.experiments.tables.synthetic import PLOTTED_SEED, REPRESENTATIONS, IterationRecord
from fedlog.report.parts.matplotlib_figure import ShownFigure, convert_figure_to_svg
from fedlog.report.parts.style import COLOURS, choose_styles, find_style

# Dark for client 0, light for client 1; blue and green as in the paper's figure, and a marker for each class.
CLASS_COLOURS = (COLOURS["blue"], COLOURS["green"])


def draw_method_curves(finished: FinishedRuns) -> str:
    """Draw every row's accuracy by round and by bits as SVG: the mean over seeds, one standard deviation shaded.

    Bits are those of the first seed.
    """
    figure = ShownFigure((11, 4.5))
    by_round, by_bits = figure.subplots(1, 2, sharey=True)
    styles = choose_styles({row.name: row.spec.method for row in finished.experiment.rows if finished.runs[row.name]})
    for row in finished.experiment.rows:
        runs = finished.runs[row.name]
        if not runs:
            continue
        look = styles[row.name].matplotlib_line
        accuracy = read_accuracy_curves(runs)
        megabits = np.array(runs[0].bits_so_far_by_round)[: accuracy.shape[1]] / 1e6
        mean, spread = accuracy.mean(0), accuracy.std(0)
        rounds = np.arange(1, len(mean) + 1)
        by_round.plot(rounds, mean, label=f"{row.label} ({len(runs)})", linewidth=1.2, **look)
        by_round.fill_between(rounds, mean - spread, mean + spread, alpha=0.2, color=look["color"], linewidth=0)
        if megabits[-1] > 0:
            by_bits.plot(megabits, mean, linewidth=1.2, **look)
    by_round.set(xlabel="round", ylabel=f"{finished.experiment.judged_on} accuracy, mean over clients (%)")
    by_bits.set(xlabel="Mb, both directions, all clients", xscale="log")
    for axes in (by_round, by_bits):
        axes.grid(alpha=0.3)
    by_round.legend(fontsize="small", title="method (seeds)", title_fontsize="small")
    return convert_figure_to_svg(figure)


def read_accuracy_curves(runs: Sequence[RunResult]) -> np.ndarray:
    """Return the accuracies in per cent, as (seeds, rounds), up to the last round that all runs have."""
    length = min(len(run.rounds) for run in runs)
    return np.array([[100 * record.accuracy_mean_over_clients for record in run.rounds[:length]] for run in runs])


def draw_synthetic_panels(finished: FinishedRuns) -> str:
    """Draw the six panels of the synthetic experiment as SVG: points of one seed, accuracies over all seeds.

    A panel without records shows a note.
    """
    ours, averaged = finished.experiment.rows
    figure = ShownFigure((12, 7))
    panels = figure.subplots(2, 3)
    of_ours, of_averaged = _read_points_of_clients(finished, ours), _read_points_of_clients(finished, averaged)
    either = f"{ours.label} or {averaged.label}"
    if _draw_panel(panels[0, 0], "raw data", of_ours or of_averaged, "points", either):  # both have the same
        panels[0, 0].legend(fontsize="x-small")
    title = "initial representations, FedLog's first head"
    if _draw_panel(panels[0, 1], title, of_ours, "features_before", ours.label):
        _draw_decision_boundaries(panels[0, 1], [of_ours[0]["head_before"]], "black")
    _draw_accuracies(panels[0, 2], finished, "train_accuracy", "training accuracy (%)")
    title = "LG-FedAvg: local (black), averaged (red)"
    if _draw_panel(panels[1, 0], title, of_averaged, "features_after", averaged.label):
        _draw_decision_boundaries(panels[1, 0], [client["head_local"] for client in of_averaged], "black")
        _draw_decision_boundaries(panels[1, 0], [of_averaged[0]["head_after"]], "red")
    if _draw_panel(panels[1, 1], "FedLog: the server's separator (red)", of_ours, "features_after", ours.label):
        _draw_decision_boundaries(panels[1, 1], [of_ours[0]["head_after"]], "red")
    _draw_accuracies(panels[1, 2], finished, "test_accuracy", "test accuracy (%)")
    return convert_figure_to_svg(figure)


def _read_points_of_clients(finished: FinishedRuns, row: TableRow) -> list[dict[str, Any]]:
    """Read the points and heads of each client from the run with seed PLOTTED_SEED; [] if this seed was not run."""
    path = finished.folder / row.name / f"seed-{PLOTTED_SEED}" / REPRESENTATIONS
    if PLOTTED_SEED not in finished.sweeps[row.name] or not path.exists():
        return []
    clients: list[dict[str, Any]] = json.loads(path.read_text())
    return clients


def _draw_panel(axes: Axes, title: str, clients: Sequence[dict[str, Any]], key: str, needed: str) -> bool:
    """Draw the clients' points and return True; without clients, write a note into the panel and return False.

    `key` is the key of the points in a client's dictionary. `needed` names the methods whose runs the panel
    shows; the note says that they were not run.
    """
    axes.set_title(title, fontsize="medium")
    if not clients:
        axes.set_axis_off()
        axes.text(0.5, 0.5, f"not run: {needed}, seed {PLOTTED_SEED}", ha="center", transform=axes.transAxes)
        return False
    for number, client in enumerate(clients):
        points, labels = np.array(client[key]), np.array(client["labels"])
        for label, look in enumerate(CLASS_COLOURS):
            own = points[labels == label]
            colour = look.light if number == 0 else look.dark
            name = f"client {number} class {label}"
            axes.scatter(own[:, 0], own[:, 1], s=14, color=colour, marker=look.marker, label=name)
    return True


def _draw_decision_boundaries(axes: Axes, heads: Sequence[list[list[float]]], colour: str) -> None:
    """Draw the decision boundary of each head (two classes), without changing the limits of the axes."""
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


def _draw_accuracies(axes: Axes, finished: FinishedRuns, part: str, name: str) -> None:
    """Draw each row's mean accuracy over seeds by local iterations; `part` is `train_accuracy` or `test_accuracy`."""
    for row in finished.experiment.rows:
        sweeps: Sequence[Sequence[IterationRecord]] = list(finished.sweeps[row.name].values())
        if not sweeps:
            axes.plot([], [], " ", label=f"{row.label}: not run")
            continue
        values = np.array([[100 * getattr(line, part) for line in sweep] for sweep in sweeps])
        look = find_style(row.spec.method).matplotlib_line
        axes.plot(np.arange(1, values.shape[1] + 1), values.mean(0), label=row.label, **look)
    axes.set(xlabel="local iterations", ylabel=name)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
