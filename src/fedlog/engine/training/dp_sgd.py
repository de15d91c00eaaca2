"""The DP-SGD backend: trains one client after another with clipped gradients and noise.

Only the gradient of each record is computed by Opacus. Clipping, rounding, noise and sampling are those of
`fedlog.privacy.sgd`, because the privacy accounting assumes them: Opacus's own optimiser would draw floating-point
noise, and its data loaders would derive the sampling rate from the number of records, which is private.
"""

from __future__ import annotations

import copy
import importlib.util
import os
from typing import Any

import torch
from torch import Tensor, nn

from fedlog.algorithms.interface import Batch, Phase
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.engine.training.loop import FunctionalAdam, LoopBackend
from fedlog.engine.training.tasks import Fit, Settings, Task
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Body, Params, logits
from fedlog.models.masked_dropout import MaskedLayer
from fedlog.models.record_independence import explain_record_dependence
from fedlog.privacy.accounting import RandomSource
from fedlog.privacy.sgd import SgdTraining, draw_poisson_sample
from fedlog.settings.training import Optimiser

RECORDS_AT_ONCE = 64  # records whose gradients are computed together in a simulation


def require_opacus() -> None:
    """Raise an InputError if the optional package opacus is missing."""
    if importlib.util.find_spec("opacus") is None:
        raise InputError("--body-training dp-sgd needs the package opacus", hint='pip install "fedlog[dp-sgd]"')


def check_body(body: Body) -> None:
    """Refuse a body in which records affect each other, layers share parameters, or no parameter can be trained."""
    from opacus.validators import ModuleValidator  # here, because the import takes seconds

    reason = explain_record_dependence(body)
    if reason is None:
        unknown = ModuleValidator.validate(copy.deepcopy(body.training_module).requires_grad_(True), strict=False)
        reason = str(unknown[0]).splitlines()[0] if unknown else None
    if reason is not None:
        raise InputError(
            f"body {body.name} cannot be trained by DP-SGD: {reason}",
            hint="use a body without batch normalisation and without shared parameters, such as mlp or cnn",
        )
    if body.untrained_params == {name for name, _ in body.training_module.named_parameters()}:
        raise InputError(
            f"body {body.name} has no parameter to train: requires_grad is off for all", hint="--body-training frozen"
        )


