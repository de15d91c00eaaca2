"""A dry run predicts the bits of a run with secure sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedlog.experiments.run.dry_run import forecast_cost
from fedlog.experiments.run.execute import execute
from fedlog.settings.spec import RunSpec

SPEC = RunSpec(
    data="digits", clients=5, body=("mlp:8",), train_records=150, options={"epochs": 1}, aggregation="secure", jobs=1
)


@pytest.mark.parametrize(
    ("method", "rounds"), [("fedlog", 1), ("fedlog", 2), ("fedlog", 5), ("fedlog-c", 1), ("fedlog-c", 4)]
)
def test_a_dry_run_foretells_the_bits_of_secure_sums(method: str, rounds: int, tmp_path: Path) -> None:
    spec = replace(SPEC, method=method, rounds=rounds)
    found = execute(spec, tmp_path / "run")
    foretold = forecast_cost(spec)
    assert foretold.bits_total == found.bits_up + found.bits_down
    assert foretold.bits_are == "exact"


def test_with_simulated_dropouts_the_bits_are_said_to_be_those_without(tmp_path: Path) -> None:
    spec = replace(SPEC, rounds=4)
    foretold, whole = forecast_cost(replace(spec, dropout_rate=0.3)), forecast_cost(spec)
    assert foretold.bits_total == whole.bits_total
    assert "in all" in foretold.format_lines()[5]
    assert foretold.format_lines()[5].endswith("if nobody dropped out")
