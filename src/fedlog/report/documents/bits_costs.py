"""Compare compressed runs with uncompressed ones: bits, final accuracy, and whether a tenth of the bits is enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedlog.experiments.tables.bits import ROUNDS
from fedlog.experiments.tables.cost import Cost, cost_to_reach, count_opening_bits
from fedlog.experiments.tables.finished_cells import Collected, RunResult
from fedlog.experiments.tables.paper import LABELS, TABLE_1, list_printed_rows
from fedlog.experiments.tables.significance import Mean
from fedlog.report.parts.tables import NOT_RUN, TextTable
from fedlog.wire.bits_text import describe_bits

UNCOMPRESSED = "f32"
# The goal is judged by the first way of sending, or by the second for methods that were not run with the first.
GOAL_WAYS = ("q4-differences", "q8-up-q4-differences")
GOAL_SHARE = 0.1  # the goal: at most this share of the bits of `f32`
GOAL_LOSS = 0.3  # and at most this loss of accuracy, in points


def find_uncompressed_runs(data: str, method: str, found: Collected, whole: Collected) -> dict[int, RunResult]:
    """The uncompressed runs (`f32`) by seed; on seeds without one, the first rounds of the same run of Table 1."""
    seeds = found.experiment.seeds
    longer = {run.seed: shorten_run(run, ROUNDS[data]) for run in whole.runs.get(method, []) if run.seed in seeds}
    own = {run.seed: run for run in found.runs.get(f"{method}-{UNCOMPRESSED}", [])}
    return dict(sorted({**longer, **own}.items()))


def shorten_run(run: RunResult, rounds: int) -> RunResult:
    """The run as it was after this many rounds."""
    kept = run.rounds[:rounds]
    up, down = count_opening_bits(run.rounds, run.summary)
    summary = replace(
        run.summary,
        rounds=len(kept),
        accuracy_mean_over_clients=kept[-1].accuracy_mean_over_clients,
        bits_up=up + sum(record.bits_up for record in kept),
        bits_down=down + sum(record.bits_down for record in kept),
    )
    return RunResult(run.seed, summary, kept)


def find_share(costs: Mapping[int, Cost], uncompressed: Mapping[int, RunResult], threshold: float) -> float | None:
    """The bits to the threshold as a share of those of `f32` on the same seeds; None without a common seed."""
    both = [seed for seed in costs if seed in uncompressed]
    full = sum(
        cost_to_reach(threshold, uncompressed[seed].rounds, uncompressed[seed].summary).bits_both_ways for seed in both
    )
    return sum(costs[seed].bits_both_ways for seed in both) / full if full else None


def compare_final_accuracy(runs: Sequence[RunResult], uncompressed: Mapping[int, RunResult]) -> Mean | None:
    """The mean difference in final accuracy over pairs of a client and a seed; None for fewer than two pairs."""
    found = [
        100 * (a - b)
        for run in runs
        if run.seed in uncompressed
        for a, b in zip(*(each.rounds[-1].accuracy_per_client for each in (run, uncompressed[run.seed])), strict=True)
        if a is not None and b is not None
    ]
    return Mean.of(found) if len(found) > 1 else None


def describe_difference(difference: Mean | None) -> str:
    """`-0.12 (-0.30 to +0.06)`: a mean difference in points and its 95 % interval; blank for None."""
    if difference is None:
        return ""
    low, high = difference.interval
    return f"{difference.value:+.2f} ({low:+.2f} to {high:+.2f})"


def goal_table(found: Mapping[str, Collected], whole: Mapping[str, Collected]) -> TextTable:
    """A table of our and the paper's bits to the threshold, and of whether the goal was reached."""
    rows = []
    for data in ROUNDS:
        runs_of, table = found[data].runs, whole[data]
        for method in ("fedlog", "fedlog-c", *(("fedproto", "lg-fedavg-1", "fedavg") if data == "mnist" else ())):
            way = next((way for way in GOAL_WAYS if runs_of.get(f"{method}-{way}")), GOAL_WAYS[0])
            uncompressed = find_uncompressed_runs(data, method, found[data], table)
            rows.append(_goal_row(data, method, way, runs_of.get(f"{method}-{way}", []), uncompressed))
    note = (
        f"Bits of both directions to the paper's threshold. The aim: at most {GOAL_SHARE:.0%} of the bits of `f32`, "
        f"and a 95 % interval of the difference in final accuracy that excludes a loss of more than {GOAL_LOSS:g} "
        "points; `bits only` and `accuracy only` say which half was reached. * marks seeds that never reached the "
        "threshold."
    )
    return TextTable.of(rows, notes=(note,))


def _goal_row(
    data: str, method: str, way: str, runs: Sequence[RunResult], uncompressed: Mapping[int, RunResult]
) -> dict[str, str]:
    part = TABLE_1[data]
    threshold = part.threshold / 100
    costs = {run.seed: cost_to_reach(threshold, run.rounds, run.summary) for run in runs}
    share, difference = find_share(costs, uncompressed, threshold), compare_final_accuracy(runs, uncompressed)
    return {
        "": f"{part.title}, {LABELS[method]}",
        "way of sending": way,
        "seeds": ", ".join(str(seed) for seed in costs),
        "bits": format_mean_bits([cost.bits_both_ways for cost in costs.values()]) + mark_missed(costs)
        if costs
        else NOT_RUN,
        "the paper": list_printed_rows(part.printed)[method].cost_text,
        "of f32": format_share(share),
        "final accuracy against f32": describe_difference(difference),
        "aim": judge_goal(share, None if difference is None else difference.interval[0]),
    }


def format_mean_bits(bits: Sequence[int]) -> str:
    """The mean of these numbers of bits, with its unit."""
    return describe_bits(float(np.mean(bits)))


def mark_missed(costs: Mapping[int, Cost]) -> str:
    """An asterisk if a seed never reached the threshold, else an empty text."""
    return "" if all(cost.reached for cost in costs.values()) else " *"


def format_share(share: float | None) -> str:
    """A share in per cent; blank for None."""
    return "" if share is None else f"{100 * share:.1f} %"


def judge_goal(share: float | None, lowest: float | None) -> str:
    """The verdict on the goal: `reached`, `bits only`, `accuracy only` or `missed`; blank if a figure is missing.

    `share` is that of the bits of `f32`, `lowest` the lower end of the interval of the difference in accuracy.
    """
    if share is None or lowest is None:
        return ""
    few, harmless = share <= GOAL_SHARE, lowest >= -GOAL_LOSS
    if few and harmless:
        return "reached"
    return "bits only" if few else "accuracy only" if harmless else "missed"
