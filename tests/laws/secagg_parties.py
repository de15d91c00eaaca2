"""Parties of a secure sum, small and quick: terms, clients, vectors, and a round as far as some step."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache

import numpy as np

from fedlog.privacy.secagg.answered_steps import AnsweredStepsInMemory
from fedlog.privacy.secagg.client import SumClient, answer_step
from fedlog.privacy.secagg.crypto import SigningIdentity
from fedlog.privacy.secagg.fixed_point import Words
from fedlog.privacy.secagg.server import ServerRound, close_step, receive_message
from fedlog.privacy.secagg.terms import Step, Terms, compute_smallest_safe_threshold

COORDINATES = 6
VALUE_BYTES = 3
MODULUS = 256**VALUE_BYTES


@cache
def identity(number: int) -> SigningIdentity:
    return SigningIdentity.create(number, os.urandom)


def make_terms(clients: int, *, corrupted: int = 0, honest: int = 3, round: int = 0) -> Terms:  # noqa: A002
    # Numbers with gaps: nothing may depend on their being 0, 1, 2, ...
    members = [3 * number + 1 for number in range(clients)]
    roster = {number: identity(number).public_key for number in members}
    threshold = compute_smallest_safe_threshold(clients, corrupted)
    return Terms(bytes(16), round, roster, threshold, honest, corrupted, COORDINATES, VALUE_BYTES)


def make_clients(terms: Terms) -> dict[int, SumClient]:
    return {n: SumClient(terms, identity(n), AnsweredStepsInMemory(), os.urandom) for n in terms.roster}


def make_vectors(terms: Terms, seed: int = 0) -> dict[int, Words]:
    generator = np.random.default_rng(seed)
    return {n: generator.integers(0, 2**64, COORDINATES, dtype=np.uint64) for n in terms.roster}


def plain_sum(vectors: dict[int, Words], members: Iterable[int]) -> list[int]:
    return [sum(int(vectors[n][i]) for n in members) % MODULUS for i in range(COORDINATES)]


def walk(terms: Terms, upto: Step) -> tuple[ServerRound, dict[int, SumClient], dict[int, object], dict[int, bytes]]:
    """A faultless round just before the clients answer in step `upto`: server, clients, their states, their mail."""
    clients, vectors = make_clients(terms), make_vectors(terms)
    server, mail = ServerRound(terms), dict.fromkeys(terms.roster, b"")
    states: dict[int, object] = dict.fromkeys(terms.roster)
    for step in Step:
        if step is upto:
            return server, clients, states, mail
        for number in terms.roster:
            states[number], reply = answer_step(clients[number], step, states[number], mail[number], vectors[number])
            server = receive_message(server, reply)
        server, mail = close_step(server)
    raise AssertionError
