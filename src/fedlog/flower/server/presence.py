"""Record which sites are connected to the gate, and why it refuses calls."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlog.files.json_text import parse_json
from fedlog.flower.folders.folder import Value, log_event
from fedlog.flower.protocol.check_in import SiteState

# A SuperNode asks for work every few seconds; heartbeats come every ten seconds or so also while it is busy.
LOST_SECONDS = 75.0
# The same event of the same site is logged once in this time: a broken site may call many times a second.
LOGGED_AGAIN_SECONDS = 60.0


def read_gate_file(path: Path) -> dict[str, Any]:
    """The values in a file that the gate writes every few seconds; empty if it has not run."""
    try:
        return dict(parse_json(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def read_connected_sites(presence_file: Path) -> frozenset[str]:
    """The sites that were connected when the gate last wrote its file; none if it has not run."""
    return frozenset(map(str, read_gate_file(presence_file).get("connected", ())))


@dataclass
class Presence:
    """Which sites are connected, when each called last, and which calls were refused."""

    log: Path | None = None  # the file to which events are written
    last_call: dict[str, dt.datetime] = field(default_factory=dict)
    connected: set[str] = field(default_factory=set)
    refusals: Counter[str] = field(default_factory=Counter)  # reason -> calls
    _logged: dict[tuple[str, str], dt.datetime] = field(default_factory=dict)  # site and event -> when

    def record_call(self, site: str, call: str, status: int, now: dt.datetime) -> None:
        """Record a call of a registered site, which the SuperLink answered with this HTTP status."""
        self.last_call[site] = now
        if call == "deactivate-node" and status == 200:
            if site in self.connected:
                self.connected.discard(site)
                self._log("disconnected", site=site)
        elif status == 200 and site not in self.connected:
            self.connected.add(site)
            self._log("connected", site=site)

    def count_refusal(self, reason: str, site: str | None, now: dt.datetime, **fields: Value) -> None:
        """Count a refused call, and log it if a registered site made it."""
        self.refusals[reason] += 1
        if site is not None and self._is_new(site, reason, now):
            self._log("call refused", site=site, reason=reason, **fields)

    def record_site_state(self, site: str, news: SiteState, now: dt.datetime) -> None:
        """Log the state that a registered site reports."""
        if self._is_new(site, news.name, now):
            self._log("news", site=site, news=str(news))

    def drop_lost_sites(self, now: dt.datetime) -> None:
        """Log the connected sites that have not called for a while, and count them as lost."""
        for site in sorted(self.connected):
            if (now - self.last_call[site]).total_seconds() > LOST_SECONDS:
                self.connected.discard(site)
                self._log("lost", site=site, seconds=LOST_SECONDS)

    def as_plain(self) -> dict[str, object]:
        """The connected sites, last calls and refusals as plain values, for the presence file."""
        calls = {site: when.isoformat(timespec="seconds") for site, when in sorted(self.last_call.items())}
        return {
            "connected": sorted(self.connected),
            "last_call": calls,
            "refusals": dict(sorted(self.refusals.items())),
        }

    def _is_new(self, site: str, what: str, now: dt.datetime) -> bool:
        """Whether to log this event of this site: no, if the same one was logged in the last minute."""
        before = self._logged.get((site, what))
        if before is not None and (now - before).total_seconds() < LOGGED_AGAIN_SECONDS:
            return False
        self._logged[(site, what)] = now
        return True

    def _log(self, event: str, **fields: Value) -> None:
        if self.log is not None:
            log_event(self.log, event, **fields)
