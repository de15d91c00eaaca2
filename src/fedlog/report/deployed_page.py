"""One page for a deployed run, from what its server knows: sites, rounds, bits, privacy spent, settings, command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlog.files.durable import write_file
from fedlog.report.axes import rounds_axis, straight_axis
from fedlog.report.plots import Plot, Point, Series
from fedlog.report.render import percent, points, render_page
from fedlog.report.run_facts import ClientFacts
from fedlog.report.run_page import EQUAL, PAGE, Tile, describe_duration, plain_text, privacy_tile
from fedlog.report.run_plots import bits_bars, clients_plot
from fedlog.report.style import Style, style_numbered, style_of
from fedlog.report.tables import TextTable
from fedlog.settings.differences import Difference
from fedlog.wire.bits_text import choose_unit, describe_bits

AT_HOME = "How well each model does is known to its site alone: report.json beside the model there."


@dataclass(frozen=True)
class DeployedSite:
    """One site: what it reported, and its part in the rounds."""

    name: str
    body: str
    accuracy: float | None = None  # of the model that it keeps
    alone: float | None = None
    error: float | None = None  # where a number is predicted
    error_alone: float | None = None
    test_records: int | None = None
    kept: str = ""
    answered: int = 0  # rounds whose sum it is in
    left_out: int = 0  # how often it was refused or left out

    @property
    def gain(self) -> float | None:
        """What the site has more than alone, as a share."""
        return None if self.accuracy is None or self.alone is None else self.accuracy - self.alone


@dataclass(frozen=True)
class DeployedRound:
    """One round at the server; bits are those from the start of the run."""

    number: int
    new_head: bool  # enough sites, and a sum that did not drown in its noise
    bits_up: int
    bits_down: int
    seconds: float
    slowest_seconds: float | None


@dataclass(frozen=True)
class DeployedRun:
    """A deployed run, finished or under way, as its server knows it."""

    name: str
    method: str
    planned: int
    rounds: tuple[DeployedRound, ...]
    sites: tuple[DeployedSite, ...]  # once they have reported
    finished: bool
    ended_early: str | None
    figures_stay: bool  # at the sites: the run is private or has secure sums
    bits_up: int
    bits_down: int  # at the end of a run the last head goes down too, after its last round
    bits_by_kind: Mapping[tuple[str, str], int]  # (up or down, kind)
    budget: Mapping[str, float] | None  # epsilon and delta that the plan promises
    spent: Mapping[str, Any] | None
    differences: tuple[Difference, ...]
    other_settings: tuple[tuple[str, str], ...]
    command: str
    made_with: Mapping[str, str] = field(default_factory=dict)

    @property
    def bits(self) -> int:
        """Up and down, all sites, so far."""
        return self.bits_up + self.bits_down

    @property
    def measure(self) -> str:
        """What the sites' accuracies are: where a number is predicted, the share inside intervals."""
        number = any(site.error is not None for site in self.sites)
        return "share inside 90 % intervals" if number else "test accuracy"

    def mean(self, name: str) -> float | None:
        """The mean of a figure over the sites that reported it."""
        found = [value for site in self.sites if (value := getattr(site, name)) is not None]
        return sum(found) / len(found) if found else None


def write_deployed_page(folder: Path, facts: DeployedRun) -> Path:
    """Write the page into the run's folder, and return its path."""
    path = folder / PAGE
    write_file(path, render_deployed(facts))
    return path


def render_deployed(facts: DeployedRun) -> str:
    """The page as text."""
    return render_page(
        "deployed.html.j2",
        facts=facts,
        title=f"{style_of(facts.method).label}, deployed",
        headline=_headline(facts),
        tiles=_tiles(facts),
        notes=_notes(facts),
        has={
            "figures": facts.mean("accuracy") is not None,
            "errors": facts.mean("error") is not None,
            "answers": any(site.answered for site in facts.sites),
        },
        style=style_of(facts.method),
        sites_plot=clients_plot(_as_clients(facts), facts.method, facts.measure, "site"),
        round_plots=[_bits_by_round(facts), _seconds_by_round(facts)] if facts.rounds else [],
        bits_bars=bits_bars(facts.bits_by_kind, len(facts.rounds), "site"),
        privacy=_privacy(facts),
        live=None,
    )


