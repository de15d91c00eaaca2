"""The state of clients between two exchanges: their parameters, Adam's moments, and what the server sent them.

A cohort keeps it in memory, and in a safetensors file for checkpoints and between two messages at a site.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedlog.algorithms.interface import Algorithm
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Kind, Message
from fedlog.wire.transport import Transport

FORMAT = 1  # increase it with every change that an older or newer version of fedlog could misread
# The names of entries in a file of clients: `<client>/<parameter>`, `<client>/moments/<exchange>/<which>`, `heard/...`.
HEARD = "heard"
MOMENTS = "moments"
MESSAGES = "messages"  # `<client>/messages/...`: messages that the client received and sent
# Metadata of a file of clients.
CLIENTS = "clients"  # the numbers of the clients in it, since a client may have no entry
FORMAT_ENTRY = "format"
START_ANEW = "start the run anew"
NEVER = -1e4  # the bias of a class that must not be predicted: its probability is 0 in float32


@dataclass
class MessagesByClient:
    """The last messages that each client received and sent, for a run with a separate broadcast to each client."""

    received: dict[int, Message] = field(default_factory=dict)
    """The last broadcast that each client decoded."""
    received_params: dict[int, Params] = field(default_factory=dict)
    """The parameters that each client has after that broadcast."""
    sent: dict[int, Message] = field(default_factory=dict)
    """Each client's last upload as the server decoded it, if uploads may be skipped."""

    def forget(self, clients: Iterable[int]) -> None:
        """Forget the last messages of these clients.

        The server forgets them too, so the next messages are complete and not differences from forgotten ones.
        """
        for index in clients:
            self.received.pop(index, None)
            self.sent.pop(index, None)

    def decode_broadcasts(
        self, blobs: Mapping[int, bytes], transport: Transport, algorithm: Algorithm, common: Params
    ) -> None:
        """Decode each client's broadcast, and update the parameters that the client has received.

        A client that has received none starts from `common`, the parameters of the last broadcast to all clients.
        """
        decoded: dict[tuple[int, bytes], Message] = {}
        known: dict[tuple[int, int], Params] = {}
        for index, blob in blobs.items():
            last, before = self.received.get(index), self.received_params.get(index, common)
            if (id(last), blob) not in decoded:
                decoded[id(last), blob] = transport.broadcast_codec.decode(blob, last)
            message = decoded[id(last), blob]
            if message.kind is Kind.SAME:
                continue
            if (id(message), id(before)) not in known:
                after = algorithm.receive(message, before)
                own = mask_missing_classes(after) if transport.closed_world else after
                known[id(message), id(before)] = own
            self.received[index], self.received_params[index] = message, known[id(message), id(before)]

    def as_tensors(self) -> Params:
        """All messages as named tensors, for a checkpoint."""
        found: Params = {}
        for name, messages in (("received", self.received), ("sent", self.sent)):
            for index, message in messages.items():
                for at, array in enumerate(message.arrays):
                    found[f"{index}/{MESSAGES}/{name}/{int(message.kind)}/{at}"] = array.contiguous()
        for index, params in self.received_params.items():
            found |= {f"{index}/{MESSAGES}/heard/{name}": value.contiguous() for name, value in params.items()}
        return found

    def restore(self, tensors: Mapping[tuple[int, str], Tensor]) -> None:
        """Restore the messages from the tensors of `as_tensors`; keys are (client, rest of the tensor's name)."""
        self.received, self.received_params, self.sent = {}, {}, {}
        arrays: dict[tuple[str, int, int], dict[int, Tensor]] = {}
        for (index, entry), value in tensors.items():
            _, name, rest = entry.split("/", 2)
            if name == "heard":
                self.received_params.setdefault(index, {})[rest] = value
            else:
                kind, position = map(int, rest.split("/"))
                arrays.setdefault((name, index, kind), {})[position] = value
        for (name, index, kind), parts in arrays.items():
            messages = self.received if name == "received" else self.sent
            messages[index] = Message(Kind(kind), tuple(parts[position] for position in sorted(parts)))


