"""One question to many sites and their answers within a deadline: who answered, who refused and why, who was silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from flwr.app import Message, MessageType

from fedlog.errors import InputError
from fedlog.flower.protocol.frame import Frame, FrameKind, expect_reply, from_content, to_content

POLL_SECONDS = 0.2


class Node(Protocol):
    """A connected SuperNode, as Flower describes it."""

    @property
    def node_id(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def last_activated_at(self) -> str: ...


class Post(Protocol):
    """The methods of Flower's Grid that the server uses to send and receive messages."""

    def get_nodes(self) -> Iterable[Node]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


@dataclass(frozen=True)
class Replies:
    """The outcome of a question: each site that was asked is in exactly one of the four fields."""

    answers: Mapping[str, Frame]
    refused: Mapping[str, str]
    silent: tuple[str, ...]
    not_awaited: tuple[str, ...] = ()
    unanswered: Mapping[str, str] = field(default_factory=dict)  # message -> site: a reply may still come
    seconds: Mapping[str, float] = field(default_factory=dict)  # site -> how long its answer took


@dataclass(frozen=True)
class Wait:
    """How long to wait for answers, and of whom."""

    seconds: float
    awaited: Collection[str] | None = None  # None: everyone who is asked
    lifetimes: Mapping[str, float] = field(default_factory=dict)  # how long a site can answer; else while it is awaited
    dropped: Callable[[], Collection[str]] = frozenset  # sites that the operator gives up, also meanwhile
    heard: Callable[[], Collection[str]] = frozenset  # sites whose calls still come in, whatever Flower makes of them

    def select_awaited(self, asked: Collection[str]) -> set[str]:
        """Return the sites to wait for at this moment."""
        return set(asked if self.awaited is None else self.awaited) - set(self.dropped())


@dataclass
class SilentSites:
    """Sites that missed a deadline: asked in every round, and waited for again only when they have answered."""

    since: dict[str, int] = field(default_factory=dict)  # the round whose deadline each of them missed
    _unanswered: dict[str, tuple[str, float]] = field(default_factory=dict)  # message -> site, and when it was asked

    def take_late_answers(self, post: Post, now: float) -> list[float]:
        """Look for answers to earlier questions, await their sites again, and return how long each took at most."""
        taken = []
        for message in list(post.pull_messages(list(self._unanswered))) if self._unanswered else []:
            site, asked = self._unanswered.pop(message.metadata.reply_to_message_id, (None, now))
            if site is not None and not message.has_error():
                self.since.pop(site, None)
                taken.append(now - asked)
        return taken

    def select_awaited(self, sites: Collection[str], minimum: int) -> set[str]:
        """Return the sites to wait for: those that answer, or all where these are fewer than the minimum."""
        awaited = set(sites) - set(self.since)
        return awaited if len(awaited) >= minimum else set(sites)

    def update(self, number: int, replies: Replies, asked: float) -> None:
        """Note who answered in this round and who did not; `asked` is when the questions were sent."""
        for site in {*replies.answers, *replies.refused}:
            self.since.pop(site, None)
        for site in replies.silent:
            self.since.setdefault(site, number)
        self._unanswered.update({message: (site, asked) for message, site in replies.unanswered.items()})


