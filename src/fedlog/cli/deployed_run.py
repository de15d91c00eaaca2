"""Read deployed runs from a server's folder, and write their pages.

This module is not in `fedlog.report`, because `fedlog.report` must not import `fedlog.flower`.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlog.algorithms import registry
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.protocol.plan import Plan, format_plan_settings, make_plan
from fedlog.flower.server.run_folder import PLAN, REPORT, ROUNDS, RunFolder
from fedlog.privacy.release_log import FILE_NAME
from fedlog.report.pages.deployed_page import (
    DeployedRound,
    DeployedRun,
    DeployedSite,
    render_deployed,
    render_deployed_runs,
    write_deployed_page,
)
from fedlog.report.pages.live import ServedPages
from fedlog.report.pages.run_facts import sum_bits_by_kind
from fedlog.settings.differences import SettingDifference, describe_value, format_flags
from fedlog.settings.fields import find_setting_info
from fedlog.settings.presets import DEPLOYED_OPTIONS, apply_recipe
from fedlog.settings.spec import RunSpec, list_deployed_settings
from fedlog.settings.training import Recipe


def find_deployed_runs(folder: Path) -> list[Path]:
    """Return the folders of deployed runs: `folder` itself if it is a run's, or all runs in it if it is a server's."""
    if (folder / PLAN).exists():
        return [folder]
    return sorted(path.parent for path in ServerFolder(folder).runs.glob(f"*/{PLAN}"))


def write_page_of_deployed_run(folder: Path) -> Path:
    """Write the HTML page of the deployed run in this folder, and return the path of the page."""
    return write_deployed_page(folder, read_deployed_run(folder))


def read_deployed_run(folder: Path) -> DeployedRun:
    """Read everything that the page shows about the deployed run in this folder, finished or still running."""
    run_folder, server = RunFolder(folder), ServerFolder(folder.parent.parent)
    plan, report = run_folder.read_plan(), run_folder.read_report() or {}
    differences, others = _separate_changed_settings(plan)
    private = plan.promise is not None and (folder / FILE_NAME).exists()
    budget = None if plan.promise is None else {"epsilon": plan.promise.epsilon, "delta": plan.promise.delta}
    rounds = _read_rounds(run_folder)
    bits = {way: report.get(way, getattr(rounds[-1], way) if rounds else 0) for way in ("bits_up", "bits_down")}
    return DeployedRun(
        name=plan.name,
        method=plan.method,
        seed=plan.seed,
        planned=plan.rounds,
        rounds=rounds,
        sites=_read_sites(report, plan.name, read_events(server.event_log)),
        finished=bool(report),
        ended_early=report.get("ended_early"),
        hides_site_results=plan.hides_site_results,
        **bits,
        bits_by_kind=sum_bits_by_kind([report.get("bits_by_kind", {})], report.get("bits_opening", {})),
        budget=budget,
        spent=run_folder.read_privacy_spent() if private else None,
        differences=differences,
        other_settings=others,
        command=_make_repeat_command(server.path, plan.method, differences),
        made_with=report.get("made_with", {}),
    )


def _read_rounds(run_folder: RunFolder) -> tuple[DeployedRound, ...]:
    """Read the rounds of a deployed run, in order; a last round that was stopped before its end is left out."""
    return tuple(
        DeployedRound(
            number=int(line["round"]),
            new_head=bool(line["full"]) and not line.get("kept_old_head", 0),
            bits_up=line["bits_up"],
            bits_down=line["bits_down"],
            seconds=line["seconds"],
            slowest_seconds=line.get("slowest_seconds"),
        )
        for line in run_folder.read_rounds()
        if "bits_up" in line
    )


def _read_sites(report: Mapping[str, Any], run: str, events: Iterable[Mapping[str, Any]]) -> tuple[DeployedSite, ...]:
    """Read each site's results from the report, and count in the event log how often it answered or was left out."""
    answered: dict[str, set[int]] = {}
    left_out: Counter[str] = Counter()
    for event in (event for event in events if event.get("run") == run):
        if event["event"] == "uploads" and event["round"]:
            for site in event["sites"]:
                answered.setdefault(site, set()).add(int(event["round"]))
        elif event["event"] in ("refused", "left out"):
            left_out[event["site"]] += 1
    # During a run there are no reports yet: show the sites that the log mentions.
    reported = report.get("sites") or [{"name": name, "body": ""} for name in sorted({*answered, *left_out})]
    return tuple(
        DeployedSite(
            name=site["name"],
            body=site["body"],
            accuracy=site.get("accuracy"),
            alone=site.get("local_only_accuracy"),
            error=site.get("rmse"),
            error_alone=site.get("local_only_rmse"),
            test_records=site.get("test_records"),
            kept_model=site.get("kept", ""),
            answered=len(answered.get(site["name"], ())),
            left_out=left_out[site["name"]],
        )
        for site in reported
    )


