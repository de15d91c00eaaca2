"""Run folders with made-up numbers, for tests of what is read from them."""

from __future__ import annotations

from dataclasses import asdict

from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.experiments.run import records
from fedlog.experiments.run.execute import CONFIG, SUMMARY
from fedlog.experiments.run.records import Summary
from fedlog.experiments.tables.cells import Cell
from fedlog.files.json_text import write_json
from fedlog.settings.spec import convert_spec_to_json


def write_run(
    cell: Cell, accuracies: list[float], bits_each_way: int, closed: float | None = None, opening: int = 100
) -> None:
    """A finished run with these accuracies, so many bits each way a round, and the opening's down before the first."""
    cell.folder.mkdir(parents=True)
    write_json(
        cell.folder / CONFIG, {"digest": cell.spec.digest, "spec": convert_spec_to_json(cell.spec), "made_with": {}}
    )
    for at, accuracy in enumerate(accuracies):
        record = RoundRecord(at + 1, accuracy, [], [], 1, bits_each_way, bits_each_way, {}, {}, {}, 0.0)
        records.append_round(cell.records_file, record)
    best = max(range(len(accuracies)), key=lambda at: accuracies[at])
    summary = Summary(
        method=cell.spec.method,
        data=cell.spec.data,
        seed=cell.seed,
        digest=cell.spec.digest,
        rounds=len(accuracies),
        accuracy_mean_over_clients=accuracies[-1],
        accuracy_per_client=[],
        accuracy_after_closing=closed,
        best_round=best + 1,
        best_accuracy=accuracies[best],
        bits_up=bits_each_way * len(accuracies),
        bits_down=bits_each_way * len(accuracies) + opening,
        seconds=0.0,
        run_dir=".",
    )
    write_json(cell.folder / SUMMARY, asdict(summary))
