"""The page of a deployed run, from the server's records: sites, rounds, bits, privacy spent, settings, command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlog.files.durable import write_file
from fedlog.files.duration_text import describe_duration
from fedlog.report.pages.first_screen import (
    Tile,
    describe_result,
    describe_spending,
    describe_unfinished,
    make_bits_tile,
    make_gain_tiles,
    make_privacy_tile,
    make_time_tile,
)
from fedlog.report.pages.run_facts import ClientFacts
from fedlog.report.pages.run_plots import bits_bars, clients_plot
from fedlog.report.pages.runs_page import RunRow
from fedlog.report.parts.axes import rounds_axis, straight_axis
from fedlog.report.parts.plots import Plot, Point, Series
from fedlog.report.parts.render import PAGE, Live, percent, render_page
from fedlog.report.parts.style import Style, style_numbered, style_of
from fedlog.report.parts.tables import TextTable
from fedlog.settings.differences import SettingDifference
from fedlog.wire.bits_text import choose_unit, describe_bits

ACCURACY_STAYS_AT_SITES = "How well each model does is known to its site alone: report.json beside the model there."


@dataclass(frozen=True)
class DeployedSite:
    """One site: what it reported, and in how many rounds it took part."""

    name: str
    body: str  # empty until the site has reported
    accuracy: float | None = None  # of the model that the site keeps
    alone: float | None = None
    error: float | None = None  # root mean squared error, if a number is predicted
    error_alone: float | None = None
    test_records: int | None = None
    kept: str = ""
    answered: int = 0  # in how many rounds its upload is part of the sum
    left_out: int = 0  # in how many rounds it was refused or left out

    @property
    def gain(self) -> float | None:
        """The site's gain over training alone, as a share."""
        return None if self.accuracy is None or self.alone is None else self.accuracy - self.alone


@dataclass(frozen=True)
class DeployedRound:
    """One round at the server; bits are counted from the start of the run."""

    number: int
    new_head: bool  # whether the round changed the head: enough sites answered and the noise was not too large
    bits_up: int
    bits_down: int
    seconds: float
    slowest_seconds: float | None


@dataclass(frozen=True)
class DeployedRun:
    """A deployed run, finished or still running, from the server's records."""

    name: str
    method: str
    seed: int
    planned: int
    rounds: tuple[DeployedRound, ...]
    sites: tuple[DeployedSite, ...]  # before the final reports, the sites that have answered so far
    finished: bool
    ended_early: str | None
    hides_figures: bool  # whether sites do not report their accuracies: the run is private or has secure sums
    bits_up: int
    bits_down: int  # includes the final head, which is sent after the last round
    bits_by_kind: Mapping[tuple[str, str], int]  # (up or down, kind)
    budget: Mapping[str, float] | None  # epsilon and delta that the plan promises
    spent: Mapping[str, Any] | None
    differences: tuple[SettingDifference, ...]
    other_settings: tuple[tuple[str, str], ...]
    command: str
    made_with: Mapping[str, str] = field(default_factory=dict)

    @property
    def bits(self) -> int:
        """The bits sent so far, up and down, by all sites together."""
        return self.bits_up + self.bits_down

    @property
    def measure(self) -> str:
        """The name of the measure: accuracy or, if a number is predicted, the share inside intervals."""
        number = any(site.error is not None for site in self.sites)
        return "share inside 90 % intervals" if number else "test accuracy"

    def mean(self, name: str) -> float | None:
        """The mean of an attribute of the sites, over those that reported it."""
        found = [value for site in self.sites if (value := getattr(site, name)) is not None]
        return sum(found) / len(found) if found else None


def write_deployed_page(folder: Path, facts: DeployedRun) -> Path:
    """Write the page into the run's folder, and return its path."""
    path = folder / PAGE
    write_file(path, render_deployed(facts))
    return path


def render_deployed(facts: DeployedRun, live: Live | None = None) -> str:
    """The HTML of the page; `live` is given for pages of `fedlog watch`."""
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
            "bodies": any(site.body for site in facts.sites),
        },
        style=style_of(facts.method),
        sites_plot=clients_plot(_as_clients(facts), facts.method, facts.measure, "site"),
        round_plots=[plot_bits(facts), plot_seconds(facts)] if facts.rounds else [],
        bits_bars=bits_bars(facts.bits_by_kind, len(facts.rounds), "site"),
        privacy=_privacy(facts),
        live=live,
    )