def _separate_changed_settings(plan: Plan) -> tuple[tuple[SettingDifference, ...], tuple[tuple[str, str], ...]]:
    """Divide the settings of a deployed run into those that differ from the defaults of its method, and the others."""
    usual_plan = make_plan(apply_recipe(RunSpec(method=plan.method), given=()), plan.name, lambda: 0)
    here, usual = _list_settings(plan), _list_settings(usual_plan)
    differences = [
        SettingDifference(name, value, usual[name, is_option], is_option)
        for (name, is_option), value in here.items()
        if value != usual[name, is_option]
    ]
    same = [(*key, value) for key, value in here.items() if value == usual[key]]
    others = [(name, describe_value(value)) for name, is_option, value in same if value is not None or is_option]
    return tuple(differences), tuple(others)


def _list_settings(plan: Plan) -> dict[tuple[str, bool], Any]:
    """Return a run's settings that have a flag, as {(name, whether it is an option of the method): value}."""
    settings = format_plan_settings(plan)
    named = [entry.name for entry in list_deployed_settings() if find_setting_info(entry).flag]
    found = {(name, False): settings.get(name.replace("_", "-"), "") for name in named if name != "method"}
    options = {**registry.list_options(plan.method), **DEPLOYED_OPTIONS.get(plan.method, {}), **plan.options}
    found |= {(name, True): getattr(value, "value", value) for name, value in options.items()}
    return {name: None if value == "" else value for name, value in found.items()}


def _make_repeat_command(server: Path, method: str, differences: Sequence[SettingDifference]) -> str:
    """Return the command that starts a new run with the same settings at this server."""
    # With the paper's recipe nothing else is filled in: the differences are complete.
    words = ["fedlog", "federate", "run", str(server), "--method", method, "--recipe", Recipe.PAPER.value]
    return shlex.join([*words, *format_flags(differences)])


def make_deployed_pages(folder: Path) -> ServedPages:
    """Make the pages that `fedlog watch` serves for a server's folder, or for the folder of one of its runs."""
    return ServedPages(folder, find_deployed_runs, _render_run_or_list, _list_page_sources)


def _render_run_or_list(folder: Path, records_version: str) -> str:
    """Return the HTML of one run, or of the list of runs for a server's folder.

    The page is loaded again when the state of the runs' files differs from `records_version`.
    """
    if (folder / PLAN).exists():
        return render_deployed(read_deployed_run(folder), records_version)
    runs = {f"{run.relative_to(folder).as_posix()}/": read_deployed_run(run) for run in find_deployed_runs(folder)}
    return render_deployed_runs(folder.resolve().name, runs, records_version)


def _list_page_sources(folder: Path) -> Iterator[Path]:
    """List the files that the page is made from: those of the runs, and the server's log."""
    runs = find_deployed_runs(folder)
    yield from (run / name for run in runs for name in (PLAN, ROUNDS, REPORT, FILE_NAME))
    yield from {ServerFolder(run.parent.parent).event_log for run in runs}
