"""The display name, colour, marker and line style of every method, on pages and in figures.

Readers with any kind of colour vision can tell the colours apart; in print without colour, markers and lines differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Colour:
    """One colour for light and for dark pages, and the marker that is always drawn with it."""

    light: str
    dark: str
    marker: str


@dataclass(frozen=True)
class Dash:
    """One line style, in the notation of SVG and in that of matplotlib."""

    svg: str
    matplotlib: Any


COLOURS: Mapping[str, Colour] = {
    "blue": Colour("#2350d8", "#83aaff", "o"),
    "vermillion": Colour("#a8321c", "#f0603a", "P"),
    "ink": Colour("#30343c", "#d5d9e0", "s"),
    "green": Colour("#009c75", "#4fe39a", "^"),
    "purple": Colour("#5e1a75", "#9468f5", "D"),
    "ochre": Colour("#bb8600", "#f2c52e", "v"),
    "rose": Colour("#e255bd", "#c9699f", "X"),
}
DASHES: Mapping[str, Dash] = {
    "solid": Dash("none", "-"),
    "long": Dash("12 4", (0, (9, 3))),
    "dashed": Dash("6 4", "--"),
    "dash-dot": Dash("8 3 2 3", "-."),
    "dotted": Dash("2 3", ":"),
}
# matplotlib's name of each marker -> its SVG path in a box from -1 to 1.
MARKERS: Mapping[str, str] = {
    "o": "M-.9 0A.9 .9 0 1 0 .9 0A.9 .9 0 1 0 -.9 0Z",
    "s": "M-.8-.8H.8V.8H-.8Z",
    "^": "M0-1L.95 .75H-.95Z",
    "v": "M0 1L.95-.75H-.95Z",
    "D": "M0-1.1L1.1 0L0 1.1L-1.1 0Z",
    "P": "M-.35-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z",
    "X": "M-.5-1L0-.5L.5-1L1-.5L.5 0L1 .5L.5 1L0 .5L-.5 1L-1 .5L-.5 0L-1-.5Z",
}


@dataclass(frozen=True)
class Style:
    """The label, colour and line style of one method, or of one line of a figure."""

    label: str
    colour: str
    dash: str = "solid"

    @property
    def marker(self) -> str:
        """The marker, as matplotlib names it, such as `o`."""
        return COLOURS[self.colour].marker

    @property
    def hex(self) -> str:
        """The colour on light pages, such as `#2350d8`."""
        return COLOURS[self.colour].light

    @property
    def matplotlib_line(self) -> dict[str, Any]:
        """Arguments for matplotlib to draw a line."""
        return {"color": self.hex, "linestyle": DASHES[self.dash].matplotlib}

    @property
    def matplotlib_point(self) -> dict[str, Any]:
        """Arguments for matplotlib to draw single points."""
        return {"color": self.hex, "linestyle": "none", "marker": self.marker}


METHODS: Mapping[str, Style] = {
    "fedlog": Style("FedLog", "blue", "solid"),
    "fedlog-c": Style("FedLog-C", "vermillion", "long"),
    "local": Style("training alone", "ink", "dashed"),
    "pooled": Style("all rows in one place", "ink", "dotted"),
    "fedavg": Style("FedAvg", "green", "dash-dot"),
    "fedproto": Style("FedProto", "purple", "dotted"),
    "fedprox": Style("FedProx", "green", "solid"),
    "ditto": Style("Ditto", "green", "dashed"),
    "lg-fedavg-1": Style("LG-FedAvg 1", "rose", "solid"),
    "lg-fedavg-2": Style("LG-FedAvg 2", "rose", "long"),
    "cs-fl": Style("CS-FL", "rose", "dotted"),
    "feddbe": Style("FedDBE", "rose", "dash-dot"),
    "fedper": Style("FedPer", "ochre", "solid"),
    "fedrep": Style("FedRep", "ochre", "dashed"),
    "fedbabu": Style("FedBABU", "ochre", "dotted"),
    "fedlog-once": Style("FedLog once", "blue", "long"),
    "fed-regression": Style("Fed-Regression", "blue", "dotted"),
    "fed-heads": Style("Fed-Heads", "blue", "dashed"),
    "fed-ncm": Style("Fed-NCM", "purple", "solid"),
    "fed-lda": Style("Fed-LDA", "purple", "dashed"),
    "fed-qda": Style("Fed-QDA", "purple", "dash-dot"),
    "fed-nb": Style("Fed-NB", "purple", "long"),
    "fed-ridge": Style("Fed-Ridge", "vermillion", "solid"),
    "fedcof": Style("FedCOF", "vermillion", "dashed"),
    "ccvr": Style("CCVR", "vermillion", "dotted"),
    "fedpft": Style("FedPFT", "vermillion", "dash-dot"),
}
# For methods that users wrote, and for more variants of one method on one page.
UNUSED_STYLES = tuple(
    (colour, dash)
    for dash in DASHES
    for colour in COLOURS
    if (colour, dash) not in {(style.colour, style.dash) for style in METHODS.values()}
)


def find_style(method: str) -> Style:
    """Return the style of a method; for a user's own method, choose an unused style by a hash of its name."""
    if method in METHODS:
        return METHODS[method]
    number = int.from_bytes(hashlib.sha256(method.encode()).digest()[:4], "big")
    colour, dash = UNUSED_STYLES[number % len(UNUSED_STYLES)]
    return Style(method.rpartition(":")[2], colour, dash)


def choose_styles(labels: Mapping[str, str]) -> dict[str, Style]:
    """Choose a different style for each label on a page, as long as there are unused styles.

    `labels` maps a label to its method. The first label of a method gets the usual style of the method.
    """
    found: dict[str, Style] = {}
    taken: set[tuple[str, str]] = set()
    several = {method for method in labels.values() if list(labels.values()).count(method) > 1}
    for label, method in labels.items():
        style = find_style(method)
        own_colour = [(style.colour, dash) for dash in DASHES]
        every = [(style.colour, style.dash), *own_colour, *((c, d) for d in DASHES for c in COLOURS)]
        colour, dash = next((each for each in every if each not in taken), every[0])
        taken.add((colour, dash))
        name = label if method in several or method not in METHODS else style.label
        found[label] = replace(style, label=name, colour=colour, dash=dash)
    return found


def find_numbered_style(number: int, label: str) -> Style:
    """Return the style with this number, for a line or bar that is not a method's; `label` is for the legend."""
    colours, dashes = list(COLOURS), list(DASHES)
    turn = number // len(colours)
    return Style(label, colours[number % len(colours)], dashes[(number + turn) % len(dashes)])
