"""Send a request to many sites and collect their answers until a deadline: who answered, refused or stayed silent.

The operator sets the deadline, or it is computed from the times of the last rounds. A computed deadline can be too
short for a slow site. So the site may still answer after this deadline, and the server learns from the late answer how
long the site takes. A site that is gone sends no late answer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from flwr.app import Message, MessageType

from fedlog.errors import InputError
from fedlog.flower.protocol.frame import Frame, FrameKind, check_reply, unwrap_frame, wrap_frame

POLL_SECONDS = 0.2


class FlowerNode(Protocol):
    """A connected SuperNode, with the attributes that Flower gives it."""

    node_id: int
    name: str
    last_activated_at: str


class MessageGrid(Protocol):
    """The methods of Flower's Grid with which the server sends and receives messages."""

    def get_nodes(self) -> Iterable[FlowerNode]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


@dataclass(frozen=True)
class Replies:
    """What came back from a request to several sites: answers, refusals, and the sites without an answer."""

    answers: Mapping[str, Frame]  # by site
    refused: Mapping[str, str]  # site -> reason
    silent: tuple[str, ...]  # sites that missed the deadline
    not_awaited: tuple[str, ...] = ()  # sites without an answer for which the server did not wait
    unanswered: Mapping[str, str] = field(default_factory=dict)  # message -> site; a reply may still come
    seconds: Mapping[str, float] = field(default_factory=dict)  # site -> how long its answer took


@dataclass(frozen=True)
class WaitingRules:
    """How long to wait for answers, and for which sites."""

    seconds: float
    awaited: Collection[str] | None = None  # None: every site that is asked
    lifetimes: Mapping[str, float] = field(default_factory=dict)  # site -> how long it can answer (default: `seconds`)
    dropped: Callable[[], Collection[str]] = frozenset  # the sites that the operator has dropped by now
    seen_at_gate: Callable[[], Collection[str]] = frozenset  # the sites that still call the server

    def select_awaited(self, asked: Collection[str]) -> set[str]:
        """Return the sites to wait for: `awaited`, or `asked` if that is None, without the sites dropped so far."""
        return set(asked if self.awaited is None else self.awaited) - set(self.dropped())


@dataclass
class SilentSites:
    """Sites that missed a deadline. They are asked in every round, but not waited for until they answer again."""

    since: dict[str, int] = field(default_factory=dict)  # site -> the round in which it missed the deadline
    _unanswered: dict[str, tuple[str, float]] = field(default_factory=dict)  # message -> site, and when it was asked

    def take_late_answers(self, grid: MessageGrid, now: float) -> list[float]:
        """Collect late answers, and return how many seconds each took; their sites no longer count as silent."""
        taken = []
        for message in list(grid.pull_messages(list(self._unanswered))) if self._unanswered else []:
            site, asked_at = self._unanswered.pop(message.metadata.reply_to_message_id, (None, now))
            if site is not None and not message.has_error():
                self.since.pop(site, None)
                taken.append(now - asked_at)
        return taken

    def select_awaited(self, sites: Collection[str], minimum: int) -> set[str]:
        """Select the sites to wait for: those that are not silent, or all sites if that leaves fewer than `minimum`."""
        awaited = set(sites) - set(self.since)
        return awaited if len(awaited) >= minimum else set(sites)

    def update(self, number: int, replies: Replies, asked_at: float) -> None:
        """Store which sites answered in this round and which were silent; `asked_at` is when the requests were sent."""
        for site in {*replies.answers, *replies.refused}:
            self.since.pop(site, None)
        for site in replies.silent:
            self.since.setdefault(site, number)
        self._unanswered.update({message: (site, asked_at) for message, site in replies.unanswered.items()})


