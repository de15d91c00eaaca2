"""The loop backend: trains one client after another with plain PyTorch. All other backends are tested against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from fedlog.algorithms.interface import Batch, Carry, Phase
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.data.transforms import Augmentation
from fedlog.engine.training.tasks import (
    CLOCK,
    EpochDraws,
    FeatureRequest,
    Fit,
    Settings,
    Task,
    draw_epoch,
    list_trained_parameters,
    make_adam_arguments,
    name_moments,
    read_moments,
)
from fedlog.errors import RunError
from fedlog.models.body import Body, Params, logits
from fedlog.settings.training import AdamMoments, Optimiser

EVALUATION_BATCH = 500


class FunctionalAdam:
    """AdamW by PyTorch's function `adamw`: importing the class `torch.optim.AdamW` would take seconds."""

    def __init__(self, params: list[Tensor], learning_rate: float, rule: Optimiser, *, fused: bool = False) -> None:
        self.params = params
        self._arguments = make_adam_arguments(rule, learning_rate) | {"fused": fused}
        self.restart()

    def restart(self) -> None:
        """Set the moments to zero, as in a new optimiser."""
        self._first = [torch.zeros_like(value) for value in self.params]
        self._second = [torch.zeros_like(value) for value in self.params]
        self._steps = [torch.zeros(()) for _ in self.params]

    def resume(self, first: Tensor, second: Tensor, steps: Tensor) -> None:
        """Continue with the moments that `moments` returned."""
        sizes = [value.numel() for value in self.params]
        for mine, flat in ((self._first, first), (self._second, second)):
            for value, part in zip(mine, torch.split(flat, sizes), strict=True):
                value.copy_(part.view_as(value))
        for step in self._steps:
            step.copy_(steps)

    @property
    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Adam's first and second moments, flattened, and the number of steps."""
        first, second = (torch.cat([value.flatten().cpu() for value in each]) for each in (self._first, self._second))
        return first, second, self._steps[0].clone()

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Update the parameters. A gradient of None counts as zero, so that all parameters have equally many steps."""
        adamw(
            self.params,
            [torch.zeros_like(p) if g is None else g for p, g in zip(self.params, gradients, strict=True)],
            self._first,
            self._second,
            [],
            self._steps,
            **self._arguments,
        )


@dataclass(frozen=True, eq=False)
class RecordBatch:
    """Some of a client's records as inputs for training, with labels and dropout masks."""

    inputs: Tensor
    labels: Tensor
    masks: dict[str, Tensor]


