"""The status page of a server or a site: connections, progress of the run, a curve, and the last events."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from fedlog import __version__
from fedlog.flower.folders.folder import Folder, read_events
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.event_text import describe_gate_event, describe_run_event, describe_site_event
from fedlog.flower.ops.summaries import summarise_newest_run, summarise_site
from fedlog.flower.server.presence import read_gate_file
from fedlog.flower.site.privacy_record import describe_spending

REFRESH_SECONDS = 5
LAST_EVENTS = 15
CURVE_SIZE = {"width": 640, "height": 180, "edge": 34}


def render_server_page(folder: ServerFolder) -> str:
    """The status page of a server, as HTML."""
    presence, view = read_gate_file(folder.presence_file), summarise_newest_run(folder)
    connected, calls = set(presence.get("connected", ())), presence.get("last_call", {})
    parts = {} if view is None else view.sites
    return _render(
        folder,
        lambda event: describe_gate_event(event) or describe_run_event(event),
        title="fedlog server",
        run="no run yet" if view is None else view.describe(),
        sites=[
            {
                "name": site,
                "connected": site in connected,
                "last_call": calls.get(site, ""),
                "part": parts[site].describe() if site in parts else "",
            }
            for site in sorted(folder.read_known_sites())
        ],
        curve_title="Seconds of each round",
        points=[] if view is None else [(int(line["round"]), float(line["seconds"])) for line in view.rounds],
        unit="s",
    )


def render_site_page(folder: SiteFolder) -> str:
    """The status page of a site, as HTML. It shows the validation accuracy, so only this machine should see it."""
    config, view = folder.read_config(), summarise_site(folder)
    name, rounds = next(reversed(view.rounds.items()), ("", []))
    accuracies = [(int(event["round"]), event["validation_accuracy"]) for event in rounds]
    return _render(
        folder,
        describe_site_event,
        title=f"fedlog site {config.name}",
        connected=view.connected,
        server=config.server,
        run=f"{name}: round {rounds[-1]['round']} of {rounds[-1]['of']}" if rounds else "no round yet",
        privacy=describe_spending(folder) or "nothing of these rows has left this site",
        curve_title="Validation accuracy at the start of each round",
        points=[(number, float(value)) for number, value in accuracies if value is not None],
        unit="",
    )


def _render(folder: Folder, describe: Callable[[Mapping[str, Any]], str | None], **values: object) -> str:
    """Fill in the template with these values and the last events that have a line, the newest first."""
    lines = [(str(event["time"])[:19], describe(event)) for event in read_events(folder.event_log)]
    return _template().render(
        events=[line for line in reversed(lines) if line[1]][:LAST_EVENTS],
        now=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        version=__version__,
        refresh_seconds=REFRESH_SECONDS,
        **CURVE_SIZE,
        **values,
    )


@cache
def _template() -> Template:
    text = resources.files("fedlog.flower.ops").joinpath("status_page.html.j2").read_text()
    # Escaped: names and news come from other parties, who may be hostile.
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return page.from_string(text)
