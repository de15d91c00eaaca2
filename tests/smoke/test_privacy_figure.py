"""The privacy experiment: its cells have the noise they are named after, and its tables read made-up records right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_up_runs import write_run

from fedlog.algorithms.interface import ModelPlan
from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.experiments.run import privacy
from fedlog.experiments.run.execute import SUMMARY
from fedlog.experiments.run.prepare import build_method
from fedlog.experiments.tables.cells import Cell, list_cells
from fedlog.experiments.tables.finished_cells import collect_runs
from fedlog.experiments.tables.privacy_figure import (
    CLIENTS,
    DELTAS,
    EPSILON_FORMULAS,
    LEVELS,
    PRIVACY_FIGURE,
    VERIFIED_LEVEL,
    EpsilonFormula,
    find_epsilon_formula,
    make_name_of_row_with_noise,
)
from fedlog.privacy.guarantee import Calibration, NoiseSetting, Trust
from fedlog.report.paper.privacy_tables import (
    draw_privacy_figure,
    make_guarantee_table,
    make_noise_level_table,
    make_repeated_noise_table,
    make_verification_table,
)
from fedlog.report.paper.reproduction import GUARANTEES, GUARANTEES_END, write_reproduction_pages
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec
from fedlog.wire.message import Kind, Message, make_contribution


def test_every_level_and_verified_cell_has_the_noise_it_is_named_after() -> None:
    plan = ModelPlan(10, 100, (), 1)
    seen = 0
    for row in PRIVACY_FIGURE.rows:
        if find_epsilon_formula(row.spec) is None:
            continue
        run = resolve(row.spec)
        guard = privacy.make_run_protection(run, build_method(run.spec, plan), plan, CLIENTS)
        assert guard is not None
        assert guard.releases == 40
        plain = row.name.partition("-draw-")[0]
        level = VERIFIED_LEVEL if row.name.startswith("verify") else int(plain.rpartition("-")[2])
        mechanism = guard.mechanism
        assert mechanism.compute_std_of_sum(CLIENTS) / mechanism.sensitivity == pytest.approx(level, rel=2e-3), row.name
        seen += 1
    assert seen == 2 * len(LEVELS) + 3 + 6


def test_other_draws_of_the_noise_are_of_the_same_size_and_not_the_same() -> None:
    plan = ModelPlan(10, 100, (), 1)
    message = Message(Kind.STATISTICS, (torch.zeros(10, 101),))
    noises = []
    for row in ("clamp-noise-64", "clamp-noise-64-draw-1", "clamp-noise-64-draw-1", "clamp-noise-64-draw-2"):
        run = resolve(PRIVACY_FIGURE.find_row(row).spec)
        guard = privacy.make_run_protection(run, build_method(run.spec, plan), plan, CLIENTS)
        assert guard is not None
        noises.append(guard.add_server_noise(make_contribution(message), Key(3)).arrays[0] / guard.mechanism.sigma)
    own, once, again, other = noises
    assert torch.equal(once, again)
    for noise in (once, other):
        assert abs(float((own * noise).mean())) < 0.15  # independent: the standard error of 1010 products is 0.03
        assert float(noise.std()) == pytest.approx(1, abs=0.1)
    assert not torch.equal(once, other)


def test_another_draw_is_refused_where_noise_differs_in_every_run() -> None:
    spec = replace(PRIVACY_FIGURE.find_row("clamp-noise-64").spec, noise_draw=1)
    with pytest.raises(
        InputError, match="--noise-draw 1 needs float noise, found: discrete noise, which differs in every run"
    ):
        resolve(replace(spec, noise=NoiseSetting.DISCRETE))
    with pytest.raises(InputError, match="these settings need --privacy: noise_draw"):
        resolve(RunSpec(noise_draw=1))


def test_the_luck_of_the_noise_is_its_spread_over_the_draws(tmp_path: Path) -> None:
    names = ("clamp-noise-16", *(f"clamp-noise-16-draw-{draw}" for draw in (1, 2)))
    for cell, accuracy in zip(list_cells(PRIVACY_FIGURE, tmp_path, names, (0,)), (0.5, 0.52, 0.51), strict=True):
        write_run(cell, [accuracy], 10)
    first, second = make_repeated_noise_table(collect_runs(PRIVACY_FIGURE, tmp_path)).rows
    assert first == ("16", "50.00", "52.00", "51.00", "not run", "1.00")
    assert second == ("64", *["not run"] * 4, "")


def test_readings_cover_both_formulas_places_and_deltas() -> None:
    assert len(set(EPSILON_FORMULAS)) == 8
    exact, paper = (EpsilonFormula(kind, Trust.CENTRAL, 0.01) for kind in Calibration)
    # 100 releases of epsilon 0.5 at delta 0.01: the multiplier of the exact formula, and that of Theorem 4.
    assert exact.compute_epsilon(31.469, 100, CLIENTS) == pytest.approx(0.5, rel=1e-3)
    assert paper.compute_epsilon((8 * 100 * 3.9650) ** 0.5 / 0.5, 100, CLIENTS) == pytest.approx(0.5, rel=1e-3)
    local = EpsilonFormula(Calibration.EXACT, Trust.LOCAL, 0.01)
    assert local.compute_epsilon(10 * 31.469, 100, 100) == pytest.approx(0.5, rel=1e-3)


def test_the_tables_and_the_figure_read_the_records(tmp_path: Path) -> None:
    names = (
        make_name_of_row_with_noise("clamp", VERIFIED_LEVEL),
        "verify-exact-local",
        "client-epsilon-8",
        "l2-no-noise",
    )
    found = list_cells(PRIVACY_FIGURE, tmp_path, rows=names, seeds=(0,))
    for cell, accuracies in zip(found, ([0.4, 0.5], [0.4, 0.51], [0.3] * 10, [0.6] * 40), strict=True):
        write_run(cell, accuracies, 10)
        _state_privacy(cell, 3)
    read = collect_runs(PRIVACY_FIGURE, tmp_path)
    levels = make_noise_level_table(read)
    assert levels.rows[3][:5] == ("clamp:2", "64", "1282", "50.00", "3")
    assert levels.rows[3][5:9] == ("0.0909", "2.28", "0.565", "7.17")
    assert all(row[3] == "not run" for row in levels.rows if row[:2] not in (("clamp:2", "64"), ("l2:3", "none")))
    checked = {row[0]: row[1:] for row in make_verification_table(read).rows}
    assert checked["clamp:2, exact, local, epsilon 4.3175, delta 1e-05"] == ("51.00", "50.00", "+1.00")
    promised = next(row for row in make_guarantee_table(read).rows if row[0].startswith("client, epsilon 8"))
    assert promised[1:4] == ("7.9", "1e-05", "client")
    assert promised[8:] == ("30.00", "60.00", "3")
    for delta in DELTAS:
        assert f"delta {delta:g}" in draw_privacy_figure(read)


def test_a_run_in_mode_paper_can_be_calibrated_exactly() -> None:
    spec = RunSpec(privacy="paper", clip="clamp:2", epsilon=1.0, delta=1e-5, rounds=4)
    plan = ModelPlan(10, 32, (), 1)
    sigmas = []
    for calibration in Calibration:
        run = resolve(replace(spec, calibration=calibration))
        guard = privacy.make_run_protection(run, build_method(run.spec, plan), plan, 10)
        assert guard is not None
        sigmas.append(guard.mechanism.sigma)
    assert sigmas[0] < 0.5 * sigmas[1]


def _state_privacy(cell: Cell, kept: int) -> None:
    path = cell.folder / SUMMARY
    stated = {"epsilon": 7.9, "neighbours": "n", "trusted": "the server, which", "rounds_with_old_head": kept}
    path.write_text(json.dumps({**json.loads(path.read_text()), "privacy": stated}))


def test_the_page_on_privacy_gets_its_table_in_its_place_and_keeps_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "privacy.md"
    page.parent.mkdir()
    page.write_text(f"before\n{GUARANTEES}\nold\n{GUARANTEES_END}\nafter\n")
    results = tmp_path / "results"
    results.mkdir()
    for _ in range(2):
        assert page in write_reproduction_pages(results, page.parent)
        said = page.read_text()
        assert said.startswith(f"before\n{GUARANTEES}\n| cell | epsilon | delta | unit |")
        assert said.endswith(f"{GUARANTEES_END}\nafter\n")
        assert said.count("client, epsilon 8") == 1
        assert "not run" in said
        assert "old\n" not in said
    page.write_text("no place")
    with pytest.raises(InputError, match="lacks the mark <!-- "):
        write_reproduction_pages(results, page.parent)
