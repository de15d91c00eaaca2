"""Plots as plain SVG: points, lines, intervals and horizontal lines between two axes.

The style sheet of a page colours them, so one drawing serves light pages, dark pages and print. A small script shows
the values under the pointer and switches lines off.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedlog.report.parts.axes import Axis
from fedlog.report.parts.style import Style

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 460.0, 52.0, 16.0, 14.0, 46.0
GAP_AT_TIP = 12.0
MARKER_DISTANCE = 42.0  # at least this far apart on a joined line; the script still shows the value of every point
LETTER_WIDTH, LINE_HEIGHT = 6.6, 14.0  # about the width and height of a letter in the name of a horizontal line


@dataclass(frozen=True)
class Point:
    """A point of a plot: its position, the text shown under the mouse pointer, and the ends of its interval, if any."""

    x: float
    y: float
    text: str
    low: float | None = None
    high: float | None = None
    label: str = ""  # written next to the point


@dataclass(frozen=True)
class Series:
    """The points of one line of a plot, such as a method's; a reader can switch the line off in the legend.

    `key` identifies the line: all series and horizontal lines with the same key are switched off together. With
    `arrows`, an arrow is drawn from the origin to each point.
    """

    key: str
    style: Style
    points: tuple[Point, ...]
    joined: bool = True
    hollow: bool = False
    size: float = 4.2  # of a marker
    arrows: bool = False


@dataclass(frozen=True)
class HorizontalLine:
    """A horizontal line across the plot, with its name; with a `key`, a reader can switch it off like a series."""

    y: float
    label: str
    style: Style
    key: str = ""


@dataclass(frozen=True)
class Plot:
    """One plot of a page: its axes, series and horizontal lines, and a description in words."""

    name: str
    title: str
    alt_text: str  # the figure described in words, for readers who cannot see it
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    horizontal_lines: tuple[HorizontalLine, ...] = ()
    shaded: tuple[float, float] | None = None  # the part from one x to another is shaded
    note: str = ""
    height: float = 300.0
    axes_through_origin: bool = False  # draw two lines through the origin instead of axes with numbers
    diagonal: bool = False  # draw a line from the lower left to the upper right corner
    fixed_y_axis: bool = False  # whether the y axis stays as it is when lines are switched off
    capped_intervals: bool = False  # draw intervals with caps at their ends, else as stems

    def find_position(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of the point (x, y) in the SVG drawing: its distance from the left and from the top."""
        wide, high = WIDTH - LEFT - RIGHT, self.height - TOP - BOTTOM
        return round(LEFT + wide * self.x.find_position(x), 1), round(TOP + high * (1 - self.y.find_position(y)), 1)

    @property
    def frame(self) -> dict[str, float]:
        """The positions of the plot area's four sides in the SVG drawing, and the width of the drawing."""
        return {"left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": self.height - BOTTOM, "width": WIDTH}

    @property
    def placed_shade(self) -> tuple[float, float] | None:
        """The left end and the width of the shaded part in the SVG drawing; None if nothing is shaded."""
        if self.shaded is None:
            return None
        left, right = (self.find_position(x, self.y.low)[0] for x in self.shaded)
        return left, round(right - left, 1)


@dataclass(frozen=True)
class SeriesInDrawing:
    """One series, scaled to the coordinates of the SVG drawing."""

    line: str  # an SVG path through all points; empty if they are not joined
    markers: list[tuple[float, float]]
    intervals: list[tuple[float, float, float]]  # (x, y of the lower end, y of the upper end)
    labels: list[tuple[float, float, str]]
    arrows: list[tuple[float, float]]  # where they end; all begin at the origin
    hover: str  # JSON: [x, y, text] of every point


def place_series(plot: Plot, series: Series) -> SeriesInDrawing:
    """Compute the line, markers, intervals and labels of a series, in the coordinates of the SVG drawing."""
    places = [(plot.find_position(point.x, point.y), point) for point in series.points]
    line = "M" + "L".join(f"{x:g} {y:g}" for (x, y), _ in places) if series.joined and len(places) > 1 else ""
    markers = _space_markers([place for place, _ in places]) if series.joined else [place for place, _ in places]
    markers = [(x, y) for x, y in markers if y <= plot.height - BOTTOM + 0.5]
    intervals = [
        (x, plot.find_position(point.x, point.low)[1], plot.find_position(point.x, point.high)[1])
        for (x, _), point in places
        if point.low is not None and point.high is not None
    ]
    named = [
        (_place_arrow_label(plot, place) if series.arrows else place, point) for place, point in places if point.label
    ]
    labels = [(x, y, point.label) for (x, y), point in named]
    hover = json.dumps([[x, y, point.text] for (x, y), point in places], separators=(",", ":"))
    arrows = [place for place, _ in places] if series.arrows else []
    return SeriesInDrawing(line, [] if series.arrows else markers, intervals, labels, arrows, hover)


def _place_arrow_label(plot: Plot, tip: tuple[float, float]) -> tuple[float, float]:
    """Return the position of an arrow's label: a little beyond its tip, in the direction of the arrow."""
    wide, high = (end - start for end, start in zip(tip, plot.find_position(0, 0), strict=True))
    length = math.hypot(wide, high) or 1.0
    # A name is written above its position, so it is moved down by half a line.
    return round(tip[0] + GAP_AT_TIP * wide / length, 1), round(
        tip[1] + GAP_AT_TIP * high / length + LINE_HEIGHT * 0.7, 1
    )


