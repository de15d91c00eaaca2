"""The tables of the reproduction, from made-up records with results that can be computed by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_runs import write_run
from scipy.stats import t, ttest_ind, ttest_ind_from_stats

from fedlog.experiments.tables.catalog import EXPERIMENTS
from fedlog.experiments.tables.cells import list_cells
from fedlog.experiments.tables.finished_cells import collect_runs
from fedlog.experiments.tables.significance import Mean, estimate_difference_from_printed_mean, judge_agreement
from fedlog.report.paper.comparisons import HOW_TO_READ, find_corrected_rows
from fedlog.report.paper.cost_table import make_cost_overview, make_cost_table
from fedlog.report.paper.figures import read_accuracy_curves
from fedlog.report.paper.grid_tables import make_grid_table
from fedlog.report.paper.method_tables import (
    describe_agreement,
    make_accuracy_table,
    make_comparison_table,
    make_overview_table,
)
from fedlog.report.paper.reproduction import write_reproduction_pages, write_results_page
from fedlog.report.parts.tables import TextTable, format_bits, format_mean, format_p_value


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Eight seeds of FedLog-C, FedLog and FedAvg, three of local, two of FedRep; the rest is not run."""
    table = EXPERIMENTS["table-mnist"]
    seeds = tuple(range(8))
    made = {
        "fedlog-c": (seeds, [0.90, 0.975, 0.98], 1000, None),
        "fedlog": (seeds, [0.90, 0.96, 0.97], 1000, None),
        "fedavg": (seeds, [0.50, 0.80, 0.70], 100000, None),
        "local": (seeds[:3], [0.90, 0.95, 0.965], 0, None),
        "fedrep": (seeds[:2], [0.90, 0.95, 0.94], 500, 0.955),
    }
    for name, (own, accuracies, each_way, closed) in made.items():
        for cell in list_cells(table, tmp_path, rows=(name,), seeds=own):
            # A little different on each seed, in the same direction for all methods but FedLog-C.
            shift = 0.0 if name == "fedlog-c" else -0.0001 * cell.seed
            write_run(cell, [accuracy + shift for accuracy in accuracies], each_way, closed)
    return tmp_path


def rows_of(table: TextTable) -> dict[str, tuple[str, ...]]:
    assert all(len(row) == len(table.columns) for row in table.rows)
    return {row[0]: row for row in table.rows}


def column(table: TextTable, heading: str) -> dict[str, str]:
    at = table.columns.index(heading)
    return {label: row[at] for label, row in rows_of(table).items()}


def test_the_accuracy_table_compares_with_the_paper_and_names_what_was_not_run(results: Path) -> None:
    table = make_accuracy_table(collect_runs(EXPERIMENTS["table-mnist"], results))
    rows = rows_of(table)
    assert rows["FedLog-C"][1:3] == ("8", "98.00 ± 0.00")
    assert rows["FedLog-C"][6] == "98.41 ± 0.07"
    assert rows["FedLog-C"][8] == "below"
    fedlog = rows["FedLog"]
    assert fedlog[2] == "96.97 ± 0.01"
    assert fedlog[3] == ""  # three rounds have no last ten
    assert fedlog[6] == "98.15 ± 0.05 ⇓"
    assert fedlog[7].startswith("-1.19 [-1.30, ")
    assert float(rows["FedRep"][4].split()[0]) == pytest.approx(94.995, abs=0.0051)
    assert rows["FedRep"][5] == "95.50 ± 0.00"
    assert rows["local only (no exchange)"][6:] == ("", "", "")
    assert "CS-FL" not in rows
    assert "Not run: LG-FedAvg 1, LG-FedAvg 2, FedPer, CS-FL, FedBABU, FedProto, FedDBE, pooled" in table.notes[0]


def test_the_comparison_table_tests_what_can_be_tested_and_says_what_cannot(results: Path) -> None:
    rows = rows_of(make_comparison_table(collect_runs(EXPERIMENTS["table-mnist"], results)))
    assert rows["FedLog ⇓"][1:] == ("-1.04 ± 0.01", "-1.04 [-1.06, -1.01]", "0.0039 (lower)", "0.0078", "+0.50 ± 0.00")
    assert rows["FedLog-C"][1:5] == ("", "", "", "")
    assert rows["FedRep"][2:5] == ("", "too few seeds (2)", "")


