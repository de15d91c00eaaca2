"""Small federations of generated records, and short runs of any method on them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedlog.algorithms import registry
from fedlog.algorithms.interface import Algorithm, predicts_numbers
from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.schema import Schema
from fedlog.data.transforms import IDENTITY
from fedlog.engine.clients import make_model_plan
from fedlog.engine.simulate.simulator import RoundRecord, Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.models.body import Body, build_body
from fedlog.models.catalog import make_body
from fedlog.settings.execution import BackendChoice
from fedlog.settings.training import RunSettings

N_CLASS = 3
TESTS_PER_CLIENT = 6
# Few epochs, and steps large enough to change a model in a few rounds.
SHORT_TRAINING = {"epochs": 2, "learning_rate": 0.01}

Model = dict[str, Tensor]
Models = dict[str, Model]


def make_small_federation(sizes: Sequence[int], one_class: Sequence[int] = ()) -> Federation:
    """Make a federation of clients c0, c1, ... with these numbers of training records.

    The clients at the positions in `one_class` have records of class 1 only.
    """
    generator = Key(5).child("small").torch()
    inputs, labels, shards = [], [], []
    start = 0
    for at, size in enumerate(sizes):
        own = torch.full((size,), 1) if at in one_class else torch.randint(0, N_CLASS, (size,), generator=generator)
        labels.append(own)
        inputs.append(torch.randn(size, 4, generator=generator) + own[:, None])
        tests = torch.arange(TESTS_PER_CLIENT * at, TESTS_PER_CLIENT * (at + 1))
        shards.append(Shard(f"c{at}", torch.arange(start, start + size), tests))
        start += size
    test_labels = torch.arange(TESTS_PER_CLIENT * len(sizes)) % N_CLASS
    test_inputs = torch.randn(len(test_labels), 4, generator=generator) + test_labels[:, None]
    return Federation(
        name="small",
        n_class=N_CLASS,
        input_shape=(4,),
        train=Records(torch.cat(inputs), torch.cat(labels)),
        test=Records(test_inputs, test_labels),
        shards=tuple(shards),
        transform=IDENTITY,
        class_names=("a", "b", "c"),
    )


def convert_to_regression(federation: Federation) -> Federation:
    """Return a federation for regression: each record's target is a number made from its class and its first input."""
    train, test = (
        Records(pool.inputs, torch.zeros_like(pool.labels), targets=(pool.labels - 1 + pool.inputs[:, 0] / 4) / 4)
        for pool in (federation.train, federation.test)
    )
    schema = Schema("number", ("number",), input_shape=federation.input_shape, target_range=(-4.0, 4.0))
    return replace(federation, n_class=1, class_names=("number",), train=train, test=test, schema=schema)


def replace_test_records(federation: Federation) -> Federation:
    """Return the federation with other test records: noise as inputs, and changed labels."""
    labels = (federation.test.labels + 1) % N_CLASS
    noise = torch.randn(federation.test.inputs.shape, generator=Key(6).torch())
    return replace(federation, test=Records(noise, labels))


@cache
def make_small_body(name: str = "mlp:6,5") -> Body:
    """Make a body (network below the head) from the catalog for 4 inputs; by default two layers and 5 features."""
    return make_body(name, (4,))


def make_dropout_body(choice: BackendChoice) -> Body:
    """Make a small body that ends with dropout, to check that losses get the features before dropout.

    For the mixed backend, the body has a layer that stacked training does not support.
    """
    activation = nn.Softsign if choice is BackendChoice.MIXED else nn.ReLU

    def make_net() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), activation(), nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.5))

    return build_body("dropping", make_net, (4,))


@dataclass(frozen=True)
class Trial:
    """A method and its options, for short runs on small federations."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def make_simulation(
        self,
        federation: Federation,
        bodies: Sequence[Body] | None = None,
        batch_size: int = 5,
        choice: BackendChoice = BackendChoice.LOOP,
        options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Simulation:
        """Make a simulated run of the method: two rounds unless `settings` say otherwise, trained in float64."""
        if self.predicts_numbers:
            federation = convert_to_regression(federation)
        bodies = bodies or [make_small_body()] * len(federation.shards)
        plan = make_model_plan(federation, bodies)
        engine = Engine(Settings(batch_size=batch_size, dtype=torch.float64), choice)
        algorithm = registry.make_method(self.method, plan, {**self._make_options(), **(options or {})})
        asked = RunSettings(**{"rounds": 2, **settings})
        return Simulation(algorithm, federation, bodies, plan, engine, asked).start()

    @property
    def predicts_numbers(self) -> bool:
        """Whether the method predicts a number instead of a class."""
        plan = make_model_plan(make_small_federation([4, 4]), [make_small_body()] * 2)
        return predicts_numbers(registry.make_method(self.method, plan, self._make_options()))

    def make_method(self) -> Algorithm:
        """Make the method for a small federation."""
        return self.make_simulation(make_small_federation([4, 4])).algorithm

    def _make_options(self) -> dict[str, Any]:
        """The method's options for short runs: those of `SHORT_TRAINING` that it has, then `self.options`."""
        known = registry.list_options(self.method)
        short = {name: value for name, value in SHORT_TRAINING.items() if name in known}
        return {**short, **self.options}


def run_all_rounds(simulation: Simulation) -> list[dict[str, Any]]:
    """Run all remaining rounds; return each round's log entry as a dictionary, without the seconds the round took."""
    return [convert_record_to_dict(record) for record in simulation.rounds()]


def convert_record_to_dict(record: RoundRecord) -> dict[str, Any]:
    """Return a round's log entry as a dictionary, without the seconds the round took."""
    return {name: value for name, value in asdict(record).items() if name != "seconds"}


def read_models(simulation: Simulation, *, closing: bool = False) -> Models:
    """Return client name -> model; if `closing`, after the closing phase (training after the last round)."""
    phases = simulation.algorithm.schedule.closing if closing else ()
    with tempfile.TemporaryDirectory() as folder:
        simulation.workers.save_models(phases, Path(folder))
        return {path.stem: load_file(path) for path in Path(folder).glob("*.safetensors")}


def find_largest_difference(one: Models, other: Models) -> float:
    """Return the largest absolute difference between parameters; infinite if clients or parameter names differ."""
    if one.keys() != other.keys() or any(one[client].keys() != other[client].keys() for client in one):
        return float("inf")
    return max(
        float((one[client][name].double() - other[client][name].double()).abs().max())
        for client in one
        for name in one[client]
    )
