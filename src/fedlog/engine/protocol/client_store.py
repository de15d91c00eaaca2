"""What clients have between two exchanges: what each keeps at home, its optimiser's memory, and what all have heard."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedlog.engine.protocol.received import OwnMessages
from fedlog.models.body import Params


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