class DpSgdBackend(LoopBackend):
    """Trains bodies by DP-SGD; the head that the server sent does not change."""

    def __init__(self, body: Body, federation: Federation, settings: Settings, training: SgdTraining) -> None:
        check_body(body)
        from opacus.grad_sample import GradSampleModule

        super().__init__(body, federation, settings)
        self._training = training
        module = copy.deepcopy(body.training_module).to(settings.dtype).requires_grad_(True)
        self._dropouts = {name: m for name, m in module.named_modules() if isinstance(m, MaskedLayer)}
        self._all_values = dict(module.named_parameters())
        self._values = {name: value for name, value in self._all_values.items() if name not in body.untrained_params}
        for name in body.untrained_params:
            self._all_values[name].requires_grad_(False)
        self._module: nn.Module = GradSampleModule(module, loss_reduction="sum")

    def _train_one(self, task: Task) -> Fit:
        (phase,) = task.phases
        self.set_parameters(task.work.params)
        optimiser = FunctionalAdam(list(self._values.values()), phase.learning_rate, Optimiser())
        for step in range(self._training.plan.steps):
            optimiser.step(self._compute_noisy_gradients(task, phase, task.key.child("step", step)))
        trained = {name: value.detach().clone() for name, value in self._values.items()}
        return Fit({name: trained.get(name, value).to(value.dtype) for name, value in task.work.params.items()})

    @torch.no_grad()
    def set_parameters(self, params: Params) -> None:
        """Set the parameters at which the next gradients are computed."""
        for name, value in self._all_values.items():
            value.copy_(params[name])

    def _compute_noisy_gradients(self, task: Task, phase: Phase, key: Key) -> list[Tensor]:
        """The private gradient of one step: the noisy sum of the sampled records' gradients / the batch size."""
        plan, sampler = self._training.plan, self._training.sampler(key.child("noise"))
        # Sampling protects only if it is secret, so in a real run it comes from the system, like the noise. So do
        # dropout and crops: they depend on a record's place in the sample, so known ones would reveal it.
        secret = None if sampler.entropy is RandomSource.SYSTEM else key.child("sample")
        seen = Key(int.from_bytes(os.urandom(16))) if sampler.entropy is RandomSource.SYSTEM else key.child("draws")
        drawn = draw_poisson_sample(task.client.records, plan.sample_rate, secret)
        sizes = [value.numel() for value in self._values.values()]
        total = torch.zeros(sum(sizes), dtype=torch.float64)
        # Rounding of a gradient depends on the records computed with it, so in a real run each is computed alone.
        at_once = 1 if sampler.entropy is RandomSource.SYSTEM else RECORDS_AT_ONCE
        for number, some in enumerate(torch.split(drawn, at_once)):
            if len(some):
                total += plan.clip_gradients(self.compute_record_gradients(task, phase, some, seen.child(number))).sum(
                    0
                )
        noisy = total + sampler.draw(total.shape, plan.std)
        parts = torch.split(noisy / self._settings.batch_size, sizes)
        return [
            part.reshape(value.shape).to(value.dtype) for part, value in zip(parts, self._values.values(), strict=True)
        ]

    def compute_record_gradients(self, task: Task, phase: Phase, drawn: Tensor, key: Key) -> Tensor:
        """For each record at the positions `drawn`, the gradient of its loss, (n, d), before clipping and noise."""
        seen = self.make_batch(task, drawn, key)
        for name, layer in self._dropouts.items():
            layer.mask = seen.masks.get(name, torch.ones(()))
        for value in self._values.values():
            value.grad = None
        features = self._body.clip_features(
            self._module(seen.inputs.requires_grad_(True))
        )  # Opacus listens to every layer's inputs
        weights = features.new_ones(len(seen.labels))
        params = {HEAD: task.work.params[HEAD].to(features.dtype)}
        dropped = self._body.apply_last_dropout(features, seen.masks)
        batch = Batch(features, logits(dropped, params), seen.labels, weights, after_dropout=dropped)
        if phase.reads_params:
            return self._compute_layer_and_direct_gradients(task, phase, batch)
        loss, _ = phase.loss(batch, task.work.constants, task.work.carry)
        loss.backward()  # type: ignore[no-untyped-call]
        return self._compute_layer_gradients(len(drawn))

    def _compute_layer_gradients(self, records: int) -> Tensor:
        """Each record's gradient through the body's layers, (n, d)."""
        return torch.cat([_take_record_gradients(value, records) for value in self._values.values()], dim=1)

    def _compute_layer_and_direct_gradients(self, task: Task, phase: Phase, batch: Batch) -> Tensor:
        """Each record's gradient, (n, d), for a loss that also reads the parameters directly.

        Opacus gives only the gradient through the layers. So the loss sees each record as a client with its own copy of
        the parameters, and the gradient of the copy is added.
        """
        records = len(batch.labels)

        def expand_to_records(values: Params) -> Params:
            return {name: value.expand(records, *value.shape) for name, value in values.items()}

        model = {name: self._all_values.get(name, value).detach() for name, value in task.work.params.items()}
        copies = expand_to_records({name: value.to(batch.features.dtype) for name, value in model.items()})
        direct = {name: copies[name].clone().requires_grad_(True) for name in self._values}
        apart = Batch(
            batch.features[:, None],
            batch.logits[:, None],
            batch.labels[:, None],
            batch.weights[:, None],
            {**copies, **direct},
            None if batch.after_dropout is None else batch.after_dropout[:, None],
        )
        losses, _ = phase.loss(apart, expand_to_records(task.work.constants), expand_to_records(dict(task.work.carry)))
        losses.sum().backward()  # type: ignore[no-untyped-call]
        grads = [torch.zeros_like(value) if value.grad is None else value.grad for value in direct.values()]
        return self._compute_layer_gradients(records) + torch.cat([grad.reshape(records, -1) for grad in grads], dim=1)


def _take_record_gradients(value: Any, records: int) -> Tensor:
    """Each record's gradient of one parameter, (n, entries), as Opacus stored it; zeros for an unused parameter."""
    found = getattr(value, "grad_sample", None)
    rows = torch.zeros(records, value.numel()) if found is None else found.detach().reshape(records, -1)
    value.grad_sample = None
    return rows