def _space_markers(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Choose the positions of a line that get a marker, far enough apart; the last position always gets one."""
    kept: list[tuple[float, float]] = []
    for place in reversed(places):
        if not kept or kept[-1][0] - place[0] >= MARKER_DISTANCE:
            kept.append(place)
    return kept[::-1]


@dataclass(frozen=True)
class PlacedHorizontalLine:
    """A horizontal line in the coordinates of the SVG drawing, and the position of its name."""

    y: float
    name_x: float
    anchor: str  # which end of the name is at `name_x`: start or end
    below: bool  # whether the name is below the line


def place_horizontal_lines(plot: Plot) -> list[PlacedHorizontalLine]:
    """Return the positions of the plot's horizontal lines and of their names; a later name avoids earlier names."""
    found: list[PlacedHorizontalLine] = []
    for line in plot.horizontal_lines:
        earlier = zip(plot.horizontal_lines, found, strict=False)
        names = [place for other, placed in earlier for place in _sample_name_area(other, placed)]
        found.append(_place_name(plot, line, names))
    return found


def _sample_name_area(line: HorizontalLine, placed: PlacedHorizontalLine) -> list[tuple[float, float]]:
    """Return positions all over the name of a line; `_place_name` keeps later names away from them.

    They are closer together than positions on curves. So a name that has to cover something covers a curve.
    """
    wide = LETTER_WIDTH * len(line.label)
    start = placed.name_x - wide if placed.anchor == "end" else placed.name_x
    middle = placed.y + 3 + LINE_HEIGHT / 2 if placed.below else placed.y - 3 - LINE_HEIGHT / 2
    heights = (middle - LINE_HEIGHT / 2, middle, middle + LINE_HEIGHT / 2)
    return [(start + at, height) for at in range(0, int(wide), 2) for height in heights]


def _place_name(plot: Plot, line: HorizontalLine, earlier_names: Sequence[tuple[float, float]]) -> PlacedHorizontalLine:
    """Return the position of a line and of its name.

    The name is at the left or right end, above or below the line: where it covers the least.
    """
    y = plot.find_position(plot.x.low, line.y)[1]
    wide = LETTER_WIDTH * len(line.label)
    left, right = plot.frame["left"] + 4, plot.frame["right"] - 4
    drawn = [place for series in plot.series for place in _sample_line(plot, series)]
    drawn += [
        (x, plot.find_position(plot.x.low, other.y)[1])
        for other in plot.horizontal_lines
        if other is not line
        for x in (left, right)
    ]
    drawn += earlier_names

    def rate_candidate(candidate: PlacedHorizontalLine) -> int:
        """Return how many drawn points the name would cover, plus 1000 if it does not fit into the plot."""
        top = y + 3 if candidate.below else y - 3 - LINE_HEIGHT
        fits = plot.frame["top"] - 4 <= top and top + LINE_HEIGHT <= plot.frame["bottom"]
        start = candidate.name_x - wide if candidate.anchor == "end" else candidate.name_x
        inside = sum(start - 4 <= at <= start + wide + 4 and top <= high <= top + LINE_HEIGHT for at, high in drawn)
        return inside + (0 if fits else 1000)

    ends = (("end", right), ("start", left))
    return min(
        (PlacedHorizontalLine(y, x, anchor, below) for anchor, x in ends for below in (False, True)), key=rate_candidate
    )


def _sample_line(plot: Plot, series: Series) -> list[tuple[float, float]]:
    """Return positions all over a drawn series: on its points, its intervals and, if points are joined, its line."""
    steps = [at / 8 for at in range(8)]
    places = [plot.find_position(point.x, point.y) for point in series.points]
    places += [
        plot.find_position(point.x, point.low + t * (point.high - point.low))
        for point in series.points
        if point.low is not None and point.high is not None
        for t in (*steps, 1)
    ]
    if not series.joined:
        return places
    pairs = list(itertools.pairwise(places[: len(series.points)]))
    return places + [(a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])) for a, b in pairs for t in steps]


@dataclass(frozen=True)
class BarPart:
    """One coloured part of a stacked bar: its name, its amount as number and as text, and its style."""

    label: str
    amount: float
    text: str  # the amount with its unit
    style: Style


@dataclass(frozen=True)
class Bar:
    """A horizontal stacked bar: its name, its total as text, and its parts."""

    label: str
    text: str
    parts: tuple[BarPart, ...]


@dataclass(frozen=True)
class BarChart:
    """A bar chart: several horizontal bars on one scale, one below the other."""

    name: str
    title: str
    alt_text: str
    bars: tuple[Bar, ...]
    note: str = ""

    @property
    def placed_bars(self) -> list[tuple[Bar, list[tuple[BarPart, float, float]]]]:
        """Each bar with its parts as (part, start, width); the length of the longest bar is 1."""
        longest = max((sum(part.amount for part in bar.parts) for bar in self.bars), default=0) or 1.0
        found = []
        for bar in self.bars:
            start, parts = 0.0, []
            for part in bar.parts:
                parts.append((part, start, part.amount / longest))
                start += part.amount / longest
            found.append((bar, parts))
        return found

    @property
    def parts(self) -> list[BarPart]:
        """The parts for the legend: one for each name."""
        return list({part.label: part for bar in self.bars for part in bar.parts}.values())


def make_legend(plots: Sequence[Plot]) -> list[Series]:
    """Return the entries of a legend for several plots: one for each key of a series or horizontal line."""
    found: dict[str, Series] = {}
    for plot in plots:
        lines = [Series(line.key, line.style, ()) for line in plot.horizontal_lines if line.key]
        for series in (*plot.series, *lines):
            found.setdefault(series.key, series)
    return list(found.values())