@dataclass(frozen=True)
class Clock:
    """The server's clock and sleep function, which tests replace so that they need not wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def find_connected_sites(grid: MessageGrid) -> dict[str, int]:
    """Return site name -> Flower node of the connected sites; of two nodes with the same name, the newer counts.

    The name is the one that the operator registered with the key, not one that the site chose.
    """
    nodes = sorted((str(node.name), str(node.last_activated_at), int(node.node_id)) for node in grid.get_nodes())
    return {name: node_id for name, _, node_id in nodes if name}


def ask_sites(
    grid: MessageGrid,
    nodes: Mapping[str, int],
    requests: Mapping[str, Frame],
    kind: FrameKind,
    wait: WaitingRules,
    clock: Clock,
) -> Replies:
    """Send the requests, wait until all awaited sites have answered or the deadline is over, and return the replies.

    An answer must be a frame of the kind `kind`. Every request expires, so that a site that comes back much later does
    not answer an old one. On a busy machine a site's heartbeats may be late: Flower then believes that the working site
    is gone, and withdraws the request. If the site still calls the server, the server sends the request again when
    Flower shows the site as connected, and the site replies with its stored answer.
    """
    asking = _OpenRequest(nodes, requests, kind, wait)
    begun = clock.now()
    asking.sites = _send_requests(grid, nodes, requests, wait, 0.0)
    asking.mark_refused(set(requests) - set(asking.sites.values()), "Flower did not take the message")
    while asking.sites or asking.overdue:
        for message in grid.pull_messages(list(asking.sites)) if asking.sites else ():
            asking.take_message(message, clock.now() - begun)
        if asking.overdue:
            asking.mark_refused(asking.overdue.difference(wait.seen_at_gate()), _describe_flower_error(NOT_CONNECTED))
        if not asking.is_awaiting() or clock.now() >= begun + wait.seconds:
            break
        if back := asking.overdue.intersection(find_connected_sites(grid)) if asking.overdue else set():
            again = {site: requests[site] for site in sorted(back)}
            asking.sites |= _send_requests(grid, nodes, again, wait, clock.now() - begun)
            asking.overdue -= back
        clock.sleep(POLL_SECONDS)
    asking.mark_refused(set(asking.overdue), _describe_flower_error(NOT_CONNECTED))
    return asking.make_replies()


@dataclass
class _OpenRequest:
    """A request to several sites that waits for answers, with what each site has done so far."""

    nodes: Mapping[str, int]
    requests: Mapping[str, Frame]
    kind: FrameKind
    wait: WaitingRules
    sites: dict[str, str] = field(default_factory=dict)  # message -> site that has not answered yet
    overdue: set[str] = field(default_factory=set)  # sites without heartbeats that still call the gate
    answers: dict[str, Frame] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)  # sites whose request has expired
    seconds: dict[str, float] = field(default_factory=dict)

    def take_message(self, message: Message, took: float) -> None:
        """Store an answer, a refusal or an error of Flower that came `took` seconds after the request."""
        # Flower sends its own errors from the SuperLink's node, so the site is found by the request's number.
        site = self.sites.pop(message.metadata.reply_to_message_id, None)
        if site is None:
            return
        code = message.error.code if message.has_error() else None
        if code == NO_ANSWER_IN_TIME:
            self.late.append(site)
        elif code == NOT_CONNECTED and site in self.wait.seen_at_gate():
            self.overdue.add(site)
        else:
            try:
                self.answers[site] = _read_answer(message, self.nodes[site], self.requests[site], self.kind)
                self.seconds[site] = took
            except InputError as error:
                self.refused[site] = error.message

    def mark_refused(self, sites: Collection[str], reason: str) -> None:
        """Count these sites among those that refused, with this reason, and stop waiting for their answers."""
        self.refused |= dict.fromkeys(sites, reason)
        self.overdue.difference_update(sites)

    def is_awaiting(self) -> bool:
        """Whether an answer is missing from a site that the server waits for."""
        return not self.wait.select_awaited(self.requests).isdisjoint({*self.sites.values(), *self.overdue})

    def make_replies(self) -> Replies:
        """Return the answers and refusals so far, and the sites that have not answered."""
        missing, awaited = sorted([*self.late, *self.sites.values()]), self.wait.select_awaited(self.requests)
        silent = tuple(site for site in missing if site in awaited)
        others = tuple(site for site in missing if site not in awaited)
        return Replies(self.answers, self.refused, silent, others, self.sites, self.seconds)


def _send_requests(
    grid: MessageGrid, nodes: Mapping[str, int], requests: Mapping[str, Frame], wait: WaitingRules, elapsed: float
) -> dict[str, str]:
    """Send the requests, and return message id -> site for the messages that Flower accepted.

    `elapsed` is how many seconds ago the requests were sent for the first time.
    """
    messages = [
        Message(
            wrap_frame(frame),
            nodes[site],
            MessageType.TRAIN,
            ttl=max(1.0, wait.lifetimes.get(site, wait.seconds) - elapsed),
            group_id=str(frame.round_number),
        )
        for site, frame in requests.items()
    ]
    # Flower returns None for a message it did not take, and no list at all when the push as a whole was too large.
    taken = list(grid.push_messages(messages)) or [""] * len(messages)
    return {sent: site for sent, site in zip(taken, requests, strict=True) if sent}


def _read_answer(message: Message, node: int, request: Frame, kind: FrameKind) -> Frame:
    """Return the frame in a site's message; raise InputError for an error, a refusal or a frame of another kind."""
    if message.has_error():
        # Only the code: the text may come from an exception at the site, and hold a value of a record.
        raise InputError(_describe_flower_error(message.error.code))
    if message.metadata.src_node_id != node:
        found = message.metadata.src_node_id
        raise InputError(f"expected an answer from the site's Flower node {node}, found one from node: {found}")
    frame = unwrap_frame(message)
    if frame.kind is FrameKind.REFUSAL:
        raise InputError(f"the site refused: {frame.payload[:200].decode('ascii', 'replace')}")
    return check_reply(request, frame, kind)


