"""Checkpoints: the server's state, the ledger, and what every client keeps at home.

A checkpoint is a folder of safetensors and JSON files. It is written beside the one before and then named in
`latest.json` by an atomic rename, so a kill at any moment leaves a whole one. The format has a number; a checkpoint of
another format is refused.

    latest.json            {"folder": "round-000007", "round": 7, "format": 1}
    round-000007/
      server.safetensors   the method's state at the server
      memory.safetensors   each client's last contribution, where the server remembers them
      ledger.json          what crossed so far
      sums.json            how far the secure sums are, where there are any
      clients-N.safetensors   what the clients of worker N keep; metadata: which clients, and the format
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedlog.engine.protocol.client_store import MESSAGES, ClientStore
from fedlog.errors import InputError
from fedlog.files.durable import write_file
from fedlog.models.body import Params
from fedlog.wire.ledger import Ledger
from fedlog.wire.message import Contribution

FORMAT = 1  # goes up with every change that an older or newer program could misread
LATEST = "latest.json"
SUMS = "sums.json"
DOWNLINK = "downlink.safetensors"
# The names of entries in a file of clients: `<client>/<parameter>`, `<client>/moments/<exchange>/<which>`, `heard/...`.
HEARD = "heard"
MOMENTS = "moments"
# Metadata of a file of clients.
CLIENTS = "clients"  # whose homes it holds: a home may well be empty
FORMAT_ENTRY = "format"
ANEW = "start the run anew"

Memory = dict[str, Contribution]
"""Every client's last contribution, of the opening exchange as well: it is true of a body that has not moved since."""


@dataclass(frozen=True)
class SumsPosition:
    """How many secure sums a run has made, and whose keys for the next one have come. Secrets are not kept."""

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
    downlink: Params = field(default_factory=dict)  # what each client has, where they get different bytes


def exists(folder: Path) -> bool:
    """Whether the folder holds a whole checkpoint."""
    return (folder / LATEST).is_file()


def write(folder: Path, state: ServerState, save_clients: Callable[[Path], None]) -> None:
    """Write the checkpoint of this round and drop the one before."""
    part = folder / f"round-{state.round_number:06d}"
    shutil.rmtree(part, ignore_errors=True)  # left by a kill in mid-write
    part.mkdir(parents=True)
    save_file({name: value.contiguous().clone() for name, value in state.values.items()}, part / "server.safetensors")
    save_file(_flatten_memory(state.memory), part / "memory.safetensors")
    if state.downlink:
        save_file({name: value.contiguous().clone() for name, value in state.downlink.items()}, part / DOWNLINK)
    (part / "ledger.json").write_text(json.dumps(state.ledger.as_rows()))
    if state.sums is not None:
        (part / SUMS).write_text(json.dumps(asdict(state.sums)))
    save_clients(part)
    latest = {"folder": part.name, "round": state.round_number, "format": FORMAT}
    write_file(folder / LATEST, json.dumps(latest))
    for old in folder.glob("round-*"):
        if old != part:
            shutil.rmtree(old)


def read(folder: Path, load_clients: Callable[[Path], None]) -> ServerState:
    """The newest whole checkpoint of the folder; InputError for a damaged one, and for one of another format."""
    try:
        latest = json.loads((folder / LATEST).read_text())
        _check_format(folder, latest.get("format"))
        part = folder / latest["folder"]
        values = load_file(part / "server.safetensors")
        rows = [tuple(row) for row in json.loads((part / "ledger.json").read_text())]
        memory = _read_memory(load_file(part / "memory.safetensors"))
        sums = msgspec.json.decode((part / SUMS).read_bytes(), type=SumsPosition) if (part / SUMS).exists() else None
        load_clients(part)
        downlink = load_file(part / DOWNLINK) if (part / DOWNLINK).exists() else {}
        return ServerState(latest["round"], values, Ledger.from_rows(rows), memory, sums, downlink)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise InputError(f"no usable checkpoint in {folder}: {error}", hint=ANEW) from error


