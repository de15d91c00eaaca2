"""Accuracy against bits: all sites in one large panel, and each site in a small one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedlog.experiments.compare.findings import Findings
from fedlog.experiments.compare.row_estimates import Estimate
from fedlog.report.parts.style import Style, new_figure, styles_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SITES = 12  # small panels; the others are in the table
COLUMNS = 4


def draw_comparison(findings: Findings) -> Figure:
    """Test accuracy against bits on a log axis, over all sites and at each; what sends nothing stands at the left."""
    sites = findings.sites[:MOST_SITES]
    columns = min(COLUMNS, len(sites))
    rows = math.ceil(len(sites) / columns)
    figure = new_figure((9, 4 + 2.2 * rows))
    grid = figure.add_gridspec(rows + 2, columns)
    bits = {label: figures.bits for label, figures in findings.figures.items()}
    looks = styles_of({label: findings.method_of(label) for label in findings.labels})
    whole = figure.add_subplot(grid[:2, :])
    _draw(whole, {label: figures.accuracy for label, figures in findings.figures.items()}, bits, looks)
    whole.set(xlabel="bits up and down, all sites", ylabel="test accuracy, mean over sites (%)")
    whole.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    for at, site in enumerate(sites):
        axes = figure.add_subplot(grid[2 + at // columns, at % columns])
        _draw(axes, {label: figures.sites[site].accuracy for label, figures in findings.figures.items()}, bits, looks)
        axes.set_title(site, fontsize="small")
        axes.tick_params(labelsize="x-small")
    return figure


def _draw(
    axes: Any, found: Mapping[str, Estimate | None], bits: Mapping[str, float], looks: Mapping[str, Style]
) -> None:
    axes.set_xscale("symlog", linthresh=1e3)
    for label, accuracy in found.items():
        if accuracy is None:
            continue
        half = accuracy.half_width
        axes.errorbar(
            [bits[label]],
            [100 * accuracy.value],
            yerr=None if half is None else [100 * half],
            capsize=3,
            label=looks[label].label,
            **looks[label].matplotlib_point,
        )
    axes.grid(alpha=0.3)
