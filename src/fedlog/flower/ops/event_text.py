"""Turn events of a log into lines of text, for the operator and for the people at the sites."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedlog.core.classification import compute_wilson_interval
from fedlog.files.duration_text import describe_duration
from fedlog.flower.protocol.check_in import describe_clock
from fedlog.models.model import UNSEEN
from fedlog.wire.bits_text import describe_bits

NEVER_MOVED = "the head never changed while this site took part: the federated model learned nothing from the others"
MOSTLY_NOISE = "the sum was mostly noise, and the head stays as it was"


def describe_run_event(event: Mapping[str, Any]) -> str | None:
    """Describe an event of a run in one line for the operator; None for events that are not shown."""
    match event["event"]:
        case "greeted":
            return f"taking part: {_join_names(event['sites'])}"
        case "left out" | "refused":
            at = f"round {event['round']}: " if "round" in event else ""
            return f"{at}without {event['site']}: {event['reason']}"
        case "capped":
            return (
                f"round {event['round']}: {event['site']} stated {100 * event['stated_share']:.3g} % of all records; "
                "capped by --largest-share"
            )
        case "silent":
            at = f" to step {event['step']} of the secure sum" if "step" in event else ""
            return (
                f"round {event['round']}: no answer{at} from {event['site']} within {event['deadline_seconds']:.0f} s"
            )
        case "not awaited":
            return (
                f"round {event['round']}: did not wait for {event['site']}, which has not answered since round "
                f"{event['since']}; it is asked in every round"
            )
        case "given up":
            return f"round {event['round']}: no longer waiting for {event['site']}, which was dropped"
        case "dropped":
            return f"{event['site']} was dropped: it is not asked any more"
        case "taken back":
            return f"{event['site']} is asked again from the next round on"
        case "secure sum failed":
            return f"round {event['round']}: the secure sum failed; the head stays as it was: {event['reason']}"
        case "budget spent":
            return f"round {event['round']}: not begun, and the run ends with the head that it has: {event['reason']}"
        case "clock":
            return f"the clock of {event['site']} is {describe_clock(event['ahead_seconds'])}, or more"
        case "too few":
            return (
                f"round {event['round']}: {len(event['sites'])} of at least {event['minimum']} sites "
                f"({_join_names(event['sites'])}); the head stays as it was"
            )
        case "resumed":
            return f"continuing after round {event['after_round']}"
        case "round":
            left = f"; about {describe_duration(event['seconds'] * (event['of'] - event['round']))} left"
            return (
                f"round {event['round']} of {event['of']}: {describe_bits(event['bits_up'])} up and "
                f"{describe_bits(event['bits_down'])} down so far, {describe_duration(event['seconds'])}"
                f"{left if event['round'] < event['of'] else ''}"
                f"{'; ' + MOSTLY_NOISE if event.get('kept_old_head') else ''}"
            )
        case "finished":
            return f"finished, with reports from {_join_names(event['sites'])}"
    return None


def describe_connection_event(event: Mapping[str, Any]) -> str | None:
    """Describe in one line that a site connected, left or was refused, for the operator; None for other events."""
    match event["event"]:
        case "connected":
            return f"{event['site']} is connected"
        case "disconnected":
            return f"{event['site']} has left: its SuperNode was stopped"
        case "lost":
            return f"{event['site']} is lost: no call for {event['seconds']:.0f} s"
        case "news":
            return f"{event['site']}: {event['news']}"
        case "call refused":
            clock = describe_clock(event.get("ahead_seconds", 0.0))
            return f"refused a call of {event['site']}: {f'its clock is {clock}' if clock else event['reason']}"
    return None


def describe_site_event(event: Mapping[str, Any]) -> str | None:
    """Describe an event at a site in one line for the person there; None for events that are not shown."""
    match event["event"]:
        case "welcome":
            return f"run {event['run']}: {event['method']}, {event['rounds']} rounds, body {event['body']}"
        case "worked":
            since, seconds = event.get("head_since"), event["load_seconds"] + event["work_seconds"]
            return (
                f"run {event['run']}, round {event['round']} of {event['of']}: validation accuracy "
                f"{_format_share(event['validation_accuracy'])}, {describe_bits(event['bits_up'])} sent, "
                f"{describe_bits(event['bits_down'])} received, {describe_duration(seconds)}"
                f"{'' if since is None else f'; the head is still the one of round {since}'}"
            )
        case "finished":
            beside = event.get("unprotected_model")
            why = f"the protected one (not protected: {beside})" if beside else "better or equal on the validation rows"
            return (
                f"run {event['run']}: kept the {event['kept']} model, {why}; {_describe_test_results(event)}; "
                f"model in {event['model']}"
                f"{f'; {NEVER_MOVED}' if event.get('head_moved') is False else ''}"
                f"{_describe_unseen_classes(event.get(UNSEEN, 0))}"
            )
        case "warning":
            return f"run {event['run']}: warning: {event['reason']}"
        case "answered again":
            return f"run {event['run']}, round {event['round']}: sent the stored answer again"
        case "refused" | "failed":
            return f"round {event['round']}: not answered: {event['reason']}"
    return None


def _describe_test_results(event: Mapping[str, Any]) -> str:
    """Describe the test accuracy (or error, in a regression) of the model the site kept and of its local-only model."""
    if "test_rmse" in event:
        values = event["test_rmse"], event["local_only_test_rmse"]
        error, alone = (f"{value:.4g}" if value is not None else "none" for value in values)
        return f"test error {error} (local-only {alone})"
    kept = f"test accuracy {_format_share(event['test_accuracy'])}{_describe_interval(event)}"
    return f"{kept} (local-only {_format_share(event['local_only_test_accuracy'])})"


def _describe_interval(event: Mapping[str, Any]) -> str:
    """Format the 95 % confidence interval of the test accuracy; return an empty text if there are no test rows."""
    share, records = event["test_accuracy"], event.get("test_records")
    if share is None or not records:
        return ""
    low, high = compute_wilson_interval(share, records)
    return f" [{low:.2f}, {high:.2f}] over {records} rows"


def _describe_unseen_classes(count: int) -> str:
    if not count:
        return ""
    words = "1 class of the schema is" if count == 1 else f"{count} classes of the schema are"
    return f"; {words} not in this site's training rows: the model knows about that only from the other sites"


@dataclass
class SiteEventDescriber:
    """Describes the events at a site, and estimates the time that the run still takes."""

    worked: dict[str, tuple[int, dt.datetime]] = field(default_factory=dict)  # run -> newest round and when

    def describe(self, event: Mapping[str, Any]) -> str | None:
        """Describe an event in one line; None if it is not shown. The line of a round also estimates the time left."""
        text = describe_site_event(event)
        if text is None or event["event"] != "worked":
            return text
        number, now = int(event["round"]), dt.datetime.fromisoformat(event["time"])
        before, self.worked[event["run"]] = self.worked.get(event["run"]), (number, now)
        if before is None or number <= before[0] or number >= event["of"]:
            return text
        pace = (now - before[1]).total_seconds() / (number - before[0])
        return f"{text}; about {describe_duration(pace * (event['of'] - number))} left"


def _format_share(value: float | None) -> str:
    return "of no rows" if value is None else f"{value:.3f}"


def _join_names(sites: list[str]) -> str:
    return ", ".join(sites) or "nobody"
