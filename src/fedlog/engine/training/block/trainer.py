"""The block backend: trains clients with the same body together, their tensors stacked, in chunks that fit the cache.

The clients of a chunk are sorted by their number of records. So the clients that still have a batch are always the
first ones of the stack. A client that has finished costs nothing, and its Adam moments do not change. Short batches are
padded with records of weight 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.algorithms.interface import Batch, Carry, Phase, cross_entropy
from fedlog.data.federation import Federation
from fedlog.engine.clients import Client
from fedlog.engine.training.block.adam import FlatAdam
from fedlog.engine.training.block.chain import ChainPasses
from fedlog.engine.training.block.chain_training import ChainTraining, ShuffledRecords
from fedlog.engine.training.block.memory import keep_freed_memory
from fedlog.engine.training.block.network import Stacked, StackedBody, choose_feed
from fedlog.engine.training.block.passes import Gradients, PlainPasses, compute_cross_entropy_gradients, make_passes
from fedlog.engine.training.tasks import (
    CLOCK,
    FeatureRequest,
    Fit,
    RecordPool,
    Settings,
    Task,
    draw_order_and_crops,
    list_trained_parameters,
    make_dropout_multipliers,
    name_moments,
    read_moments,
)
from fedlog.models.body import HEAD, QUADRATIC, SHIFT, Body, Params, logits
from fedlog.settings.training import AdamMoments

EVALUATION_RECORDS = 50  # records of each client that are evaluated at once


@dataclass(frozen=True, eq=False)
class _ChunkBatch:
    """One batch of each client in a chunk: inputs, dropout multipliers, labels and weights."""

    inputs: Tensor
    masks: dict[str, Tensor]
    labels: Tensor  # (C, B)
    weights: Tensor  # (C, B)


class BlockBackend:
    """Trains clients with the same body together on the CPU, their tensors stacked."""

    def __init__(
        self,
        body: Body,
        federation: Federation,
        clients: Sequence[Client],
        settings: Settings,
        network: Stacked,
        clients_at_once: int,
        requests_at_once: int | None = None,
        records_at_once: int = EVALUATION_RECORDS,
    ) -> None:
        keep_freed_memory()
        self.clients_at_once = clients_at_once
        self._requests_at_once = requests_at_once
        self._records_at_once = records_at_once
        self._body = body
        self._settings = settings
        self._network = network
        self._passes = make_passes(network.training) if isinstance(network, StackedBody) else None
        self._one_by_one = None
        if isinstance(self._passes, ChainPasses):
            self._one_by_one = ChainTraining(self._passes.stage)
        evaluating = make_passes(network.evaluating) if isinstance(network, StackedBody) else None
        self._evaluation = evaluating if isinstance(evaluating, PlainPasses) else None  # chains keep nothing anyway
        self._own_names = {name for layer in body.layers for name in layer}
        self._transform = federation.transform
        self._labels = federation.train.labels
        held_out = [part for c in clients for part in c.validations]
        trained_on = [c.train for c in clients]
        tested_on = [part for c in clients for part in c.tests]
        self._feeds = {
            RecordPool.TRAIN: choose_feed(
                network, federation.train, federation.transform, trained_on + held_out, settings
            ),
            RecordPool.TEST: choose_feed(network, federation.test, federation.transform, tested_on, settings),
        }

    def train(self, tasks: Sequence[Task]) -> list[Fit]:
        """Do these tasks together, and return the result of each, in order."""
        order = sorted(range(len(tasks)), key=lambda at: -tasks[at].client.records)
        stacked, moments = self._train_chunk([tasks[at] for at in order])
        fits = [Fit({})] * len(tasks)
        for row, at in enumerate(order):
            params = {n: v[row].to("cpu", tasks[at].work.params[n].dtype) for n, v in stacked.items()}
            fits[at] = Fit(params, moments[row])
        return fits

    @torch.inference_mode()
    def compute_features(self, requests: Sequence[FeatureRequest]) -> list[Tensor]:
        """The features (n, width) of each request, in evaluation mode."""
        size = self._requests_at_once or max(len(requests), 1)
        parts = [requests[at : at + size] for at in range(0, len(requests), size)]
        return [found for part in parts for found in self._compute_stacked_features(part)]

    def _compute_stacked_features(self, requests: Sequence[FeatureRequest]) -> list[Tensor]:
        order = sorted(range(len(requests)), key=lambda at: -len(requests[at].positions))
        params = _stack([requests[at].params for at in order], self._settings)
        sizes = [len(requests[at].positions) for at in order]
        positions = _stack_padded([requests[at].positions for at in order])
        feed = self._feeds[requests[0].pool]
        parts, records = [], self._records_at_once
        for start in range(0, max(sizes), records):
            active = sum(size > start for size in sizes)
            batch = feed.gather(positions[:active, start : start + records])
            parts.append(self._body.clip_features(self._evaluate(_take_first_clients(params, active), batch)))
        each = [torch.zeros(0)] * len(requests)
        for row, at in enumerate(order):
            rows = [part[row] for part in parts if row < len(part)]
            empty = torch.zeros(0, self._body.width, dtype=self._settings.dtype)
            each[at] = torch.cat(rows)[: sizes[row]].cpu() if rows else empty
        return each

    def _evaluate(self, params: Params, batch: Tensor) -> Tensor:
        """The features of a batch in evaluation mode."""
        if self._evaluation is not None:
            return self._evaluation.evaluate(params, batch)
        return self._network.compute_features(params, batch, None)

    def _train_chunk(self, tasks: list[Task]) -> tuple[Params, list[Params]]:
        """Do these tasks together; the client with the most records must come first.

        Return the stacked parameters, and Adam's moments of each task.
        """
        rule = self._settings.optimiser
        params = _stack([task.work.params for task in tasks], self._settings)
        constants = _stack([task.work.constants for task in tasks], self._settings)
        moments: list[Params] = [{} for _ in tasks]
        weights = self._compute_weights(tasks)
        for number, phase in enumerate(tasks[0].phases):
            carry: Carry = _stack([task.work.carry for task in tasks], self._settings)
            trained = list_trained_parameters(params, phase, self._body)
            if not trained:
                continue
            adam = FlatAdam({name: params[name] for name in trained}, phase.learning_rate, rule)
            frozen = {name: value for name, value in params.items() if name not in trained}
            for row, task in enumerate(tasks):
                if (before := read_moments(task.moments, number)) is not None:
                    adam.resume(row, *before)
            for epoch in range(phase.epochs):
                if rule.moments is AdamMoments.EPOCH:
                    adam.restart()
                with CLOCK.time("gather"):
                    drawn = self._draw_epoch(tasks, number, epoch, weights)
                carry = self._train_epoch(tasks, phase, adam, frozen, constants, carry, drawn)
            params = {**frozen, **adam.get_parameters()}
            if rule.moments is AdamMoments.RUN:
                for row, mine in enumerate(moments):
                    mine |= name_moments(number, *(value.cpu() for value in adam.get_moments(row)))
        return params, moments

    def _train_epoch(
        self,
        tasks: list[Task],
        phase: Phase,
        adam: FlatAdam,
        frozen: Params,
        constants: Params,
        carry: Carry,
        drawn: ShuffledRecords,
    ) -> Carry:
        size = self._settings.batch_size
        records = [task.client.records for task in tasks]
        if self._one_by_one is not None and self._can_train_one_by_one(
            phase, {**frozen, **adam.get_parameters()}, adam, drawn
        ):
            self._one_by_one.train_epoch(adam, frozen, records, size, drawn, self._feeds[RecordPool.TRAIN])
            return carry
        for start in range(0, max(records), size):
            active = sum(count > start for count in records)
            longest = min(size, records[0] - start)
            at = (slice(0, active), slice(start, start + longest))
            trained = adam.get_leaves(active)
            params = {**_take_first_clients(frozen, active), **trained}
            masks = {site: mask[at] for site, mask in drawn.masks.items()}
            crops = None if drawn.crops is None else drawn.crops[:, at[0], at[1]]
            with CLOCK.time("gather"):
                inputs = self._feeds[RecordPool.TRAIN].gather(drawn.positions[at], crops)
            batch = _ChunkBatch(inputs, masks, drawn.labels[at], drawn.weights[at])
            gradients, after = self._compute_gradients(
                phase,
                params,
                list(trained),
                batch,
                _take_first_clients(constants, active),
                _take_first_clients(carry, active),
            )
            with CLOCK.time("optimiser"):
                adam.step(active, gradients)
            carry = {name: _replace_first_clients(carry[name], value.detach()) for name, value in after.items()}
        return carry

    def _compute_gradients(
        self, phase: Phase, params: Params, trained: list[str], batch: _ChunkBatch, constants: Params, carry: Carry
    ) -> tuple[Sequence[Tensor | None], Carry]:
        """The gradients of the parameters `trained`, in order, and what the loss passes on to the next batch."""
        if self._passes is None or phase.reads_params:
            with CLOCK.time("forward"):
                features = self._network.compute_features(params, batch.inputs, batch.masks)
                losses, after = self._compute_loss(phase, params, features, batch, constants, carry)
            with CLOCK.time("backward"):
                leaves = [params[name] for name in trained]
                return torch.autograd.grad(losses.sum(), leaves, allow_unused=True), after
        with CLOCK.time("forward"), torch.no_grad():
            features, tape = self._passes.forward(params, batch.inputs, batch.masks)
        # Behind the body, the loss is differentiated by autograd unless it is the usual one.
        outside = [name for name in trained if name not in self._own_names]
        if self._is_plain_cross_entropy(phase, params, outside):
            with CLOCK.time("forward"), torch.no_grad():
                dropped = self._body.apply_last_dropout(features, batch.masks)
                scores = logits(dropped, params)
            with CLOCK.time("backward"), torch.no_grad():
                of_dropped, of_head = compute_cross_entropy_gradients(
                    dropped, scores, batch.labels, batch.weights, params[HEAD], HEAD in outside
                )
                found: Gradients = {HEAD: of_head}
                of_features: Tensor | None = self._body.apply_last_dropout(of_dropped, batch.masks)
                after = carry
        else:
            with CLOCK.time("forward"):
                losses, after = self._compute_loss(phase, params, features.requires_grad_(), batch, constants, carry)
            with CLOCK.time("backward"):
                leaves = [features, *(params[name] for name in outside)]
                of_features, *others = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
                found = dict(zip(outside, others, strict=True))
        with CLOCK.time("backward"), torch.no_grad():
            if of_features is not None:
                found |= self._passes.backward(tape, of_features, trained)
            return [found.get(name) for name in trained], after

    def _can_train_one_by_one(self, phase: Phase, params: Params, adam: FlatAdam, drawn: ShuffledRecords) -> bool:
        """Whether `ChainTraining` can train these clients: there is no dropout, and the loss is plain cross-entropy."""
        names = list(adam.get_parameters())
        outside = [name for name in names if name not in self._own_names]
        usual = not drawn.masks and not phase.reads_params and self._is_plain_cross_entropy(phase, params, outside)
        return usual and self._one_by_one is not None and {*names} <= self._one_by_one.names

    def _is_plain_cross_entropy(self, phase: Phase, params: Params, outside: list[str]) -> bool:
        """Whether the loss is cross-entropy of the logits of a linear head, so that its gradient has a formula.

        The formula covers no alpha dropout in front of the head.

        `outside` are the trained parameters that are not in the body.
        """
        plain = phase.loss is cross_entropy and self._body.clip is None and not self._body.ends_with_alpha_dropout
        return plain and SHIFT not in params and QUADRATIC not in params and outside in ([], [HEAD])

    def _compute_loss(
        self, phase: Phase, params: Params, features: Tensor, batch: _ChunkBatch, constants: Params, carry: Carry
    ) -> tuple[Tensor, Carry]:
        """The loss of each client, from its features, and what the loss passes on to the next batch."""
        features = self._body.clip_features(features)
        dropped = self._body.apply_last_dropout(features, batch.masks)
        view = phase.select_params_for_loss(params)
        seen = Batch(features, logits(dropped, params), batch.labels, batch.weights, view, dropped)
        return phase.loss(seen, constants, carry)

    def _draw_epoch(self, tasks: list[Task], phase: int, epoch: int, weights: Tensor) -> ShuffledRecords:
        dtype, device = self._settings.dtype, self._settings.device
        clients, longest = weights.shape
        # Padding gets -1, which is below every p: its multipliers are 0.
        uniform = {site.name: torch.full((clients, longest, *site.shape), -1.0) for site in self._body.dropout}
        positions = torch.zeros(clients, longest, dtype=torch.int64)
        crops = torch.zeros(3, clients, longest, dtype=torch.int64) if self._transform.augments else None
        for row, task in enumerate(tasks):
            records = task.client.records
            own = [each[row, :records] for each in uniform.values()]
            key = task.key.child("phase", phase, "epoch", epoch)
            order, augmentation = draw_order_and_crops(key, records, self._transform, own)
            torch.index_select(task.client.train, 0, order, out=positions[row, :records])
            if crops is not None and augmentation is not None:
                for part, drawn in enumerate((augmentation.top, augmentation.left, augmentation.flips)):
                    crops[part, row, :records] = drawn
        return ShuffledRecords(
            positions,
            self._labels[positions].to(device),
            weights,
            crops,
            {
                site.name: make_dropout_multipliers(uniform[site.name], site.p, dtype).to(device)
                for site in self._body.dropout
            },
        )

    def _compute_weights(self, tasks: list[Task]) -> Tensor:
        """The weight of each record of each client, (C, n), 0 on padding."""
        settings = self._settings
        each = [compute_batch_weights(task.client.records, settings.batch_size, settings.dtype) for task in tasks]
        return _stack_padded(each).to(settings.device)


def compute_batch_weights(records: int, batch_size: int, dtype: torch.dtype) -> Tensor:
    """The weight of each of a client's records, (records,): 1 / (size of its batch); the last batch may be short."""
    starts = torch.arange(records) // batch_size * batch_size
    return 1 / (records - starts).clamp(max=batch_size).to(dtype)