def test_the_last_ten_rounds_are_averaged_within_a_run_first(tmp_path: Path) -> None:
    table = EXPERIMENTS["table-mnist"]
    for cell in list_cells(table, tmp_path, rows=("fedlog",), seeds=(0, 1)):
        write_run(cell, [0.1, 0.2] + [0.90 + 0.02 * cell.seed] * 9 + [0.95], 10)
    rows = rows_of(make_accuracy_table(collect_runs(table, tmp_path)))
    assert rows["FedLog"][2] == "95.00 ± 0.00"
    assert rows["FedLog"][3] == "91.40 ± 0.90"  # (9 x 90 + 95) / 10 and (9 x 92 + 95) / 10


def test_the_overview_has_every_printed_row_with_a_verdict(results: Path) -> None:
    table = make_overview_table([collect_runs(experiment, results) for experiment in EXPERIMENTS.values()])
    rows = rows_of(table)
    assert len(rows) == 11
    assert table.columns[:4] == ("method", "MNIST", "CIFAR-10", "CIFAR-100")
    assert rows["FedLog-C"][1] == "98.41 → 98.00 (8), below"
    assert rows["FedLog-C"][2] == "87.57 → not run"
    assert table.columns[4:] == ("flexible architecture on CIFAR-100", "CelebA by person")
    assert rows["FedAvg"][4] == ""  # the paper does not print it there


def test_the_verdicts_of_the_overview_are_counted_in_a_sentence(results: Path) -> None:
    found = [collect_runs(experiment, results) for experiment in EXPERIMENTS.values()]
    # FedLog-C, FedLog and FedAvg are below the print; so is FedRep, whose two seeds hardly differ.
    assert describe_agreement(found) == (
        "The paper prints 41 accuracies of methods. We ran 4 of them: 0 agree, 0 are above the print, 4 below, "
        "0 undecided (0 with a single seed); 37 were not run."
    )


def test_costs_are_multiples_of_the_printed_ones_in_the_directions_that_those_count(tmp_path: Path) -> None:
    each_way = {"table-mnist": [3.0e6, 3.2e6, 3.4e6], "table-cifar10": [0.06e9, 0.07e9, 0.08e9]}
    for name, sizes in each_way.items():
        for cell, size in zip(list_cells(EXPERIMENTS[name], tmp_path, rows=("fedlog",)), sizes, strict=False):
            write_run(cell, [0.99], int(size), opening=0)
    (cell,) = list_cells(EXPERIMENTS["table-mnist"], tmp_path, rows=("fedavg",), seeds=(0,))
    write_run(cell, [0.99], 6_900_000_000, opening=0)
    # Printed: 3.18 +- 0.31 Mb, one direction; 0.14 +- 0.01 Gb, both directions; FedAvg 3.45 Gb.
    printed = {"table-mnist": (3.18, 0.31, 3.2, 0.2), "table-cifar10": (0.14, 0.01, 0.14, 0.02)}
    expected = {}
    for name, (paper, error, ours, deviation) in printed.items():
        found = ttest_ind_from_stats(ours, deviation, 3, paper, error * np.sqrt(10), 10, equal_var=False)
        freedom = (deviation**2 / 3 + error**2) ** 2 / ((deviation**2 / 3) ** 2 / 2 + error**4 / 9)
        half = t.ppf(0.975, freedom) * np.hypot(deviation / np.sqrt(3), error)
        assert found.statistic == pytest.approx((ours - paper) / np.hypot(deviation / np.sqrt(3), error))
        low, middle, high = (value / paper for value in (ours - half, ours, ours + half))
        expected[name] = f"{middle:.2f} [{low:.2f}, {high:.2f}]"
    overview = make_cost_overview([collect_runs(experiment, tmp_path) for experiment in EXPERIMENTS.values()])
    assert overview.columns == ("method", "MNIST", "CIFAR-10", "CIFAR-100")
    rows = rows_of(overview)
    assert rows["FedLog"][1:] == (f"{expected['table-mnist']} (3)", f"{expected['table-cifar10']} (3)", "not run")
    assert rows["FedAvg"][1] == "2.00 (1)"


