"""Make the table of the bits that each method needs to reach an accuracy threshold, beside the paper's bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedlog.experiments.tables.cells import Experiment, PrintedCostDirections, TableRow
from fedlog.experiments.tables.finished_cells import Cost, FinishedRuns, choose_threshold
from fedlog.experiments.tables.paper import COMPETITIVE_METHODS, PAPER_NAMES
from fedlog.experiments.tables.significance import (
    BySeed,
    Estimate,
    Mean,
    SignificanceTest,
    estimate_difference_from_printed_mean,
    estimate_paired_ratio,
)
from fedlog.report.paper import comparisons
from fedlog.report.parts.tables import NOT_RUN, TextTable, format_bits, format_mean_of_values

POOLED = "pooled"  # how the records came to one place is not counted, so that its bits say nothing


def make_cost_table(finished: FinishedRuns, threshold: float) -> TextTable:
    """Make a table of the bits that each method sends to reach the threshold, of the paper's bits, and of p values."""
    experiment = finished.experiment
    costs = {row.name: _compute_costs(finished, row, threshold) for row in experiment.rows if finished.runs[row.name]}
    both = {
        name: {seed: float(cost.bits_both_ways) for seed, cost in by_seed.items()}
        for name, by_seed in costs.items()
        if name != POOLED
    }
    tests = comparisons.compare_rows(experiment, both)
    rows = [
        _make_cost_row(row, costs[row.name], both, tests, experiment) for row in experiment.rows if row.name in costs
    ]
    title = f"Bits to {threshold} % (where it is never reached: to the most accurate round)"
    return TextTable.from_rows(rows, title, tuple(_list_notes(finished, costs)))


def _compute_costs(finished: FinishedRuns, row: TableRow, threshold: float) -> dict[int, Cost]:
    """Return, by seed, what the row's runs cost until they reach the threshold (an accuracy in per cent)."""
    return {run.seed: run.compute_cost_to_reach(threshold / 100) for run in finished.runs[row.name]}


def make_cost_overview(finished: Sequence[FinishedRuns]) -> TextTable:
    """Make a table of our bits to the threshold, divided by the bits that the paper prints.

    It has a row for each method, and a column for each table of the paper.
    """
    rows: dict[str, dict[str, str]] = {}
    for each in finished:
        experiment, threshold = each.experiment, each.experiment.threshold
        if threshold is None or experiment.name not in PAPER_NAMES:
            continue
        for row in experiment.rows:
            if row.printed is not None:
                costs = list(_compute_costs(each, row, threshold).values())
                ratio = _estimate_ratio_to_paper(row, costs, experiment)
                shown = (
                    "" if ratio is None else comparisons.format_ratio_with_interval(ratio.value, ratio.low, ratio.high)
                )
                rows.setdefault(row.label, {"method": row.label})[experiment.short_title] = (
                    f"{shown} ({len(costs)})" if shown else NOT_RUN
                )
    return TextTable.from_rows(rows.values(), "Bits to the threshold, times the paper's [95 %] (seeds)")


def _estimate_ratio_to_paper(row: TableRow, costs: Sequence[Cost], experiment: Experiment) -> Estimate | None:
    """Estimate our mean bits divided by the paper's, with Welch's interval; None if one of the two is missing."""
    if row.printed is None or row.printed.cost is None or not costs:
        return None
    one_way = experiment.printed_costs is PrintedCostDirections.ONE_WAY
    ours = Mean.from_values([cost.bits_up if one_way else cost.bits_both_ways for cost in costs])
    printed = row.printed.cost
    found = estimate_difference_from_printed_mean(ours, printed, row.printed.cost_error)
    low, high = (None if end is None else max(0.0, 1 + end / printed) for end in (found.low, found.high))
    return Estimate(1 + found.value / printed, low, high)


def _make_cost_row(
    row: TableRow,
    costs: Mapping[int, Cost],
    bits_both_ways: Mapping[str, BySeed],
    tests: Mapping[str, SignificanceTest],
    experiment: Experiment,
) -> dict[str, str]:
    """Make the table row of one method; `costs` has its costs by seed, `bits_both_ways` the bits of all methods."""
    printed, of_printed = _format_cost_of_paper(row, experiment)
    values = list(costs.values())
    own, test = bits_both_ways.get(row.name, {}), tests.get(row.name)
    counted = values if own else []
    reference = bits_both_ways.get(experiment.reference or "", {})
    return {
        "method": row.label,
        "reached": f"{sum(cost.reached for cost in values)} of {len(values)}",
        "round": format_mean_of_values((cost.round for cost in values), 1),
        "up": _format_mean_bits_with_error(cost.bits_up for cost in counted),
        "down": _format_mean_bits_with_error(cost.bits_down for cost in counted),
        "both directions": _format_mean_bits_with_error(own.values()) + comparisons.format_arrow(test),
        "paper": printed,
        f"times {comparisons.find_reference_label(experiment)}'s": ""
        if test is None
        else comparisons.format_paired_ratio(estimate_paired_ratio(own, reference)),
        "p": comparisons.format_test(test),
        "p, Holm": comparisons.format_holm_test(test),
        "% of FedAvg's": _format_percent_of(own, bits_both_ways.get("fedavg", {})),
        "paper, % of FedAvg's": of_printed,
    }


def _format_mean_bits_with_error(bits: Iterable[float]) -> str:
    """Format the mean number of bits with its standard error; blank if there are no values."""
    known = list(bits)
    return format_bits(Mean.from_values(known)) if known else ""


def _format_percent_of(bits: BySeed, whole: BySeed) -> str:
    """Format the mean of `bits` in per cent of the mean of `whole`, over common seeds; blank if there are none."""
    seeds = sorted(bits.keys() & whole.keys())
    if not seeds:
        return ""
    return f"{100 * sum(bits[seed] for seed in seeds) / sum(whole[seed] for seed in seeds):.2f}"


def _format_cost_of_paper(row: TableRow, experiment: Experiment) -> tuple[str, str]:
    """Return the method's cost in the paper, as text, and its percentage of FedAvg's cost; ("", "") if not printed."""
    printed = row.printed
    if printed is None or printed.cost is None:
        return "", ""
    fedavg = experiment.find_row("fedavg").printed
    share = "" if fedavg is None or fedavg.cost is None else f"{100 * printed.cost / fedavg.cost:.2f}"
    return f"{printed.cost_text} {printed.cost_arrow}".rstrip(), share


def _list_notes(finished: FinishedRuns, methods_run: Mapping[str, object]) -> list[str]:
    """List notes for the table: the threshold by the paper's rule, the remarks of the experiment, and missing costs."""
    experiment, notes = finished.experiment, []
    names = [name for name in COMPETITIVE_METHODS if any(row.name == name for row in experiment.rows)]
    threshold = choose_threshold(run.summary.best_accuracy for name in names for run in finished.runs[name])
    if threshold is not None:
        missing = [name for name in names if not finished.runs[name]]
        without = f" (without {', '.join(missing)}: not run)" if missing else ""
        same = "the same as the fixed one" if threshold == experiment.threshold else "the fixed one is used above"
        notes.append(f"The paper's rule for the threshold gives {threshold} % on these runs{without}: {same}.")
    notes += experiment.remarks
    if "fedavg" not in methods_run:
        notes.append("FedAvg has not been run, so there is no percentage of its cost.")
    if POOLED in methods_run:
        notes.append(f"{experiment.find_row(POOLED).label}: no cost, as bringing the data there is not counted.")
    return notes
