"""The pages of the reproduction and the page of all results are up to date with the committed records."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from headless_browser import AUDIT, DESKTOP, PHONE, look_as, open_browser, read_console, visit
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from fedlog.experiments.run.execute import SUMMARY
from fedlog.experiments.tables import tuning_grids, when_to_choose
from fedlog.experiments.tables.catalog import EXPERIMENTS
from fedlog.experiments.tables.finished_cells import collect_runs
from fedlog.experiments.tables.significance import Mean
from fedlog.files.json_text import parse_json
from fedlog.report.documents.recipe_table import choose_tuned_settings
from fedlog.report.paper.reproduction import (
    ExperimentPage,
    make_experiment_pages,
    write_reproduction_pages,
    write_results_page,
)
from fedlog.settings.presets import TUNED

ROOT = Path(__file__).parents[2]
MOST_BYTES = 2_000_000
# Of every table: how far its card reaches to the right, and how much wider than it the table is.
TABLES = """
return [...document.querySelectorAll("table")].map((table) => {
  const card = table.closest(".table, .prose") ?? table;
  return [table.tHead.textContent, card.getBoundingClientRect().right, card.scrollWidth - card.clientWidth];
});
"""


def _unfinished(folder: str, names: list[str]) -> list[str]:
    """Cells that another process is still computing."""
    return [name for name in names if name.startswith("seed-") and not (Path(folder) / name / SUMMARY).exists()]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the committed records."""
    if not (ROOT / "results").exists():
        pytest.skip("an installed package has no records")
    folder = tmp_path_factory.mktemp("copy") / "results"
    shutil.copytree(ROOT / "results", folder, ignore=_unfinished)
    return folder


@pytest.fixture(scope="module")
def found(results: Path) -> list[ExperimentPage]:
    return make_experiment_pages(results)


@pytest.fixture(scope="module")
def page(results: Path, found: list[ExperimentPage]) -> Path:
    return write_results_page(results, found)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with open_browser() as opened:
        yield opened


def test_the_pages_are_made_from_the_records(results: Path, found: list[ExperimentPage]) -> None:
    shutil.copytree(ROOT / "docs", results.parent / "docs")
    write_reproduction_pages(results, results.parent / "docs", found)
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").glob("reproduction/*.md")]
    assert {path.name for path in pages} == {path.name for path in (results.parent / "docs").glob("reproduction/*.md")}
    for name in ("reproduction.md", "privacy.md", *pages):
        written, committed = ((root / "docs" / name).read_text() for root in (results.parent, ROOT))
        assert written == committed, f"docs/{name} is older than results/: run `fedlog docs`"


def test_every_record_names_a_commit_without_changes(results: Path) -> None:
    """A commit that ends in + had changes beside it, so nobody could make the record again."""
    commits = {
        path: parse_json(path.read_text())["made_with"]["commit"] for path in results.glob("*/*/seed-*/config.json")
    }
    assert len(commits) > 1000
    assert [str(path) for path, commit in commits.items() if commit.endswith("+")] == []


@pytest.mark.parametrize(
    ("grid", "chosen"),
    [
        ("select-equal-chances-mnist", when_to_choose.SELECTED_MNIST),
        ("select-equal-chances-wine", when_to_choose.SELECTED_WINE),
        ("select-equal-chances-table-mnist", tuning_grids.HIGHEST_MNIST),
        ("select-equal-chances-table-cifar10", tuning_grids.HIGHEST_CIFAR10),
        ("select-equal-chances-har", tuning_grids.HIGHEST_HAR),
        ("select-weight-decay-table-mnist", tuning_grids.SELECTED_MNIST),
        ("select-weight-decay-table-cifar10", tuning_grids.SELECTED_CIFAR10),
        ("select-fedlog-c-letter-mnist", "alpha-0.3-g-1.1"),
    ],
)
def test_the_settings_in_use_are_the_highest_of_their_grid(results: Path, grid: str, chosen: str) -> None:
    found = collect_runs(EXPERIMENTS[grid], results)
    for name in chosen.split():
        method = found.experiment.find_row(name).spec.method
        finals = {
            row.name: found.find_final_accuracies(row.name)
            for row in found.experiment.rows
            if row.spec.method == method
        }
        assert all(len(by_seed) == len(found.experiment.seeds) for by_seed in finals.values())
        means = {row: Mean.from_values(list(by_seed.values())).value for row, by_seed in finals.items()}
        assert name == max(means, key=means.__getitem__)  # the first of equals


def test_the_tuned_recipe_has_the_settings_that_the_grids_choose(results: Path) -> None:
    chosen = choose_tuned_settings(results)
    assert {method: choice.settings for method, choice in chosen.items()} == TUNED


def test_the_row_to_the_letter_has_the_highest_setting_of_its_grid() -> None:
    chosen = EXPERIMENTS["select-fedlog-c-letter-mnist"].find_row("alpha-0.3-g-1.1").spec
    assert EXPERIMENTS["table-mnist-letter"].rows[0].spec.options == chosen.options


def test_the_page_of_all_results_is_one_file_that_can_be_sent(page: Path) -> None:
    assert page.stat().st_size < MOST_BYTES


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_page_of_all_results_is_readable_at_every_width(
    chrome: Chrome, page: Path, width: int, scheme: str
) -> None:
    look_as(chrome, width, scheme)
    visit(chrome, page)
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= width
    tables = chrome.execute_script(TABLES)
    assert len(tables) > 20
    for head, right, hidden in tables:
        assert right <= width, head
        assert width == PHONE or hidden <= 0, f"at {width} pixels a table needs no scrolling: {head}"
    for figure in chrome.execute_script(AUDIT):
        assert figure["shapes"] > 2, figure
        assert figure["inside"], figure
        assert len(figure["words"]) > 40, figure
    assert read_console(chrome) == []


def test_every_experiment_is_reached_from_the_contents(chrome: Chrome, page: Path, found: list[ExperimentPage]) -> None:
    look_as(chrome, DESKTOP)
    visit(chrome, page)
    contents = chrome.find_elements(By.CSS_SELECTOR, "nav.contents a, section ul a")
    targets = {(each.get_attribute("href") or "").rpartition("#")[2] for each in contents}
    assert {page.finished.experiment.name for page in found} <= targets
    assert all(chrome.find_elements(By.ID, target) for target in targets)
    last = (contents[-1].get_attribute("href") or "").rpartition("#")[2]
    contents[-1].click()
    shown = chrome.find_element(By.ID, last)
    assert 0 <= chrome.execute_script("return arguments[0].getBoundingClientRect().top", shown) < 900