def test_the_cost_table_counts_to_the_threshold_or_to_the_best_round(results: Path) -> None:
    table = make_cost_table(collect_runs(EXPERIMENTS["table-mnist"], results), 97)
    rows = rows_of(table)
    # FedLog-C reaches 97 % in round 2: 2000 up, 2000 and the opening 100 down.
    assert rows["FedLog-C"][1:6] == ("8 of 8", "2.0 ± 0.0", "2.00 ± 0.00 kb", "2.10 ± 0.00 kb", "4.10 ± 0.00 kb")
    # FedLog only on seed 0, in round 3; on the others its most accurate round is the third too.
    assert rows["FedLog"][1:3] == ("1 of 8", "3.0 ± 0.0")
    assert rows["FedLog"][5] == "6.10 ± 0.00 kb ⇑"
    # FedAvg never does, and is best in round 2.
    assert rows["FedAvg"][1:3] == ("0 of 8", "2.0 ± 0.0")
    assert rows["FedAvg"][10] == "100.00"
    assert rows["FedLog-C"][10] == f"{100 * 4100 / 400100:.2f}"
    assert rows["FedLog-C"][11] == "0.09"
    assert rows["FedLog"][7:10] == ("1.49 [1.49, 1.49]", "0.0039 (higher)", "0.0078")
    assert rows["FedLog-C"][7:10] == ("", "", "")
    assert "FedProto" not in rows
    assert "gives 96 % on these runs (without lg-fedavg-1, lg-fedavg-2, fedproto: not run)" in table.notes[0]


def test_the_bits_of_a_curve_begin_with_the_opening(results: Path) -> None:
    runs = collect_runs(EXPERIMENTS["table-mnist"], results).runs["fedlog"]
    assert read_accuracy_curves(runs).shape == (8, 3)
    assert runs[0].bits_so_far_by_round == [2100, 4100, 6100]


def _table(out: Path, finals: dict[str, list[float]]) -> Path:
    """One round of each row and seed with these accuracies."""
    for name, accuracies in finals.items():
        seeds = tuple(range(len(accuracies)))
        found = list_cells(EXPERIMENTS["table-mnist"], out, rows=(name,), seeds=seeds)
        for cell, accuracy in zip(found, accuracies, strict=True):
            write_run(cell, [accuracy], 1000)
    return out


