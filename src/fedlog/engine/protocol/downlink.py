"""Keep track of the broadcasts that each client has, and make the bytes that bring each of them up to date.

The difference is taken to what a client really decoded, so that the rounding of one message is made good by the next.
Clients that have the same message get the same bytes; a client of which nothing is known gets a whole message.
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
from fedlog.wire.transport import Transport, keep_classes, movement

Sent = tuple[Kind, bytes]


@dataclass(frozen=True, eq=False)
class Copy:
    """A message as a client has it, with a digest of all bytes that made it."""

    name: str
    message: Message


@dataclass
class Downlink:
    """The server's messages to the clients in one run."""

    transport: Transport
    key: Key
    copies: dict[str, Copy] = field(default_factory=dict)
    classes: dict[str, frozenset[int]] = field(default_factory=dict)
    """Those in each client's last upload; whoever has sent none gets whole messages."""
    whole: frozenset[str] = frozenset()
    """Clients that may meet other classes than their own, and get whole messages in a closed world too."""

    def knows(self, client: str) -> bool:
        """Whether it is known what the client has; if not, both sides start anew."""
        return client in self.copies

    def forget(self, client: str) -> None:
        """Send the client a whole message next: it did not answer, or what it answered could not be used."""
        self.copies.pop(client, None)

    def send(self, round_number: int, message: Message, clients: Sequence[str]) -> dict[str, Sent]:
        """The kind and the bytes for each of these clients; remember what each of them has afterwards."""
        made: dict[tuple[str, frozenset[int] | None], tuple[Sent, Copy]] = {}
        sent = {}
        for client in clients:
            copy = self.copies.get(client)
            closed = self.transport.closed_world and client not in self.whole
            own = self.classes.get(client) if closed else None
            wanted = (copy.name if copy else "", own)
            if wanted not in made:
                part = message if own is None else keep_classes(message, own)
                key = self.key.child("round", round_number, message.kind.name, wanted[0], *sorted(own or ()))
                made[wanted] = self._update(part, copy, key)
            sent[client], self.copies[client] = made[wanted]
        return sent

    def _update(self, message: Message, copy: Copy | None, key: Key) -> tuple[Sent, Copy]:
        transport, codec = self.transport, self.transport.down
        skip = transport.skip_below or 0.0
        if copy is not None and skip and movement(message, copy.message) < skip:
            return (Kind.SAME, codec.encode(Message(Kind.SAME, ()), known=copy.message)), copy
        known = copy.message if transport.differences and copy is not None else None
        blob = codec.encode(message, key, known)
        name = blake2b((copy.name if copy else "").encode() + blob, digest_size=8).hexdigest()
        return (message.kind, blob), Copy(name, codec.decode(blob, known))

    def as_tensors(self) -> Params:
        """The broadcasts that the clients have, for a checkpoint. Names are JSON: a client may have any name."""
        return {
            json.dumps([client, copy.name, int(copy.message.kind), sorted(self.classes.get(client, ())), at]): array
            for client, copy in self.copies.items()
            for at, array in enumerate(copy.message.arrays)
        }

    def restore(self, tensors: Params) -> None:
        """Take back what `as_tensors` gave."""
        self.copies, self.classes = {}, {}
        entries = sorted((json.loads(name), name) for name in tensors)
        for (client, version, kind, classes, _), name in entries:
            before = self.copies[client].message.arrays if client in self.copies else ()
            self.copies[client] = Copy(version, Message(Kind(kind), (*before, tensors[name])))
            if classes:
                self.classes[client] = frozenset(classes)


def check_transport(algorithm: Algorithm, transport: Transport) -> None:
    """Refuse ways of sending that the method cannot use."""
    if transport.skip_below is not None and not algorithm.sums_last_uploads:
        raise InputError(
            f"skipping needs a server that keeps everyone's last statistics, and {algorithm.name} has none",
            hint="fedlog or fedlog-c, without --carry",
        )
    if transport.closed_world and not isinstance(algorithm, FedLog):
        raise InputError(
            f"a closed world is for FedLog's heads, with one row a class; found method: {algorithm.name}",
            hint="fedlog or fedlog-c",
        )
