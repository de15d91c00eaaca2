"""Accuracy by round and by bits: as plots for pages, and as a matplotlib figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.experiments.run.records import count_bits_so_far
from fedlog.report.parts.axes import make_bits_axis, make_linear_axis, make_rounds_axis
from fedlog.report.parts.plots import HorizontalLine, Plot, Point, Series
from fedlog.report.parts.render import format_percent
from fedlog.report.parts.style import Style
from fedlog.wire.bits_text import describe_bits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOW_ROUNDS_NOTE = "Steep first rounds lie below the axis."
STEEP_FACTOR = 2.0  # first rounds are steep if the whole range is this many times that of the later rounds
THRESHOLD = Style("threshold", "rose", "dotted")


@dataclass(frozen=True)
class Curve:
    """The accuracy of one method or run after each round, with the bits sent until then."""

    key: str  # identifies the line of the plot, see `Series`
    style: Style
    accuracy: tuple[float, ...]  # shares
    bits: tuple[float, ...]  # sent by all clients in both directions since the start

    @property
    def has_sent_bits(self) -> bool:
        """Whether the method has sent any bits by its last round."""
        return bool(self.bits) and self.bits[-1] > 0


def make_curve(key: str, style: Style, rounds: Sequence[RoundRecord], opening: int) -> Curve:
    """Make the accuracy curve of one run; `opening` is the number of bits sent before round 1."""
    accuracy = tuple(record.accuracy_mean_over_clients for record in rounds)
    return Curve(key, style, accuracy, tuple(float(bits) for bits in count_bits_so_far(rounds, opening)))


def average_curves(key: str, style: Style, runs: Sequence[Curve]) -> Curve:
    """Return the mean of several curves, up to the last round that all of them have."""
    length = min(len(run.accuracy) for run in runs)
    accuracy = tuple(sum(run.accuracy[at] for run in runs) / len(runs) for at in range(length))
    return Curve(key, style, accuracy, tuple(sum(run.bits[at] for run in runs) / len(runs) for at in range(length)))


def make_curve_plots(
    curves: Sequence[Curve], threshold: float | None = None, measure: str = "test accuracy", name: str = "accuracy"
) -> list[Plot]:
    """Plot accuracy by round and, if anything was sent, by bits; methods that send nothing are horizontal lines."""
    levels = [100 * value for curve in curves for value in choose_shown_accuracies(curve.accuracy)]
    levels += [] if threshold is None else [100 * threshold]
    y = make_linear_axis("%", levels)
    lines = (
        ()
        if threshold is None
        else (HorizontalLine(100 * threshold, f"threshold {format_percent(threshold)}", THRESHOLD),)
    )
    by_round = Plot(
        name=f"{name}-by-round",
        title=f"{measure[0].upper()}{measure[1:]} by round (%)",
        alt_text=_describe_curves(curves, threshold),
        x=make_rounds_axis(max(len(curve.accuracy) for curve in curves)),
        y=y,
        series=tuple(_make_series(curve, by_bits=False) for curve in curves),
        horizontal_lines=lines,
        note=LOW_ROUNDS_NOTE if any(100 * min(curve.accuracy) < y.low for curve in curves) else "",
    )
    sending = [curve for curve in curves if curve.has_sent_bits]
    if not sending:
        return [by_round]
    ends = [(curve, curve.accuracy[-1]) for curve in curves if not curve.has_sent_bits]
    by_bits = replace(
        by_round,
        name=f"{name}-by-bits",
        title=f"{measure[0].upper()}{measure[1:]} by bits (%)",
        alt_text=_describe_curves(sending, threshold, by_bits=True),
        x=make_bits_axis("bits up and down, all clients, log axis", [bits for curve in sending for bits in curve.bits]),
        series=tuple(_make_series(curve, by_bits=True) for curve in sending),
        horizontal_lines=(
            *lines,
            *(
                HorizontalLine(100 * end, f"{one.style.label} {format_percent(end)}", one.style, one.key)
                for one, end in ends
            ),
        ),
    )
    return [by_round, by_bits]


def choose_shown_accuracies(accuracy: Sequence[float]) -> list[float]:
    """Return the accuracies of a curve that the axis of its plot must cover: all, unless the curve starts steeply.

    Of a steep curve, return the highest accuracy and those after the first quarter of the rounds.
    """
    later = [*accuracy[len(accuracy) // 4 :], max(accuracy)]
    return later if max(accuracy) - min(accuracy) > STEEP_FACTOR * (max(later) - min(later)) else list(accuracy)


def _make_series(curve: Curve, by_bits: bool) -> Series:
    """Convert a curve to a line of a plot; its x values are the bits sent so far, or the rounds."""
    pairs = zip(curve.accuracy, curve.bits, strict=True)
    points = tuple(
        Point(
            bits if by_bits else at,
            100 * accuracy,
            f"{curve.style.label}, round {at}: {format_percent(accuracy, 2)}"
            + (f", {describe_bits(bits)}" if bits else ""),
        )
        for at, (accuracy, bits) in enumerate(pairs, 1)
    )
    return Series(curve.key, curve.style, points)


def _describe_curves(curves: Sequence[Curve], threshold: float | None, by_bits: bool = False) -> str:
    """Describe curves in words: where each curve begins, where it ends, and when it passes the threshold."""
    said = []
    for curve in curves:
        first, last = format_percent(curve.accuracy[0]), format_percent(curve.accuracy[-1])
        spent = f" with {describe_bits(curve.bits[-1])}" if curve.bits[-1] else ""
        start = f"{describe_bits(curve.bits[0])}" if by_bits else "round 1"
        said.append(f"{curve.style.label}: {first} at {start}, {last} after round {len(curve.accuracy)}{spent}.")
        crossed = next((at for at, value in enumerate(curve.accuracy) if threshold and value >= threshold), None)
        if crossed is not None:
            said.append(f"It passes the threshold of {format_percent(threshold)} in round {crossed + 1}.")
    return " ".join(said)


def draw_curves(rounds: Sequence[RoundRecord], opening: int, style: Style) -> Figure:
    """Draw accuracy by round and by bits with matplotlib; `opening` is the number of bits sent before round 1."""
    from fedlog.report.parts.matplotlib_figure import ShownFigure

    curve = make_curve("run", style, rounds, opening)
    figure = ShownFigure((10, 4))
    by_round, by_bits = figure.subplots(1, 2, sharey=True)
    accuracy = [100 * value for value in curve.accuracy]
    look = {**style.matplotlib_line, "marker": style.marker, "markevery": max(1, len(accuracy) // 10)}
    by_round.plot(range(1, len(accuracy) + 1), accuracy, label=style.label, **look)
    by_round.set(xlabel="round", ylabel="accuracy, mean over clients (%)")
    by_bits.plot([bits / 1e6 for bits in curve.bits], accuracy, **look)
    by_bits.set(xlabel="Mb up and down, all clients")
    by_round.legend(frameon=False)
    for axes in (by_round, by_bits):
        axes.grid(alpha=0.3)
    return figure
