"""The tables of docs/bits.md are those of the committed records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedlog.experiments.tables.bits import ROUNDS
from fedlog.experiments.tables.catalog import experiment
from fedlog.experiments.tables.finished_cells import collect
from fedlog.report.bits_page import bits_tables, cut_run, tables_in, write_bits_page
from fedlog.settings.resolve import resolve

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_tables_of_the_records() -> None:
    found = tables_in((ROOT / "docs" / "bits.md").read_text())
    expected = {name: table.markdown() for name, table in bits_tables(ROOT / "results").items()}
    assert found == expected, "run `fedlog docs`"


def test_every_place_is_filled_and_a_missing_one_is_named(tmp_path: Path) -> None:
    page = tmp_path / "bits.md"
    page.write_text((ROOT / "docs" / "bits.md").read_text())
    write_bits_page(ROOT / "results", page)
    assert page.read_text() == (ROOT / "docs" / "bits.md").read_text()
    page.write_text("no places here")
    with pytest.raises(Exception, match="no place for bits-mnist"):
        write_bits_page(ROOT / "results", page)


@pytest.mark.parametrize("data", list(ROUNDS))
def test_dense_runs_of_table_1_have_the_settings_of_this_table(data: str) -> None:
    """Or the first rounds of one could not stand for the other."""
    table = {row.name: row.spec for row in experiment(f"table-{data}").rows}
    for row in experiment(f"bits-{data}").rows:
        method = row.name.removesuffix("-f32")
        if method != row.name:
            assert resolve(replace(table[method], rounds=ROUNDS[data])).digest == resolve(row.spec).digest, method


def test_rows_changes_no_answer_of_any_client() -> None:
    """Two rounds with either codec: every client's count, and what the server saw of the head."""
    seen = 0
    for name in (f"bits-codecs-{data}" for data in ROUNDS):
        found = collect(experiment(name), ROOT / "results").runs
        for row, runs in found.items():
            dense = {run.seed: run for run in found.get(f"{row.removesuffix('-rows')}-f32", [])}
            for run in runs if row.endswith("-rows") else []:
                for ours, other in zip(run.rounds, dense[run.seed].rounds, strict=True):
                    assert ours.correct_per_client == other.correct_per_client, (name, row, run.seed)
                    assert ours.observed == other.observed, (name, row, run.seed)
                    assert ours.bits_up + ours.bits_down < other.bits_up + other.bits_down
                seen += 1
    assert seen >= 5


def test_a_run_cut_short_has_the_bits_and_the_accuracy_of_its_first_rounds() -> None:
    run = next(iter(collect(experiment("bits-mnist"), ROOT / "results").runs["fedlog-c-f32"]))
    cut = cut_run(run, 7)
    assert len(cut.rounds) == 7
    assert cut.summary.accuracy_mean_over_clients == run.rounds[6].accuracy_mean_over_clients
    assert cut_run(run, len(run.rounds)).summary == run.summary
    assert run.summary.bits_up - cut.summary.bits_up == sum(record.bits_up for record in run.rounds[7:])
