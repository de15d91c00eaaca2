"""Run the paper's synthetic experiment: two clients with different bodies, one round, 1 to 30 local iterations.

A local iteration is one pass over a client's records. Client 0 has the deeper body, client 1 the shallower one.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.data.catalog import load_federation
from fedlog.data.federation import Federation, Records
from fedlog.engine.clients import Client, list_clients, make_model_plan
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.protocol.server import Server
from fedlog.engine.software import list_software_versions
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.errors import InputError
from fedlog.experiments.run.execute import CONFIG, RECORDS, SUMMARY, make_run_folder
from fedlog.experiments.run.prepare import build_method
from fedlog.files.durable import append_line, write_file
from fedlog.files.json_text import write_json
from fedlog.models.body import HEAD, Params, draw_initial_head, logits
from fedlog.models.catalog import make_body
from fedlog.settings.resolve import make_data_spec
from fedlog.settings.spec import RunSpec, convert_spec_to_json
from fedlog.wire.ledger import Direction
from fedlog.wire.message import Kind, Message
from fedlog.wire.transport import Transport

REPRESENTATIONS = "representations.json"
PLOTTED_SEED = 0  # the figure shows the points and separators of this seed


@dataclass(frozen=True)
class IterationRecord:
    """The results of one round with `local_iterations` iterations; accuracies are means over the clients."""

    local_iterations: int
    train_accuracy: float
    test_accuracy: float
    bits_up: int
    bits_down: int
    seconds: float


@dataclass(frozen=True, eq=False)
class RoundModels:
    """The two clients' models before and after the round, and their heads before the server's head arrived."""

    clients: tuple[Client, ...]
    before: tuple[Params, ...]
    after: tuple[Params, ...]
    local_heads: tuple[Tensor, ...]
    bits_up: int
    bits_down: int


def run_one_round(spec: RunSpec, federation: Federation) -> RoundModels:
    """Run the only round of the synthetic experiment; client i gets the i-th body of the specification."""
    if len(spec.body) != len(federation.shards):
        raise InputError(
            f"the synthetic experiment needs one body for each of {len(federation.shards)} clients, "
            f"found: {len(spec.body)}",
            hint=f"give --body {len(federation.shards)} times",
        )
    bodies = [make_body(name, federation.input_shape) for name in spec.body]
    plan = make_model_plan(federation, bodies)
    algorithm = build_method(spec, plan)
    key, transport = Key(spec.seed), Transport(spec.codec)
    clients = list_clients(federation, bodies, algorithm)
    engine = Engine(Settings(spec.batch_size or 1))
    cohort = Cohort(algorithm, federation, clients, engine, key, transport, spec.initialisation)
    initial = {HEAD: draw_initial_head(plan.width, plan.n_class, key), **bodies[0].make_initial_params(key)}
    server = Server.create(algorithm, plan, initial, key.child("server"), transport=transport)
    everyone = [client.index for client in clients]
    (exchange,) = algorithm.schedule.round
    cohort.receive_broadcast(server.encode_and_count_broadcast(0, len(clients)))
    before = _read_models(cohort, clients)
    uploads = sorted(cohort.make_encoded_uploads(1, exchange, everyone), key=lambda pair: pair[0])
    blobs = [(clients[index].name, blob) for index, blob in uploads if blob is not None]
    server.receive_uploads(1, exchange, blobs)
    cohort.receive_broadcast(server.encode_and_count_broadcast(1, len(clients)))
    # A local-only method uploads nothing, so there are no uploaded heads.
    heads = tuple(
        _find_local_head(transport.upload_codec.decode(blob), model)
        for (_, blob), model in zip(blobs, before, strict=False)
    )
    ledger = server.ledger
    after = _read_models(cohort, clients)
    return RoundModels(clients, before, after, heads, ledger.sum_bits(Direction.UP), ledger.sum_bits(Direction.DOWN))


def _find_local_head(upload: Message, model: Params) -> Tensor:
    """Return the client's head after local training: the head in its upload or, if it sends none, that of its model."""
    return upload.arrays[0] if upload.kind is Kind.PARAMETERS else model[HEAD]


