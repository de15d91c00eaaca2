"""A small federation of generated records, and runs of any method on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from method_options import OPTIONS

from fedlog.data.federation import Federation
from fedlog.engine.simulate.simulator import Simulation
from fedlog.models.body import Body
from fedlog.testing.trial import Models, Trial, make_small_body, make_small_federation, read_models


@dataclass(frozen=True)
class Small:
    """The federation and settings of the contract, for checks of single methods."""

    def federation(self, sizes: Sequence[int], one_class: Sequence[int] = ()) -> Federation:
        """Clients with so many training records; those in `one_class` hold records of class 1 only."""
        return make_small_federation(sizes, one_class)

    def body(self, name: str = "mlp:6,5") -> Body:
        """A multilayer perceptron with two layers and 5 features."""
        return make_small_body(name)

    def simulation(self, method: str, federation: Federation, *args: Any, **settings: Any) -> Simulation:
        """A run of two rounds, in float64 within a client's training, unless told otherwise."""
        return Trial(method, OPTIONS.get(method, {})).make_simulation(federation, *args, **settings)

    def models(self, simulation: Simulation, *, closing: bool = False) -> Models:
        """Every client's model after the run, by the client's name."""
        return read_models(simulation, closing=closing)


@pytest.fixture
def small() -> Small:
    """The small federation."""
    return Small()
