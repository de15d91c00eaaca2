"""A small federation of generated records, and runs of any method on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedlog.algorithms.registry import build, own_rounds
from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.transforms import IDENTITY
from fedlog.engine.clients import model_plan
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.models.body import Body
from fedlog.models.catalog import body
from fedlog.settings.execution import BackendChoice
from fedlog.settings.training import RunSettings

N_CLASS = 3
TESTS_PER_CLIENT = 6
# Short phases, and steps large enough that every method moves its model in a few rounds.
OPTIONS: dict[str, dict[str, Any]] = {
    "fedrep": {"head_epochs": 2},
    "fedbabu": {"fine_tune_epochs": 2},
    "feddbe": {"momentum": 0.5},  # at 1 no batch depends on the one before, and padding could do no harm
    "cs-fl": {"threshold": 0.002, "reduction": 0.3, "phase_1_rate": 1.0, "phase_2_rate": 0.01},
}


@dataclass(frozen=True)
class Small:
    """What the contract runs on; `folder` takes saved models and checkpoints."""

    folder: Path

    def federation(self, sizes: Sequence[int], one_class: Sequence[int] = ()) -> Federation:
        """Clients c0, c1, ... with so many training records; those in `one_class` hold records of class 1 only."""
        generator = Key(5).child("small").torch()
        inputs, labels, shards = [], [], []
        start = 0
        for at, size in enumerate(sizes):
            own = torch.full((size,), 1) if at in one_class else torch.randint(0, N_CLASS, (size,), generator=generator)
            labels.append(own)
            inputs.append(torch.randn(size, 4, generator=generator) + own[:, None])
            tests = torch.arange(TESTS_PER_CLIENT * at, TESTS_PER_CLIENT * (at + 1))
            shards.append(Shard(f"c{at}", torch.arange(start, start + size), tests, torch.zeros(0, dtype=torch.int64)))
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

    def body(self, name: str = "mlp:6,5") -> Body:
        """A multilayer perceptron with two layers and 5 features."""
        return body(name, (4,))

    def simulation(
        self,
        method: str,
        federation: Federation,
        bodies: Sequence[Body] | None = None,
        batch_size: int = 5,
        choice: BackendChoice = BackendChoice.LOOP,
        options: dict[str, Any] | None = None,
        **course: Any,
    ) -> Simulation:
        """A run of two rounds, in float64 within a client's training, unless told otherwise."""
        bodies = bodies or [self.body()] * len(federation.shards)
        plan = model_plan(federation, bodies)
        training = {} if own_rounds(method) else {"epochs": 2, "learning_rate": 0.01}
        told = {**training, **OPTIONS.get(method, {}), **(options or {})}
        engine = Engine(Settings(batch_size=batch_size, dtype=torch.float64), choice)
        return Simulation(
            build(method, plan, told), federation, bodies, plan, engine, RunSettings(**{"rounds": 2, **course})
        ).start()

    def models(self, simulation: Simulation, *, closing: bool = False) -> dict[str, dict[str, torch.Tensor]]:
        """Every client's model after the run, by the client's name."""
        folder = self.folder / f"models-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        phases = simulation.algorithm.schedule.closing if closing else ()
        simulation.workers.save_models(phases, folder)
        return {path.stem: load_file(path) for path in folder.glob("*.safetensors")}


@pytest.fixture
def small(tmp_path: Path) -> Small:
    """The small federation, with a folder of this test's own."""
    return Small(tmp_path)


@pytest.fixture
def other_tests() -> Any:
    """A function that replaces a federation's test records by noise with other labels."""

    def replaced(federation: Federation) -> Federation:
        labels = (federation.test.labels + 1) % N_CLASS
        noise = torch.randn(federation.test.inputs.shape, generator=Key(6).torch())
        return replace(federation, test=Records(noise, labels))

    return replaced
