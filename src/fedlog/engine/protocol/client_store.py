"""What clients have between two exchanges: what each keeps at home, its optimiser's memory, and what all have heard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedlog.algorithms.shape import Algorithm
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Kind, Message
from fedlog.wire.transport import Transport

MESSAGES = "messages"  # in a saved file, behind the client: messages it has received and sent
NEVER = -1e4  # the bias of a class that a client will not see: its probability is 0 in float32


@dataclass
class OwnMessages:
    """The messages of each client, where every client gets bytes of its own. Equal ones are stored once."""

    copies: dict[int, Message] = field(default_factory=dict)
    """The last broadcast that each client decoded."""
    heard: dict[int, Params] = field(default_factory=dict)
    """What the method made of it."""
    sent: dict[int, Message] = field(default_factory=dict)
    """Each client's last upload as the server has it, where skipping needs it."""

    def forget(self, clients: Iterable[int]) -> None:
        """Forget the messages of these clients: the server does not know what they have, or lost what they sent."""
        for index in clients:
            self.copies.pop(index, None)
            self.sent.pop(index, None)

    def take(self, blobs: Mapping[int, bytes], transport: Transport, algorithm: Algorithm, common: Params) -> None:
        """Decode what each client was sent; `common` is what a client knows that has not had its own message yet."""
        decoded: dict[tuple[int, bytes], Message] = {}
        known: dict[tuple[int, int], Params] = {}
        for index, blob in blobs.items():
            copy, before = self.copies.get(index), self.heard.get(index, common)
            if (id(copy), blob) not in decoded:
                decoded[id(copy), blob] = transport.down.decode(blob, copy)
            message = decoded[id(copy), blob]
            if message.kind is Kind.SAME:
                continue
            if (id(message), id(before)) not in known:
                after = algorithm.hear(message, before)
                own = never_predict_missing_classes(after) if transport.closed_world else after
                known[id(message), id(before)] = own
            self.copies[index], self.heard[index] = message, known[id(message), id(before)]

    def as_tensors(self) -> Params:
        """All messages as named tensors, for a checkpoint."""
        found: Params = {}
        for name, messages in (("received", self.copies), ("sent", self.sent)):
            for index, message in messages.items():
                for at, array in enumerate(message.arrays):
                    found[f"{index}/{MESSAGES}/{name}/{int(message.kind)}/{at}"] = array.contiguous()
        for index, params in self.heard.items():
            found |= {f"{index}/{MESSAGES}/heard/{name}": value.contiguous() for name, value in params.items()}
        return found

    def restore(self, tensors: Mapping[tuple[int, str], Tensor]) -> None:
        """Take back what `as_tensors` gave, by client and the rest of the name."""
        found: dict[str, dict[int, Message]] = {"received": {}, "sent": {}}
        self.heard = {}
        for (index, entry), value in sorted(tensors.items(), key=lambda item: item[0]):
            _, sort, rest = entry.split("/", 2)
            if sort == "heard":
                self.heard.setdefault(index, {})[rest] = value
                continue
            kind = Kind(int(rest.partition("/")[0]))
            before = found[sort][index].arrays if index in found[sort] else ()
            found[sort][index] = Message(kind, (*before, value))
        self.copies, self.sent = found["received"], found["sent"]


@dataclass
class ClientStore:
    """The state of some clients, by their number."""

    homes: dict[int, Params]
    heard: Params = field(default_factory=dict)
    moments: dict[tuple[int, str], Params] = field(default_factory=dict)
    """Adam's, by client and exchange; empty unless they outlast a round."""
    messages: OwnMessages = field(default_factory=OwnMessages)
    """Empty unless the server sends every client bytes of its own."""

    def keep_home(self, client: int, home: Params) -> None:
        """Replace what the client keeps at home, by copies: a view would keep a whole chunk's storage alive."""
        self.homes[client] = {name: value.clone() for name, value in home.items()}

    def keep_moments(self, client: int, exchange: str, moments: Params) -> None:
        """Replace what the client's optimiser remembers of that exchange, unless there is nothing to remember."""
        if moments:
            self.moments[client, exchange] = {name: value.clone() for name, value in moments.items()}

    def heard_by(self, client: int) -> Params:
        """The broadcast as this client knows it: its own copy, or the common one."""
        return self.messages.heard.get(client, self.heard)


def never_predict_missing_classes(heard: Params) -> Params:
    """The broadcast with a head that never predicts a class without a row; such classes do not count in the loss."""
    head = heard[HEAD].clone()
    head[(head == 0).all(dim=1), 0] = NEVER
    return {**heard, HEAD: head}
