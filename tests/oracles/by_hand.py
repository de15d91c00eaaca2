"""Local training written out in numpy: three linear layers, gradients by hand, Adam by hand.

It shares nothing with the package but the draws: the initial parameters, and the order in which records are visited.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import nn

from fedlog.algorithms.registry import make_method
from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.transforms import IDENTITY
from fedlog.engine.clients import make_model_plan
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.models.body import Body, build_body, draw_initial_head
from fedlog.settings.execution import BackendChoice
from fedlog.settings.training import RunSettings

Array = NDArray[np.float64]
Model = dict[str, Array]
Pull = Callable[[Array, NDArray[np.int64]], Array]
"""(features, labels of a batch) -> what a method's extra loss adds to the gradient of the features."""
Hold = Callable[[Model], Model]
"""The parameters -> what a loss of the parameters themselves adds to their gradient."""

INPUTS, HIDDEN, WIDTH, CLASSES = 3, 3, 2, 3
SIZES = (7, 4)  # unequal, so that weights matter
NAMES = ("a", "b")
BATCH, EPOCHS, RATE, ROUNDS, SEED = 3, 2, 0.05, 2, 11
LAYERS = (("0.weight", "0.bias"), ("1.weight", "1.bias"), ("head",))
EVERYTHING = tuple(name for layer in LAYERS for name in layer)
CLOSE = 1e-5  # messages and models are float32 between the exchanges


def two_linear_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, WIDTH))


def the_body() -> Body:
    return build_body("two-linear", two_linear_layers, (INPUTS,))


def records() -> list[tuple[Array, NDArray[np.int64]]]:
    """The two clients' records: clusters that training pulls apart."""
    generator = np.random.default_rng(2)
    found = []
    for size in SIZES:
        labels = generator.integers(0, CLASSES, size)
        inputs = generator.normal(size=(size, INPUTS)) + 1.5 * np.eye(INPUTS)[labels]
        found.append((inputs.astype(np.float32).astype(np.float64), labels))
    return found


def run(method: str, folder: Path, *, closing: bool = False, **options: Any) -> list[Model]:
    """Each client's model after the package's run of two rounds."""
    data = records()
    inputs = torch.tensor(np.concatenate([x for x, _ in data]), dtype=torch.float32)
    labels = torch.tensor(np.concatenate([y for _, y in data]))
    ends = np.cumsum((0, *SIZES))
    shards = tuple(
        Shard(name, torch.arange(ends[at], ends[at + 1]), torch.arange(2), torch.zeros(0, dtype=torch.int64))
        for at, name in enumerate(NAMES)
    )
    pool = Records(inputs, labels)
    federation = Federation("hand", CLASSES, (INPUTS,), pool, pool, shards, IDENTITY, ("x", "y", "z"))
    bodies = [the_body()] * 2
    plan = make_model_plan(federation, bodies)
    algorithm = make_method(method, plan, {"epochs": EPOCHS, "learning_rate": RATE, **options})
    engine = Engine(Settings(batch_size=BATCH, dtype=torch.float64), BackendChoice.LOOP)
    simulation = Simulation(algorithm, federation, bodies, plan, engine, RunSettings(rounds=ROUNDS, seed=SEED)).start()
    assert len(list(simulation.rounds())) == ROUNDS
    simulation.workers.save_models(algorithm.schedule.closing if closing else (), folder)
    paths = [folder / f"{name}.safetensors" for name in NAMES if (folder / f"{name}.safetensors").exists()]
    return [
        {name: value.astype(np.float64) for name, value in load_file(path).items()}
        for path in paths or folder.glob("*.safetensors")
    ]


def initial() -> Model:
    """The model everyone starts from."""
    key = Key(SEED).child("initial")
    values = {
        **the_body().make_initial_params(key.child("body")),
        "head": draw_initial_head(WIDTH, CLASSES, key.child("head")),
    }
    return {name: value.double().numpy() for name, value in values.items()}


def client_key(at: int, round_number: int, exchange: str) -> Key:
    return Key(SEED).child("client", NAMES[at], "round", round_number, exchange)


def features(model: Model, x: Array) -> Array:
    return (x @ model["0.weight"].T + model["0.bias"]) @ model["1.weight"].T + model["1.bias"]


def gradients(model: Model, x: Array, y: NDArray[np.int64], pull: Pull | None) -> Model:
    """Of the mean cross-entropy, plus what `pull` adds at the features."""
    hidden = x @ model["0.weight"].T + model["0.bias"]
    z = hidden @ model["1.weight"].T + model["1.bias"]
    seen = z + model.get("shift", np.zeros(WIDTH))
    logits = seen @ model["head"][:, 1:].T + model["head"][:, 0]
    share = np.exp(logits - logits.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    down = (share - np.eye(CLASSES)[y]) / len(y)
    at_features = down @ model["head"][:, 1:]
    shift = at_features.sum(0)
    if pull is not None:
        at_features = at_features + pull(z, y)
    at_hidden = at_features @ model["1.weight"]
    return {
        "head": np.hstack([down.sum(0)[:, None], down.T @ seen]),
        "shift": shift,
        "1.weight": at_features.T @ hidden,
        "1.bias": at_features.sum(0),
        "0.weight": at_hidden.T @ x,
        "0.bias": at_hidden.sum(0),
    }


def train(
    model: Model,
    data: tuple[Array, NDArray[np.int64]],
    key: Key,
    *,
    moves: Collection[str] = EVERYTHING,
    epochs: int = EPOCHS,
    rate: float = RATE,
    phase: int = 0,
    pull: Pull | None = None,
    hold: Hold | None = None,
) -> Model:
    """The model after so many epochs of Adam, made anew for each epoch."""
    x, y = data
    model = {name: value.copy() for name, value in model.items()}
    for epoch in range(epochs):
        order = torch.randperm(len(y), generator=key.child("phase", phase, "epoch", epoch).torch()).numpy()
        first = {name: np.zeros_like(model[name]) for name in moves}
        second = {name: np.zeros_like(model[name]) for name in moves}
        for step, start in enumerate(range(0, len(y), BATCH), start=1):
            at = order[start : start + BATCH]
            slope = gradients(model, x[at], y[at], pull)
            if hold is not None:
                slope |= {name: slope[name] + held for name, held in hold(model).items()}
            for name in moves:
                first[name] = 0.9 * first[name] + 0.1 * slope[name]
                second[name] = 0.999 * second[name] + 0.001 * slope[name] ** 2
                mean = first[name] / (1 - 0.9**step)
                spread = np.sqrt(second[name] / (1 - 0.999**step))
                model[name] = model[name] - rate * mean / (spread + 1e-8)
    return model


def weighted(models: Sequence[Model], names: Sequence[str]) -> Model:
    """The mean of these parameters, weighted by the clients' records."""
    return {
        name: sum(n * model[name] for n, model in zip(SIZES, models, strict=True)) / sum(SIZES)  # type: ignore[misc]
        for name in names
    }


def gap(found: Sequence[Model], expected: Sequence[Model]) -> float:
    """The largest difference of any parameter of any client."""
    assert len(found) == len(expected)
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        worst = max(worst, *(float(np.abs(one[name] - other[name]).max()) for name in one))
    return worst
