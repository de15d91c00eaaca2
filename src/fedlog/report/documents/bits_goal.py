"""The first table of `docs/bits.md`: whether a tenth of the dense bits is reached without a loss of accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedlog.experiments.tables.bits import ROUNDS
from fedlog.experiments.tables.cost import cost_to
from fedlog.experiments.tables.finished_cells import Collected, RunResult
from fedlog.experiments.tables.paper import LABELS, TABLE_1, list_printed_rows
from fedlog.report.documents.bits_runs import AccuracyDifference, compare_final, dense_runs, share_of_dense
from fedlog.report.parts.tables import NOT_RUN, TextTable
from fedlog.wire.bits_text import describe_bits

# The way of sending that the aim is judged by, and those of the methods that were not run with it.
WAYS_JUDGED = ("q4-differences", "q8-up-q4-differences")
AIM_SHARE = 0.1
AIM_LOSS = 0.3  # points


def goal_table(found: Mapping[str, Collected], whole: Mapping[str, Collected]) -> TextTable:
    """For each data set and method: bits to the threshold, ours and printed, and whether the aim was reached."""
    rows = []
    for data in ROUNDS:
        runs_of, table = found[data].runs, whole[data]
        for method in ("fedlog", "fedlog-c", *(("fedproto", "lg-fedavg-1", "fedavg") if data == "mnist" else ())):
            way = next((way for way in WAYS_JUDGED if runs_of.get(f"{method}-{way}")), WAYS_JUDGED[0])
            dense = dense_runs(data, method, found[data], table)
            rows.append(_goal_row(data, method, way, runs_of.get(f"{method}-{way}", []), dense))
    columns = ("", "way of sending", "seeds", "bits", "the paper", "of f32", "final accuracy against f32", "aim")
    note = (
        f"Bits of both directions to the paper's threshold. The aim: at most {AIM_SHARE:.0%} of the bits of `f32`, and "
        f"a 95 % interval of the difference in final accuracy that excludes a loss of more than {AIM_LOSS:g} points; "
        "`bits only` and `accuracy only` say which half was reached. * marks seeds that never reached the threshold."
    )
    return TextTable(columns, tuple(rows), notes=(note,))


def _goal_row(
    data: str, method: str, way: str, runs: Sequence[RunResult], dense: Mapping[int, RunResult]
) -> tuple[str, ...]:
    part = TABLE_1[data]
    name, printed = f"{part.title}, {LABELS[method]}", list_printed_rows(part.printed)[method].cost_text
    if not runs:
        return (name, way, "", NOT_RUN, printed, "", "", "")
    threshold = part.threshold / 100
    costs = {run.seed: cost_to(threshold, run.rounds, run.summary) for run in runs}
    share, difference = share_of_dense(costs, dense, threshold), compare_final(runs, dense)
    mean = describe_bits(float(np.mean([cost.both for cost in costs.values()])))
    missed = "" if all(cost.reached for cost in costs.values()) else " *"
    return (
        name,
        way,
        ", ".join(str(seed) for seed in costs),
        mean + missed,
        printed,
        "" if share is None else f"{100 * share:.1f} %",
        "" if difference is None else str(difference),
        judge(share, difference),
    )


def judge(share: float | None, difference: AccuracyDifference | None) -> str:
    """What is reached of the aim, in words."""
    if share is None or difference is None:
        return ""
    few = share <= AIM_SHARE
    harmless = difference.mean - difference.reach >= -AIM_LOSS
    if few and harmless:
        return "reached"
    return "bits only" if few else "accuracy only" if harmless else "missed"
