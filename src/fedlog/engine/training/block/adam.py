"""AdamW on one flat tensor for all clients that are trained together."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor

from fedlog.engine.training.block import library
from fedlog.engine.training.tasks import make_adam_arguments
from fedlog.models.body import Params
from fedlog.settings.training import AdamMoments, Optimiser

_own = threading.local()


@dataclass(frozen=True, eq=False)
class AdamRow:
    """One client's flattened parameters and Adam moments, (1, size) each, and the constants of its next steps."""

    shapes: Mapping[str, torch.Size]  # of the parameters, in the order of the row
    values: Tensor
    first: Tensor
    second: Tensor
    corrections: Tensor  # (steps, 3): rate / (1 - beta1^t), the root of 1 - beta2^t, and the weight decay's factor
    rule: tuple[float, float, float]  # beta1, beta2, epsilon


class FlatAdam:
    """AdamW for clients trained together, whose parameters are the rows of one (clients, size) tensor.

    Clients may have different numbers of steps. The compiled step of `adam.c` is used if it gives exactly PyTorch's
    numbers, otherwise PyTorch's fused AdamW.
    """

    def __init__(self, stacked: Params, learning_rate: float, rule: Optimiser) -> None:
        self._arguments = make_adam_arguments(rule, learning_rate)
        self._shapes = {name: value.shape[1:] for name, value in stacked.items()}
        self._rows = torch.cat([value.flatten(1) for value in stacked.values()], dim=1)
        lasting = rule.moments is AdamMoments.RUN  # the moments are returned, so they need memory of their own
        first, second = (
            torch.empty_like(self._rows) if lasting else _get_workspace(name, self._rows)
            for name in ("first", "second")
        )
        self._first, self._second = first.zero_(), second.zero_()
        self._has_moved = False
        self._steps = torch.zeros(len(self._rows), dtype=torch.float32, device=self._rows.device)
        self._leaves: dict[int, Params] = {}
        single = self._rows.dtype == torch.float32 and self._rows.device.type == "cpu"
        self._compiled = single and is_compiled_step_exact()

    def restart(self) -> None:
        """Set the moments to zero, as in a new optimiser."""
        if not self._has_moved:
            return
        self._first.zero_()
        self._second.zero_()
        self._steps.zero_()

    def resume(self, client: int, first: Tensor, second: Tensor, steps: Tensor) -> None:
        """Set the moments of a client to values that `get_moments` returned earlier."""
        self._first[client], self._second[client], self._steps[client] = first, second, steps
        self._has_moved = True

    def get_moments(self, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """Views of a client's first and second moments, flattened, and of its number of steps."""
        return self._first[client], self._second[client], self._steps[client]

    def get_parameters(self) -> Params:
        """Views of the stacked parameters, by name."""
        return self._split_into_parameters(self._rows)

    def get_leaves(self, clients: int) -> Params:
        """The parameters of the first `clients` clients, by name, as autograd leaves, which `step` updates in place."""
        if clients not in self._leaves:
            views = self._split_into_parameters(self._rows[:clients])
            self._leaves[clients] = {name: view.detach().requires_grad_(True) for name, view in views.items()}
        return self._leaves[clients]

    def step(self, clients: int, gradients: Sequence[Tensor | None]) -> None:
        """Update the parameters of the first `clients` clients; other clients and their moments do not change."""
        self._steps[:clients] += 1
        self._has_moved = True
        moved = [each[:clients] for each in (self._rows, self._first, self._second, self._steps)]
        if self._compiled:
            sizes = tuple(prod(shape) for shape in self._shapes.values())
            step_compiled(self._arguments, sizes, gradients, *moved)
            return
        flat = _get_workspace("gradients", self._rows)[:clients]
        for view, gradient in zip(self._split_into_parameters(flat).values(), gradients, strict=True):
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient)
        step_fused(self._arguments, flat, *moved)

    def reserve_steps(self, client: int, steps: int) -> AdamRow:
        """Count `steps` steps of this client as done, and return its row, on which the caller must do them."""
        age = int(self._steps[client])
        self._steps[client] = age + steps
        self._has_moved = True
        rate, beta1, beta2, epsilon = (self._arguments[name] for name in ("lr", "beta1", "beta2", "eps"))
        decay = 1 - rate * self._arguments["weight_decay"]
        each = [(*_compute_bias_corrections(rate, beta1, beta2, age + step), decay) for step in range(1, steps + 1)]
        values, first, second = (one[client : client + 1] for one in (self._rows, self._first, self._second))
        return AdamRow(
            self._shapes, values, first, second, torch.tensor(each, dtype=torch.float64), (beta1, beta2, epsilon)
        )

    def _split_into_parameters(self, rows: Tensor) -> Params:
        views, start = {}, 0
        for name, shape in self._shapes.items():
            stop = start + prod(shape)
            views[name] = rows[:, start:stop].view(len(rows), *shape)
            start = stop
        return views


