"""The page of a deployed run: a run at a server with real sites, by `fedlog federate run`.

It is made from the server's records, and shows sites, rounds, bits, privacy spent, settings and the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlog.files.durable import write_file
from fedlog.files.duration_text import describe_duration
from fedlog.report.pages import page_top
from fedlog.report.pages.run_facts import ClientFacts
from fedlog.report.pages.run_plots import make_bits_bar_chart, make_clients_plot
from fedlog.report.pages.runs_page import RunRow
from fedlog.report.parts.axes import make_linear_axis, make_rounds_axis
from fedlog.report.parts.plots import Plot, Point, Series
from fedlog.report.parts.render import PAGE, format_percent, render_page
from fedlog.report.parts.style import find_numbered_style, find_style
from fedlog.report.parts.tables import TextTable
from fedlog.settings.differences import SettingDifference
from fedlog.wire.bits_text import choose_unit, describe_bits

ACCURACY_STAYS_AT_SITES = "How well each model does is known to its site alone: report.json beside the model there."


@dataclass(frozen=True)
class DeployedSite(ClientFacts):
    """One site of a deployed run: the results that it reported for its model, and in how many rounds it took part."""

    body: str = ""  # empty until the site has reported
    error: float | None = None  # root mean squared error, if a number is predicted
    error_alone: float | None = None  # of the model that the site trained alone
    kept_model: str = ""  # the model that the site chose to keep: federated, local-only, ...
    answered: int = 0  # in how many rounds its upload is part of the sum
    left_out: int = 0  # in how many rounds it was refused or left out


@dataclass(frozen=True)
class DeployedRound:
    """One round as the server recorded it; `bits_up` and `bits_down` are totals since the start of the run."""

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
    planned: int  # how many rounds
    rounds: tuple[DeployedRound, ...]
    sites: tuple[DeployedSite, ...]  # before the final reports, the sites that have answered so far
    finished: bool
    ended_early: str | None
    hides_site_results: bool  # whether sites do not report their accuracies: the run is private or has secure sums
    bits_up: int
    bits_down: int  # includes the final head, which is sent after the last round
    bits_by_kind: Mapping[tuple[str, str], int]  # (up or down, kind)
    budget: Mapping[str, float] | None  # epsilon and delta that the plan promises
    spent: Mapping[str, Any] | None  # the guarantee of all releases so far
    differences: tuple[SettingDifference, ...]
    other_settings: tuple[tuple[str, str], ...]
    command: str  # starts a new run with the same settings
    made_with: Mapping[str, str] = field(default_factory=dict)  # the versions of fedlog, Python and others, by name

    @property
    def bits(self) -> int:
        """The bits sent so far, up and down, by all sites together."""
        return self.bits_up + self.bits_down

    @property
    def measure(self) -> str:
        """The measure that the page names: accuracy or, for predicted numbers, the share inside their intervals."""
        number = any(site.error is not None for site in self.sites)
        return "share inside 90 % intervals" if number else "test accuracy"

    def compute_mean_over_sites(self, attribute: str) -> float | None:
        """Compute the mean of this attribute (such as `accuracy`) over the sites that reported it; None if none did."""
        found = [value for site in self.sites if (value := getattr(site, attribute)) is not None]
        return sum(found) / len(found) if found else None


def write_deployed_page(folder: Path, facts: DeployedRun) -> Path:
    """Write the page into the run's folder, and return its path."""
    path = folder / PAGE
    write_file(path, render_deployed(facts))
    return path


