"""Find runs of other methods on the same records, divided in the same way, to compare a run with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedlog.data.data_spec import DIVISION
from fedlog.errors import InputError
from fedlog.experiments.run.execute import CONFIG, read_spec, read_summary_if_finished
from fedlog.experiments.run.records import Summary
from fedlog.settings.spec import RunSpec

BASELINES = ("local", "fedavg")
# Two runs have the same clients with the same held-out records if these settings are equal.
SAME_SETTINGS = ("data_sha256", *DIVISION, "validation_fraction", "seed", "split_seed", "judge", "body")


def find_baselines(folder: Path, spec: RunSpec) -> dict[str, Summary]:
    """Find the newest finished run of each other method near the folder, and return its summary by method.

    The search covers the folders next to this one and, in a comparison (METHOD/seed-N), the same seed of the other
    methods.
    """
    found: dict[str, Summary] = {}
    ages: dict[str, float] = {}
    for other in _list_nearby_runs(folder):
        try:
            theirs = read_spec(other)
            if theirs.method not in BASELINES or theirs.method == spec.method or not _have_same_records(theirs, spec):
                continue
            summary = read_summary_if_finished(other)
        except InputError:
            continue  # no run, or one of another version: it cannot be compared
        age = (other / CONFIG).stat().st_mtime
        if summary is not None and age >= ages.get(theirs.method, 0.0):
            found[theirs.method], ages[theirs.method] = summary, age
    return {method: found[method] for method in BASELINES if method in found}


def _list_nearby_runs(folder: Path) -> Iterator[Path]:
    """Yield the run folders next to this one and, in a comparison, the folders of other methods with the same seed."""
    own = folder.resolve()
    paths = list(own.parent.glob(f"*/{CONFIG}"))
    if own.name.startswith("seed-"):
        paths += own.parent.parent.glob(f"*/{own.name}/{CONFIG}")
    return (path.parent for path in sorted(set(paths)) if path.parent != own)


def _have_same_records(one: RunSpec, other: RunSpec) -> bool:
    """Return whether two runs have the same data, divided in the same way."""
    by_content = one.data_sha256 is not None and one.data_sha256 == other.data_sha256
    return (by_content or one.data == other.data) and all(
        getattr(one, name) == getattr(other, name) for name in SAME_SETTINGS
    )
