"""Read the finished runs of a comparison, or of any folder, that have scores, and return them as `Findings`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedlog.errors import InputError
from fedlog.experiments.compare.findings import Findings, ScoredRun
from fedlog.experiments.compare.variants import ComparedRun
from fedlog.experiments.run.execute import CONFIG, read_spec, read_summary_if_finished
from fedlog.experiments.run.scores import SCORES, RunScores
from fedlog.settings.fields import InDigest, find_setting_info
from fedlog.settings.spec import RunSpec

# Settings that differ between repetitions of the same variant.
REPETITION_SETTINGS = ("seed", "split_seed", "data_sha256")


def read_findings(data: str, runs: Sequence[ComparedRun], failed: Mapping[str, str]) -> Findings:
    """Read the findings of a comparison from its runs; InputError if no run is finished."""
    found = {}
    for run in runs:
        scored = None if run.name in failed else _read_scored_run(run.folder)
        if scored is not None:
            found[run.variant.label, run.seed] = scored
    # In the order of the variants, also for one that was added in a later call.
    order = list(dict.fromkeys(run.variant.label for run in runs))
    kept = dict(sorted(found.items(), key=lambda each: (order.index(each[0][0]), each[0][1])))
    if not kept:
        reasons = "; ".join(dict.fromkeys(failed.values()))  # each reason once
        if not reasons:
            raise InputError(f"no run of the comparison on {data} has finished", hint="run the comparison first")
        raise InputError(
            f"no run of the comparison on {data} has finished; errors: {reasons}",
            hint="correct the cause of the errors, then run the comparison again",
        )
    return Findings(data, kept, dict(failed))


def _read_scored_run(folder: Path) -> ScoredRun | None:
    """Read the run in the folder; None if it is not finished or has no scores."""
    scores = RunScores.read(folder)
    summary = read_summary_if_finished(folder) if scores is not None and (folder / CONFIG).exists() else None
    return None if scores is None or summary is None else ScoredRun(read_spec(folder), summary, scores)


def label_runs(specs: Mapping[Path, RunSpec]) -> dict[Path, str]:
    """Return a label for each run: its method, and the settings in which runs of the same method differ."""
    labels = {}
    for path, spec in specs.items():
        same = [other for other in specs.values() if other.method == spec.method]
        labels[path] = " ".join(
            [
                spec.method,
                *(
                    _describe_setting(spec, name)
                    for name in _find_differing_settings(same)
                    if getattr(spec, name) is not None
                ),
            ]
        )
    return labels


def _find_differing_settings(specs: Sequence[RunSpec]) -> list[str]:
    """Return the names of the recorded settings in which these runs differ, except seeds."""
    names = [
        entry.name
        for entry in fields(RunSpec)
        if find_setting_info(entry).in_digest is not InDigest.NEVER
        and entry.name not in (*REPETITION_SETTINGS, "data", "method")
    ]
    return [name for name in names if any(getattr(spec, name) != getattr(specs[0], name) for spec in specs)]


def _describe_setting(spec: RunSpec, name: str) -> str:
    """Format one setting of the run as `rounds=30`; for the setting `options`, list them as `epochs=3,nu=0`."""
    value: Any = getattr(spec, name)
    if isinstance(value, Mapping):
        return ",".join(f"{key}={each}" for key, each in value.items())
    return f"{name}={','.join(value) if isinstance(value, tuple) else value}"


def read_findings_below(folder: Path) -> list[Findings]:
    """Read all scored runs below the folder, and return findings for each combination of data set and sites."""
    groups: dict[tuple[str, tuple[str, ...]], dict[Path, ScoredRun]] = {}
    for path in sorted(path.parent for path in folder.rglob(SCORES)):
        run = _read_scored_run(path)
        if run is None:
            continue
        groups.setdefault((run.spec.data, tuple(run.scores.test)), {})[path] = run
    found = []
    for (data, _), runs in groups.items():
        labels = label_runs({path: run.spec for path, run in runs.items()})
        known: dict[tuple[str, int], ScoredRun] = {}
        for path, run in runs.items():
            # Of two runs with the same label and seed, such as one repeated in another folder, none hides the other.
            label = f"{labels[path]} ({path.name})" if (labels[path], run.spec.seed) in known else labels[path]
            known[label, run.spec.seed] = run
        found.append(Findings(data, known))
    return found
