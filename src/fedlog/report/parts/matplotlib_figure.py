"""Figures of matplotlib, made without a window and turned into SVG.

Importing this file takes a second, because it imports matplotlib.
"""

from __future__ import annotations

import io

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A matplotlib figure that a notebook shows if it is the last value of a cell; `size` is in inches."""

    def __init__(self, size: tuple[float, float]) -> None:
        super().__init__(figsize=size, layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        written = io.BytesIO()
        self.savefig(written, format="png")
        return written.getvalue()


def convert_figure_to_svg(figure: Figure) -> str:
    """Return the figure as SVG text; the same figure always gives the same text."""
    written = io.StringIO()
    dpi, engine = figure.dpi, figure.get_layout_engine()
    # Names and no date, so that the same records give the same file.
    with mpl.rc_context({"svg.hashsalt": "fedlog", "svg.fonttype": "none"}):
        FigureCanvasSVG(figure)
        if engine is not None:
            # The layout alone: `savefig` would draw the whole figure once more for it.
            figure.dpi = FigureCanvasSVG.fixed_dpi
            engine.execute(figure)
            figure.set_layout_engine(None)
        figure.savefig(written, format="svg", metadata={"Date": None})
    figure.set_layout_engine(engine)
    figure.dpi = dpi
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"
