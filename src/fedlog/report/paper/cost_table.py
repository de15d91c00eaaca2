"""The table of bits until a threshold is reached, for each method, with the paper's costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedlog.experiments.tables.cells import Experiment, Row
from fedlog.experiments.tables.cost import Cost, choose_threshold, cost_to_reach
from fedlog.experiments.tables.finished_cells import Collected
from fedlog.experiments.tables.paper import COMPETITIVE
from fedlog.experiments.tables.significance import BySeed, Mean, SignificanceTest, paired_ratio
from fedlog.report.paper.comparisons import arrow_text, comparisons, holm_text, p_text, ratio_text, reference_label
from fedlog.report.parts.tables import TextTable, bits_with_error, with_error

POOLED = "pooled"  # how the records came to one place is not counted, so that its bits say nothing


def cost_table(found: Collected, threshold: float) -> TextTable:
    """The table of bits to the threshold: up, down and both, the paper's cost, and a test of the bits of both."""
    experiment = found.experiment
    costs = {
        row.name: {run.seed: cost_to_reach(threshold / 100, run.rounds, run.summary) for run in found.runs[row.name]}
        for row in experiment.rows
        if found.runs[row.name]
    }
    both = {
        name: {seed: float(cost.bits_both_ways) for seed, cost in by_seed.items()}
        for name, by_seed in costs.items()
        if name != POOLED
    }
    tests = comparisons(experiment, both)
    columns = (
        "method",
        "reached",
        "round",
        "up",
        "down",
        "both directions",
        "paper",
        f"times {reference_label(experiment)}'s",
        "p",
        "p, Holm",
        "% of FedAvg's",
        "paper, % of FedAvg's",
    )
    rows = tuple(_row(row, costs[row.name], both, tests, experiment) for row in experiment.rows if row.name in costs)
    title = f"Bits to {threshold} % (where it is never reached: to the most accurate round)"
    return TextTable(columns, rows, title, (*_rule_note(found), *_notes(experiment, costs)))


def _row(
    row: Row,
    costs: Mapping[int, Cost],
    both: Mapping[str, BySeed],
    tests: Mapping[str, SignificanceTest],
    experiment: Experiment,
) -> tuple[str, ...]:
    printed, of_printed = _show_printed_cost(row, experiment)
    values = list(costs.values())
    reached = f"{sum(cost.reached for cost in values)} of {len(values)}"
    rounds = with_error(Mean.of([float(cost.round) for cost in values]), 1)
    own = both.get(row.name)
    if own is None:
        return (row.label, reached, rounds, *["", "", ""], printed, *[""] * 4, of_printed)
    test = tests.get(row.name)
    reference = both.get(experiment.reference or "", {})
    return (
        row.label,
        reached,
        rounds,
        bits_with_error(Mean.of([float(cost.bits_up) for cost in values])),
        bits_with_error(Mean.of([float(cost.bits_down) for cost in values])),
        bits_with_error(Mean.of(list(own.values()))) + arrow_text(test),
        printed,
        "" if test is None else ratio_text(paired_ratio(own, reference)),
        p_text(test),
        holm_text(test),
        _percentage(own, both.get("fedavg", {})),
        of_printed,
    )


def _percentage(row: BySeed, whole: BySeed) -> str:
    """The mean of `row` in per cent of the mean of `whole`, over the seeds that both have."""
    seeds = sorted(row.keys() & whole.keys())
    if not seeds:
        return ""
    return f"{100 * sum(row[seed] for seed in seeds) / sum(whole[seed] for seed in seeds):.2f}"


def _show_printed_cost(row: Row, experiment: Experiment) -> tuple[str, str]:
    """The paper's cost as it prints it, and its percentage of FedAvg's."""
    printed = row.printed
    if printed is None or printed.cost is None:
        return "", ""
    fedavg = experiment.row("fedavg").printed
    share = "" if fedavg is None or fedavg.cost is None else f"{100 * printed.cost / fedavg.cost:.2f}"
    return f"{printed.cost_text} {printed.cost_arrow}".rstrip(), share


def _notes(experiment: Experiment, ran: Mapping[str, object]) -> Sequence[str]:
    notes = list(experiment.remarks)
    if "fedavg" not in ran:
        notes.append("FedAvg has not been run, so there is no percentage of its cost.")
    if POOLED in ran:
        notes.append(f"{experiment.row(POOLED).label}: no cost, as bringing the data there is not counted.")
    return notes


def _rule_note(found: Collected) -> tuple[str, ...]:
    """A note on the threshold that the paper's rule would give for these runs."""
    names = [name for name in COMPETITIVE if any(row.name == name for row in found.experiment.rows)]
    best = [run.summary.best_accuracy for name in names for run in found.runs[name]]
    threshold = choose_threshold(best)
    missing = [name for name in names if not found.runs[name]]
    if threshold is None:
        return ()
    without = f" (without {', '.join(missing)}: not run)" if missing else ""
    same = "the same as the fixed one" if threshold == found.experiment.threshold else "the fixed one is used above"
    return (f"The paper's rule for the threshold gives {threshold} % on these runs{without}: {same}.",)
