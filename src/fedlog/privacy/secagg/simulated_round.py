"""Run a whole secure sum in one process, with every message as bytes: for the simulator, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fedlog.privacy.secagg.client import KeysState, SumClient, answer_step
from fedlog.privacy.secagg.encoding import RefusalError
from fedlog.privacy.secagg.fixed_point import Words
from fedlog.privacy.secagg.server import SecureSumResult, ServerRound, close_step, receive_message, unmask_sum
from fedlog.privacy.secagg.terms import Step, Terms

Mail = list[tuple[int, bytes]]
"""Messages in the order of arrival, each with the number of its sender or receiver."""

Courier = Callable[[Step, str, Mail], Iterable[tuple[int, bytes]]]
"""A function that returns the messages that arrive; the text is `up` or `down`."""


def deliver_everything(step: Step, direction: str, mail: Mail) -> Iterable[tuple[int, bytes]]:
    """Return every message as it was sent: no client drops out."""
    return mail


Early = Mapping[int, tuple[KeysState, bytes]]
"""Keys that were sent with the last reply of the round before: each client's state, and its message."""


@dataclass
class RoundObservations:
    """What happened in a simulated round: refused messages, how often the server waited, and who helped to unmask."""

    refused: list[str] = field(default_factory=list)
    """Why messages were refused, and by whom."""
    turns: int = 0
    """How many times the server asked the clients and waited for their replies."""
    helped: list[int] = field(default_factory=list)
    """The clients that answered the last step."""


def run_secure_round(
    terms: Terms,
    clients: Mapping[int, SumClient],
    vectors: Mapping[int, Words],
    courier: Courier = deliver_everything,
    observed: RoundObservations | None = None,
    early: Early | None = None,
) -> SecureSumResult:
    """Simulate a round of a secure sum and return the sum over the survivors; RoundFailedError if there are too few.

    `courier` decides which messages arrive; what happens is noted in `observed`, if given. A client in `early` sent
    its keys in the round before and is not asked for keys again; if all clients did, the server waits one time less.
    """
    observed = RoundObservations() if observed is None else observed
    early = {} if early is None else early
    server = ServerRound(terms)
    states: dict[int, object] = {number: state for number, (state, _) in early.items()}
    for _, blob in early.values():
        server = receive_message(server, blob)
    inbox: Mail = [(number, b"") for number in clients if number not in early]
    for step in Step:
        outbox: Mail = []
        observed.turns += bool(inbox)
        for number, blob in inbox:
            try:
                states[number], reply = answer_step(clients[number], step, states.get(number), blob, vectors[number])
            except RefusalError as refusal:
                observed.refused.append(f"client {number}: {refusal.message}")
                continue
            outbox.append((number, reply))
        for number, blob in courier(step, "up", outbox):
            try:
                server = receive_message(server, blob)
                observed.helped += [number] if step is Step.UNMASK else []
            except RefusalError as refusal:
                observed.refused.append(f"server: {refusal.message}")
        if step is Step.UNMASK:
            break
        server, outgoing = close_step(server)
        inbox = list(courier(Step(step + 1), "down", list(outgoing.items())))
    return unmask_sum(server)