class _AdamSettings(ctypes.Structure):
    """The C struct of sizes and constants that the compiled Adam step takes."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("clients", "size", "parts")),
        *((name, ctypes.c_double) for name in ("decay", "beta1", "beta2", "epsilon")),
    ]


def step_fused(
    arguments: dict[str, Any], flat: Tensor, rows: Tensor, first: Tensor, second: Tensor, steps: Tensor
) -> None:
    """Update the clients' flattened parameters (`rows`) by PyTorch's fused AdamW with the gradients in `flat`.

    `arguments` are those of `make_adam_arguments`. `steps` already counts this step.
    """
    torch._fused_adamw_(rows.unbind(), flat.unbind(), first.unbind(), second.unbind(), [], steps.unbind(), **arguments)


def step_compiled(
    arguments: dict[str, Any],
    sizes: tuple[int, ...],
    gradients: Sequence[Tensor | None],
    rows: Tensor,
    first: Tensor,
    second: Tensor,
    steps: Tensor,
) -> bool:
    """Update the clients' flattened parameters (`rows`) by the compiled step, and return True.

    If this processor cannot run the step, only return False. A row consists of parameters of these sizes, and each
    parameter has its gradient (clients, size), or None for zeros. `arguments` are those of `make_adam_arguments`.
    `steps` already counts this step.
    """
    clients, size = rows.shape
    rate, beta1, beta2 = arguments["lr"], arguments["beta1"], arguments["beta2"]
    settings = _AdamSettings(
        clients, size, len(sizes), 1 - rate * arguments["weight_decay"], beta1, beta2, arguments["eps"]
    )
    own = [None if gradient is None else gradient.contiguous() for gradient in gradients]
    corrections = [
        number for age in steps.tolist() for number in _compute_bias_corrections(rate, beta1, beta2, int(age))
    ]
    return bool(
        library.LIBRARY.adam_step(
            ctypes.byref(settings),
            (ctypes.c_int64 * len(sizes))(*sizes),
            (ctypes.c_void_p * len(own))(*(None if one is None else one.data_ptr() for one in own)),
            (ctypes.c_double * len(corrections))(*corrections),
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (rows, first, second)),
        )
    )


@lru_cache(maxsize=4096)
def _compute_bias_corrections(rate: float, beta1: float, beta2: float, age: int) -> tuple[float, float]:
    """Adam's bias corrections in step `age`: rate / (1 - beta1^age), and sqrt(1 - beta2^age)."""
    return rate / (1 - beta1**age), sqrt(1 - beta2**age)


@lru_cache(maxsize=1)
def is_compiled_step_exact() -> bool:
    """Whether the compiled Adam step exists and gives exactly the same numbers as PyTorch's fused AdamW."""
    if not library.AVAILABLE:
        return False
    generator = torch.Generator().manual_seed(0)
    arguments = make_adam_arguments(Optimiser(weight_decay=0.01), 0.001)
    sizes = (7, 40, 31)  # so that there are whole vectors, half a vector, and a long rest
    start = torch.randn(2, sum(sizes), generator=generator)
    ours, theirs = ((start.clone(), torch.zeros_like(start), torch.zeros_like(start)) for _ in range(2))
    for age in (1.0, 2.0, 3.0):
        flat, steps = torch.randn(2, sum(sizes), generator=generator), torch.full((2,), age)
        step_fused(arguments, flat, *theirs, steps)
        if not step_compiled(arguments, sizes, torch.split_with_sizes(flat, sizes, dim=1), *ours, steps):
            return False
    return all(torch.equal(own, other) for own, other in zip(ours, theirs, strict=True))


def _get_workspace(name: str, like: Tensor) -> Tensor:
    """Memory for a temporary tensor like `like`; it is kept under `name`, because new memory would cost page faults."""
    kept: dict[tuple[str, torch.dtype, torch.device], Tensor] = _own.__dict__.setdefault("kept", {})
    key = (name, like.dtype, like.device)
    if key not in kept or kept[key].numel() < like.numel():
        kept[key] = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
    return kept[key][: like.numel()].view(like.shape)