def _stack_padded(rows: list[Tensor]) -> Tensor:
    """Stack the rows as (C, longest, ...), and fill up short rows with zeros."""
    longest = max(len(row) for row in rows)
    if all(len(row) == longest for row in rows):
        return torch.stack(rows)
    padded = rows[0].new_zeros(len(rows), longest, *rows[0].shape[1:])
    for at, row in enumerate(rows):
        padded[at, : len(row)] = row
    return padded


def _stack(each: Sequence[Mapping[str, Tensor]], settings: Settings) -> Params:
    return {name: _stack_or_view([_cast(values[name], settings) for values in each]) for name in each[0]}


def _stack_or_view(rows: Sequence[Tensor]) -> Tensor:
    """Stack the tensors; if they already lie at equal distances in one tensor, return a view of it, not a copy."""
    first = rows[0]
    step = rows[1].storage_offset() - first.storage_offset() if len(rows) > 1 else 0
    whole = first.untyped_storage().data_ptr()
    if step < max(1, first.numel()) or any(
        row.storage_offset() != first.storage_offset() + at * step
        or row.stride() != first.stride()
        or row.untyped_storage().data_ptr() != whole
        for at, row in enumerate(rows)
    ):
        return torch.stack(list(rows))
    return first.as_strided((len(rows), *first.shape), (step, *first.stride()))


def _cast(value: Tensor, settings: Settings) -> Tensor:
    return value.to(settings.device, settings.dtype if value.is_floating_point() else value.dtype)


def _take_first_clients(stacked: Mapping[str, Tensor], count: int) -> Params:
    return {name: value[:count] for name, value in stacked.items()}


def _replace_first_clients(stacked: Tensor, first: Tensor) -> Tensor:
    return first if len(first) == len(stacked) else torch.cat([first, stacked[len(first) :]])
