"""Plots as SVG that needs no library: points, lines, intervals and rules between two axes.

A page colours them by its style sheet, so one drawing serves light, dark and print; a small script adds the values
under the pointer and switches lines off.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedlog.report.parts.axes import Axis
from fedlog.report.parts.style import DASHES, MARKERS, Style

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 460.0, 52.0, 16.0, 14.0, 46.0
BEHIND_TIP = 12.0
BETWEEN_MARKERS = 42.0  # on a joined line; every point still has its value under the pointer
LETTER, LINE = 6.6, 14.0  # about the size of a letter beside a level line
MARKER_SIZE = 4.2


@dataclass(frozen=True)
class Point:
    """One value with its text and, if there is one, its interval."""

    x: float
    y: float
    text: str
    low: float | None = None
    high: float | None = None
    label: str = ""  # written beside it


@dataclass(frozen=True)
class Series:
    """The points of one method, or of one thing that can be switched off."""

    key: str
    style: Style
    points: tuple[Point, ...]
    joined: bool = True
    hollow: bool = False
    size: float = MARKER_SIZE
    arrows: bool = False  # from the origin to each point


@dataclass(frozen=True)
class Rule:
    """A level line across the plot, with its name."""

    y: float
    label: str
    style: Style
    key: str = ""


@dataclass(frozen=True)
class Plot:
    """One figure of a page."""

    name: str
    title: str
    alternative: str  # the figure in words, for those who cannot see it
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    rules: tuple[Rule, ...] = ()
    shaded: tuple[float, float] | None = None  # from one x to another
    note: str = ""
    height: float = 300.0
    bare: bool = False  # without numbers on the axes, where directions have no unit
    diagonal: bool = False
    fixed: bool = False  # whether the levels stay when lines are switched off
    capped: bool = False  # intervals with ends; else stems
    kind: str = field(default="plot", init=False)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The place of a value in the drawing."""
        wide, high = WIDTH - LEFT - RIGHT, self.height - TOP - BOTTOM
        return round(LEFT + wide * self.x.share(x), 1), round(TOP + high * (1 - self.y.share(y)), 1)

    @property
    def frame(self) -> dict[str, float]:
        """The sides of the plot in the drawing."""
        return {"left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": self.height - BOTTOM, "width": WIDTH}

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """The places and texts below the plot."""
        return [(self.at(value, self.y.low)[0], text) for value, text in self.x.ticks]

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """The places and texts left of the plot."""
        return [(self.at(self.x.low, value)[1], text) for value, text in self.y.ticks]

    @property
    def drawn_rules(self) -> list[DrawnRule]:
        """The level lines, each with a place for its name."""
        return [draw_rule(self, rule) for rule in self.rules]

    @property
    def drawn_shade(self) -> tuple[float, float] | None:
        """The left end and the width of what is shaded."""
        if self.shaded is None:
            return None
        left, right = (self.at(x, self.y.low)[0] for x in self.shaded)
        return left, round(right - left, 1)

    @property
    def drawn(self) -> list[DrawnSeries]:
        """The series as SVG paths."""
        return [draw_series(self, series) for series in self.series]


@dataclass(frozen=True)
class DrawnSeries:
    """One series in the coordinates of the drawing."""

    series: Series
    line: str
    marks: list[tuple[float, float]]
    bars: list[tuple[float, float, float]]
    labels: list[tuple[float, float, str]]
    arrows: list[tuple[float, float]]
    hover: str  # JSON: [x, y, text] of every point

    @property
    def dash(self) -> str:
        """The line style."""
        return DASHES[self.series.style.dash].svg

    @property
    def marker(self) -> str:
        """The marker's path."""
        return MARKERS[self.series.style.marker]


def draw_series(plot: Plot, series: Series) -> DrawnSeries:
    """The series in the coordinates of the plot."""
    places = [(plot.at(point.x, point.y), point) for point in series.points]
    line = "M" + "L".join(f"{x:g} {y:g}" for (x, y), _ in places) if series.joined and len(places) > 1 else ""
    marks = _thin_out([place for place, _ in places]) if series.joined else [place for place, _ in places]
    marks = [(x, y) for x, y in marks if y <= plot.height - BOTTOM + 0.5]
    bars = [
        (x, plot.at(point.x, point.low)[1], plot.at(point.x, point.high)[1])
        for (x, _), point in places
        if point.low is not None and point.high is not None
    ]
    named = [(_beyond_tip(plot, place) if series.arrows else place, point) for place, point in places if point.label]
    labels = [(x, y, point.label) for (x, y), point in named]
    hover = json.dumps([[x, y, point.text] for (x, y), point in places], separators=(",", ":"))
    arrows = [place for place, _ in places] if series.arrows else []
    return DrawnSeries(series, line, [] if series.arrows else marks, bars, labels, arrows, hover)