def _read_models(cohort: Cohort, clients: tuple[Client, ...]) -> tuple[Params, ...]:
    with tempfile.TemporaryDirectory() as folder:
        cohort.save_models((), [client.index for client in clients], Path(folder))
        return tuple(load_file(Path(folder) / f"{client.name}.safetensors") for client in clients)


def _compute_mean_accuracy(models: RoundModels, records: Sequence[Records]) -> float:
    """Compute the accuracy of the models after the round, mean over clients; `records` has an entry for each client."""
    shares = []
    for client, params, own in zip(models.clients, models.after, records, strict=True):
        with torch.inference_mode():
            guessed = logits(client.body.compute_features(params, own.inputs, None), params).argmax(1)
        shares.append(float((guessed == own.labels).double().mean()))
    return sum(shares) / len(shares)


def sweep_local_iterations(spec: RunSpec, folder: Path) -> float:
    """Run the round with 1, 2, ... local iterations, write a record of each, and return the last test accuracy.

    An interrupted sweep starts again from 1, because all of it takes seconds. Refuse a folder with other settings.
    """
    make_run_folder(folder, spec)
    # Deleted first: from here until the last record is written, the cell is not done.
    (folder / SUMMARY).unlink(missing_ok=True)
    (folder / RECORDS).unlink(missing_ok=True)
    write_json(
        folder / CONFIG,
        {"digest": spec.digest, "spec": convert_spec_to_json(spec), "made_with": list_software_versions()},
    )
    federation = load_federation(make_data_spec(spec))
    train = [federation.train.at(shard.train) for shard in federation.shards]
    test = [federation.test.at(shard.test) for shard in federation.shards]
    for iterations in range(1, int(spec.options["epochs"]) + 1):
        start = time.perf_counter()
        found = run_one_round(replace(spec, options={**spec.options, "epochs": iterations}), federation)
        line = IterationRecord(
            iterations,
            _compute_mean_accuracy(found, train),
            _compute_mean_accuracy(found, test),
            found.bits_up,
            found.bits_down,
            round(time.perf_counter() - start, 4),
        )
        append_line(folder / RECORDS, json.dumps(asdict(line), separators=(",", ":")))
    if spec.seed == PLOTTED_SEED:
        write_file(folder / REPRESENTATIONS, json.dumps(_describe_representations(found, federation)) + "\n")
    summary = {"method": spec.method, "data": spec.data, "seed": spec.seed, "digest": spec.digest, **asdict(line)}
    write_json(folder / SUMMARY, {**summary, "made_with": list_software_versions()})
    return line.test_accuracy


def read_sweep(folder: Path) -> list[IterationRecord]:
    """Read the records of a finished sweep over the numbers of local iterations."""
    return [IterationRecord(**json.loads(line)) for line in (folder / RECORDS).read_text().splitlines()]


def _describe_representations(models: RoundModels, federation: Federation) -> list[dict[str, Any]]:
    """Return what the figure shows of each client: its points, and features and heads before and after the round."""
    drawn = []
    for number, client in enumerate(models.clients):
        own = federation.train.at(client.train)
        before, after = models.before[number], models.after[number]
        with torch.inference_mode():
            first, last = (client.body.compute_features(params, own.inputs, None) for params in (before, after))
        drawn.append(
            {
                "points": _convert_to_rounded_lists(own.inputs),
                "labels": own.labels.tolist(),
                "features_before": _convert_to_rounded_lists(first),
                "features_after": _convert_to_rounded_lists(last),
                "head_before": _convert_to_rounded_lists(before[HEAD]),
                "head_local": _convert_to_rounded_lists(models.local_heads[number]) if models.local_heads else None,
                "head_after": _convert_to_rounded_lists(after[HEAD]),
            }
        )
    return drawn


def _convert_to_rounded_lists(values: Tensor) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in values.double().tolist()]
