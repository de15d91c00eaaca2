"""Print the report of a finished run of a real federation."""

from __future__ import annotations

import json
from typing import Any

from fedlog.core.classification import compute_wilson_interval
from fedlog.files.duration_text import describe_duration


def print_pretrained_report(report: dict[str, Any]) -> None:
    """Print the report of `fedlog federate demo --pretrained`, with every site's accuracy.

    Only the demo knows them all: in a real private run, each site knows only its own accuracy.
    """
    print(f"{'site':<10} {'test accuracy':>13} {'95 % interval':>16} {'test rows':>10}  body")
    for site in report["sites"]:
        between = _describe_interval(site["accuracy"], site["test_records"])
        print(f"{site['name']:<10} {site['accuracy']:>13.3f} {between:>16} {site['test_records']:>10}  {site['body']}")
    print(f"{_describe_rounds_and_bits(report)}, {describe_duration(report['seconds'])}")
    print(f"privacy: {report['privacy']['statement']}")


def print_report(report: dict[str, Any], as_json: bool) -> None:
    """Print the report of a finished run: as JSON, or as a table of the sites and a line about the bits sent."""
    if as_json:
        print(json.dumps(report))
        return
    if any("accuracy" not in site for site in report["sites"]):
        print_private_report(report)
        return
    figure = "rmse" if any("rmse" in site for site in report["sites"]) else "accuracy"
    what = "test error" if figure == "rmse" else "test accuracy"
    print(
        f"{'site':<10} {'body':<16} {what:>13} {'95 % interval':>16} {'local-only':>11} {'test rows':>10}  model kept"
    )
    for site in report["sites"]:
        between = _describe_interval(site["accuracy"], site["test_records"]) if figure == "accuracy" else ""
        print(
            f"{site['name']:<10} {site['body']:<16} {site[figure]:>13.3f} {between:>16} "
            f"{site[f'local_only_{figure}']:>11.3f} {site['test_records']:>10}  {site['kept']}"
        )
    wire = f", {report['wire_bytes']} bytes on the wire with TLS and Flower" if "wire_bytes" in report else ""
    seconds = f", {describe_duration(report['seconds'])}" if "seconds" in report else ""
    print(f"{_describe_rounds_and_bits(report)}{wire}{seconds}")


def print_private_report(report: dict[str, Any]) -> None:
    """Print the report of a run with noise or with secure sums: its sites, the bits sent and the privacy guarantee."""
    for site in report["sites"]:
        print(f"{site['name']:<10} {site['body']}")
    print(_describe_rounds_and_bits(report))
    if "ended_early" in report:
        print(f"ended early: {report['ended_early']}")
    if "privacy" in report:
        promised = report["privacy"]
        print(f"privacy: {'nothing was released' if promised is None else promised['statement']}")
    else:
        print("privacy: none; secure sums hid each site's part from the server, and the sums are exact")
    if report.get("new_heads") == 0:
        print(
            "learned nothing: in every round the sum was mostly noise, and the head is the one that the run began "
            "with; more records or sites, a larger epsilon, fewer rounds or a narrower clip raise the signal"
        )
    elif "new_heads" in report:
        print(f"rounds that changed the head: {report['new_heads']} of {report['rounds']}")
    print("only each site knows how well its model does: see `report.json` beside the model there")


def _describe_rounds_and_bits(report: dict[str, Any]) -> str:
    """Return a phrase such as `3 of 5 rounds, 800 bits up and 900 down`; `of 5` only if the run ended early."""
    planned = f" of {report['rounds_planned']}" if "rounds_planned" in report else ""
    plural = "" if report["rounds"] == 1 and not planned else "s"
    return f"{report['rounds']}{planned} round{plural}, {report['bits_up']} bits up and {report['bits_down']} down"


def _describe_interval(share: float, records: int) -> str:
    """Return the 95 % interval of an accuracy on `records` test rows, as text."""
    if records == 0:
        return "of no rows"
    low, high = compute_wilson_interval(share, records)
    return f"{low:.3f} to {high:.3f}"