def render_deployed(facts: DeployedRun, records_version: str | None = None) -> str:
    """Return the HTML of a deployed run's page; `records_version` is given if `fedlog watch` serves the page."""
    ranked = sorted(facts.sites, key=lambda site: site.accuracy or 0.0)
    return render_page(
        "deployed.html.j2",
        facts=facts,
        title=f"{find_style(facts.method).label}, deployed",
        headline=_make_headline(facts),
        tiles=_list_tiles(facts),
        notes=_list_notes(facts),
        has={
            "figures": facts.compute_mean_over_sites("accuracy") is not None,
            "errors": facts.compute_mean_over_sites("error") is not None,
            "answers": any(site.answered for site in facts.sites),
            "bodies": any(site.body for site in facts.sites),
        },
        style=find_style(facts.method),
        sites_plot=make_clients_plot(ranked, facts.method, facts.measure, "site"),
        round_plots=[_plot_bits_by_round(facts), _plot_seconds_by_round(facts)] if facts.rounds else [],
        bits_bars=make_bits_bar_chart(facts.bits_by_kind, len(facts.rounds), "site"),
        privacy=None if facts.budget is None else page_top.make_privacy_section(facts.budget, facts.spent or {}),
        records_version=records_version,
    )


def make_deployed_tables(facts: DeployedRun) -> Iterator[tuple[str, TextTable]]:
    """Yield (file name without suffix, table) for the two tables of a deployed run: its rounds and its sites."""
    rounds = tuple(
        (f"{each.number}", f"{each.bits_up}", f"{each.bits_down}", f"{each.seconds:.2f}") for each in facts.rounds
    )
    yield "rounds", TextTable(("round", "bits up so far", "bits down so far", "seconds"), rounds, f"Run {facts.name}")
    sites = tuple(
        (
            site.name,
            *("" if share is None else f"{100 * share:.2f}" for share in (site.accuracy, site.alone)),
            "" if site.test_records is None else f"{site.test_records}",
            site.body,
            f"{site.answered}",
        )
        for site in facts.sites
    )
    columns = ("site", "accuracy, %", "local only, %", "test records", "body", "rounds in the sum")
    yield "sites", TextTable(columns, sites, "Each site, after the last round")


def render_deployed_runs(server: str, runs: Mapping[str, DeployedRun], records_version: str) -> str:
    """Return the HTML of a server's list of runs; `runs` maps the address of a run's page to the run."""
    return render_page(
        "runs.html.j2",
        title=f"Runs of {server}",
        sections=[],
        rows=[_make_run_row(link, facts) for link, facts in runs.items()],
        plots=[],
        who="site",
        empty="No run yet. One that `fedlog federate run` starts appears here.",
        records_version=records_version,
    )


def _make_run_row(link: str, facts: DeployedRun) -> RunRow:
    """Make the row of one run for the server's table of runs; `link` is the address of the run's page."""
    rounds = f"{len(facts.rounds)}" if facts.finished else f"{len(facts.rounds)} of {facts.planned}, not finished"
    accuracy = facts.compute_mean_over_sites("accuracy")
    return RunRow(
        name=facts.name,
        link=link,
        method=find_style(facts.method).label,
        data=", ".join(site.name for site in facts.sites),
        seed=facts.seed,
        rounds=rounds,
        accuracy="" if accuracy is None else format_percent(accuracy, 2),
        bits=describe_bits(facts.bits) if facts.bits else "none",
    )


def _make_headline(facts: DeployedRun) -> dict[str, str]:
    """Return the texts of the headline by name: the mean accuracy, the bits, and the accuracy of training alone."""
    alone = facts.compute_mean_over_sites("alone")
    return {
        "reached": page_top.describe_result(
            facts.compute_mean_over_sites("accuracy"), facts.compute_mean_over_sites("error")
        ),
        "sent": describe_bits(facts.bits),
        "others": "" if alone is None else f"{find_style('local').label} {format_percent(alone)}",
    }