@dataclass
class ClientStore:
    """The state that clients keep between two exchanges: own and received parameters, Adam's moments, and messages.

    Clients are given by their numbers.
    """

    homes: dict[int, Params]
    """The parameters that the method lets each client keep for the next exchange: often its whole model."""
    received_params: Params = field(default_factory=dict)
    """The parameters that all clients have after the last broadcast to all of them."""
    moments: dict[tuple[int, str], Params] = field(default_factory=dict)
    """Adam's moments, by client and exchange; empty unless they last for the whole run."""
    messages: MessagesByClient = field(default_factory=MessagesByClient)
    """Empty unless the server sends different bytes to each client."""

    def get_received_params(self, client: int) -> Params:
        """The parameters that the client last received: in its own broadcasts or, if it had none, in the common one."""
        return self.messages.received_params.get(client, self.received_params)


def mask_missing_classes(broadcast: Params) -> Params:
    """The parameters of a broadcast, with a head changed so that it never predicts classes that the client lacks.

    For these classes, the server sends rows of the head that are all zeros.
    """
    head = broadcast[HEAD].clone()
    head[(head == 0).all(dim=1), 0] = NEVER
    return {**broadcast, HEAD: head}


def write_clients(path: Path, store: ClientStore) -> None:
    """Write the state of all clients in `store` to a safetensors file."""
    tensors = {f"{client}/{name}": value for client, home in store.homes.items() for name, value in home.items()}
    for (client, exchange), moments in store.moments.items():
        tensors |= {f"{client}/{MOMENTS}/{exchange}/{name}": value for name, value in moments.items()}
    tensors |= {f"{HEARD}/{name}": value for name, value in store.received_params.items()}
    tensors |= store.messages.as_tensors()
    about = {CLIENTS: " ".join(str(client) for client in store.homes), FORMAT_ENTRY: str(FORMAT)}
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    save_file(_copy_tensors_that_share_memory(contiguous), path, metadata=about)


def read_clients(paths: Sequence[Path], names: Mapping[int, str]) -> ClientStore:
    """Read the state of the clients in `names` (name by number); the files may hold other clients as well."""
    store = ClientStore({client: {} for client in names})
    found: set[int] = set()
    messages: dict[tuple[int, str], Tensor] = {}
    for path in paths:
        clients, tensors = _read_client_file(path)
        found |= clients
        for entry, value in tensors.items():
            owner, _, name = entry.partition("/")
            if owner == HEARD:
                store.received_params[name] = value
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
            files = ", ".join(str(path) for path in paths) or "none"
            raise InputError(f"no state of client {name} in the checkpoint's files: {files}", hint=START_ANEW)
    store.messages.restore(messages)
    return store


def _read_client_file(path: Path) -> tuple[set[int], Params]:
    """Read a file of clients: return the numbers of the clients in it, and all tensors by name."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            check_checkpoint_format(path, int(about[FORMAT_ENTRY]) if FORMAT_ENTRY in about else None)
            tensors = {entry: file.get_tensor(entry) for entry in file.keys()}  # noqa: SIM118 (not a mapping)
            return {int(client) for client in about[CLIENTS].split()}, tensors
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"checkpoint file {path} is damaged: {error}", hint=START_ANEW) from error


def check_checkpoint_format(path: Path, found: Any) -> None:
    """Refuse a checkpoint, or a file of clients, whose format number is not that of this version of fedlog."""
    if found != FORMAT:
        raise InputError(
            f"expected a checkpoint of format {FORMAT} in {path}, found: {'none' if found is None else found}",
            hint=f"continue with the version of fedlog that wrote it, or {START_ANEW}",
        )


def _copy_tensors_that_share_memory(tensors: Params) -> Params:
    """Copy tensors that share memory with another tensor, because safetensors cannot write them."""
    seen: set[int] = set()
    owned = {}
    for name, value in tensors.items():
        owned[name] = value.clone() if value.untyped_storage().data_ptr() in seen else value
        seen.add(value.untyped_storage().data_ptr())
    return owned
