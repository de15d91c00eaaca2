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
    """The outcome for each site that was asked: it is in exactly one of the four."""

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
        """Take in who answered in this round, whose questions were asked then, and who did not."""
        for site in {*replies.answers, *replies.refused}:
            self.since.pop(site, None)
        for site in replies.silent:
            self.since.setdefault(site, number)
        self._unanswered.update({message: (site, asked) for message, site in replies.unanswered.items()})


@dataclass(frozen=True)
class Clock:
    """Time as an argument, so that a test need not wait."""

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

    A message has a lifetime, so that a site that comes back much later does not work on an old question.
    """
    messages = [
        Message(
            to_content(frame),
            nodes[site],
            MessageType.TRAIN,
            ttl=wait.lifetimes.get(site, wait.seconds),
            group_id=str(frame.round_number),
        )
        for site, frame in requests.items()
    ]
    # Flower returns None for a message it did not take, and no list at all when the push as a whole was too large.
    taken = list(post.push_messages(messages)) or [""] * len(messages)
    sites = {sent: site for sent, site in zip(taken, requests, strict=True) if sent}
    answers: dict[str, Frame] = {}
    seconds: dict[str, float] = {}
    refused = {site: "Flower did not take the message" for site in requests if site not in sites.values()}
    late: list[str] = []
    begun = clock.now()
    while sites:
        for message in post.pull_messages(list(sites)):
            # Errors that Flower makes itself come from the SuperLink's own node, so the question tells the site.
            site = sites.pop(message.metadata.reply_to_message_id, None)
            if site is None:
                continue
            if message.has_error() and message.error.code == NO_ANSWER_IN_TIME:
                late.append(site)
                continue
            try:
                answers[site] = _answer(message, nodes[site], requests[site], kind)
                seconds[site] = clock.now() - begun
            except InputError as error:
                refused[site] = error.message
        if wait.select_awaited(requests).isdisjoint(sites.values()) or clock.now() >= begun + wait.seconds:
            break
        clock.sleep(POLL_SECONDS)
    missing, awaited = sorted([*late, *sites.values()]), wait.select_awaited(requests)
    silent = tuple(site for site in missing if site in awaited)
    return Replies(answers, refused, silent, tuple(site for site in missing if site not in awaited), sites, seconds)


def _answer(message: Message, node: int, request: Frame, kind: FrameKind) -> Frame:
    if message.has_error():
        # The reason may hold text of an exception at the site, and with it a value of a record: only the code is kept.
        raise InputError(f"Flower error {message.error.code} ({_ERRORS.get(message.error.code, 'unknown')})")
    if message.metadata.src_node_id != node:
        raise InputError(f"an answer from another node: {message.metadata.src_node_id} ({node} expected)")
    frame = from_content(message)
    if frame.kind is FrameKind.REFUSAL:
        raise InputError(f"the site refused: {frame.payload[:200].decode('ascii', 'replace')}")
    return expect_reply(request, frame, kind)


# flwr.common.constant.ErrorCode of 1.41.0, in words for the operator.
NO_ANSWER_IN_TIME = 3
_ERRORS = {
    1: "the app could not be loaded",
    2: "the app failed; see the log at the site",
    4: "the answer did not arrive whole",
    5: "the site is not connected",
    8: "the app ended without an answer",
}
