"""Training on another device than the CPU, as far as it can be seen without one: no operation mixes devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedlog.algorithms.interface import EVERYTHING, Phase, Work, cross_entropy
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.data.transforms import Transform
from fedlog.engine.clients import Client
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import FeatureRequest, RecordPool, Settings, Task
from fedlog.models.body import HEAD, build_body, draw_initial_head
from fedlog.settings.execution import BackendChoice

MakeFederation = Callable[..., Federation]
COPIES = ("aten::_to_copy", "aten::to", "aten::copy_")


class OneDevice(TorchDispatchMode):
    """Refuses operations whose tensors lie on different devices, but for copies and single numbers.

    Tensors of the device `meta` have no numbers; a copy of one to the CPU gets zeros.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_the_device = 0  # operations there

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor) and leaf.ndim]
        devices = {tensor.device.type for tensor in tensors}
        self.on_the_device += devices == {"meta"}
        assert len(devices) < 2 or func._schema.name in COPIES, f"{func._schema.name}: {devices}"
        to = (kwargs or {}).get("device")
        if func._schema.name in COPIES and devices == {"meta"} and to is not None and to.type == "cpu":
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        return func(*args, **(kwargs or {}))


def _body() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(64, 5)
    )


@pytest.mark.parametrize("choice", [BackendChoice.LOOP, BackendChoice.VMAP])
@pytest.mark.parametrize("transform", [Transform(), Transform((0.5,), (0.5,), crop_padding=1, flip=True)])
def test_no_operation_of_training_or_evaluation_mixes_devices(
    transform: Transform, choice: BackendChoice, make_federation: MakeFederation
) -> None:
    federation = make_federation([5, 0, 3], input_shape=(1, 4, 4), transform=transform)
    found = build_body("mine", _body, (1, 4, 4))
    clients = [Client(at, s.name, found, s.train, (s.test,), ()) for at, s in enumerate(federation.shards)]
    work = Work({HEAD: draw_initial_head(found.width, 3, Key(0)), **found.make_initial_params(Key(0))})
    tasks = [Task(c, work, (Phase(EVERYTHING, 2, cross_entropy, 0.01),), Key(0).child(c.index)) for c in clients]
    engine = Engine(Settings(2, device="meta"), choice)
    with OneDevice() as mode:
        (backend,) = engine.make_backends(federation, clients).values()
        assert mode.on_the_device == 0
        trained = backend.train(tasks)
        after_training = mode.on_the_device
        features = backend.compute_features(
            [FeatureRequest(c, work.params, RecordPool.TEST, c.tests[0]) for c in clients]
        )
    assert 100 < after_training < mode.on_the_device
    assert {value.device.type for fit in trained for value in fit.params.values()} == {"cpu"}
    assert [one.shape for one in features] == [(4, 5)] * 3
    assert {one.device.type for one in features} == {"cpu"}


def test_without_being_asked_for_another_device_means_the_loop() -> None:
    found = build_body("mine", _body, (1, 4, 4))
    assert "clients are stacked only on the CPU, not on cuda" in Engine(Settings(2, device="cuda")).explain(found)
    assert "vmap" in Engine(Settings(2, device="cuda"), BackendChoice.VMAP).explain(found)
