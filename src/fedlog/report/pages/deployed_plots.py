"""The figures of a deployed run's page: bits and seconds by round."""

from __future__ import annotations

from fedlog.files.duration_text import describe_duration
from fedlog.report.pages.deployed_facts import DeployedRun
from fedlog.report.parts.axes import rounds_axis, straight_axis
from fedlog.report.parts.plots import Plot, Point, Series
from fedlog.report.parts.style import Style, style_numbered
from fedlog.wire.bits_text import choose_unit, describe_bits


def plot_bits(facts: DeployedRun) -> Plot:
    """The bits sent by the end of each round, up and down."""
    unit, size = choose_unit(facts.bits)
    ways = {"up": [each.bits_up for each in facts.rounds], "down": [each.bits_down for each in facts.rounds]}
    series = tuple(
        Series(
            way,
            style_numbered(at, way),
            tuple(
                Point(each.number, bits / size, f"{way}, round {each.number}: {describe_bits(bits)}")
                for each, bits in zip(facts.rounds, totals, strict=True)
            ),
        )
        for at, (way, totals) in enumerate(ways.items())
    )
    return Plot(
        name="bits-by-round",
        title=f"Bits by the end of each round ({unit})",
        alternative=(
            f"From the start to round {facts.rounds[-1].number}, all sites: up {describe_bits(ways['up'][-1])}, "
            f"down {describe_bits(ways['down'][-1])}."
        ),
        x=rounds_axis(facts.rounds[-1].number),
        y=straight_axis(unit, [0.0, *(point.y for one in series for point in one.points)]),
        series=series,
    )


def plot_seconds(facts: DeployedRun) -> Plot:
    """How long each round took, and the slowest answer in it."""
    looks = {
        "the whole round": style_numbered(2, "the whole round"),
        "the slowest site": style_numbered(3, "the slowest site"),
    }
    values = {
        "the whole round": [(each.number, each.seconds) for each in facts.rounds],
        "the slowest site": [(each.number, s) for each in facts.rounds if (s := each.slowest_seconds) is not None],
    }
    series = tuple(_seconds(name, looks[name], found) for name, found in values.items() if found)
    total = sum(each.seconds for each in facts.rounds)
    longest = max(facts.rounds, key=lambda each: each.seconds)
    return Plot(
        name="seconds-by-round",
        title="Seconds by round",
        alternative=(
            f"{len(facts.rounds)} rounds took {describe_duration(total)} together; the longest, round "
            f"{longest.number}, {describe_duration(longest.seconds)}."
        ),
        x=rounds_axis(facts.rounds[-1].number),
        y=straight_axis("s", [0.0, *(point.y for one in series for point in one.points)]),
        series=series,
    )


def _seconds(name: str, style: Style, found: list[tuple[int, float]]) -> Series:
    marks = tuple(Point(at, seconds, f"{name}, round {at}: {describe_duration(seconds)}") for at, seconds in found)
    return Series(name.replace(" ", "-"), style, marks)
