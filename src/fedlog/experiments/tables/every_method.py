"""Every method on the handwritten digits that install with the package: the one table in which no method is missing."""

from __future__ import annotations

from fedlog.algorithms import registry
from fedlog.experiments.tables.cells import Experiment, Row, Shape
from fedlog.settings.spec import RunSpec

SEEDS = (0, 1, 2)
ENCODER = "pretrained:efficientnet-lite0:64"


def _rows(methods: tuple[str, ...], body: tuple[str, ...] = ()) -> tuple[Row, ...]:
    return tuple(Row(name, name, RunSpec(data="digits", method=name, body=body)) for name in methods)


METHODS_DIGITS = Experiment(
    "methods-digits",
    "Methods that train their bodies, on handwritten digits",
    Shape.CURVES,
    _rows(tuple(name for name in registry.METHODS if registry.find_own_rounds(name) is None)),
    SEEDS,
    remarks=("Each method with its defaults: none was tuned on these records.",),
)
METHODS_DIGITS_FROZEN = Experiment(
    "methods-digits-frozen",
    "Methods on a frozen body, on handwritten digits",
    Shape.CURVES,
    _rows(tuple(name for name in registry.METHODS if registry.find_own_rounds(name) is not None), (ENCODER,)),
    SEEDS,
    remarks=(f"One exchange, on the features of `{ENCODER}`. Each method with its defaults.",),
)
EVERY_METHOD = (METHODS_DIGITS, METHODS_DIGITS_FROZEN)
