"""Methods against each other and against the paper: accuracy, bits to a threshold, and the bars."""

from __future__ import annotations

from collections.abc import Mapping

from fedlog.experiments.cells import Experiment, Printed, Row, Shape
from fedlog.experiments.collected import Collected, RunResult
from fedlog.experiments.cost import Cost, cost_to, threshold_by_rule
from fedlog.experiments.paper import COMPETITIVE
from fedlog.experiments.significance import Comparison, Mean
from fedlog.report.comparisons import arrow_text, comparisons, holm_text, notes_on_tests, p_text, reference_label
from fedlog.report.tables import NOT_RUN, Table, bits_with_error, with_error

BARRED = ("fedlog-c", "fedlog")  # the methods that are measured against the paper's own figures


def tables_of(found: Collected) -> list[Table]:
    """The tables of an experiment that compares methods."""
    tables = [accuracy_table(found)]
    if found.experiment.shape is Shape.TABLE:
        tables.append(cost_table(found))
    bars = bar_table(found)
    return [*tables, bars] if bars.rows else tables


def accuracy_table(found: Collected) -> Table:
    """The final round beside the paper's figure, tested against the reference; the best round and the closing apart."""
    experiment = found.experiment
    final = {row.name: found.final(row.name) for row in experiment.rows if found.runs[row.name]}
    tests = comparisons(experiment, final)
    columns = (
        "method",
        "seeds",
        "final round, %",
        "paper, %",
        f"minus {reference_label(experiment)}, points",
        "p",
        "p, Holm",
        "minus local only, points",
        "best round, % (chosen on test data)",
        "after closing phase, %",
    )
    rows = tuple(_accuracy_row(row, found.runs[row.name], final, tests) for row in experiment.rows)
    return Table(columns, rows, "Accuracy, mean over clients", _notes(experiment, tests))


def _accuracy_row(
    row: Row,
    runs: list[RunResult],
    final: Mapping[str, Mapping[int, float]],
    tests: Mapping[str, Comparison],
) -> tuple[str, ...]:
    printed = _printed_accuracy(row.printed)
    if not runs:
        return (row.label, "0", NOT_RUN, printed, *[""] * 6)
    test = tests.get(row.name)
    best = Mean.of([100 * run.summary.best_accuracy for run in runs])
    closed = [run.summary.accuracy_after_closing for run in runs]
    after = [100 * accuracy for accuracy in closed if accuracy is not None]
    return (
        row.label,
        str(len(runs)),
        with_error(Mean.of(list(final[row.name].values()))) + arrow_text(test),
        printed,
        _difference(test),
        p_text(test),
        holm_text(test),
        _above_local(row.name, final),
        with_error(best),
        with_error(Mean.of(after)) if after else "",
    )


def cost_table(found: Collected) -> Table:
    """Bits to the fixed threshold beside the paper's, counted in one direction and in both."""
    experiment = found.experiment
    assert experiment.threshold is not None
    costs = {
        row.name: {
            run.seed: cost_to(experiment.threshold / 100, run.rounds, run.summary) for run in found.runs[row.name]
        }
        for row in experiment.rows
        if found.runs[row.name]
    }
    both = {name: {seed: float(cost.both) for seed, cost in by_seed.items()} for name, by_seed in costs.items()}
    tests = comparisons(experiment, both)
    columns = (
        "method",
        "reached",
        "round",
        "up",
        "down",
        "both directions",
        "paper",
        "% of FedAvg's (both)",
        "paper, % of FedAvg's",
        "p",
    )
    fedavg = both.get("fedavg")
    rows = tuple(_cost_row(row, costs.get(row.name), tests, fedavg, experiment) for row in experiment.rows)
    title = f"Bits to {experiment.threshold} % (where it is never reached: to the most accurate round)"
    return Table(columns, rows, title, (*_rule_note(found), *_cost_notes(experiment, both)))


