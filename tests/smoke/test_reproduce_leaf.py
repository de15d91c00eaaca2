"""The CelebA experiment, from a generated folder in LEAF's format to its table: every method on MobileNetV2 bodies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fedlog.core.keys import Key
from fedlog.data.public_data_sets import DATA_VARIABLE
from fedlog.errors import InputError
from fedlog.experiments.tables.catalog import EXPERIMENTS
from fedlog.experiments.tables.cells import list_cells
from fedlog.experiments.tables.finished_cells import collect_runs
from fedlog.experiments.workers.cell_process import execute_task, make_cell_task
from fedlog.experiments.workers.runner import run_cells
from fedlog.report.paper.method_tables import make_accuracy_table

USERS = {"0042": 5, "0007": 6, "1234": 5}


def leaf_folder(folder: Path) -> Path:
    """Three people with a few noisy images each, the brighter ones smiling."""
    generator = Key(0).child("leaf folder").numpy()
    images = folder / "data" / "raw" / "img_align_celeba"
    images.mkdir(parents=True)
    users = {}
    for user, size in USERS.items():
        names = [f"{user}_{index}.png" for index in range(size)]
        for index, name in enumerate(names):
            pixels = generator.integers(0, 128, (32, 32, 3)) + 100 * (index % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(images / name)
        users[user] = {"x": names, "y": [index % 2 for index in range(size)]}
    (folder / "data" / "all_data").mkdir()
    told = {"users": list(users), "num_samples": list(USERS.values()), "user_data": users}
    (folder / "data" / "all_data" / "all_data.json").write_text(json.dumps(told))
    return folder


def test_the_celeba_experiment_runs_on_a_leaf_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, "set back afterwards: a cell's own process would keep it to itself")
    data, out = leaf_folder(tmp_path / "leaf"), tmp_path / "results"
    celeba = EXPERIMENTS["figure-celeba"]
    rows = tuple(replace(row, spec=replace(row.spec, rounds=1, options={"epochs": 1})) for row in celeba.rows)
    short = replace(celeba, rows=rows, seeds=(0,))
    wanted = list_cells(short, out, seeds=(0,))
    assert {cell.spec.body for cell in wanted} == {("mobilenet-v2",)}
    for cell in wanted:
        assert execute_task(json.loads(make_cell_task(cell, data))).error is None
    table = make_accuracy_table(collect_runs(short, out))
    assert [row[1] for row in table.rows] == ["1"] * 5
    assert all("not run" not in row[2] for row in table.rows)
    assert table.rows[0][table.columns.index("paper, %")] == "71.96 ± 0.18"
    nobody = SimpleNamespace(submit=lambda tasks: None, stop=lambda: None)
    silent = SimpleNamespace(on_start=lambda to_do, skipped: None)
    for same in (data, tmp_path / "no data here"):
        assert run_cells(wanted, nobody, silent, same) == []
    Image.new("RGB", (32, 32)).save(data / "data" / "raw" / "img_align_celeba" / "0042_0.png")
    with pytest.raises(InputError, match="was run on other records"):
        run_cells(wanted, nobody, silent, data)
