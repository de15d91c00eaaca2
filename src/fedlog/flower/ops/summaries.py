"""Summarise event logs: a run at the server, with each site's part in it, and the work of a site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from fedlog.files.duration_text import describe_duration
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.server.run_folder import RunFolder

# A site is slow if it takes this many times as long as the median of the others, and this many seconds longer.
SLOW_TIMES, SLOW_SECONDS = 3.0, 5.0


@dataclass(frozen=True)
class SiteProgress:
    """A site's part in a run so far: its last answer, and whether it is missing, left out, dropped or much slower."""

    answered: int | None = None  # the last round with this site in its sum
    seconds: float | None = None  # how long that answer took
    missing_since: int | None = None  # the round in which it missed the deadline; it has not answered since
    refused: str | None = None  # why it was left out, or refused a request, after its last answer
    dropped: bool = False
    lagging: bool = False  # its answers take much longer than those of the others

    def describe(self) -> str:
        """Describe in words what the site has done in the run, for the operator."""
        last = "" if self.answered is None else f"; its last answer was in round {self.answered}"
        if self.dropped:
            return f"dropped: not asked{last}"
        if self.missing_since is not None:
            return f"missed the deadline of round {self.missing_since} and has not answered since{last}"
        if self.refused is not None:
            return f"left out: {self.refused}{last}"
        if self.answered is None:
            return "has not answered yet"
        slow = ", much slower than the others" if self.lagging else ""
        return f"in round {self.answered}, after {describe_duration(self.seconds or 0.0)}{slow}"


@dataclass(frozen=True)
class RunSummary:
    """The rounds of a run so far, how it ended, and what each site has done in it."""

    name: str
    rounds: tuple[Mapping[str, Any], ...] = ()  # the records of the rounds
    rounds_planned: int = 0
    ended: str | None = None  # finished, or why it failed
    sites: Mapping[str, SiteProgress] = field(default_factory=dict)
    refusals: Mapping[str, int] = field(default_factory=dict)  # site -> how often it was left out or refused a request

    @property
    def rounds_done(self) -> int:
        """The number of the last round that is done; 0 before the first."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    def describe(self) -> str:
        """Describe how many rounds are done and, if the run has ended, how it ended."""
        text = (
            f"{self.name}: round {self.rounds_done} of {self.rounds_planned}"
            if self.rounds_planned
            else f"{self.name}: no round yet"
        )
        return f"{text}; {self.ended}" if self.ended else text


def summarise_last_run(folder: ServerFolder) -> RunSummary | None:
    """Summarise the run to which the last event in the server's log belongs; None if there was no run yet."""
    summaries = summarise_runs(folder)
    return summaries[-1] if summaries else None


def summarise_runs(folder: ServerFolder) -> list[RunSummary]:
    """Summarise all runs in the server's log, in the order of their last events."""
    events = read_events(folder.event_log)
    names = [str(event["run"]) for event in events if event.get("run") is not None]
    newest_last = list(reversed(dict.fromkeys(reversed(names))))
    return [_mark_dropped_and_slow_sites(folder, summarise_run(name, events)) for name in newest_last]


def _mark_dropped_and_slow_sites(folder: ServerFolder, summary: RunSummary) -> RunSummary:
    """Mark the sites that were dropped from the run, and those that answer much more slowly than the others."""
    dropped = RunFolder.of_run(folder, summary.name).read_dropped_sites()
    parts = {site: replace(summary.sites.get(site, SiteProgress()), dropped=True) for site in dropped}
    return replace(summary, sites=_mark_slow_sites({**summary.sites, **parts}))


def summarise_run(name: str, events: Iterable[Mapping[str, Any]]) -> RunSummary:
    """Summarise the run of this name from the events of the server's log."""
    summary, sites, rounds = RunSummary(name), dict[str, SiteProgress](), dict[int, Mapping[str, Any]]()
    refusals: Counter[str] = Counter()
    for event in (event for event in events if event.get("run") == name):
        match event["event"]:
            case "greeted":
                sites |= {site: replace(sites.get(site, SiteProgress()), refused=None) for site in event["sites"]}
                summary = replace(summary, ended=None)
            case "uploads":
                seconds = event.get("seconds") or [None] * len(event["sites"])
                for site, took in zip(event["sites"], seconds, strict=True):
                    sites[site] = SiteProgress(int(event["round"]), took)
            case "silent":
                part = sites.get(event["site"], SiteProgress())
                since = event["round"] if part.missing_since is None else part.missing_since
                sites[event["site"]] = replace(part, missing_since=int(since))
            case "refused" | "left out":
                refusals[event["site"]] += 1
                sites[event["site"]] = replace(sites.get(event["site"], SiteProgress()), refused=str(event["reason"]))
            case "resumed":
                summary = replace(summary, ended=None)
            case "round":
                rounds[int(event["round"])] = event
                summary = replace(summary, rounds_planned=int(event["of"]), ended=None)
            case "finished":
                summary = replace(summary, ended="finished")
            case "failed":
                summary = replace(summary, ended=f"failed: {event['reason']}")
    done = tuple(rounds[number] for number in sorted(rounds))
    return replace(summary, rounds=done, sites=dict(sorted(sites.items())), refusals=refusals)


def _mark_slow_sites(sites: Mapping[str, SiteProgress]) -> dict[str, SiteProgress]:
    """Mark the sites whose answers take much longer than those of the other sites."""
    times = {name: part.seconds for name, part in sites.items() if part.seconds is not None}
    marked = dict(sorted(sites.items()))
    for name, seconds in times.items():
        usual = median([other for site, other in times.items() if site != name] or [seconds])
        if seconds > max(SLOW_TIMES * usual, usual + SLOW_SECONDS):
            marked[name] = replace(marked[name], lagging=True)
    return marked


@dataclass
class SiteSummary:
    """The state of a site's connection, and its work so far."""

    connected: bool = False
    refusals: int = 0  # requests that the site refused or failed to answer
    restarts: int = 0  # of its SuperNode
    rounds: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)  # run -> its events; the newest run last


def summarise_site(folder: SiteFolder) -> SiteSummary:
    """Summarise the site of this folder from its log."""
    summary = SiteSummary()
    for event in read_events(folder.event_log):
        if (run := event.get("run")) is not None:
            summary.rounds[run] = summary.rounds.pop(run, [])  # now the last one
        match event["event"]:
            case "worked":
                summary.rounds[event["run"]].append(event)
            case "refused" | "failed":
                summary.refusals += 1
            case "starting again":
                summary.connected, summary.restarts = False, summary.restarts + 1
            case "connected" | "server found":
                summary.connected = True
            case "server lost" | "ended" | "stopped":
                summary.connected = False
    return summary