def _beyond_tip(plot: Plot, tip: tuple[float, float]) -> tuple[float, float]:
    """The position of an arrow's name: behind its tip, whichever way it points."""
    wide, high = (end - start for end, start in zip(tip, plot.at(0, 0), strict=True))
    length = math.hypot(wide, high) or 1.0
    # A name is written above its place; half a line lower, its middle is there.
    return round(tip[0] + BEHIND_TIP * wide / length, 1), round(tip[1] + BEHIND_TIP * high / length + LINE * 0.7, 1)


def _thin_out(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The places of markers, thinned out so that there is room between them; the last place is always kept."""
    kept: list[tuple[float, float]] = []
    for place in reversed(places):
        if not kept or kept[-1][0] - place[0] >= BETWEEN_MARKERS:
            kept.append(place)
    return kept[::-1]


@dataclass(frozen=True)
class DrawnRule:
    """A level line in the coordinates of the drawing, and where its name has most room."""

    rule: Rule
    y: float
    name_x: float
    anchor: str
    below: bool


def draw_rule(plot: Plot, rule: Rule) -> DrawnRule:
    """The level line, with its name where least is drawn: at the left or right end, above or below the line."""
    y = plot.at(plot.x.low, rule.y)[1]
    wide = LETTER * len(rule.label)
    left, right = plot.frame["left"] + 4, plot.frame["right"] - 4
    drawn = [place for series in plot.series for place in _places_along(plot, series)]
    drawn += [(x, plot.at(plot.x.low, other.y)[1]) for other in plot.rules if other is not rule for x in (left, right)]

    def count_drawn(name: DrawnRule) -> int:
        """How much is drawn at the place of the name, and 1000 more where the name does not fit."""
        top = y + 3 if name.below else y - 3 - LINE
        fits = plot.frame["top"] - 4 <= top and top + LINE <= plot.frame["bottom"]
        start = name.name_x - wide if name.anchor == "end" else name.name_x
        inside = sum(start - 4 <= at <= start + wide + 4 and top <= high <= top + LINE for at, high in drawn)
        return inside + (0 if fits else 1000)

    ends = (("end", right), ("start", left))
    return min((DrawnRule(rule, y, x, anchor, below) for anchor, x in ends for below in (False, True)), key=count_drawn)


def _places_along(plot: Plot, series: Series) -> list[tuple[float, float]]:
    """Places along the line of a series, or its points."""
    places = [plot.at(point.x, point.y) for point in series.points]
    if not series.joined:
        return places
    steps = [at / 8 for at in range(8)]
    pairs = list(itertools.pairwise(places))
    return places + [(a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])) for a, b in pairs for t in steps]


@dataclass(frozen=True)
class BarPart:
    """One part of a bar."""

    label: str
    amount: float
    text: str  # the amount with its unit
    style: Style


@dataclass(frozen=True)
class Bar:
    """A bar of parts, one beside the other."""

    label: str
    text: str
    parts: tuple[BarPart, ...]


@dataclass(frozen=True)
class Bars:
    """Bars below each other on one scale."""

    name: str
    title: str
    alternative: str
    bars: tuple[Bar, ...]
    note: str = ""
    kind: str = field(default="bars", init=False)

    @property
    def drawn(self) -> list[tuple[Bar, list[tuple[BarPart, float, float]]]]:
        """The bars, each part with its start and its width in shares of the longest bar."""
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
        """Every part once, for the list of what the colours mean."""
        return list({part.label: part for bar in self.bars for part in bar.parts}.values())


Drawing = Plot | Bars


@dataclass(frozen=True)
class LegendEntry:
    """One thing that can be switched off."""

    key: str
    style: Style
    hollow: bool = False


def legend_of(plots: Sequence[Drawing]) -> list[LegendEntry]:
    """The series that a reader can switch off in these plots, each once."""
    found: dict[str, LegendEntry] = {}
    for plot in plots:
        if isinstance(plot, Plot):
            for series in plot.series:
                found.setdefault(series.key, LegendEntry(series.key, series.style, series.hollow))
            for rule in plot.rules:
                if rule.key:
                    found.setdefault(rule.key, LegendEntry(rule.key, rule.style))
    return list(found.values())