def test_a_table_run_in_full_has_corrected_p_values_for_the_papers_rows_and_no_others(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["table-mnist"]
    below = [0.90 - 0.001 * seed for seed in experiment.seeds]
    finals = {row.name: below for row in experiment.rows} | {"fedlog-c": [0.95] * len(below)}
    table = make_comparison_table(collect_runs(experiment, _table(tmp_path, finals)))
    p, holm = ({label.removesuffix(" ⇓"): text for label, text in column(table, c).items()} for c in ("p", "p, Holm"))
    competitors = [row.label for row in experiment.rows if row.name not in ("fedlog-c", "local", "pooled")]
    assert len(competitors) == 10
    assert {holm[label] for label in competitors} == {"0.0098"}  # 10 / 1024
    for label in ("local only (no exchange)", "pooled (all data in one place)"):
        assert (p[label], holm[label]) == ("0.0010 (lower)", "-")
    notes = "\n".join(table.notes)
    assert "the rows that the paper prints; 10 of them could be tested." in notes
    assert "For p < 0.01, each of these needs 10 seeds that differ. Other rows are not corrected (-)." in notes


def test_where_the_paper_prints_nothing_the_correction_is_for_the_federated_methods() -> None:
    assert find_corrected_rows(EXPERIMENTS["figure-flexible-cifar10"]) == {"fedlog", "fedproto", "lg-fedavg-1"}
    assert find_corrected_rows(EXPERIMENTS["figure-flexible-cifar100"]) == {"fedlog", "fedproto", "lg-fedavg-1"}


def test_ties_are_not_taken_for_seeds(tmp_path: Path) -> None:
    finals = {
        "fedlog-c": [0.95] * 8,
        "fedlog": [0.95] * 8,
        "fedproto": [0.95] * 5 + [0.96, 0.97, 0.98],
        "fedrep": [0.951, 0.952, 0.947, 0.946, 0.945, 0.944, 0.957, 0.958],  # ranks 1 2 7 8 up, 3 4 5 6 down
        "fedper": [0.95] * 5,
    }
    table = make_comparison_table(collect_runs(EXPERIMENTS["table-mnist"], _table(tmp_path, finals)))
    p = column(table, "p")
    assert p["FedLog"] == p["FedPer"] == "no difference"
    assert p["FedProto"] == "too few seeds (3 of 8 differ)"
    assert p["FedRep"].startswith("0.5")
    assert "(" not in p["FedRep"]
    assert "about twice as often" in "\n".join(HOW_TO_READ)


def test_both_difference_columns_are_means_and_the_ranks_have_a_column_of_their_own(tmp_path: Path) -> None:
    finals = {
        "fedlog-c": [0.95] * 6,
        "local": [0.95] * 6,
        "fedlog": [0.951, 0.952, 0.953, 0.954, 0.955, 0.900],  # one bad seed outweighs five good ones in the mean
        "fedrep": [0.951, 0.952, 0.953, 0.954, 0.955],
    }
    table = make_comparison_table(collect_runs(EXPERIMENTS["table-mnist"], _table(tmp_path, finals)))
    to_reference, to_local = column(table, "minus FedLog-C, points"), column(table, "minus training alone, points")
    ranks = column(table, "Hodges-Lehmann [95 %]")
    assert to_reference["FedLog"] == to_local["FedLog"] == "-0.58 ± 0.89"
    assert ranks["FedLog"].startswith("+0.25 [-5.00, ")
    assert (to_reference["FedRep"], ranks["FedRep"]) == ("+0.30 ± 0.07", "")
    assert (to_reference["FedLog-C"], to_local["local only (no exchange)"]) == ("", "")


def _costs(out: Path, bits: dict[str, list[int]]) -> TextTable:
    """The cost table of runs that reach the threshold in one round, with these bits in both directions by seed."""
    for name, totals in bits.items():
        seeds = tuple(range(len(totals)))
        found = list_cells(EXPERIMENTS["table-mnist"], out, rows=(name,), seeds=seeds)
        for cell, total in zip(found, totals, strict=True):
            write_run(cell, [0.98], total // 2, opening=0)
    return make_cost_table(collect_runs(EXPERIMENTS["table-mnist"], out), 97)


def test_costs_are_compared_seed_by_seed(tmp_path: Path) -> None:
    table = _costs(
        tmp_path,
        {
            "fedlog-c": [1000, 2000, 1000, 2000, 1000, 2000, 1000],
            "fedlog": [2000, 4000, 2000, 4000, 2000, 4000, 2000],
            "fedproto": [1000, 2000, 1000, 2000, 1000, 2000, 1000],
            "fedper": [2000, 16000],
            "fedavg": [10000, 40000, 10000],
        },
    )
    ratio, p, holm = (column(table, heading) for heading in ("times FedLog-C's", "p", "p, Holm"))
    assert (ratio["FedLog"], p["FedLog"], holm["FedLog"]) == ("2.00 [2.00, 2.00]", "0.0078 (higher)", "0.0078")
    assert (ratio["FedProto"], p["FedProto"]) == ("1.00 [1.00, 1.00]", "no difference")
    assert (ratio["FedPer"], p["FedPer"], holm["FedPer"]) == ("4.00", "too few seeds (2)", "")  # sqrt(2 x 8)
    assert ratio["FedAvg"] == "12.6"  # the third root of 10 x 20 x 10
    # On common seeds: 8000 of 60000 (all of FedLog's would give 14.29), and 18000 of 50000 (30.00 of all of FedAvg's).
    percentage = column(table, "% of FedAvg's")
    assert (percentage["FedLog"], percentage["FedPer"]) == ("13.33", "36.00")


def test_what_is_free_and_what_is_not_counted_are_told_apart(tmp_path: Path) -> None:
    table = _costs(tmp_path, {"fedlog-c": [1000] * 7, "fedavg": [9000] * 7, "local": [0] * 7, "pooled": [0] * 7})
    rows = rows_of(table)
    local, pooled = rows["local only (no exchange)"], rows["pooled (all data in one place)"]
    assert local[3:] == ("0 ± 0 b", "0 ± 0 b", "0 ± 0 b ⇓", "", "", "0.0078 (lower)", "-", "0.00", "")
    assert pooled[1:3] == ("7 of 7", "1.0 ± 0.0")
    assert set(pooled[3:]) == {""}
    assert "no cost, as bringing the data there is not counted" in table.notes[-1]


@pytest.mark.parametrize(
    ("finals", "verdict"),
    [
        ([98.41, 98.43, 98.39], "agrees"),
        ([97.0, 98.4, 99.8], "undecided"),
        ([98.41], "undecided"),
        ([99.0, 99.02, 98.98], "above"),
        ([98.0, 98.02, 97.98], "below"),
    ],
)
def test_a_verdict_follows_from_the_interval_of_the_difference(finals: list[float], verdict: str) -> None:
    found = estimate_difference_from_printed_mean(Mean.from_values(finals), 98.41, 0.07, 10)
    assert judge_agreement(found).value == verdict


def test_the_interval_of_a_difference_to_print_is_welchs() -> None:
    rng = np.random.default_rng(3)
    ours, theirs = rng.normal(98, 0.4, 7), rng.normal(98.2, 0.9, 10)
    oracle = ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    found = estimate_difference_from_printed_mean(
        Mean.from_values(list(ours)), theirs.mean(), theirs.std(ddof=1) / np.sqrt(10), 10
    )
    assert (found.low, found.high) == pytest.approx((oracle.low, oracle.high))


def test_runs_with_other_settings_are_left_out_and_counted(results: Path) -> None:
    table = EXPERIMENTS["table-mnist"]
    other = tuple(replace(row, spec=replace(row.spec, batch_size=11)) for row in table.rows)
    found = collect_runs(replace(table, rows=other), results)
    assert found.is_empty
    assert make_accuracy_table(found).rows == make_comparison_table(found).rows == ()
    assert make_accuracy_table(found).notes == ("Not run: any row.",)


def test_the_grid_marks_the_highest_and_what_the_tables_have(tmp_path: Path) -> None:
    grid = EXPERIMENTS["select-fedlog-c-push-mnist"]
    for cell, accuracy in zip(list_cells(grid, tmp_path), (0.96, 0.97), strict=True):
        write_run(cell, [accuracy], 10)
    rows = rows_of(make_grid_table(collect_runs(grid, tmp_path)))
    assert rows["unbounded"][1].endswith("margin none")
    assert rows["unbounded"][2:] == ("1", "96.00", "")
    assert rows["margin-5"][1].endswith("margin 5")
    assert rows["margin-5"][2:] == ("1", "97.00", "highest")
    details = EXPERIMENTS["details-mnist"]
    for cell in list_cells(details, tmp_path, seeds=(100,)):
        write_run(cell, [0.9 if "moments" in cell.row.name else 0.8], 10)
    rows = rows_of(make_grid_table(collect_runs(details, tmp_path)))
    assert rows["FedLog, as described"][1:] == ("", "1", "80.00", "in the tables")
    assert rows["FedLog, moments for the run"][1:] == ("moments for the run", "1", "90.00", "highest")
    assert rows["FedLog-C, no dropout"][1] == "body cnn-plain"
    assert rows["FedLog-C, separate starts"][1] == "first_head random, separate starts"
    assert sum(row[4].startswith("highest") for row in rows.values()) == 6  # two of each of three methods
    fedproto = EXPERIMENTS["select-fedproto-mnist"]
    for cell in list_cells(fedproto, tmp_path):
        write_run(cell, [0.9], 10)
    assert [
        row[0] for row in make_grid_table(collect_runs(fedproto, tmp_path)).rows if row[4].endswith("in the tables")
    ] == ["lambda-1"]


def test_the_pages_hold_every_experiment_and_every_discussion(results: Path) -> None:
    (results / "table-mnist" / "discussion.md").write_text("What **we** make <of> this.\n")
    (results / "discussion.md").write_text("In *short*.\n")
    docs = results / "docs"
    (docs / "reproduction").mkdir(parents=True)
    (docs / "reproduction" / "gone.md").write_text("of an experiment that is no more")
    write_reproduction_pages(results, docs)
    index = (docs / "reproduction.md").read_text()
    page = (docs / "reproduction" / "table-mnist.md").read_text()
    html = write_results_page(results).read_text()
    assert {path.stem for path in (docs / "reproduction").iterdir()} == EXPERIMENTS.keys()
    assert all(f"(reproduction/{name}.md)" in index and f'id="{name}"' in html for name in EXPERIMENTS)
    assert "What **we** make <of> this." in page
    assert "<p>What <strong>we</strong> make &lt;of&gt; this.</p>" in html
    assert "In *short*." in index
    assert "29 of 130 cells run" in page
    assert "29 of 130 cells run" in index
    assert "times the paper's [95 %] (seeds)" in index
    assert "times the paper&#39;s [95 %] (seeds)" in html


def test_numbers_are_written_in_the_papers_units() -> None:
    assert format_bits(Mean(3.45e9, 2e7, 10)) == "3.45 ± 0.02 Gb"
    assert format_bits(Mean(4.7e6, 1e6, 3)) == "4.70 ± 1.00 Mb"
    assert format_bits(Mean(36.3e6, 3.4e6, 3)) == "36.3 ± 3.4 Mb"
    assert format_bits(Mean(257e6, 1.1e8, 3)) == "257 ± 110 Mb"
    assert format_bits(Mean(0, 0, 3)) == "0 ± 0 b"
    assert format_mean(Mean(98.411, 0.0712, 10)) == "98.41 ± 0.07"
    assert format_mean(Mean(98.411, None, 1)) == "98.41"
    assert [format_p_value(0.0009765625), format_p_value(2e-6)] == ["0.0010", "2.0e-06"]
    assert TextTable(("a", "b"), (("x|y", "1"),)).to_markdown() == "| a | b |\n|---|---:|\n| x\\|y | 1 |\n"