def _cost_row(
    row: Row,
    costs: Mapping[int, Cost] | None,
    tests: Mapping[str, Comparison],
    fedavg: Mapping[int, float] | None,
    experiment: Experiment,
) -> tuple[str, ...]:
    printed, of_printed = _printed_cost(row, experiment)
    if not costs:
        return (row.label, NOT_RUN, *[""] * 4, printed, "", of_printed, "")
    values = list(costs.values())
    both = Mean.of([float(cost.both) for cost in values])
    share = "" if not fedavg else f"{100 * both.value / Mean.of(list(fedavg.values())).value:.2f}"
    return (
        row.label,
        f"{sum(cost.reached for cost in values)} of {len(values)}",
        with_error(Mean.of([float(cost.round) for cost in values]), 1),
        bits_with_error(Mean.of([float(cost.bits_up) for cost in values])),
        bits_with_error(Mean.of([float(cost.bits_down) for cost in values])),
        bits_with_error(both) + arrow_text(tests.get(row.name)),
        printed,
        share,
        of_printed,
        p_text(tests.get(row.name)),
    )


def bar_table(found: Collected) -> Table:
    """Whether the mean plus two standard errors reaches the paper's figure; no row without runs or a printed value."""
    rows = []
    for name in BARRED:
        row = next((row for row in found.experiment.rows if row.name == name), None)
        if row is None or row.printed is None or not found.runs[name]:
            continue
        mean = Mean.of(list(found.final(name).values()))
        reach = mean.value + 2 * (mean.error or 0.0)
        verdict = "reached" if reach >= row.printed.accuracy else f"missed by {row.printed.accuracy - reach:.2f}"
        how = "mean + 2 standard errors" if mean.error is not None else "mean alone: one seed has no error"
        rows.append((row.label, str(mean.seeds), f"{reach:.2f} ({how})", f"{row.printed.accuracy:.2f}", verdict))
    return Table(("method", "seeds", "ours, %", "paper, %", "verdict"), tuple(rows), "Bars")


def _difference(test: Comparison | None) -> str:
    if test is None or test.shift is None:
        return ""
    found = test.shift
    interval = "" if found.low is None or found.high is None else f" [{found.low:+.2f}, {found.high:+.2f}]"
    return f"{found.estimate:+.2f}{interval}"


def _above_local(name: str, final: Mapping[str, Mapping[int, float]]) -> str:
    local = final.get("local", {})
    seeds = final[name].keys() & local.keys()
    if name == "local" or not seeds:
        return ""
    mean = Mean.of([final[name][seed] - local[seed] for seed in sorted(seeds)])
    return f"{mean.value:+.2f}" + ("" if mean.error is None else f" ± {mean.error:.2f}")


def _printed_accuracy(printed: Printed | None) -> str:
    if printed is None:
        return ""
    return f"{printed.accuracy:.2f} ± {printed.accuracy_error:.2f} {printed.accuracy_arrow}".rstrip()


def _printed_cost(row: Row, experiment: Experiment) -> tuple[str, str]:
    printed = row.printed
    if printed is None or printed.cost is None:
        return "", ""
    fedavg = experiment.row("fedavg").printed
    share = "" if fedavg is None or fedavg.cost is None else f"{100 * printed.cost / fedavg.cost:.2f}"
    return f"{printed.cost_text} {printed.cost_arrow}".rstrip(), share


def _notes(experiment: Experiment, tests: Mapping[str, Comparison]) -> tuple[str, ...]:
    differences = "Differences: Hodges-Lehmann, with an exact interval of at least 95 % from 6 seeds on."
    return (*notes_on_tests(experiment, tests), *([differences] if tests else []))


def _cost_notes(experiment: Experiment, both: Mapping[str, Mapping[int, float]]) -> tuple[str, ...]:
    notes = list(experiment.remarks)
    if "fedavg" not in both:
        notes.append("FedAvg has not been run, so there is no percentage of its cost.")
    return tuple(notes)


def _rule_note(found: Collected) -> tuple[str, ...]:
    """What the paper's rule for thresholds gives on these runs."""
    names = [name for name in COMPETITIVE if any(row.name == name for row in found.experiment.rows)]
    best = [run.summary.best_accuracy for name in names for run in found.runs[name]]
    threshold = threshold_by_rule(best)
    missing = [name for name in names if not found.runs[name]]
    if threshold is None:
        return ()
    without = f" (without {', '.join(missing)}: not run)" if missing else ""
    same = "the same as the fixed one" if threshold == found.experiment.threshold else "the fixed one is used above"
    return (f"The paper's rule for the threshold gives {threshold} % on these runs{without}: {same}.",)