def deployed_tables(facts: DeployedRun) -> Iterator[tuple[str, TextTable]]:
    """The tables of the page, by the names of their files."""
    rounds = tuple(
        (f"{each.number}", f"{each.bits_up}", f"{each.bits_down}", f"{each.seconds:.2f}") for each in facts.rounds
    )
    yield "rounds", TextTable(("round", "bits up so far", "bits down so far", "seconds"), rounds, f"Run {facts.name}")
    shown = [(site, (site.accuracy, site.alone)) for site in facts.sites]
    sites = tuple(
        (
            site.name,
            *("" if share is None else f"{100 * share:.2f}" for share in shares),
            "" if site.test_records is None else f"{site.test_records}",
            site.body,
            f"{site.answered}",
        )
        for site, shares in shown
    )
    columns = ("site", "accuracy, %", "local only, %", "test records", "body", "rounds in the sum")
    yield "sites", TextTable(columns, sites, "Each site, after the last round")


def _headline(facts: DeployedRun) -> dict[str, str]:
    accuracy, alone, error = facts.mean("accuracy"), facts.mean("alone"), facts.mean("error")
    reached = "" if accuracy is None else percent(accuracy)
    if error is not None:
        reached = f"Error {error:.3g}, {reached} inside their intervals"
    others = "" if alone is None else f"{style_of('local').label} {percent(alone)}"
    return {"reached": reached, "sent": describe_bits(facts.bits), "others": others}


def _tiles(facts: DeployedRun) -> list[Tile]:
    if not facts.rounds:
        return []
    found = []
    gains = [site.gain for site in facts.sites if site.gain is not None]
    if gains:
        better, worse = sum(gain > EQUAL for gain in gains), sum(gain < -EQUAL for gain in gains)
        found.append(Tile(facts.measure, percent(facts.mean("accuracy")), "mean over sites, models they keep"))
        note = f"points over training alone; {better} sites gain, {worse} lose"
        found.append(Tile("gain", points(sum(gains) / len(gains)), note))
        lowest = min((site for site in facts.sites if site.accuracy is not None), key=lambda site: site.accuracy or 0.0)
        found.append(Tile("lowest site", percent(lowest.accuracy), lowest.name))
    moved = sum(each.new_head for each in facts.rounds)
    found.append(Tile("rounds", f"{len(facts.rounds)} of {facts.planned}", f"{moved} of them moved the head"))
    note = f"all sites, both ways; {describe_bits(facts.bits_up)} up"
    found.append(Tile("bits", describe_bits(facts.bits), note))
    if facts.budget is not None:
        found.append(privacy_tile(None if facts.spent is None else facts.spent["epsilon"], facts.budget))
    seconds = sum(each.seconds for each in facts.rounds)
    each = f"in rounds, {seconds / len(facts.rounds):.2g} s each"
    found.append(Tile("time", describe_duration(seconds), each))
    return found


def _notes(facts: DeployedRun) -> list[str]:
    """What a reader must know before believing the headline."""
    found = []
    if not facts.finished:
        found.append(f"Not finished: round {len(facts.rounds)} of {facts.planned}.")
    if facts.ended_early is not None:
        found.append(f"Ended early: {facts.ended_early}.")
    if facts.figures_stay:
        found.append(AT_HOME)
    if facts.finished and facts.rounds and not any(each.new_head for each in facts.rounds):
        found.append("Learned nothing: no round moved the head from where the run began.")
    if facts.figures_stay and facts.budget is None:
        found.append("Privacy: none. Secure sums hid each site's part from the server, and the sums are exact.")
    return found


def _as_clients(facts: DeployedRun) -> list[ClientFacts]:
    """The sites, the lowest accuracy first, as the figure of clients takes them."""
    judged = sorted((site for site in facts.sites if site.accuracy is not None), key=lambda each: each.accuracy or 0.0)
    return [ClientFacts(site.name, site.accuracy, site.alone, None, None, site.test_records or 0) for site in judged]


def _bits_by_round(facts: DeployedRun) -> Plot:
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


def _seconds_by_round(facts: DeployedRun) -> Plot:
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
            f"{longest.number}, {longest.seconds:.1f} s."
        ),
        x=rounds_axis(facts.rounds[-1].number),
        y=straight_axis("s", [0.0, *(point.y for one in series for point in one.points)]),
        series=series,
    )


def _seconds(name: str, style: Style, found: list[tuple[int, float]]) -> Series:
    marks = tuple(Point(at, seconds, f"{name}, round {at}: {seconds:.1f} s") for at, seconds in found)
    return Series(name.replace(" ", "-"), style, marks)


def _privacy(facts: DeployedRun) -> dict[str, Any] | None:
    """What a private run has promised and spent; None for one without privacy."""
    if facts.budget is None:
        return None
    spent = facts.spent or {}
    rows = [("budget", f"ε = {facts.budget['epsilon']:g}, δ = {facts.budget['delta']:g}")]
    rows += [
        (name.replace("_", " "), plain_text(value)) for name, value in spent.items() if name != "statement" and value
    ]
    return {"statement": spent.get("statement"), "rows": rows, "caveats": []}
