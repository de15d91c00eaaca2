"""Experiments with every method that predicts classes, on the handwritten digits that come with the package."""

from __future__ import annotations

from fedlog.algorithms import registry
from fedlog.algorithms.interface import predicts_numbers
from fedlog.experiments.tables.cells import Experiment, ExperimentKind, TableRow
from fedlog.settings.spec import RunSpec

SEEDS = (0, 1, 2)
ENCODER = "pretrained:efficientnet-lite0:64"
METHODS_OF_NUMBERS = registry.find_methods(predicts_numbers)  # left out: they do not predict classes
METHODS_IN_ROUNDS = tuple(name for name in registry.METHODS if registry.find_method_rounds(name) is None)
METHODS_IN_ONE_EXCHANGE = tuple(
    name for name in registry.METHODS if name not in (*METHODS_IN_ROUNDS, *METHODS_OF_NUMBERS)
)


def _make_rows(methods: tuple[str, ...], body: tuple[str, ...] = ()) -> tuple[TableRow, ...]:
    return tuple(TableRow(name, name, RunSpec(data="digits", method=name, body=body)) for name in methods)


METHODS_DIGITS = Experiment(
    "methods-digits",
    "Methods that train their bodies, on handwritten digits",
    ExperimentKind.CURVES,
    _make_rows(METHODS_IN_ROUNDS),
    SEEDS,
    remarks=("Each method with its defaults: none was tuned on these records.",),
)
METHODS_DIGITS_FROZEN = Experiment(
    "methods-digits-frozen",
    "Methods on a frozen body, on handwritten digits",
    ExperimentKind.CURVES,
    _make_rows(METHODS_IN_ONE_EXCHANGE, (ENCODER,)),
    SEEDS,
    remarks=(
        f"One exchange, on the features of `{ENCODER}`. Each method with its defaults: a client of two digits chooses "
        "among all ten (`--set classes=own` would leave it its own).",
    ),
)
EVERY_METHOD = (METHODS_DIGITS, METHODS_DIGITS_FROZEN)