@dataclass(frozen=True)
class Clock:
    """The clock of the server; a test passes its own and need not wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def find_connected_sites(post: Post) -> dict[str, int]:
    """The connected sites, name -> node, sorted by name; of two nodes with one name the newer counts.

    The name is what the operator registered with the key, not what the site says of itself.
    """
    nodes = sorted((str(node.name), str(node.last_activated_at), int(node.node_id)) for node in post.get_nodes())
    return {name: node_id for name, _, node_id in nodes if name}


def ask(
    post: Post,
    nodes: Mapping[str, int],
    requests: Mapping[str, Frame],
    kind: FrameKind,
    wait: Wait,
    clock: Clock,
) -> Replies:
    """Ask the sites and return their answers of `kind`: when all that are awaited have come, or at the deadline.

    A message has a lifetime, so that a site that comes back much later does not work on an old question. On a busy
    machine heartbeats come late: Flower then takes a site for gone and its question back, though it is at work. As long
    as it is heard, it is asked again; a site gives the reply that it has already made.
    """
    asking = _OpenQuestion(nodes, requests, kind, wait)
    begun = clock.now()
    asking.sites = _push(post, nodes, requests, wait, 0.0)
    asking.refuse(set(requests) - set(asking.sites.values()), "Flower did not take the message")
    while asking.sites or asking.overdue:
        for message in post.pull_messages(list(asking.sites)) if asking.sites else ():
            asking.take(message, clock.now() - begun)
        if asking.overdue:
            asking.refuse(asking.overdue.difference(wait.heard()), _describe_error(NOT_CONNECTED))
        if not asking.is_awaiting() or clock.now() >= begun + wait.seconds:
            break
        if back := asking.overdue.intersection(find_connected_sites(post)) if asking.overdue else set():
            again = {site: requests[site] for site in sorted(back)}
            asking.sites |= _push(post, nodes, again, wait, clock.now() - begun)
            asking.overdue -= back
        clock.sleep(POLL_SECONDS)
    asking.refuse(set(asking.overdue), _describe_error(NOT_CONNECTED))
    return asking.replies()


@dataclass
class _OpenQuestion:
    """The state of a question so far: each site that was asked is in exactly one of the five fields."""

    nodes: Mapping[str, int]
    requests: Mapping[str, Frame]
    kind: FrameKind
    wait: Wait
    sites: dict[str, str] = field(default_factory=dict)  # message -> site: not answered yet
    overdue: set[str] = field(default_factory=set)  # by Flower's count of heartbeats alone
    answers: dict[str, Frame] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def take(self, message: Message, took: float) -> None:
        """Take in a message that came so many seconds after the question."""
        # Errors that Flower makes itself come from the SuperLink's own node, so the question tells the site.
        site = self.sites.pop(message.metadata.reply_to_message_id, None)
        if site is None:
            return
        code = message.error.code if message.has_error() else None
        if code == NO_ANSWER_IN_TIME:
            self.late.append(site)
        elif code == NOT_CONNECTED and site in self.wait.heard():
            self.overdue.add(site)
        else:
            try:
                self.answers[site] = _answer(message, self.nodes[site], self.requests[site], self.kind)
                self.seconds[site] = took
            except InputError as error:
                self.refused[site] = error.message

    def refuse(self, sites: Collection[str], reason: str) -> None:
        """Note that these sites will not answer, and why."""
        self.refused |= dict.fromkeys(sites, reason)
        self.overdue.difference_update(sites)

    def is_awaiting(self) -> bool:
        """Whether somebody who is waited for has not answered yet."""
        return not self.wait.select_awaited(self.requests).isdisjoint({*self.sites.values(), *self.overdue})

    def replies(self) -> Replies:
        """The outcome as it is now."""
        missing, awaited = sorted([*self.late, *self.sites.values()]), self.wait.select_awaited(self.requests)
        silent = tuple(site for site in missing if site in awaited)
        others = tuple(site for site in missing if site not in awaited)
        return Replies(self.answers, self.refused, silent, others, self.sites, self.seconds)


def _push(
    post: Post, nodes: Mapping[str, int], requests: Mapping[str, Frame], wait: Wait, elapsed: float
) -> dict[str, str]:
    """Send the questions, so many seconds after the first of them, and return message -> site for those taken."""
    messages = [
        Message(
            to_content(frame),
            nodes[site],
            MessageType.TRAIN,
            ttl=max(1.0, wait.lifetimes.get(site, wait.seconds) - elapsed),
            group_id=str(frame.round_number),
        )
        for site, frame in requests.items()
    ]
    # Flower returns None for a message it did not take, and no list at all when the push as a whole was too large.
    taken = list(post.push_messages(messages)) or [""] * len(messages)
    return {sent: site for sent, site in zip(taken, requests, strict=True) if sent}


def _answer(message: Message, node: int, request: Frame, kind: FrameKind) -> Frame:
    if message.has_error():
        # The reason may hold text of an exception at the site, and with it a value of a record: only the code is kept.
        raise InputError(_describe_error(message.error.code))
    if message.metadata.src_node_id != node:
        raise InputError(f"an answer from another node: {message.metadata.src_node_id} ({node} expected)")
    frame = from_content(message)
    if frame.kind is FrameKind.REFUSAL:
        raise InputError(f"the site refused: {frame.payload[:200].decode('ascii', 'replace')}")
    return expect_reply(request, frame, kind)


def _describe_error(code: int) -> str:
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
