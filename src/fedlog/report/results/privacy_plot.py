"""The privacy figure: accuracy by noise on the sum, and by what each formula calls that noise."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlog.core.clip import parse_clip
from fedlog.experiments.tables.finished_cells import Collected
from fedlog.experiments.tables.privacy_figure import CLIPS, DELTAS, LEVELS, READINGS, level_name, no_noise_name
from fedlog.privacy.guarantee import Calibration, Trust
from fedlog.report.results.figures import svg
from fedlog.report.results.privacy_tables import WIDTH, find_verified_points, points
from fedlog.report.parts.style import COLOURS

STYLES = {"clamp": "--", "l2": "-"}
READING_COLOURS = {
    (Calibration.EXACT, Trust.CENTRAL): COLOURS["blue"],
    (Calibration.EXACT, Trust.LOCAL): COLOURS["vermillion"],
    (Calibration.PAPER, Trust.CENTRAL): COLOURS["green"],
    (Calibration.PAPER, Trust.LOCAL): COLOURS["ochre"],
}


def privacy_plot(found: Collected) -> str:
    """Three panels: by the std on the sum, and by epsilon at each delta; verified cells as crosses."""
    figure = Figure(figsize=(14, 4.5), layout="constrained")
    panels = figure.subplots(1, 1 + len(DELTAS), sharey=True)
    _by_noise(panels[0], found)
    for axes, delta in zip(panels[1:], DELTAS, strict=True):
        _by_epsilon(axes, found, delta)
    for axes in panels:
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize="x-small")
    return svg(figure)


def _by_noise(axes: Axes, found: Collected) -> None:
    for clip, named in CLIPS.items():
        unit = parse_clip(named).sensitivity(WIDTH)
        drawn = [(level * unit, found.final(level_name(clip, level))) for level in LEVELS]
        spots = [(std, sum(finals.values()) / len(finals)) for std, finals in drawn if finals]
        if spots:
            axes.plot(*zip(*spots, strict=True), STYLES[clip], marker="o", color="black", label=named)
        without = found.final(no_noise_name(clip))
        if without:
            level = sum(without.values()) / len(without)
            axes.axhline(level, linestyle=STYLES[clip], color="grey", linewidth=0.8, label=f"{named}, no noise")
    axes.set(xscale="log", xlabel="std of the noise on the sum", ylabel="test accuracy, mean over clients (%)")


def _by_epsilon(axes: Axes, found: Collected, delta: float) -> None:
    for reading in READINGS:
        if reading.delta != delta:
            continue
        for clip, named in CLIPS.items():
            spots = [(epsilon, accuracy) for epsilon, accuracy in points(found, reading, clip) if epsilon > 0]
            if spots:
                look = READING_COLOURS[reading.calibration, reading.trust]
                drawn: dict[str, Any] = {"marker": look.marker, "markersize": 3, "color": look.light}
                label = f"{reading.calibration}, {reading.trust}, {named}"
                axes.plot(*zip(*spots, strict=True), STYLES[clip], label=label, **drawn)
    for reading, epsilon, accuracy in find_verified_points(found, delta):
        colour = READING_COLOURS[reading.calibration, reading.trust].light
        axes.plot(epsilon, accuracy, "x", markersize=9, color=colour)
    axes.set(xscale="log", xlim=(0.02, 300), xlabel=f"epsilon as a label, delta {delta:g} (no guarantee)")
