"""Checkpoints: the server's state, the ledger, and the state that every client keeps.

A checkpoint is a folder of safetensors and JSON files. A new one is written completely before `latest.json` names it,
so if the process is killed, the older one is still there. A checkpoint with another format number is refused.

    latest.json            {"folder": "round-000007", "round": 7, "format": 1}
    round-000007/
      server.safetensors   the method's state at the server
      memory.safetensors   each client's last contribution, if the server keeps them
      ledger.json          the bits sent so far
      sums.json            the number of secure sums so far, if the run has any
      downlink.safetensors    each client's last broadcast, if clients get different bytes
      clients-N.safetensors   the state of the clients of worker N; metadata: which clients, and the format
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedlog.engine.protocol.client_store import FORMAT, START_ANEW, check_checkpoint_format
from fedlog.errors import InputError
from fedlog.files.durable import sync_all_files, write_file
from fedlog.models.body import Params
from fedlog.wire.ledger import Ledger
from fedlog.wire.message import Contribution, JoinedContribution

LATEST = "latest.json"
SUMS = "sums.json"
DOWNLINK = "downlink.safetensors"
Memory = dict[str, Contribution]
"""Every client's last contribution; the one of the opening exchange stays until the client uploads again."""


@dataclass(frozen=True)
class SumsProgress:
    """How many secure sums a run has made, and which clients have sent keys for the next one; it contains no keys."""

    made: int
    ahead: tuple[int, ...] = ()
    """The clients that have already sent keys for the next sum."""
    members: tuple[int, ...] = ()
    """All clients of the next sum, if some have already sent keys."""
    coordinates: int = 0
    """The number of values in the next sum, if some clients have already sent keys."""


@dataclass(frozen=True, eq=False)
class ServerState:
    """The server's part of a checkpoint: the method's state, the ledger of bits, and clients' last messages."""

    round_number: int
    values: Params
    ledger: Ledger
    memory: Memory = field(default_factory=dict)
    sums: SumsProgress | None = None  # None in a run without secure sums
    downlink: Params = field(default_factory=dict)  # the last broadcast of each client, if they get different bytes


def exists(folder: Path) -> bool:
    """Whether the folder has a complete checkpoint."""
    return (folder / LATEST).is_file()


def write(folder: Path, state: ServerState, save_clients: Callable[[Path], None]) -> None:
    """Write a checkpoint of `state`, then delete the older one.

    `save_clients` writes the clients' files into a given folder. It is called before the older checkpoint is deleted.
    """
    part = folder / f"round-{state.round_number:06d}"
    shutil.rmtree(part, ignore_errors=True)  # an incomplete one, if the process was killed while writing
    part.mkdir(parents=True)
    save_file({name: value.contiguous().clone() for name, value in state.values.items()}, part / "server.safetensors")
    save_file(_flatten_contributions(state.memory), part / "memory.safetensors")
    if state.downlink:
        save_file({name: value.contiguous().clone() for name, value in state.downlink.items()}, part / DOWNLINK)
    (part / "ledger.json").write_text(json.dumps(state.ledger.as_rows()))
    if state.sums is not None:
        (part / SUMS).write_text(json.dumps(asdict(state.sums)))
    save_clients(part)
    sync_all_files(part)  # it must be on disk before the older checkpoint is deleted
    latest = {"folder": part.name, "round": state.round_number, "format": FORMAT}
    write_file(folder / LATEST, json.dumps(latest))
    for old in folder.glob("round-*"):
        if old != part:
            shutil.rmtree(old)


def read(folder: Path, load_clients: Callable[[Path], None]) -> ServerState:
    """Read the newest checkpoint and let `load_clients` read the clients' files; InputError if it cannot be used."""
    try:
        latest = json.loads((folder / LATEST).read_text())
        check_checkpoint_format(folder, latest.get("format"))
        part = folder / latest["folder"]
        values = load_file(part / "server.safetensors")
        rows = [tuple(row) for row in json.loads((part / "ledger.json").read_text())]
        memory = _unflatten_contributions(load_file(part / "memory.safetensors"))
        sums = msgspec.json.decode((part / SUMS).read_bytes(), type=SumsProgress) if (part / SUMS).exists() else None
        load_clients(part)
        downlink = load_file(part / DOWNLINK) if (part / DOWNLINK).exists() else {}
        return ServerState(latest["round"], values, Ledger.from_rows(rows), memory, sums, downlink)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise InputError(f"no usable checkpoint in {folder}: {error}", hint=START_ANEW) from error


def _flatten_contributions(memory: Memory) -> Params:
    """Each client's last contribution as named tensors; a name is JSON: [client's name, number of the tensor].

    Tensor 0 has two numbers: the std of the noise, and 1 for a `JoinedContribution` or 0 for any other contribution.
    The next tensors are the contribution's arrays.
    """
    flat: Params = {}
    for client, last in memory.items():
        first = torch.tensor([last.noise_std, isinstance(last, JoinedContribution)], dtype=torch.float64)
        for at, array in enumerate((first, *last.arrays)):
            flat[json.dumps([client, at])] = array.contiguous()
    return flat


def _unflatten_contributions(flat: Params) -> Memory:
    memory: Memory = {}
    entries = sorted(((json.loads(name), value) for name, value in flat.items()), key=lambda entry: entry[0])
    for (client,), found in groupby(entries, key=lambda entry: entry[0][:-1]):
        first, *arrays = (value for _, value in found)
        noise, *joined = first.tolist()  # older checkpoints have only the noise: there was no `JoinedContribution` then
        memory[client] = (JoinedContribution if any(joined) else Contribution)(tuple(arrays), noise_std=noise)
    return memory
