"""A site as its own log tells it: whether it is connected, and its work in each run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.site_folder import SiteFolder


@dataclass
class SiteWork:
    """The work of a site in one run."""

    rounds: list[Mapping[str, Any]] = field(default_factory=list)  # the events of its rounds

    @property
    def seconds(self) -> float:
        """Seconds of reading and training, all rounds together."""
        return sum(float(event["load_seconds"]) + float(event["work_seconds"]) for event in self.rounds)

    @property
    def bits_up(self) -> int:
        """Bits that left."""
        return sum(int(event["bits_up"]) for event in self.rounds)

    @property
    def bits_down(self) -> int:
        """Bits that came."""
        return sum(int(event["bits_down"]) for event in self.rounds)


@dataclass
class SiteView:
    """A site so far."""

    connected: bool = False
    refusals: int = 0
    restarts: int = 0
    runs: dict[str, SiteWork] = field(default_factory=dict)  # the newest last


def view_site(folder: SiteFolder) -> SiteView:
    """The site of this folder."""
    view = SiteView()
    for event in read_events(folder.event_log):
        run = event.get("run")
        work = view.runs.pop(str(run), SiteWork()) if run is not None else SiteWork()
        if run is not None:
            view.runs[str(run)] = work
        match event["event"]:
            case "worked":
                work.rounds.append(event)
            case "refused" | "failed":
                view.refusals += 1
            case "starting again":
                view.connected, view.restarts = False, view.restarts + 1
            case "connected" | "server found":
                view.connected = True
            case "server lost" | "ended" | "stopped":
                view.connected = False
    return view