def _describe_flower_error(code: int) -> str:
    return f"Flower error {code} ({_ERRORS.get(code, 'unknown')})"


# flwr.common.constant.ErrorCode of 1.41.0, in words for the operator.
NO_ANSWER_IN_TIME, NOT_CONNECTED = 3, 5
_ERRORS = {
    1: "the app could not be loaded",
    2: "the app failed; see the log at the site",
    4: "the answer did not arrive whole",
    NOT_CONNECTED: "the site is not connected",
    8: "the app ended without an answer",
}


# Used before the first round: training may take minutes.
FIRST_SECONDS = 600.0
SHORTEST_SECONDS = 60.0
# The deadline is this many times the slowest answer of the last rounds, so that a site may be slower once.
TIMES_THE_SLOWEST = 4.0
REMEMBERED_ROUNDS = 5
LATE_ANSWER_TIMES = 6.0  # a late answer is accepted for this many times the deadline
# A site that is not waited for finds the requests of this many rounds when it comes back.
OPEN_ROUNDS = 2.0
SHORTEST_OPEN_SECONDS = 10.0


@dataclass
class Deadline:
    """How long to wait for answers: `fixed` seconds if the operator set them, else computed from earlier answers."""

    fixed: float | None = None
    slowest: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_ROUNDS))  # seconds, round by round

    @property
    def seconds(self) -> float:
        """How many seconds to wait for the answers to the next request."""
        if self.fixed is not None:
            return self.fixed
        if not self.slowest:
            return FIRST_SECONDS
        return max(SHORTEST_SECONDS, TIMES_THE_SLOWEST * max(self.slowest))

    @property
    def gathering_seconds(self) -> float:
        """How many seconds to wait for more sites to connect if there are too few."""
        return FIRST_SECONDS if self.fixed is None else self.fixed

    def compute_request_lifetime(self, awaited: bool) -> float:
        """Return how many seconds a site may take to answer a request; `awaited`: the server waits for this site."""
        if self.fixed is not None:
            return self.fixed
        if awaited:
            return LATE_ANSWER_TIMES * self.seconds
        # Short, so that a site which comes back need not answer the requests of many rounds.
        usual = max(self.slowest, default=FIRST_SECONDS)
        return min(self.seconds, max(SHORTEST_OPEN_SECONDS, OPEN_ROUNDS * usual))

    def learn_from_answers(self, seconds: Iterable[float]) -> None:
        """Store the longest of these answer times; the next deadlines are computed from the stored times."""
        if taken := list(seconds):
            self.slowest.append(max(taken))