def _list_tiles(facts: DeployedRun) -> list[page_top.Tile]:
    """List the tiles with the main numbers at the top of the page; empty before the first round ends."""
    if not facts.rounds:
        return []
    found = []
    judged = [site for site in facts.sites if site.accuracy is not None]
    if judged:
        found.append(
            page_top.Tile(
                facts.measure,
                format_percent(facts.compute_mean_over_sites("accuracy")),
                "mean over sites, models they keep",
            )
        )
        found += page_top.make_gain_tiles([site.gain for site in judged if site.gain is not None], "site")
        lowest = min(judged, key=lambda site: site.accuracy or 0.0)
        found.append(page_top.Tile("lowest site", format_percent(lowest.accuracy), lowest.name))
    moved = sum(each.new_head for each in facts.rounds)
    found.append(page_top.Tile("rounds", f"{len(facts.rounds)} of {facts.planned}", f"{moved} of them moved the head"))
    found.append(page_top.make_bits_tile(facts.bits, "site", f"{describe_bits(facts.bits_up)} up"))
    if facts.budget is not None:
        found.append(page_top.make_privacy_tile(None if facts.spent is None else facts.spent["epsilon"], facts.budget))
    return [*found, page_top.make_time_tile(sum(each.seconds for each in facts.rounds), len(facts.rounds))]


def _list_notes(facts: DeployedRun) -> list[str]:
    """List notes and warnings that are shown below the headline."""
    found = []
    if not facts.finished:
        found.append(f"Not finished: round {len(facts.rounds)} of {facts.planned}.")
    if facts.ended_early is not None:
        found.append(f"Ended early: {facts.ended_early}.")
    if facts.hides_site_results:
        found.append(ACCURACY_STAYS_AT_SITES)
    if facts.finished and facts.rounds and not any(each.new_head for each in facts.rounds):
        found.append("Learned nothing: no round moved the head from where the run began.")
    if facts.hides_site_results and facts.budget is None:
        found.append("Privacy: none. Secure sums hid each site's part from the server, and the sums are exact.")
    return found


def _plot_bits_by_round(facts: DeployedRun) -> Plot:
    """Plot the total bits since the start of the run, up and down, at the end of each round."""
    unit, size = choose_unit(facts.bits)
    last = facts.rounds[-1]
    return _plot_by_round(
        "bits-by-round",
        f"Bits by the end of each round ({unit})",
        f"From the start to round {last.number}, all sites: up {describe_bits(last.bits_up)}, "
        f"down {describe_bits(last.bits_down)}.",
        unit,
        (
            _make_series("up", 0, [(each.number, each.bits_up) for each in facts.rounds], describe_bits, size),
            _make_series("down", 1, [(each.number, each.bits_down) for each in facts.rounds], describe_bits, size),
        ),
    )


def _plot_seconds_by_round(facts: DeployedRun) -> Plot:
    """Plot how long each round took, and how long the slowest site of the round took."""
    whole = [(each.number, each.seconds) for each in facts.rounds]
    slowest = [(each.number, s) for each in facts.rounds if (s := each.slowest_seconds) is not None]
    series = [_make_series("the whole round", 2, whole, describe_duration)]
    series += [_make_series("the slowest site", 3, slowest, describe_duration)] if slowest else []
    longest = max(facts.rounds, key=lambda each: each.seconds)
    return _plot_by_round(
        "seconds-by-round",
        "Seconds by round",
        f"{len(facts.rounds)} rounds took {describe_duration(sum(each.seconds for each in facts.rounds))} together; "
        f"the longest, round {longest.number}, {describe_duration(longest.seconds)}.",
        "s",
        tuple(series),
    )


def _make_series(
    name: str, number: int, values: Sequence[tuple[int, float]], describe: Callable[[float], str], unit: float = 1
) -> Series:
    """Make a line of a plot from (round, value) pairs; `number` chooses its style, and values are divided by `unit`.

    `describe` formats an undivided value for the text under the mouse pointer.
    """
    marks = tuple(Point(at, value / unit, f"{name}, round {at}: {describe(value)}") for at, value in values)
    return Series(name.replace(" ", "-"), find_numbered_style(number, name), marks)


def _plot_by_round(name: str, title: str, alt_text: str, unit: str, series: tuple[Series, ...]) -> Plot:
    """Plot these lines over the rounds; the first line must have a point for every round."""
    y = make_linear_axis(unit, [0.0, *(point.y for one in series for point in one.points)])
    return Plot(name, title, alt_text, make_rounds_axis(int(series[0].points[-1].x)), y, series)
