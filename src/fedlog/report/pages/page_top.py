"""The top of a run's page, simulated or deployed: the result in words, tiles with numbers, and the privacy spent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedlog.files.duration_text import describe_duration
from fedlog.privacy.guarantee import format_epsilon
from fedlog.report.parts.render import format_percent, format_points
from fedlog.settings.differences import describe_value
from fedlog.wire.bits_text import describe_bits

SAME_ACCURACY = 1e-5  # summaries hold accuracies to six digits


@dataclass(frozen=True)
class Tile:
    """A box at the top of a page that shows one number, with its name and a note."""

    name: str
    value: str
    note: str = ""


def describe_result(share: float | None, error: float | None) -> str:
    """Describe a run's result: its accuracy or, if it predicts numbers, their error and the share inside intervals.

    `share` is the accuracy or the share of numbers inside their intervals; `error` is None for an accuracy.
    """
    if share is None:
        return ""
    reached = format_percent(share)
    return reached if error is None else f"Error {error:.3g}, {reached} inside their intervals"


def make_gain_tiles(gains: Sequence[float], who: str) -> list[Tile]:
    """Make a tile (a box with one number) with the mean gain over training alone, in a list; [] if there are no gains.

    `who` is `client` or `site`.
    """
    if not gains:
        return []
    better, worse = sum(gain > SAME_ACCURACY for gain in gains), sum(gain < -SAME_ACCURACY for gain in gains)
    gaining = f"1 {who} gains" if better == 1 else f"{better} {who}s gain"
    note = f"points over training alone; {gaining}, {worse} {'loses' if worse == 1 else 'lose'}"
    return [Tile("gain", format_points(sum(gains) / len(gains)), note)]


def make_bits_tile(bits: int, who: str, up: str) -> Tile:
    """Make a tile with the bits that all clients or sites sent and received.

    `who` is `client` or `site`; `up` is a text that says how many of the bits they sent.
    """
    return Tile("bits", describe_bits(bits), f"all {who}s, both ways; {up}")


def make_privacy_tile(epsilon: float | None, budget: Mapping[str, float]) -> Tile:
    """Make a tile with the epsilon spent so far, and the budget."""
    spent = "nothing released" if epsilon is None else f"ε = {format_epsilon(epsilon, 3)}"
    return Tile("privacy spent", spent, f"of {_describe_budget(budget)}")


def make_time_tile(seconds: float, rounds: int) -> Tile:
    """Make a tile with the time of all rounds together, and of one round on average."""
    return Tile("time", describe_duration(seconds), f"in rounds, {describe_duration(seconds / rounds)} each")


def make_privacy_section(
    budget: Mapping[str, float], spent: Mapping[str, Any], left_out: Collection[str] = (), caveats: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the part of a run's page on privacy: the guarantee's statement, rows of a table, and the caveats.

    The rows have the budget and the entries of `spent`, without those whose names are in `left_out`.
    """
    rows = [("budget", _describe_budget(budget))]
    rows += [
        (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else describe_value(value))
        for name, value in spent.items()
        if name not in ("budget", "statement", *left_out) and value
    ]
    return {"statement": spent.get("statement"), "rows": rows, "caveats": list(caveats)}


def _describe_budget(budget: Mapping[str, float]) -> str:
    return f"ε = {budget['epsilon']:g}, δ = {budget['delta']:g}"