def write_clients(path: Path, store: ClientStore) -> None:
    """Write the state of these clients."""
    tensors = {f"{client}/{name}": value for client, home in store.homes.items() for name, value in home.items()}
    for (client, exchange), moments in store.moments.items():
        tensors |= {f"{client}/{MOMENTS}/{exchange}/{name}": value for name, value in moments.items()}
    tensors |= {f"{HEARD}/{name}": value for name, value in store.heard.items()}
    tensors |= store.messages.as_tensors()
    about = {CLIENTS: " ".join(str(client) for client in store.homes), FORMAT_ENTRY: str(FORMAT)}
    save_file(_copy_shared({name: value.contiguous() for name, value in tensors.items()}), path, metadata=about)


def read_clients(paths: Sequence[Path], names: Mapping[int, str]) -> ClientStore:
    """The state of the clients with these numbers; the files may hold others too, `names` are for errors."""
    store = ClientStore({client: {} for client in names})
    found: set[int] = set()
    messages: dict[tuple[int, str], Tensor] = {}
    for path in paths:
        clients, tensors = _read_client_file(path)
        found |= clients
        for entry, value in tensors.items():
            owner, _, name = entry.partition("/")
            if owner == HEARD:
                store.heard[name] = value
            elif int(owner) not in names:
                continue
            elif name.startswith(f"{MESSAGES}/"):
                messages[int(owner), name] = value
            elif name.startswith(f"{MOMENTS}/"):
                _, exchange, which = name.split("/", 2)
                store.moments.setdefault((int(owner), exchange), {})[which] = value
            else:
                store.homes[int(owner)][name] = value
    for client, name in names.items():
        if client not in found:
            raise InputError(f"the checkpoint has nothing of client {name}", hint=ANEW)
    store.messages.restore(messages)
    return store


def _read_client_file(path: Path) -> tuple[set[int], Params]:
    """The numbers of the clients in the file, and its entries."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            _check_format(path, int(about[FORMAT_ENTRY]) if FORMAT_ENTRY in about else None)
            tensors = {entry: file.get_tensor(entry) for entry in file.keys()}  # noqa: SIM118 (not a mapping)
            return {int(client) for client in about[CLIENTS].split()}, tensors
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"a damaged checkpoint: {path}: {error}", hint=ANEW) from error


def _check_format(path: Path, found: Any) -> None:
    if found != FORMAT:
        raise InputError(
            f"expected a checkpoint of format {FORMAT} in {path}, found: {'none' if found is None else found}",
            hint=f"go on with the version of fedlog that wrote it, or {ANEW}",
        )


def _flatten_memory(memory: Memory) -> Params:
    """One entry for each array and one for its noise. Their names are JSON: a client may have any name."""
    flat: Params = {}
    for client, last in memory.items():
        noise = torch.tensor([last.noise_std], dtype=torch.float64)
        for at, array in enumerate((noise, *last.arrays)):
            flat[json.dumps([client, at])] = array.contiguous()
    return flat


def _read_memory(flat: Params) -> Memory:
    memory: Memory = {}
    entries = sorted(((json.loads(name), value) for name, value in flat.items()), key=lambda entry: entry[0])
    for (client,), found in groupby(entries, key=lambda entry: entry[0][:-1]):
        noise, *arrays = (value for _, value in found)
        memory[client] = Contribution(tuple(arrays), noise_std=float(noise))
    return memory


def _copy_shared(tensors: Params) -> Params:
    """The tensors with storage of their own: safetensors refuses two names for one memory."""
    seen: set[int] = set()
    owned = {}
    for name, value in tensors.items():
        owned[name] = value.clone() if value.untyped_storage().data_ptr() in seen else value
        seen.add(value.untyped_storage().data_ptr())
    return owned
