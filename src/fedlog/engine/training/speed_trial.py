"""Measure how fast each backend trains a body, on a few batches of a few clients, and cache the seconds.

They are cached by architecture, sizes and machine. So a run that is repeated on this machine uses the same backend and
gives exactly the same numbers. A run also records its backend, for repetitions on other machines.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import torch

import fedlog
from fedlog.algorithms.interface import EVERYTHING, Phase, Work, cross_entropy
from fedlog.core.keys import Key
from fedlog.engine.clients import Client
from fedlog.engine.software import find_processor
from fedlog.engine.training.block import library
from fedlog.engine.training.block.trace import trace
from fedlog.engine.training.tasks import Backend, Settings, Task
from fedlog.files.cache import find_cache_folder
from fedlog.files.durable import write_file
from fedlog.models.body import HEAD, Body, draw_initial_head
from fedlog.models.masked_dropout import collect_parameters

BATCHES = 2
MOST_CLIENTS = 8
TURNS = 3  # the first one only warms up
LEARNING_RATE = 1e-4  # any value will do: trained parameters are thrown away

MakeBackend = Callable[[list[Client]], Backend]


def measure_backends(
    body: Body, clients: list[Client], settings: Settings, n_class: int, backends: Mapping[str, MakeBackend]
) -> dict[str, float]:
    """The seconds that each backend takes for one batch of one client, from the cache or from a new trial."""
    key = _make_cache_key(body, len(clients), settings, n_class, list(backends))
    remembered = _read_cache().get(key)
    if not _has_seconds_of(remembered, backends):
        remembered = _run_trial(body, clients, settings, n_class, backends)
        _add_to_cache(key, remembered)
    return {kind: remembered[kind] for kind in backends}


def _has_seconds_of(remembered: object, backend_names: Iterable[str]) -> TypeGuard[dict[str, float]]:
    """Whether an entry of the cache has the seconds of all these backends: a damaged file can still be JSON."""
    return isinstance(remembered, dict) and all(isinstance(remembered.get(kind), float) for kind in backend_names)


def _run_trial(
    body: Body, clients: list[Client], settings: Settings, n_class: int, backends: Mapping[str, MakeBackend]
) -> dict[str, float]:
    """Time each backend a few times, and return the shortest seconds for one batch of one client.

    The backends take turns, so that other work on the machine slows all of them alike.
    """
    largest = sorted(clients, key=lambda client: -client.records)[:MOST_CLIENTS]
    few = [replace(c, train=c.train[: BATCHES * settings.batch_size], tests=(), validations=()) for c in largest]
    work = Work({HEAD: draw_initial_head(body.width, n_class, Key(0)), **body.make_initial_params(Key(0))})
    phases = (Phase(EVERYTHING, 1, cross_entropy, LEARNING_RATE),)
    tasks = [Task(client, work, phases, Key(0).child(client.index)) for client in few]
    batches = sum(-(-client.records // settings.batch_size) for client in few)
    made = {kind: make(few) for kind, make in backends.items()}
    best = dict.fromkeys(made, float("inf"))
    # Time of this process, which other load does not affect; with several threads only wall time can be compared.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for turn in range(TURNS):
        for kind, backend in made.items():
            start = clock()
            for at in range(0, len(tasks), backend.clients_at_once):
                backend.train(tasks[at : at + backend.clients_at_once])
            if turn:
                best[kind] = min(best[kind], (clock() - start) / max(batches, 1))
    return best


def _make_cache_key(body: Body, clients: int, settings: Settings, n_class: int, backend_names: list[str]) -> str:
    """A digest of everything that the backends' seconds depend on."""
    # Modules of one structure can compute different things in `forward`, which their text does not show.
    operations = trace(body.training_module, body.input_shape) or []
    architecture = [
        [str(one.node.format_node()) for one in operations],
        str(body.training_module),
        [(name, tuple(v.shape)) for name, v in collect_parameters(body.training_module).items()],
    ]
    sizes = [
        body.input_shape,
        body.width,
        n_class,
        settings.batch_size,
        str(settings.dtype),
        min(clients, MOST_CLIENTS),
    ]
    machine = [
        platform.machine(),
        find_processor(),
        os.cpu_count(),
        library.name_instruction_set(),
        torch.get_num_threads(),
    ]
    code = [torch.__version__, fedlog.__version__, library.compute_library_digest()]
    everything = json.dumps([architecture, sizes, machine, code, backend_names])
    return hashlib.sha256(everything.encode()).hexdigest()[:32]


def locate_cache_file() -> Path:
    """The path of the file in which the seconds of backends are cached."""
    return find_cache_folder() / "backends.json"


def _read_cache() -> dict[str, object]:
    try:
        found = json.loads(locate_cache_file().read_text())
    except (OSError, ValueError):  # no file yet, or a damaged one: timings are measured again
        return {}
    return found if isinstance(found, dict) else {}


def _add_to_cache(key: str, seconds: Mapping[str, float]) -> None:
    with contextlib.suppress(OSError):  # if the cache is read-only, the next run measures again
        write_file(locate_cache_file(), json.dumps({**_read_cache(), key: dict(seconds)}, indent=1) + "\n")
