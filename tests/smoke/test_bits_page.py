"""The tables of docs/bits.md have the numbers of the committed records."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fedlog.experiments.tables.bits import ROUNDS
from fedlog.experiments.tables.catalog import find_experiment
from fedlog.experiments.tables.finished_cells import collect_runs
from fedlog.report.documents.bits_page import (
    END_MARK,
    START_MARK,
    judge_goals,
    make_bits_tables,
    shorten_run,
    write_bits_page,
)
from fedlog.report.parts.tables import TextTable
from fedlog.settings.resolve import resolve

ROOT = Path(__file__).parents[2]


@cache
def tables_of_records() -> dict[str, TextTable]:
    return make_bits_tables(ROOT / "results")


def test_the_page_has_the_tables_of_the_records() -> None:
    pattern = re.escape(START_MARK).replace(r"\{\}", "([^ ]+)") + r"\n(.*?)" + re.escape(END_MARK)
    found = dict(re.findall(pattern, (ROOT / "docs" / "bits.md").read_text(), re.DOTALL))
    expected = {name: table.to_markdown() for name, table in tables_of_records().items()}
    assert found == expected, "run `fedlog docs`"


def test_every_place_is_filled_and_a_missing_one_is_named(tmp_path: Path) -> None:
    page = tmp_path / "bits.md"
    page.write_text((ROOT / "docs" / "bits.md").read_text())
    write_bits_page(ROOT / "results", page)
    assert page.read_text() == (ROOT / "docs" / "bits.md").read_text()
    page.write_text("no places here")
    with pytest.raises(Exception, match="lacks the mark <!-- records of bits-aim"):
        write_bits_page(ROOT / "results", page)


@pytest.mark.parametrize(
    ("share", "mean", "reach", "expected"),
    [
        (0.1, 0.0, 0.3, "reached"),
        (0.1, 0.0, 0.31, "bits only"),
        (0.101, 0.0, 0.3, "accuracy only"),
        (0.2, -1, 0.1, "missed"),
    ],
)
def test_the_aim_is_judged_by_bits_and_by_the_interval(share: float, mean: float, reach: float, expected: str) -> None:
    assert judge_goals(share, mean - reach) == expected
    assert judge_goals(None, mean - reach) == judge_goals(share, None) == ""


def page_text() -> str:
    return (ROOT / "docs" / "bits.md").read_text()


def rows_of(name: str) -> dict[str, tuple[str, ...]]:
    """The cells of a table of the page by the name of the row."""
    return {row[0]: row[1:] for row in tables_of_records()[name].rows}


def test_bytes_in_the_text_are_those_of_the_records() -> None:
    up = {name: int(cells[0].split(" + ")[0]) for name, cells in rows_of("bits-codecs-mnist").items()}
    assert f"{up['rows']} instead of {up['f32']} bytes a client on MNIST" in page_text()
    assert f"8 bits with exact counts: {up['rows+q8']} bytes. `rows+q4`: {up['rows+q4']}." in page_text()


def test_fewer_rows_and_messages_in_the_text_are_those_of_the_records() -> None:
    rows = rows_of("bits-mnist")
    share = {name: cells[5] for name, cells in rows.items()}
    closed = [share[f"{method}, closed-world"] for method in ("FedLog", "FedLog-C")]
    assert f"8 bits each way suffice for {closed[0]} (FedLog) and {closed[1]} (FedLog-C)" in page_text()
    without, skipped = share["FedLog, q8-up-q4-differences"], share["FedLog, skip-0.2"]
    assert f"({skipped} instead of {without})" in page_text()
    assert 0.2 < 1 - float(skipped.split()[0]) / float(without.split()[0]) < 0.3  # "a quarter of FedLog's bits"
    lost = rows["FedLog-C, skip-0.2"][-1].split()[0].removeprefix("-")
    assert f"it costs FedLog-C {lost} points for a saving of a fourteenth" in page_text()
    kept = [float(share[f"FedLog-C, {way}"].split()[0]) for way in ("skip-0.2", "q8-up-q4-differences")]
    assert 1 / 16 < 1 - kept[0] / kept[1] < 1 / 12
    assert rows["FedLog, skip-0.05"][3:5] == rows["FedLog, q8-up-q4-differences"][3:5]  # "skips next to nothing"


def test_whole_heads_in_the_text_are_those_of_the_records() -> None:
    shares = {name: {way: cells[5] for way, cells in rows_of(f"bits-{name}").items()} for name in ROUNDS}
    four = {name: [share[f"{method}, rows+q4"] for method in ("FedLog", "FedLog-C")] for name, share in shares.items()}
    assert f"costs {' and '.join(four['mnist'])} (FedLog and FedLog-C) on MNIST" in page_text()
    for name, title in (("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100")):
        assert f"{' and '.join(four[name])} on {title}" in page_text()
    eight = [
        float(share[f"{method}, rows+q8"].split()[0]) for share in shares.values() for method in ("FedLog", "FedLog-C")
    ]
    assert f"8 bits both ways cost {min(eight):.1f} to {max(eight):.1f} %" in page_text()


def test_points_of_participation_in_the_text_are_those_of_the_records() -> None:
    last = {name: float(cells[4]) for name, cells in rows_of("bits-participation-mnist").items()}
    few, some = (lambda kept: last[f"10% take part, {kept}"]), (lambda kept: last[f"30% take part, {kept}"])
    assert all(abs(of("memory") - of("carry-0.9")) < 0.1 for of in (few, some))  # "equally well"
    assert f"is {few('memory') - few('carry-0.5'):.1f} points lower at 10 %" in page_text()
    lost = [of("memory") - of("neither") for of in (few, some)]
    assert f"loses {lost[0]:.0f} points at 10 % and {lost[1]:.0f} at 30 % by round 30" in page_text()


def test_the_floor_in_the_text_is_that_of_the_records() -> None:
    saved: dict[str, list[float]] = {"up": [], "down": []}
    for name, cells in rows_of("message-entropy").items():
        saved[name.split()[-1]].append(1 - float(cells[2]) / float(cells[1]))
    low_high = {way: f"{100 * min(each):.0f} to {100 * max(each):.0f} %" for way, each in saved.items()}
    assert f"a further {low_high['down']} of the way down and {low_high['up']} of the way up" in page_text()
    found = collect_runs(find_experiment("bits-mnist"), ROOT / "results").runs["fedlog-q4-differences"]
    down = [run.summary.bits_down / (run.summary.bits_up + run.summary.bits_down) for run in found]
    assert all(0.77 < each < 0.83 for each in down), down  # "four fifths"


@pytest.mark.parametrize("data", list(ROUNDS))
def test_dense_runs_of_table_1_have_the_settings_of_this_table(data: str) -> None:
    """Otherwise the first rounds of a run of Table 1 could not be used in this table."""
    table = {row.name: row.spec for row in find_experiment(f"table-{data}").rows}
    for row in find_experiment(f"bits-{data}").rows:
        method = row.name.removesuffix("-f32")
        if method != row.name:
            assert resolve(replace(table[method], rounds=ROUNDS[data])).digest == resolve(row.spec).digest, method


def test_rows_changes_no_answer_of_any_client() -> None:
    """Two rounds with either codec give every client the same results and the server the same head.

    Seeds that have a short run with `rows` alone are there for the size of their messages.
    """
    seen = 0
    for name in (f"bits-codecs-{data}" for data in ROUNDS):
        found = collect_runs(find_experiment(name), ROOT / "results").runs
        for row, runs in found.items():
            dense = {run.seed: run for run in found.get(f"{row.removesuffix('-rows')}-f32", [])}
            for run in (run for run in runs if row.endswith("-rows") and run.seed in dense):
                for ours, other in zip(run.rounds, dense[run.seed].rounds, strict=True):
                    assert ours.correct_per_client == other.correct_per_client, (name, row, run.seed)
                    assert ours.observed == other.observed, (name, row, run.seed)
                    assert ours.bits_up + ours.bits_down < other.bits_up + other.bits_down
                seen += 1
    assert seen >= 5


def test_a_run_cut_short_has_the_bits_and_the_accuracy_of_its_first_rounds() -> None:
    run = next(iter(collect_runs(find_experiment("bits-mnist"), ROOT / "results").runs["fedlog-c-f32"]))
    cut = shorten_run(run, 7)
    assert len(cut.rounds) == 7
    assert cut.summary.accuracy_mean_over_clients == run.rounds[6].accuracy_mean_over_clients
    assert shorten_run(run, len(run.rounds)).summary == run.summary
    assert run.summary.bits_up - cut.summary.bits_up == sum(record.bits_up for record in run.rounds[7:])
