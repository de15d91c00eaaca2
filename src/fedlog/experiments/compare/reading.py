"""The findings in a folder of runs: a comparison's, or any runs that were judged on all held-out rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedlog.errors import InputError
from fedlog.experiments.compare.findings import Findings, ScoredRun
from fedlog.experiments.compare.variants import ComparedRun
from fedlog.experiments.run.execute import CONFIG, read_finished_summary, read_spec, read_summary
from fedlog.experiments.run.scores import SCORES, RunScores
from fedlog.settings.fields import Recorded, about
from fedlog.settings.spec import RunSpec

# What tells repetitions of one thing apart, and not one thing from another.
OF_A_REPETITION = ("seed", "split_seed", "data_sha256")


def read_runs(data: str, runs: Sequence[ComparedRun], failed: Mapping[str, str]) -> Findings:
    """The findings of these runs; InputError where not a single one is finished."""
    found = {}
    for run in runs:
        scores = RunScores.read(run.folder)
        if run.name not in failed and scores is not None and read_finished_summary(run.folder) is not None:
            found[run.variant.label, run.seed] = ScoredRun(read_spec(run.folder), read_summary(run.folder), scores)
    # In the order of the variants: one that was added later stands where it was asked for.
    order = list(dict.fromkeys(run.variant.label for run in runs))
    kept = dict(sorted(found.items(), key=lambda each: (order.index(each[0][0]), each[0][1])))
    if not kept:
        # The same reason for every seed and method is said once.
        reasons = dict.fromkeys(failed.values())
        why = "; ".join(reasons)
        raise InputError(
            f"no run of the comparison could be finished: {why or 'none was begun'}", hint="mend that first"
        )
    return Findings(data, kept, dict(failed))


def _find_scored_runs(folder: Path) -> dict[Path, ScoredRun]:
    """Every finished and judged run below the folder, by its own folder, in the order of their names."""
    found = {}
    for path in sorted(path.parent for path in folder.rglob(SCORES)):
        scores = RunScores.read(path)
        if (path / CONFIG).exists() and read_finished_summary(path) is not None and scores is not None:
            found[path] = ScoredRun(read_spec(path), read_summary(path), scores)
    return found


def label_runs(specs: Mapping[Path, RunSpec]) -> dict[Path, str]:
    """A label for each run: its method, and those of its settings in which runs of that method differ."""
    labels = {}
    for path, spec in specs.items():
        same = [other for other in specs.values() if other.method == spec.method]
        labels[path] = " ".join([spec.method, *(_setting_text(spec, name) for name in _find_differing_settings(same))])
    return labels


def _find_differing_settings(specs: Sequence[RunSpec]) -> list[str]:
    names = [
        entry.name
        for entry in fields(RunSpec)
        if about(entry).recorded is not Recorded.NEVER and entry.name not in (*OF_A_REPETITION, "data", "method")
    ]
    return [name for name in names if any(getattr(spec, name) != getattr(specs[0], name) for spec in specs)]


def _setting_text(spec: RunSpec, name: str) -> str:
    value: Any = getattr(spec, name)
    if isinstance(value, Mapping):
        return ",".join(f"{key}={each}" for key, each in value.items())
    return f"{name}={','.join(value) if isinstance(value, tuple) else value}"


def group_findings(folder: Path) -> list[Findings]:
    """The findings of each data set among the judged runs below the folder, those with the same sites together."""
    groups: dict[tuple[str, tuple[str, ...]], dict[Path, ScoredRun]] = {}
    for path, run in _find_scored_runs(folder).items():
        groups.setdefault((run.spec.data, tuple(run.scores.test)), {})[path] = run
    found = []
    for (data, _), runs in groups.items():
        labels = label_runs({path: run.spec for path, run in runs.items()})
        found.append(Findings(data, {(labels[path], run.spec.seed): run for path, run in runs.items()}))
    return found