def deployed_tables(facts: DeployedRun) -> Iterator[tuple[str, TextTable]]:
    """(file name without suffix, table) for the tables of rounds and sites."""
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


def render_deployed_runs(server: str, runs: Mapping[str, DeployedRun], live: Live) -> str:
    """The HTML of a server's list of runs; `runs` maps the address of each page to its run."""
    return render_page(
        "runs.html.j2",
        title=f"Runs of {server}",
        sections=[],
        rows=[_row(link, facts) for link, facts in runs.items()],
        plots=[],
        who="site",
        empty="No run yet. One that `fedlog federate run` starts appears here.",
        live=live,
    )


def _row(link: str, facts: DeployedRun) -> RunRow:
    rounds = f"{len(facts.rounds)}" if facts.finished else f"{len(facts.rounds)} of {facts.planned}, not finished"
    accuracy = facts.mean("accuracy")
    return RunRow(
        name=facts.name,
        link=link,
        method=style_of(facts.method).label,
        data=", ".join(site.name for site in facts.sites),
        seed=facts.seed,
        rounds=rounds,
        accuracy="" if accuracy is None else percent(accuracy, 2),
        bits=describe_bits(facts.bits) if facts.bits else "none",
    )


def _headline(facts: DeployedRun) -> dict[str, str]:
    alone = facts.mean("alone")
    return {
        "reached": describe_result(facts.mean("accuracy"), facts.mean("error")),
        "sent": describe_bits(facts.bits),
        "others": "" if alone is None else f"{style_of('local').label} {percent(alone)}",
    }


def _tiles(facts: DeployedRun) -> list[Tile]:
    if not facts.rounds:
        return []
    found = []
    judged = [site for site in facts.sites if site.accuracy is not None]
    if judged:
        found.append(Tile(facts.measure, percent(facts.mean("accuracy")), "mean over sites, models they keep"))
        found += make_gain_tiles([site.gain for site in judged if site.gain is not None], "site")
        lowest = min(judged, key=lambda site: site.accuracy or 0.0)
        found.append(Tile("lowest site", percent(lowest.accuracy), lowest.name))
    moved = sum(each.new_head for each in facts.rounds)
    found.append(Tile("rounds", f"{len(facts.rounds)} of {facts.planned}", f"{moved} of them moved the head"))
    found.append(make_bits_tile(facts.bits, "site", f"{describe_bits(facts.bits_up)} up"))
    if facts.budget is not None:
        found.append(make_privacy_tile(None if facts.spent is None else facts.spent["epsilon"], facts.budget))
    return [*found, make_time_tile(sum(each.seconds for each in facts.rounds), len(facts.rounds))]


def _notes(facts: DeployedRun) -> list[str]:
    """Notes and warnings that are shown below the headline."""
    found = []
    if not facts.finished:
        found.append(describe_unfinished(len(facts.rounds), facts.planned))
    if facts.ended_early is not None:
        found.append(f"Ended early: {facts.ended_early}.")
    if facts.hides_figures:
        found.append(ACCURACY_STAYS_AT_SITES)
    if facts.finished and facts.rounds and not any(each.new_head for each in facts.rounds):
        found.append("Learned nothing: no round moved the head from where the run began.")
    if facts.hides_figures and facts.budget is None:
        found.append("Privacy: none. Secure sums hid each site's part from the server, and the sums are exact.")
    return found


def _as_clients(facts: DeployedRun) -> list[ClientFacts]:
    """The sites with an accuracy, the lowest first, in the form that `clients_plot` takes."""
    judged = sorted((site for site in facts.sites if site.accuracy is not None), key=lambda each: each.accuracy or 0.0)
    return [ClientFacts(site.name, site.accuracy, site.alone, None, None, site.test_records or 0) for site in judged]


def _privacy(facts: DeployedRun) -> dict[str, Any] | None:
    """The budget and the spent privacy of a private run; None for a run without privacy."""
    if facts.budget is None:
        return None
    return describe_spending(facts.budget, facts.spent or {})


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
