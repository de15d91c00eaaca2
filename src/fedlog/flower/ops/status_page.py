"""The status page of a server or a site: connections, progress of the run, a curve, and the last events.

It has no script and loads nothing from elsewhere.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from fedlog import __version__
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.event_text import describe_presence, describe_run_event, describe_site_event
from fedlog.flower.ops.overview import view_newest_run, view_site
from fedlog.flower.server.presence import read_gate_file
from fedlog.flower.site.budget import describe_spending

REFRESH_SECONDS = 5
LAST_EVENTS = 15
WIDTH, HEIGHT, EDGE = 640, 180, 34
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #1c1c1c;
  background: #fff }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .25rem .6rem .25rem 0;
  border-bottom: 1px solid #ddd; vertical-align: top }
.good { color: #166534 } .bad { color: #b91c1c } time { color: #555; font-variant-numeric: tabular-nums }
svg { width: 100%; height: auto } polyline { fill: none; stroke: #1d4ed8; stroke-width: 2 } text { font-size: 12px;
  fill: #444 } line { stroke: #bbb }
@media (prefers-color-scheme: dark) { body { background: #16181d; color: #e6e6e6 } td, th { border-color: #383b42 }
  .good { color: #86efac } .bad { color: #fca5a5 } time, text { color: #aaa; fill: #aaa } polyline { stroke: #93c5fd } }
"""


def render_server_page(folder: ServerFolder) -> str:
    """The status page of a server, as HTML."""
    presence, view = read_gate_file(folder.presence_file), view_newest_run(folder)
    connected, calls = set(presence.get("connected", ())), presence.get("last_call", {})
    rows = []
    for site in sorted(folder.read_known_sites()):
        part = view.sites.get(site) if view is not None else None
        rows.append((site, _state(site in connected), _format_time(calls.get(site)), part.describe() if part else ""))
    points = [] if view is None else [(int(line["round"]), float(line["seconds"])) for line in view.rounds]
    events = read_events(folder.event_log)
    lines = (describe_presence(event) or describe_run_event(event) for event in events)
    return _page(
        "fedlog server",
        [
            f"<p id='run'>{escape('no run yet' if view is None else view.describe())}</p>",
            "<h2>Sites</h2>",
            _table(("site", "connection", "last call", "part in the run"), rows) if rows else "<p>none registered</p>",
            "<h2>Seconds of each round</h2>",
            _curve(points, "s"),
            "<h2>Last events</h2>",
            _events(events, lines),
        ],
    )


def render_site_page(folder: SiteFolder) -> str:
    """The status page of a site, as HTML. It shows the validation accuracy, so only this machine should see it."""
    config, view = folder.read_config(), view_site(folder)
    name, work = next(reversed(view.runs.items()), (None, None))
    rounds = [] if work is None else work.rounds
    done = f"{name}: round {rounds[-1]['round']} of {rounds[-1]['of']}" if rounds else "no round yet"
    accuracies = [(int(e["round"]), e["validation_accuracy"]) for e in rounds]
    points = [(number, float(value)) for number, value in accuracies if value is not None]
    events = read_events(folder.event_log)
    lines = map(describe_site_event, events)
    return _page(
        f"fedlog site {config.name}",
        [
            f"<p>{_state(view.connected)} to {escape(config.server)}</p>",
            f"<p id='run'>{escape(done)}</p>",
            f"<p id='privacy'>{escape(describe_spending(folder) or 'nothing of these rows has left this site')}</p>",
            "<h2>Validation accuracy at the start of each round</h2>",
            _curve(points, ""),
            "<h2>Last events</h2>",
            _events(events, lines),
        ],
    )


def _page(title: str, parts: Iterable[str]) -> str:
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta http-equiv='refresh' content='{REFRESH_SECONDS}'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f"{''.join(parts)}<p><time>{now}</time>, fedlog {__version__}; <a href='/metrics'>metrics</a></p>"
        "</body></html>\n"
    )


def _state(connected: bool) -> str:
    return "<span class='good'>connected</span>" if connected else "<span class='bad'>not connected</span>"


def _format_time(when: object) -> str:
    return "" if when is None else f"<time>{escape(str(when))}</time>"


def _table(head: Sequence[str], rows: Sequence[tuple[str, str, str, str]]) -> str:
    """An HTML table; the first and the last column are escaped, the others are HTML already."""
    cells = "".join(
        f"<tr><td>{escape(first)}</td><td>{second}</td><td>{third}</td><td>{escape(last)}</td></tr>"
        for first, second, third, last in rows
    )
    return f"<table id='sites'><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{cells}</table>"


def _curve(points: Sequence[tuple[int, float]], unit: str) -> str:
    """A line through the points as SVG, with the highest and the last value as text."""
    if not points:
        return "<p>no round yet</p>"
    first, last = points[0][0], points[-1][0]
    top = max(value for _, value in points) or 1.0
    across, up = (WIDTH - 2 * EDGE) / max(1, last - first), (HEIGHT - 2 * EDGE) / top
    line = " ".join(f"{EDGE + (n - first) * across:.1f},{HEIGHT - EDGE - value * up:.1f}" for n, value in points)
    dot = f"<circle cx='{line.split()[-1].split(',')[0]}' cy='{line.split()[-1].split(',')[1]}' r='3' fill='#1d4ed8'/>"
    return (
        f"<svg id='curve' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{len(points)} rounds, the last "
        f"{points[-1][1]:.3g} {unit}'><line x1='{EDGE}' y1='{HEIGHT - EDGE}' x2='{WIDTH - EDGE}' y2='{HEIGHT - EDGE}'/>"
        f"<polyline points='{line}'/>{dot}<text x='2' y='{EDGE - 8}'>{top:.3g} {unit}</text>"
        f"<text x='{EDGE}' y='{HEIGHT - 12}'>round {first}</text><text x='{WIDTH - EDGE}' y='{HEIGHT - 12}' "
        f"text-anchor='end'>{last}: {points[-1][1]:.3g} {unit}</text></svg>"
    )


def _events(events: Sequence[Mapping[str, Any]], lines: Iterable[str | None]) -> str:
    """A table of the last events that have a line, the newest first."""
    shown = [(str(event["time"]), line) for event, line in zip(events, lines, strict=True) if line]
    rows = "".join(
        f"<tr><td><time>{escape(when[:19])}</time></td><td>{escape(line)}</td></tr>"
        for when, line in reversed(shown[-LAST_EVENTS:])
    )
    return f"<table id='events'>{rows}</table>" if rows else "<p>none yet</p>"
