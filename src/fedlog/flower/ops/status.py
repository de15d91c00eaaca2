"""The status of a server and of a site, as metrics in the Prometheus text format and as a page of HTML.

The metrics are counts, sizes and times, nothing about rows. Everything is read from files for each request: the event
log, the counts of the gate, and the release logs. So the figures stay right when processes are restarted.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from importlib import resources
from types import SimpleNamespace
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fedlog import __version__
from fedlog.errors import FedlogError
from fedlog.flower.folders.folder import Folder, read_events
from fedlog.flower.folders.keys import count_days_left
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.event_text import describe_connection_event, describe_run_event, describe_site_event
from fedlog.flower.ops.summaries import RunSummary, summarise_last_run, summarise_runs, summarise_site
from fedlog.flower.server.callers import read_gate_file
from fedlog.flower.server.run_folder import RunFolder
from fedlog.flower.site.site_release_log import add_up_releases, describe_spending

REFRESH_SECONDS = 5
LAST_EVENTS = 15
CURVE_SIZE = {"width": 640, "height": 180, "edge": 34}
WAYS = ("up", "down")
# The values of the labels, in their order -> the figure.
Values = Mapping[Any, float]
MetricKind = type[GaugeMetricFamily] | type[CounterMetricFamily]


def render_server_metrics(folder: ServerFolder) -> bytes:
    """Render the metrics of a server in the Prometheus text format."""
    return _render_metrics(
        [*_make_call_metrics(folder), *_make_run_metrics(folder), *_make_certificate_metrics(folder)]
    )


def render_site_metrics(folder: SiteFolder) -> bytes:
    """Render the metrics of a site in the Prometheus text format."""
    return _render_metrics([*_make_site_work_metrics(folder), *_make_site_privacy_metrics(folder)])


def _render_metrics(metrics: Iterable[Metric]) -> bytes:
    version = _make_gauge("fedlog_info", "The version of fedlog", {(__version__,): 1.0}, "version")
    return generate_latest(SimpleNamespace(collect=lambda: [version, *metrics]))


def _make_metric(kind: MetricKind, name: str, help_text: str, values: Values, *labels: str) -> Metric:
    """Make a Prometheus metric with one value for each combination of its labels."""
    family = kind(name, help_text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family


_make_gauge = partial(_make_metric, GaugeMetricFamily)
_make_counter = partial(_make_metric, CounterMetricFamily)


def _make_call_metrics(folder: ServerFolder) -> list[Metric]:
    presence, traffic = read_gate_file(folder.presence_file), read_gate_file(folder.traffic_file)
    connected = set(presence.get("connected", ()))
    seen = {
        (site,): dt.datetime.fromisoformat(when).timestamp() for site, when in presence.get("last_call", {}).items()
    }
    sizes = {(call, way): counted[f"bytes_{way}"] for call, counted in traffic.items() for way in WAYS}
    registered = folder.read_registered_sites()
    flags = {(name,): float(name in connected) for name in registered}
    return [
        _make_gauge("fedlog_sites_registered", "Sites whose key is registered", {(): len(registered)}),
        _make_gauge("fedlog_sites_connected", "Sites that are connected", {(): len(connected)}),
        _make_gauge("fedlog_site_connected", "1 for a site that is connected", flags, "site"),
        _make_gauge("fedlog_site_last_call_timestamp_seconds", "When a site last called at the gate", seen, "site"),
        _make_counter(
            "fedlog_gate_calls", "Calls through the gate", {(c,): n["count"] for c, n in traffic.items()}, "call"
        ),
        _make_counter("fedlog_gate_bytes", "Bytes through the gate, headers included", sizes, "call", "direction"),
        _make_counter(
            "fedlog_gate_refusals",
            "Calls that the gate refused",
            {(reason,): count for reason, count in presence.get("refusals", {}).items()},
            "reason",
        ),
    ]


def _make_run_metrics(folder: ServerFolder) -> list[Metric]:
    views = {(view.name,): view for view in summarise_runs(folder)}
    begun = {key: view for key, view in views.items() if view.rounds}
    seconds = {key: sum(float(line["seconds"]) for line in view.rounds) for key, view in begun.items()}
    bits = {(*key, way): float(view.rounds[-1][f"bits_{way}"]) for key, view in begun.items() for way in WAYS}
    parts = {(*key, site): part for key, view in views.items() for site, part in view.sites.items()}
    refused = {(*key, site): count for key, view in views.items() for site, count in view.refusals.items()}
    missing = {key: float(part.missing_since is not None) for key, part in parts.items()}
    epsilons = {key: spent for key, view in views.items() if (spent := _read_epsilon(folder, view)) is not None}
    last = {key: float(view.rounds[-1]["seconds"]) for key, view in begun.items()}
    ended = {key: float(view.ended is not None) for key, view in views.items()}
    return [
        _make_counter("fedlog_rounds", "Rounds done", {key: view.rounds_done for key, view in views.items()}, "run"),
        _make_gauge(
            "fedlog_rounds_planned",
            "Rounds to be done",
            {key: view.rounds_planned for key, view in views.items()},
            "run",
        ),
        _make_counter("fedlog_round_seconds", "Seconds of all rounds together", seconds, "run"),
        _make_gauge("fedlog_last_round_seconds", "Seconds of the last round", last, "run"),
        _make_gauge("fedlog_run_ended", "1 for a run that has ended", ended, "run"),
        _make_counter("fedlog_payload_bits", "Bits of messages, as counted by the run", bits, "run", "direction"),
        _make_counter("fedlog_site_refusals", "Times that a site was left out or refused", refused, "run", "site"),
        _make_gauge("fedlog_site_missing", "1 for a site that missed a deadline", missing, "run", "site"),
        _make_gauge("fedlog_privacy_epsilon", "Privacy spent in a run; +Inf if no epsilon bounds it", epsilons, "run"),
    ]


def _read_epsilon(folder: ServerFolder, run: RunSummary) -> float | None:
    """Read the epsilon that a private run has spent so far; None for a run without privacy."""
    try:
        spent = RunFolder.of_run(folder, run.name).read_privacy_spent()
    except (FedlogError, OSError):
        return None
    if spent is None:
        return None
    epsilon = spent["epsilon"]
    return float(epsilon) if isinstance(epsilon, int | float) else math.inf


def _make_certificate_metrics(folder: ServerFolder) -> list[Metric]:
    if not folder.certificates.server.exists():
        return []
    left = count_days_left(folder.certificates, dt.datetime.now(dt.UTC))
    return [_make_gauge("fedlog_certificate_days_left", "Days until the server's certificate ends", {(): left})]


def _make_site_work_metrics(folder: SiteFolder) -> list[Metric]:
    view = summarise_site(folder)
    rounds = {(name,): len(events) for name, events in view.rounds.items()}
    loading, working, up, down = (
        {(name,): sum(event[figure] for event in events) for name, events in view.rounds.items()}
        for figure in ("load_seconds", "work_seconds", "bits_up", "bits_down")
    )
    seconds = {run: loading[run] + working[run] for run in rounds}
    return [
        _make_gauge("fedlog_site_connected", "1 while this site is connected", {(): float(view.connected)}),
        _make_counter("fedlog_site_rounds", "Rounds of work", rounds, "run"),
        _make_counter("fedlog_site_work_seconds", "Seconds of reading and training", seconds, "run"),
        _make_counter("fedlog_site_sent_bits", "Bits of messages sent", up, "run"),
        _make_counter("fedlog_site_received_bits", "Bits of messages received", down, "run"),
        _make_counter("fedlog_site_refusals", "Requests that this site refused or that failed", {(): view.refusals}),
        _make_counter("fedlog_site_restarts", "Times that the SuperNode was started again", {(): view.restarts}),
    ]


def _make_site_privacy_metrics(folder: SiteFolder) -> list[Metric]:
    epsilon, releases = add_up_releases(folder)
    spent = {} if epsilon is None else {(): epsilon}
    return [
        _make_counter("fedlog_site_releases", "Releases of this site's rows in all runs", {(): releases}),
        _make_gauge("fedlog_site_privacy_epsilon", "Privacy spent in all runs; +Inf if no epsilon bounds it", spent),
    ]


def render_server_page(folder: ServerFolder) -> str:
    """Render the status page of a server as HTML."""
    presence, view = read_gate_file(folder.presence_file), summarise_last_run(folder)
    connected, calls = set(presence.get("connected", ())), presence.get("last_call", {})
    parts = {} if view is None else view.sites
    return _render_page(
        folder,
        lambda event: describe_connection_event(event) or describe_run_event(event),
        title="fedlog server",
        run="no run yet" if view is None else view.describe(),
        sites=[
            {
                "name": site,
                "connected": site in connected,
                "last_call": calls.get(site, ""),
                "part": parts[site].describe() if site in parts else "",
            }
            for site in sorted(folder.read_registered_sites())
        ],
        curve_title="Seconds of each round",
        points=[] if view is None else [(int(line["round"]), float(line["seconds"])) for line in view.rounds],
        unit="s",
    )


def render_site_page(folder: SiteFolder) -> str:
    """Render the status page of a site as HTML. Only people at the site should see it: it shows accuracies."""
    config, view = folder.read_config(), summarise_site(folder)
    name, rounds = next(reversed(view.rounds.items()), ("", []))
    accuracies = [(int(event["round"]), event["validation_accuracy"]) for event in rounds]
    return _render_page(
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


def _render_page(folder: Folder, describe: Callable[[Mapping[str, Any]], str | None], **values: object) -> str:
    """Render the status page with these values and the latest events; `describe` returns an event's line, or None."""
    lines = [(str(event["time"])[:19], describe(event)) for event in read_events(folder.event_log)]
    return _load_template().render(
        events=[line for line in reversed(lines) if line[1]][:LAST_EVENTS],
        now=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        version=__version__,
        refresh_seconds=REFRESH_SECONDS,
        **CURVE_SIZE,
        **values,
    )


@cache
def _load_template() -> Template:
    text = resources.files("fedlog.flower.ops").joinpath("status_page.html.j2").read_text()
    # Escaped: names and news come from other parties, who may be hostile.
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return page.from_string(text)
