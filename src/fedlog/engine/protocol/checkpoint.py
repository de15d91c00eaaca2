"""Where a run can go on from: the server's state, the ledger, and what every client keeps at home.

A checkpoint is a folder of safetensors and one JSON file. It is written beside the one before and then named in
`latest.json` by an atomic rename, so a kill at any moment leaves a whole one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedlog.engine.protocol.server import Memory
from fedlog.errors import InputError
from fedlog.files.durable import write_file
from fedlog.models.body import Params
from fedlog.wire.ledger import Ledger
from fedlog.wire.message import Contribution

LATEST = "latest.json"
SUMS = "sums.json"


@dataclass(frozen=True)
class SumsPosition:
    """How far a run's secure sums are. Of keys that were sent ahead only whose and for what: secrets are not kept."""

    made: int
    ahead: tuple[int, ...] = ()
    """The clients whose keys for the next sum have come."""
    members: tuple[int, ...] = ()
    coordinates: int = 0


@dataclass(frozen=True, eq=False)
class ServerState:
    """The server's half of a checkpoint."""

    round_number: int
    values: Params
    ledger: Ledger
    memory: Memory = field(default_factory=dict)
    sums: SumsPosition | None = None  # in a run without secure sums


def exists(folder: Path) -> bool:
    """Whether the folder holds a whole checkpoint."""
    return (folder / LATEST).is_file()


def write(folder: Path, state: ServerState, save_clients: Callable[[Path], None]) -> None:
    """Write the checkpoint of this round and drop the one before."""
    part = folder / f"round-{state.round_number:06d}"
    shutil.rmtree(part, ignore_errors=True)  # left by a kill in mid-write
    part.mkdir(parents=True)
    save_file({name: value.contiguous().clone() for name, value in state.values.items()}, part / "server.safetensors")
    save_file(_flat(state.memory), part / "memory.safetensors")
    (part / "ledger.json").write_text(json.dumps(state.ledger.as_rows()))
    if state.sums is not None:
        (part / SUMS).write_text(json.dumps(asdict(state.sums)))
    save_clients(part)
    write_file(folder / LATEST, json.dumps({"folder": part.name, "round": state.round_number}))
    for old in folder.glob("round-*"):
        if old != part:
            shutil.rmtree(old)


def read(folder: Path, load_clients: Callable[[Path], None]) -> ServerState:
    """The newest whole checkpoint of the folder."""
    try:
        latest = json.loads((folder / LATEST).read_text())
        part = folder / latest["folder"]
        values = load_file(part / "server.safetensors")
        rows = [tuple(row) for row in json.loads((part / "ledger.json").read_text())]
        memory = _remembered(load_file(part / "memory.safetensors"))
        sums = _sums(part / SUMS)
        load_clients(part)
        return ServerState(latest["round"], values, Ledger.from_rows(rows), memory, sums)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(f"no usable checkpoint in {folder}: {error}", hint="start the run anew") from error


def _sums(path: Path) -> SumsPosition | None:
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    return SumsPosition(found["made"], tuple(found["ahead"]), tuple(found["members"]), found["coordinates"])


def _flat(memory: Memory) -> Params:
    """One entry for each array, and one for the noise in them; names as JSON, since a client's is the user's."""
    flat: Params = {}
    for client, last in memory.items():
        noise = torch.tensor([last.noise_std], dtype=torch.float64)
        for at, array in enumerate((noise, *last.arrays)):
            flat[json.dumps([client, at])] = array.contiguous()
    return flat


def _remembered(flat: Params) -> Memory:
    memory: Memory = {}
    entries = sorted(((json.loads(name), value) for name, value in flat.items()), key=lambda entry: entry[0])
    for (client,), found in groupby(entries, key=lambda entry: entry[0][:-1]):
        noise, *arrays = (value for _, value in found)
        memory[client] = Contribution(tuple(arrays), noise_std=float(noise))
    return memory