class LoopBackend:
    """Trains one client after another by plain PyTorch, on any device; the body may have any layers."""

    clients_at_once = 1

    def __init__(self, body: Body, federation: Federation, settings: Settings) -> None:
        self._body = body
        self._federation = federation
        self._settings = settings
        self._device = torch.device(settings.device)

    def train(self, tasks: Sequence[Task]) -> list[Fit]:
        return [self._train_one(task) for task in tasks]

    def compute_features(self, requests: Sequence[FeatureRequest]) -> list[Tensor]:
        return [self._compute_requested_features(request) for request in requests]

    def _train_one(self, task: Task) -> Fit:
        params = {name: self._move_to_device(value).clone() for name, value in task.work.params.items()}
        constants = {name: self._move_to_device(value) for name, value in task.work.constants.items()}
        moments: Params = {}
        for number, phase in enumerate(task.phases):
            carry: Carry = {name: self._move_to_device(value) for name, value in task.work.carry.items()}
            moving = [params[name] for name in list_trained_parameters(params, phase, self._body)]
            # Fused: all parameters in one call, four times faster; the last bits differ.
            fused = self._device.type == "cpu"
            optimiser = FunctionalAdam(moving, phase.learning_rate, self._settings.optimiser, fused=fused)
            if (before := read_moments(task.moments, number)) is not None:
                optimiser.resume(*before)
            for epoch in range(phase.epochs):
                if self._settings.optimiser.moments is AdamMoments.EPOCH:
                    optimiser.restart()
                key = task.key.child("phase", number, "epoch", epoch)
                carry = self._train_epoch(task, phase, optimiser, params, constants, carry, key)
            if self._settings.optimiser.moments is AdamMoments.RUN and moving:
                moments |= name_moments(number, *optimiser.moments)
        trained = {name: value.detach().to("cpu", task.work.params[name].dtype) for name, value in params.items()}
        return Fit(trained, moments)

    def _train_epoch(
        self,
        task: Task,
        phase: Phase,
        optimiser: FunctionalAdam,
        params: Params,
        constants: Params,
        carry: Carry,
        key: Key,
    ) -> Carry:
        """Train for one epoch; `carry` is the state that the loss passes on from batch to batch."""
        records = task.client.records
        transform = self._federation.transform
        draws = draw_epoch(key, records, self._body, transform, self._settings.dtype)
        for value in optimiser.params:
            value.requires_grad_(True)
        for start in range(0, records, self._settings.batch_size):
            with CLOCK.time("gather"):
                batch = self._make_batch_from_draws(task, draws, slice(start, start + self._settings.batch_size))
            with CLOCK.time("forward"):
                features = self._compute_batch_features(task, params, batch)
                weights = features.new_full((len(batch.labels),), 1 / len(batch.labels))
                dropped = self._body.apply_last_dropout(features, batch.masks)
                seen = Batch(
                    features,
                    logits(dropped, params),
                    batch.labels,
                    weights,
                    phase.select_params_for_loss(params),
                    dropped,
                )
                loss, carry = phase.loss(seen, constants, carry)
            carry = {name: value.detach() for name, value in carry.items()}
            if optimiser.params:
                with CLOCK.time("backward"):
                    gradients = torch.autograd.grad(loss, optimiser.params, allow_unused=True)
                with CLOCK.time("optimiser"):
                    optimiser.step(gradients)
        for value in optimiser.params:
            value.requires_grad_(False)
        return carry

    def _compute_batch_features(self, task: Task, params: Params, batch: RecordBatch) -> Tensor:
        try:
            return self._body.compute_features(params, batch.inputs, batch.masks)
        except ValueError as error:
            # A normalisation layer cannot be trained with a single value per channel.
            size = len(batch.labels)
            raise RunError(
                f"client {task.client.name}: body {self._body.name} cannot train on a batch of {size}: {error}",
                hint="choose another --batch-size, or a body without batch normalisation",
            ) from error

    def _make_batch_from_draws(self, task: Task, draws: EpochDraws, at: slice) -> RecordBatch:
        """The batch of the records at the places `at` of the drawn order, with the drawn dropout masks and crops."""
        positions = task.client.train[draws.order[at]]
        raw = self._federation.train.inputs[positions]
        transform = self._federation.transform
        if draws.augmentation is None:
            inputs = transform.prepare(raw)
        else:
            a = draws.augmentation
            inputs = transform.augment(raw, Augmentation(a.top[at], a.left[at], a.flips[at]))
        labels = self._federation.train.labels[positions].to(self._device)
        masks = {site: mask[at].to(self._device) for site, mask in draws.masks.items()}
        return RecordBatch(self._move_to_device(inputs), labels, masks)

    def make_batch(self, task: Task, chosen: Tensor, key: Key) -> RecordBatch:
        """A batch of the client's records at the positions `chosen`, with new dropout masks and crops."""
        draws = draw_epoch(key, len(chosen), self._body, self._federation.transform, self._settings.dtype)
        return self._make_batch_from_draws(task, replace(draws, order=chosen), slice(None))

    @torch.no_grad()
    def _compute_requested_features(self, request: FeatureRequest) -> Tensor:
        if not len(request.positions):  # some layers, such as InstanceNorm, do not take a batch of no records
            return torch.zeros(0, self._body.width, dtype=self._settings.dtype)
        params = {name: self._move_to_device(value) for name, value in request.params.items()}
        inputs = request.pool.find_records(self._federation).inputs
        parts = [
            self._body.compute_features(
                params, self._move_to_device(self._federation.transform.prepare(inputs[part])), None
            ).cpu()
            for part in torch.split(request.positions, EVALUATION_BATCH)
        ]
        return torch.cat(parts)

    def _move_to_device(self, value: Tensor) -> Tensor:
        if value.is_floating_point():
            return value.to(self._device, self._settings.dtype)
        return value.to(self._device)
