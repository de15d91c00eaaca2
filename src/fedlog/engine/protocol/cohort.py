"""A cohort: the client side of the protocol, for one client (at a site) or many (in a worker of the simulator).

A cohort holds the state of its clients, decodes broadcasts, does the local work and returns encoded uploads. Nothing
else leaves it, except scores if it is asked to evaluate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedlog.algorithms.interface import Algorithm, Exchange, FeatureSummary, HasCandidates, Phase, Work, WorkResult
from fedlog.core.classification import choose_nearly_best
from fedlog.core.heads.mixtures import fit_mixtures
from fedlog.core.heads.regression import compute_number_metrics
from fedlog.core.keys import Key
from fedlog.core.stats import Moments, Statistics
from fedlog.data.federation import Federation
from fedlog.data.schema import compute_half_width
from fedlog.engine.clients import Client
from fedlog.engine.protocol.client_store import ClientStore, read_clients, write_clients
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import CLOCK, Backend, FeatureRequest, Fit, RecordPool, Task
from fedlog.errors import RunError
from fedlog.models.body import HEAD, QUADRATIC, SHIFT, Params, draw_initial_head, find_number_head, logits
from fedlog.models.weights_file import name_weights_file, write_weights
from fedlog.privacy.guarantee import Unit
from fedlog.privacy.protection import Protection
from fedlog.settings.training import HeldOutRecords, Initialisation
from fedlog.wire.message import Kind, Message
from fedlog.wire.transport import PAPER_TRANSPORT, Transport, compute_relative_change


@dataclass(frozen=True)
class Score:
    """How many of a client's held-out records its model classifies correctly.

    For a model that predicts numbers: how many lie inside their 90 % intervals, and the root mean squared error.
    """

    correct: int
    records: int
    rmse: float | None = None

    @property
    def share_correct(self) -> float | None:
        """The share of correct records; None without records."""
        return self.correct / self.records if self.records else None


class Cohort:
    """Some of the clients of a run: keeps their state, and does their training and evaluation."""

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        clients: Iterable[Client],
        engine: Engine,
        key: Key,
        transport: Transport = PAPER_TRANSPORT,
        initialisation: Initialisation = Initialisation.SHARED,
        protection: Protection | None = None,
    ) -> None:
        self._algorithm = algorithm
        self._protection = protection
        self._federation = federation
        self._range = federation.target_range
        self._clients = {client.index: client for client in clients}
        self._backends = engine.adapt_to_protection(protection).make_backends(federation, self._clients.values())
        self._transport = transport
        self._key = key
        self.chosen: dict[int, str] = {}  # by client: the candidate it chose last, if the method offers several
        self.store = ClientStore(self._make_initial_states(initialisation))

    def _make_initial_states(self, initialisation: Initialisation) -> dict[int, Params]:
        """The state of each client before the first exchange, by the number of the client."""
        key, shared, homes = self._key.child("initial"), dict[str, Params](), dict[int, Params]()
        for client in self._clients.values():
            if initialisation is Initialisation.SEPARATE:
                initial = self._make_initial_model(client, key.child(client.name))
            else:
                if client.body.name not in shared:
                    shared[client.body.name] = self._make_initial_model(client, key)
                initial = shared[client.body.name]
            homes[client.index] = self._algorithm.join(initial)
        return homes

    def _make_initial_model(self, client: Client, key: Key) -> Params:
        """The client's untrained model: its body, drawn from this key, and the initial head that all clients share."""
        head = draw_initial_head(client.body.width, self._federation.n_class, self._key.child("initial", "head"))
        return {**client.body.make_initial_params(key.child("body")), HEAD: head}

    def receive_broadcast(self, blob: bytes) -> None:
        """Decode a broadcast that is the same for all clients, and update the received parameters by it."""
        self.store.received_params = self._algorithm.receive(
            self._transport.broadcast_codec.decode(blob), self.store.received_params
        )

    def receive_own_broadcasts(self, blobs: Mapping[int, bytes], unknown: Collection[int] = ()) -> None:
        """Decode a separate broadcast for each of these clients.

        The server does not know the last messages of the clients in `unknown`, so these clients first forget them too.
        """
        self.store.messages.forget(unknown)
        self.store.messages.decode_broadcasts(blobs, self._transport, self._algorithm, self.store.received_params)

    def make_encoded_uploads(
        self, round_number: int, exchange: Exchange, indices: Sequence[int]
    ) -> list[tuple[int, bytes | None]]:
        """Do the local work of these clients, and return (number of the client, encoded upload) for each.

        If the method sends no upload in this exchange, all uploads are None.
        """
        uploads: list[tuple[int, bytes | None]] = []
        for client, message in self.make_uploads(round_number, exchange, indices):
            key = self._derive_work_key(client, round_number, exchange, "wire")
            with CLOCK.time("encode"):
                uploads.append((client.index, None if message is None else self._encode(client.index, message, key)))
        return uploads

    def count_clients_trained_together(self) -> int:
        """The largest number of clients that one of the backends trains together."""
        return max(backend.clients_at_once for backend in self._backends.values())

    def read_and_reset_times(self) -> dict[str, float]:
        """Return the seconds that this process spent on each part of the work, and reset them to 0."""
        return CLOCK.read_and_reset()

    def _encode(self, index: int, message: Message, key: Key) -> bytes:
        """Encode the upload, or only the message "unchanged" (SAME) if it hardly differs from the client's last one."""
        codec = self._transport.upload_codec
        if self._transport.skip_below is None:
            return codec.encode(message, key)
        last = self.store.messages.sent.get(index)
        if last is not None and compute_relative_change(message, last) < self._transport.skip_below:
            return codec.encode(Message(Kind.SAME, ()), known=last)
        blob = codec.encode(message, key)
        self.store.messages.sent[index] = codec.decode(blob)
        return blob

    def make_uploads(
        self, round_number: int, exchange: Exchange, indices: Sequence[int]
    ) -> Iterator[tuple[Client, Message | None]]:
        """Do the local work of these clients, and yield (client, upload before encoding), with privacy noise if any."""
        for backend, group in self._group_by_backend(indices):
            for client, work, trained in self._train_and_summarise(backend, group, round_number, exchange):
                home, message = self._algorithm.finish_exchange(
                    exchange.name, self.store.homes[client.index], work, trained
                )
                self.store.homes[client.index] = _copy(home)
                if message is not None and self._protection is not None:
                    key = self._derive_work_key(client, round_number, exchange, "noise")
                    message = self._protection.protect(message, key)
                yield client, message

    def evaluate(
        self, indices: Sequence[int], held_out: HeldOutRecords = HeldOutRecords.TEST, closing: tuple[Phase, ...] = ()
    ) -> list[tuple[int, tuple[Score, ...]]]:
        """The scores of these clients' models on their test or validation records, as `held_out` says.

        A client has one score for each of its sets of held-out records. Copies of the models are first trained by the
        phases that end a run (`closing`). The clients' state does not change.
        """
        scores = []
        for backend, group in self._group_by_backend(indices):
            models = self._make_final_models(backend, group, closing)
            with CLOCK.time("evaluate"):
                scores += self._score(backend, group, models, held_out)
        return scores

    def make_personal_models(self, closing: tuple[Phase, ...], indices: Sequence[int]) -> Iterator[tuple[int, Params]]:
        """Yield (number of the client, personal model), each trained by the phases that end a run (`closing`)."""
        for backend, group in self._group_by_backend(indices):
            yield from self._make_final_models(backend, group, closing).items()

    def save_models(self, closing: tuple[Phase, ...], indices: Sequence[int], folder: Path) -> None:
        """Write the personal model of each client as `<client>.safetensors`, trained by the `closing` phases."""
        for index, params in self.make_personal_models(closing, indices):
            client = self._clients[index]
            path = folder / name_weights_file(client.name)
            write_weights(path, params, self._algorithm.name, client.body.name)

    def save(self, path: Path) -> None:
        """Write the state of the clients to a file."""
        write_clients(path, self.store)

    def load(self, paths: Sequence[Path]) -> None:
        """Read the state of this cohort's clients from files that `save` wrote; other clients in them are skipped."""
        self.store = read_clients(paths, {index: client.name for index, client in self._clients.items()})

    def _group_by_backend(self, indices: Sequence[int]) -> Iterator[tuple[Backend, list[Client]]]:
        """Yield (backend, clients that it trains together); clients with the most records come first.

        All clients of a group have the same body, and there are at most `clients_at_once` of them.
        """
        chosen = sorted((self._clients[index] for index in indices), key=lambda client: (-client.records, client.index))
        for name, backend in self._backends.items():
            clients = [client for client in chosen if client.body.name == name]
            for start in range(0, len(clients), backend.clients_at_once):
                yield backend, clients[start : start + backend.clients_at_once]

    def _train_and_summarise(
        self, backend: Backend, group: list[Client], round_number: int, exchange: Exchange
    ) -> Iterator[tuple[Client, Work, WorkResult]]:
        homes, received = self.store.homes, self.store.get_received_params
        works = [self._algorithm.start_exchange(exchange.name, homes[c.index], received(c.index)) for c in group]
        keys = [self._derive_work_key(c, round_number, exchange) for c in group]
        moments = [self.store.moments.get((c.index, exchange.name), {}) for c in group]
        tasks = [Task(c, w, exchange.phases, k, m) for c, w, k, m in zip(group, works, keys, moments, strict=True)]
        fits = backend.train(tasks) if exchange.phases else [Fit(work.params) for work in works]
        if self._protection is not None:
            # An error that depends on the data would leak: a client that diverges keeps its old parameters.
            before = [Fit(work.params, kept) for work, kept in zip(works, moments, strict=True)]
            fits = [old if _find_not_finite(fit.params) else fit for fit, old in zip(fits, before, strict=True)]
        for client, fit in zip(group, fits, strict=True):
            if fit.moments:
                self.store.moments[client.index, exchange.name] = _copy(fit.moments)
        trained = [fit.params for fit in fits]
        requests = [FeatureRequest(c, p, RecordPool.TRAIN, c.train) for c, p in zip(group, trained, strict=True)]
        summaries = CLOCK.time_items("statistics", self._summarise(backend, requests, exchange))
        for client, work, params, summary in zip(group, works, trained, summaries, strict=True):
            if name := _find_not_finite(params):
                raise RunError(
                    f"training diverged: client {client.name}, round {round_number}, parameter {name} is not finite",
                    hint="lower the learning rate; with fedlog-c, lower beta or set a margin",
                )
            yield client, work, replace(summary, params=params, records=client.records)

    def _summarise(
        self, backend: Backend, requests: Sequence[FeatureRequest], exchange: Exchange
    ) -> Iterator[WorkResult]:
        """Yield what the exchange asks for about each request's records: class sums, Gaussian mixtures or nothing."""
        nothing = WorkResult({}, Statistics.zeros(0, 1), 0)
        if exchange.summary in (FeatureSummary.STATISTICS, FeatureSummary.NUMBERS):
            for moments in self._sum_moments(backend, requests, exchange):
                yield replace(nothing, statistics=moments.statistics, second=moments.second)
        elif exchange.summary is FeatureSummary.MIXTURES:
            labels, n_class = self._federation.train.labels, self._federation.n_class
            for request, features in zip(requests, backend.compute_features(requests), strict=True):
                own = labels[request.positions]
                # The key of round 1 in every round: other Gaussians of the same records would say more about them.
                key = self._derive_work_key(request.client, 1, exchange)
                mixtures = fit_mixtures(features, own, n_class, exchange.parts, key, exchange.fewest)
                yield replace(nothing, mixtures=mixtures)
        else:
            yield from [nothing] * len(requests)

    def _sum_moments(
        self, backend: Backend, requests: Sequence[FeatureRequest], exchange: Exchange
    ) -> Iterator[Moments]:
        """Yield the sums of features by class over each request's records; features are clipped in a private run."""
        protection, labels, n_class = self._protection, self._federation.train.labels, self._federation.n_class
        summarise = Moments.from_records if protection is None else protection.sum_moments
        for request, features in self._list_features_to_sum(backend, requests):
            if exchange.summary is FeatureSummary.NUMBERS:
                numbers = self._federation.train.required_targets[request.positions].to(features)
                # In a private run the number to predict is cut to its agreed range.
                numbers = numbers if protection is None else numbers.clamp(-1, 1)
                features = torch.cat([features, numbers[:, None]], dim=1)
            yield summarise(features, labels[request.positions], n_class, exchange.detail)

    def _list_features_to_sum(
        self, backend: Backend, requests: Sequence[FeatureRequest]
    ) -> Iterator[tuple[FeatureRequest, Tensor]]:
        """Yield (request, features of its records).

        If privacy protects single records, the features of each record are computed in a call of their own.
        """
        protection = self._protection
        if protection is None or protection.mechanism.unit is not Unit.RECORD:
            yield from zip(requests, backend.compute_features(requests), strict=True)
            return
        # One call for each record: rounding depends on the number of records in a call, so otherwise one more record
        # could change the features of the others.
        for request in requests:
            alone = [
                backend.compute_features([replace(request, positions=at)])[0]
                for at in torch.split(request.positions, 1)
            ]
            yield request, torch.cat(alone) if alone else torch.zeros(0, request.client.body.width)

    def _derive_work_key(self, client: Client, round_number: int, exchange: Exchange, *purpose: str) -> Key:
        return self._key.child("client", client.name, "round", round_number, exchange.name, *purpose)

    def _make_final_models(
        self, backend: Backend, group: list[Client], closing: tuple[Phase, ...]
    ) -> dict[int, Params]:
        """Each client's model, trained by the phases that end a run (`closing`), if there are any."""
        models = self._choose_models(backend, group)
        if not closing:
            return models
        keys = [self._key.child("client", c.name, "closing") for c in group]
        tasks = [Task(c, Work(models[c.index]), closing, k) for c, k in zip(group, keys, strict=True)]
        return {c.index: fit.params for c, fit in zip(group, backend.train(tasks), strict=True)}

    def _choose_models(self, backend: Backend, group: list[Client]) -> dict[int, Params]:
        """Each client's model; if the method offers several, the client's validation records decide.

        The first model that is nearly as good as the best is taken (`choose_nearly_best`).
        """
        homes, received = self.store.homes, self.store.get_received_params
        models = {c.index: self._algorithm.deploy(homes[c.index], received(c.index)) for c in group}
        if not isinstance(self._algorithm, HasCandidates):
            return models
        labels = self._federation.train.labels
        for client in group:
            held_out = torch.cat(client.validations)
            if not len(held_out):
                continue  # nothing to choose with, so no candidate needs to be solved
            candidates = self._algorithm.candidates(homes[client.index], received(client.index))
            if not candidates:
                continue
            # One pass through the body is enough: candidates differ only in their heads.
            (features,) = backend.compute_features(
                [FeatureRequest(client, candidates[0][1], RecordPool.TRAIN, held_out)]
            )
            right = [
                int((logits(features, _cast_head(model, features)).argmax(1) == labels[held_out]).sum())
                for _, model in candidates
            ]
            best = choose_nearly_best(right, len(held_out))
            models[client.index], self.chosen[client.index] = candidates[best][1], candidates[best][0]
        return models

    def _score(
        self, backend: Backend, group: list[Client], models: Mapping[int, Params], held_out: HeldOutRecords
    ) -> list[tuple[int, tuple[Score, ...]]]:
        pool = RecordPool.TEST if held_out is HeldOutRecords.TEST else RecordPool.TRAIN
        labels = pool.find_records(self._federation).labels
        positions = {c.index: c.tests if held_out is HeldOutRecords.TEST else c.validations for c in group}
        requests = [FeatureRequest(c, models[c.index], pool, torch.cat(positions[c.index])) for c in group]
        scores = []
        for request, features in zip(requests, backend.compute_features(requests), strict=True):
            sizes = [len(part) for part in positions[request.client.index]]
            if self._range is not None:
                scores.append((request.client.index, self._score_numbers(request, features, sizes, self._range)))
                continue
            right = logits(features, _cast_head(request.params, features)).argmax(1) == labels[request.positions]
            parts = torch.split(right, sizes)
            scores.append((request.client.index, tuple(Score(int(part.sum()), len(part)) for part in parts)))
        return scores

    def _score_numbers(
        self, request: FeatureRequest, features: Tensor, sizes: list[int], value_range: tuple[float, float]
    ) -> tuple[Score, ...]:
        """The scores of a model that predicts numbers: one for each set of records, whose sizes are in `sizes`."""
        truth = request.pool.find_records(self._federation).required_targets[request.positions]
        head, unit = find_number_head(request.params), compute_half_width(value_range)
        found = [
            compute_number_metrics(head, phi, own, unit)
            for phi, own in zip(torch.split(features, sizes), torch.split(truth, sizes), strict=True)
        ]
        return tuple(Score(round((each.inside or 0.0) * each.records), each.records, each.rmse) for each in found)


def _copy(params: Params) -> Params:
    """Copy the parameters: a view would keep in memory the tensors of all clients that were trained together."""
    return {name: value.clone() for name, value in params.items()}


def _cast_head(params: Params, features: Tensor) -> Params:
    return {name: value.to(features.dtype) for name, value in params.items() if name in (HEAD, SHIFT, QUADRATIC)}


def _find_not_finite(params: Params) -> str | None:
    """The name of the first parameter that has a NaN or an infinite number; None if there is none."""
    for name, value in params.items():
        # A finite sum shows fast that all numbers are finite. If it is not finite, it may only have overflowed.
        if not math.isfinite(value.sum().item()) and not bool(torch.isfinite(value).all()):
            return name
    return None
