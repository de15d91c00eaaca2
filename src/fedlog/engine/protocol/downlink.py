"""Broadcasts that differ between clients: keep the last broadcast of each client, and encode the next one.

A broadcast can be sent as the difference from the message that the client decoded last. So each broadcast corrects the
rounding of the one before. A client whose last message is not known gets the complete message instead of a difference.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import torch

from fedlog.algorithms.fedlog import FedLog
from fedlog.algorithms.interface import Algorithm
from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.models.body import Params
from fedlog.wire.message import Kind, Message
from fedlog.wire.transport import Transport, compute_relative_change, zero_classes_except

Encoded = tuple[Kind, bytes]
FORGOTTEN = ""  # in a checkpoint, in place of the digest of a broadcast


@dataclass(frozen=True, eq=False)
class LastBroadcast:
    """The broadcast that a client decoded last.

    `digest` is a hash of the digest before and the new bytes. Clients with equal digests have equal messages, so the
    same difference suits them.
    """

    digest: str
    message: Message


@dataclass
class Downlink:
    """Encodes the broadcasts of a run, and keeps the last one that each client has."""

    transport: Transport
    key: Key
    last_broadcasts: dict[str, LastBroadcast] = field(default_factory=dict)
    classes: dict[str, frozenset[int]] = field(default_factory=dict)
    """The classes in each client's last upload: in a closed world it gets only these; without an upload it gets all."""
    clients_with_all_classes: frozenset[str] = frozenset()
    """The clients that get all classes even in a closed world, because they may meet classes that they never sent."""

    def knows(self, client: str) -> bool:
        """Whether the client's last broadcast is known; if not, the next one must be a complete message."""
        return client in self.last_broadcasts

    def forget(self, client: str) -> None:
        """Forget the client's last broadcast, so that the next one is a complete message instead of a difference."""
        self.last_broadcasts.pop(client, None)

    def encode_for_clients(self, round_number: int, message: Message, clients: Sequence[str]) -> dict[str, Encoded]:
        """Encode a broadcast for each of these clients, and return its kind and bytes by client.

        Clients with the same last broadcast (and, in a closed world, the same classes) get the same bytes.
        """
        made: dict[tuple[str, frozenset[int] | None], tuple[Encoded, LastBroadcast]] = {}
        sent = {}
        for client in clients:
            last = self.last_broadcasts.get(client)
            closed = self.transport.closed_world and client not in self.clients_with_all_classes
            own = self.classes.get(client) if closed else None
            wanted = (last.digest if last else "", own)
            if wanted not in made:
                part = message if own is None else zero_classes_except(message, own)
                key = self.key.child("round", round_number, message.kind.name, wanted[0], *sorted(own or ()))
                made[wanted] = self._encode_next(part, last, key)
            sent[client], self.last_broadcasts[client] = made[wanted]
        return sent

    def _encode_next(self, message: Message, last: LastBroadcast | None, key: Key) -> tuple[Encoded, LastBroadcast]:
        transport, codec = self.transport, self.transport.broadcast_codec
        skip = transport.skip_below or 0.0
        if last is not None and skip and compute_relative_change(message, last.message) < skip:
            return (Kind.SAME, codec.encode(Message(Kind.SAME, ()), known=last.message)), last
        known = last.message if transport.differences and last is not None else None
        blob = codec.encode(message, key, known)
        digest = blake2b((last.digest if last else "").encode() + blob, digest_size=8).hexdigest()
        return (message.kind, blob), LastBroadcast(digest, codec.decode(blob, known))

    def as_tensors(self) -> Params:
        """The clients' last broadcasts and classes as tensors for a checkpoint; the tensors' names are JSON."""
        found = {
            json.dumps([client, last.digest, int(last.message.kind), sorted(self.classes.get(client, ())), at]): array
            for client, last in self.last_broadcasts.items()
            for at, array in enumerate(last.message.arrays)
        }
        # A client whose broadcast was forgotten has no array, and its classes still count.
        for client in self.classes.keys() - self.last_broadcasts.keys():
            found[json.dumps([client, FORGOTTEN, 0, sorted(self.classes[client]), 0])] = torch.zeros(0)
        return found

    def restore(self, tensors: Params) -> None:
        """Restore the broadcasts from the tensors of `as_tensors`."""
        self.last_broadcasts, self.classes = {}, {}
        entries = sorted((json.loads(name), name) for name in tensors)
        for (client, digest, kind, classes, _), name in entries:
            if classes:
                self.classes[client] = frozenset(classes)
            if digest == FORGOTTEN:
                continue
            before = self.last_broadcasts[client].message.arrays if client in self.last_broadcasts else ()
            self.last_broadcasts[client] = LastBroadcast(digest, Message(Kind(kind), (*before, tensors[name])))


def check_transport_fits_method(algorithm: Algorithm, transport: Transport) -> None:
    """Refuse transport settings that the method cannot use."""
    if transport.skip_below is not None and not algorithm.sums_last_uploads:
        raise InputError(
            f"--skip-below needs a method whose server keeps every client's last upload, found: {algorithm.name}",
            hint="use fedlog or fedlog-c, without --carry",
        )
    if transport.closed_world and not isinstance(algorithm, FedLog):
        raise InputError(
            f"--world closed needs a method with FedLog's head, found: {algorithm.name}",
            hint="use fedlog or fedlog-c",
        )
