"""Cells and comparisons on a real Dask cluster of two worker processes, one of which is killed in mid-run."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fedlog
from fedlog.errors import InputError
from fedlog.experiments.run import records
from fedlog.experiments.tables.cells import CellState, list_cells
from fedlog.experiments.workers.cell_process import Outcome
from fedlog.experiments.workers.executors import DaskCluster, make_executor
from fedlog.experiments.workers.runner import run_cells

sys.path.insert(0, str(Path(__file__).parent))
from test_reproduce import Quiet, digits

distributed = pytest.importorskip("distributed")

# What distributed itself warns of while workers come and go is not ours to answer for.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def _wait(condition: object, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def test_a_killed_worker_loses_its_cell_to_another_which_goes_on(tmp_path: Path) -> None:
    wanted = list_cells(digits("fedlog", "fedlog-c", "fedavg", rounds=20, epochs=3), tmp_path)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        outcomes: list[Outcome] = []
        where = make_executor(address, 1, tmp_path)
        assert isinstance(where, DaskCluster)
        runner = threading.Thread(target=lambda: outcomes.extend(run_cells(wanted, where, Quiet(), None)))
        runner.start()
        _wait(lambda: sum(len(records.read_rounds(cell.records_file)) >= 2 for cell in wanted) == 2)
        begun = {
            cell.name: records.read_rounds(cell.records_file)[:1]
            for cell in wanted
            if records.read_rounds(cell.records_file)
        }
        with distributed.Client(cluster) as client:
            victim = next(iter(client.run(os.getpid).values()))
        os.kill(victim, signal.SIGKILL)
        runner.join(timeout=300)
        assert not runner.is_alive()
    assert sorted(outcome.cell for outcome in outcomes) == sorted(cell.name for cell in wanted)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    for cell in wanted:
        assert cell.read_state() is CellState.DONE
        found = records.read_rounds(cell.records_file)
        assert [record.round for record in found] == list(range(1, 21))
        # The time it took is kept only if the round was not computed a second time.
        assert cell.name not in begun or found[0].seconds == begun[cell.name][0].seconds


def test_a_comparison_on_a_cluster_finds_what_it_finds_here(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for name in ("north", "south"):
        values = draw.normal(size=(60, 3))
        columns = {f"x{at}": values[:, at] for at in range(3)}
        pl.DataFrame({**columns, "outcome": (values[:, 0] > 0).astype(int)}).write_csv(tmp_path / f"{name}.csv")
    asked = {"label": "outcome", "rounds": 1, "body": "mlp:4", "epochs": 1, "progress": False}
    files = f"sites:{tmp_path}"
    here = fedlog.compare(files, ["fedlog"], 2, out=tmp_path.with_name("here"), **asked)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        there = fedlog.compare(files, ["fedlog"], 2, out=tmp_path.with_name("there"), executor=address, **asked)
    assert len(there.runs) == 3 * 2
    assert {key: run.per_client for key, run in there.runs.items()} == {
        key: run.per_client for key, run in here.runs.items()
    }


def test_a_cluster_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no Dask scheduler"):
        make_executor("dask://127.0.0.1:1", 1, tmp_path)


def test_an_unusable_results_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, host="127.0.0.1", protocol="tcp"
    ) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        for out in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(InputError, match=f"cannot write to {out}"):
                make_executor(address, 1, out)
