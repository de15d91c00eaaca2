"""The tables of `docs/bits.md`, from the records of what messages cost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from fedlog.errors import InputError
from fedlog.experiments.tables.bits import BITS, KEPT, OTHERS, SHARES, WAYS
from fedlog.experiments.tables.cost import cost_to
from fedlog.experiments.tables.finished_cells import Collected, RunResult, collect
from fedlog.experiments.tables.paper import LABELS, TABLE_1
from fedlog.files.durable import write_file
from fedlog.report.tables import TextTable, bits
from fedlog.wire.codec import CODECS

DENSE = "f32"
METHODS = ("fedlog", "fedlog-c", *OTHERS)
_PLACE = "<!-- records of {} -->"
_END = "<!-- end of records -->"


def write_bits_page(results: Path, page: Path) -> list[Path]:
    """Put the tables into their places in the page, if that page is there."""
    if not page.exists():
        return []
    text = page.read_text()
    for name, table in bits_tables(results).items():
        before, start, rest = text.partition(_PLACE.format(name))
        _, end, after = rest.partition(_END)
        if not (start and end):
            raise InputError(f"{page} has no place for {name}", hint=f"{_PLACE.format(name)} and {_END}")
        text = f"{before}{start}\n{table.markdown()}{end}{after}"
    write_file(page, text)
    return [page]


def bits_tables(results: Path) -> dict[str, TextTable]:
    """A table for each measurement, by its name."""
    found = {experiment.name: collect(experiment, results) for experiment in BITS}
    tables = {f"bits-{data}": ways_table(data, found[f"bits-{data}"]) for data in ("mnist", "cifar10", "cifar100")}
    tables["bits-codecs-mnist"] = codec_table(found["bits-codecs-mnist"])
    tables["bits-participation-mnist"] = participation_table(found["bits-participation-mnist"])
    return tables


def ways_table(data: str, found: Collected) -> TextTable:
    """Bits to the threshold by method and way of sending, and what the way does to the final accuracy."""
    threshold = TABLE_1[data].threshold / 100
    rows = []
    for method in METHODS:
        dense = {run.seed: run for run in found.runs.get(f"{method}-{DENSE}", [])}
        for way in WAYS:
            runs = found.runs.get(f"{method}-{way}", [])
            if runs:
                rows.append(_way_row(method, way, runs, dense, threshold))
    columns = (
        "way of sending",
        "seeds",
        "rounds",
        "up",
        "down",
        "both",
        "of f32",
        "final accuracy",
        "against f32",
    )
    note = (
        f"Bits of all clients up to the first round that reaches {TABLE_1[data].threshold} %, opening included, mean "
        "over seeds; * marks seeds that never reached it, which count up to their best round. The share and the "
        "difference (points, 95 % interval) are over the seeds that both have; the interval is over pairs of a client "
        "and a seed."
    )
    return TextTable(columns, tuple(rows), notes=(note,))


def _way_row(
    method: str, way: str, runs: Sequence[RunResult], dense: Mapping[int, RunResult], threshold: float
) -> tuple[str, ...]:
    costs = {run.seed: cost_to(threshold, run.rounds, run.summary) for run in runs}
    both = [run for run in runs if run.seed in dense]
    full = sum(cost_to(threshold, dense[run.seed].rounds, dense[run.seed].summary).both for run in both)
    share = sum(costs[run.seed].both for run in both) / full if full else None
    accuracy = float(np.mean([run.summary.accuracy_mean_over_clients for run in runs]))
    missed = "" if all(cost.reached for cost in costs.values()) else " *"
    return (
        f"{LABELS[method]}, {way}",
        ", ".join(str(run.seed) for run in runs),
        ", ".join(str(cost.round) for cost in costs.values()) + missed,
        bits(float(np.mean([cost.bits_up for cost in costs.values()]))),
        bits(float(np.mean([cost.bits_down for cost in costs.values()]))),
        bits(float(np.mean([cost.both for cost in costs.values()]))),
        "" if share is None else f"{100 * share:.1f} %",
        f"{100 * accuracy:.2f}",
        "" if way == DENSE else _difference([(run, dense[run.seed]) for run in both]),
    )


def _difference(pairs: Sequence[tuple[RunResult, RunResult]]) -> str:
    """The mean difference in final accuracy over clients and seeds, in points, with its interval."""
    found = [
        100 * (a - b)
        for ours, other in pairs
        for a, b in zip(_final(ours), _final(other), strict=True)
        if a is not None and b is not None
    ]
    if len(found) < 2:
        return ""
    mean, error = float(np.mean(found)), float(stats.sem(found))
    reach = float(stats.t.ppf(0.975, len(found) - 1)) * error
    return f"{mean:+.2f} ({mean - reach:+.2f} to {mean + reach:+.2f})"


def _final(run: RunResult) -> list[float | None]:
    return run.rounds[-1].accuracy_per_client


def codec_table(found: Collected) -> TextTable:
    """The bytes of one client's messages in the last round of the short runs, up and down, by codec and method."""
    rows = []
    for name in CODECS:
        cells = []
        for method in METHODS:
            runs = found.runs.get(f"{method}-{name}", [])
            last = runs[0].rounds[-1] if runs else None
            cells.append("" if last is None else f"{_bytes(last.bits_up)} + {_bytes(last.bits_down)}")
        if any(cells):
            rows.append((name, *cells))
    note = "Bytes up and down for each of 50 clients, on average, in round 2, framing included."
    return TextTable(("codec", *(LABELS[method] for method in METHODS)), tuple(rows), notes=(note,))


def _bytes(bits_of_all: int, clients: int = 50) -> str:
    return f"{bits_of_all / 8 / clients:.0f}"


def participation_table(found: Collected) -> TextTable:
    """Accuracy by round and the bits to the threshold, by what the server keeps of those who pause."""
    at = (5, 10, 20, 30)
    rows = []
    for share in SHARES:
        for kept in KEPT:
            runs = found.runs.get(f"{kept}-of-{share:g}", [])
            if not runs:
                continue
            by_round = [_accuracy_after(n, runs) for n in at]
            total = float(np.mean([run.summary.bits_up + run.summary.bits_down for run in runs]))
            reached = [cost_to(0.97, run.rounds, run.summary) for run in runs]
            to = ", ".join(str(cost.round) if cost.reached else "never" for cost in reached)
            rows.append((f"{share:.0%} take part, {kept}", str(len(runs)), *by_round, to, bits(total)))
    columns = ("", "seeds", *(f"round {n}" for n in at), "round of 97 %", "bits in 30 rounds")
    return TextTable(columns, tuple(rows), notes=("FedLog, f32, accuracy of all clients in per cent.",))


def _accuracy_after(number: int, runs: Sequence[RunResult]) -> str:
    return f"{100 * float(np.mean([run.rounds[number - 1].accuracy_mean_over_clients for run in runs])):.2f}"


def tables_in(page: str) -> dict[str, str]:
    """What stands in the places of a page, by name."""
    pattern = re.escape(_PLACE).replace(r"\{\}", "([^ ]+)") + r"\n(.*?)" + re.escape(_END)
    return dict(re.findall(pattern, page, re.DOTALL))
