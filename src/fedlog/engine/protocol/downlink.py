"""Broadcasts that differ between clients: keep track of the last one that each client has, and encode the next.

Differences are computed from the message that the client really decoded, so the next message corrects the rounding of
the last one. Clients with the same last message get the same bytes; a client without one gets a whole message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from fedlog.algorithms.fedlog import FedLog
from fedlog.algorithms.shape import Algorithm
from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.models.body import Params
from fedlog.wire.message import Kind, Message
from fedlog.wire.transport import Transport, compute_relative_change, zero_classes_except

Sent = tuple[Kind, bytes]


@dataclass(frozen=True, eq=False)
class LastBroadcast:
    """The broadcast that a client decoded last; `name` is a digest of all bytes from which it was decoded."""

    name: str
    message: Message


@dataclass
class Downlink:
    """Encodes the broadcasts of a run, and keeps the last one that each client has."""

    transport: Transport
    key: Key
    copies: dict[str, LastBroadcast] = field(default_factory=dict)
    classes: dict[str, frozenset[int]] = field(default_factory=dict)
    """The classes in each client's last upload; a client without an upload gets whole messages."""
    whole: frozenset[str] = frozenset()
    """The clients that get whole messages in a closed world too, because they may meet other classes."""

    def knows(self, client: str) -> bool:
        """Whether the client's last broadcast is known; if not, the next one must be a whole message."""
        return client in self.copies

    def forget(self, client: str) -> None:
        """Forget the client's last broadcast, so that the next one is sent as a whole message."""
        self.copies.pop(client, None)

    def send(self, round_number: int, message: Message, clients: Sequence[str]) -> dict[str, Sent]:
        """Encode a broadcast for these clients, and return its kind and bytes for each."""
        made: dict[tuple[str, frozenset[int] | None], tuple[Sent, LastBroadcast]] = {}
        sent = {}
        for client in clients:
            copy = self.copies.get(client)
            closed = self.transport.closed_world and client not in self.whole
            own = self.classes.get(client) if closed else None
            wanted = (copy.name if copy else "", own)
            if wanted not in made:
                part = message if own is None else zero_classes_except(message, own)
                key = self.key.child("round", round_number, message.kind.name, wanted[0], *sorted(own or ()))
                made[wanted] = self._encode_next(part, copy, key)
            sent[client], self.copies[client] = made[wanted]
        return sent

    def _encode_next(self, message: Message, last: LastBroadcast | None, key: Key) -> tuple[Sent, LastBroadcast]:
        transport, codec = self.transport, self.transport.broadcast_codec
        skip = transport.skip_below or 0.0
        if last is not None and skip and compute_relative_change(message, last.message) < skip:
            return (Kind.SAME, codec.encode(Message(Kind.SAME, ()), known=last.message)), last
        known = last.message if transport.differences and last is not None else None
        blob = codec.encode(message, key, known)
        name = blake2b((last.name if last else "").encode() + blob, digest_size=8).hexdigest()
        return (message.kind, blob), LastBroadcast(name, codec.decode(blob, known))

    def as_tensors(self) -> Params:
        """The clients' last broadcasts as tensors for a checkpoint; the tensors' names are JSON."""
        return {
            json.dumps([client, copy.name, int(copy.message.kind), sorted(self.classes.get(client, ())), at]): array
            for client, copy in self.copies.items()
            for at, array in enumerate(copy.message.arrays)
        }

    def restore(self, tensors: Params) -> None:
        """Restore the broadcasts from the tensors of `as_tensors`."""
        self.copies, self.classes = {}, {}
        entries = sorted((json.loads(name), name) for name in tensors)
        for (client, version, kind, classes, _), name in entries:
            before = self.copies[client].message.arrays if client in self.copies else ()
            self.copies[client] = LastBroadcast(version, Message(Kind(kind), (*before, tensors[name])))
            if classes:
                self.classes[client] = frozenset(classes)


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
