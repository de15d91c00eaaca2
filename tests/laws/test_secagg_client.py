"""Requests of a server that a client of a secure sum must refuse, to protect its shares and its vector."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from secagg_parties import COORDINATES, identity, make_terms, make_vectors, walk

from fedlog.privacy.secagg.answered_steps import AnsweredStepsOnDisk
from fedlog.privacy.secagg.client import KeysState, MaskedState, SharesState, SumClient, answer_step
from fedlog.privacy.secagg.crypto import SigningIdentity, derive_public_key
from fedlog.privacy.secagg.encoding import RefusalError, decode, encode
from fedlog.privacy.secagg.messages import (
    Envelope,
    KeyList,
    PublicKeys,
    SealedShareDelivery,
    Survivors,
    SurvivorSignatures,
    digest_survivors,
    sign_envelope,
)
from fedlog.privacy.secagg.terms import Step


@pytest.mark.parametrize("signer", ["nobody", "another", "an older round"])
def test_a_server_that_puts_its_own_keys_in_the_place_of_peers_gets_no_shares(signer: str) -> None:
    # With its own keys it could open what is sealed for the peers, and take every mask off.
    terms = make_terms(5)
    _, clients, states, mail = walk(terms, Step.SHARES)
    me, *peers = sorted(terms.roster)
    shown = decode(KeyList, mail[me])
    for number in peers:
        body = encode(PublicKeys(derive_public_key(os.urandom(32)), derive_public_key(os.urandom(32)), bytes(32)))
        older = replace(terms, session=bytes(15) + b"o")
        signatures = {
            "nobody": shown.keys[number][-64:],  # the one under the keys that were there
            "another": SigningIdentity.create(number, os.urandom).sign(terms, Step.KEYS, body),
            "an older round": identity(number).sign(older, Step.KEYS, body),
        }
        shown.keys[number] = body + signatures[signer]
    state = states[me]
    assert isinstance(state, KeysState)
    with pytest.raises(RefusalError, match="signature"):
        clients[me].share_secrets(state, encode(shown))
    clients[me].share_secrets(state, mail[me])


def test_a_client_shares_no_secrets_under_a_list_that_leaves_it_out() -> None:
    terms = make_terms(5)
    _, clients, states, mail = walk(terms, Step.SHARES)
    me, *peers = sorted(terms.roster)
    without = KeyList({number: decode(KeyList, mail[me]).keys[number] for number in peers})
    with pytest.raises(RefusalError, match="does not contain the keys that this client sent"):
        answer_step(clients[me], Step.SHARES, states[me], encode(without), np.zeros(0, np.uint64))


def test_a_client_counts_for_itself_how_many_are_in_the_sum() -> None:
    """Six are agreed on and four could unmask: a server that names five, this client among them, gets nothing."""
    terms = make_terms(6, honest=5, corrupted=1)
    assert (terms.threshold, terms.fewest_survivors) == (4, 6)
    few = sorted(terms.roster)[:5]
    me = few[0]
    _, clients, states, mail = walk(terms, Step.SHARES)
    keys = KeyList({number: decode(KeyList, mail[me]).keys[number] for number in few})
    with pytest.raises(RefusalError, match="too few clients sent keys: 5, needed: 6"):
        answer_step(clients[me], Step.SHARES, states[me], encode(keys), np.zeros(0, np.uint64))
    _, clients, states, mail = walk(terms, Step.MASKED)
    sealed = SealedShareDelivery({number: decode(SealedShareDelivery, mail[me]).sealed[number] for number in few[1:]})
    with pytest.raises(RefusalError, match="too few clients shared their secrets: 5, needed: 6"):
        answer_step(clients[me], Step.MASKED, states[me], encode(sealed), make_vectors(terms)[me])
    _, clients, states, mail = walk(terms, Step.AGREE)
    with pytest.raises(RefusalError, match="too few clients sent a masked vector: 5, needed: 6"):
        answer_step(clients[me], Step.AGREE, states[me], encode(Survivors(tuple(few))), np.zeros(0, np.uint64))


def test_a_server_that_tells_two_stories_gets_no_shares() -> None:
    # Two groups are told different survivors, which would reveal both secrets of the client in dispute.
    terms = make_terms(7, corrupted=1)
    _, clients, states, _ = walk(terms, Step.AGREE)
    members = sorted(terms.roster)
    story_a, story_b = Survivors(tuple(members)), Survivors(tuple(members[:-1]))
    signed: dict[str, dict[int, bytes]] = {"a": {}, "b": {}}
    agreed: dict[int, object] = {}
    for place, number in enumerate(members):
        # The corrupted client (the first) signs whatever it is asked to.
        stories = ("a", "b") if place == 0 else ("a",) if place % 2 else ("b",)
        for name in stories:
            story = story_a if name == "a" else story_b
            if number not in story.members:
                continue
            state = states[number]
            assert isinstance(state, MaskedState)
            if place == 0:
                view = digest_survivors(state.peers_digest, story)
                envelope = decode(Envelope, sign_envelope(terms, identity(number), Step.AGREE, view))
            else:
                agreed[number], reply = clients[number].sign_survivors(state, encode(story))
                envelope = decode(Envelope, reply)
            signed[name][number] = envelope.signature
    released = 0
    for number, state in agreed.items():
        for name in ("a", "b"):
            try:
                answer_step(
                    clients[number],
                    Step.UNMASK,
                    state,
                    encode(SurvivorSignatures(signed[name])),
                    np.zeros(0, np.uint64),
                )
                released += 1
            except RefusalError:
                pass
    assert released == 0


@pytest.mark.parametrize("step", list(Step))
def test_a_client_answers_each_step_once(step: Step) -> None:
    terms = make_terms(4)
    _, clients, states, mail = walk(terms, step)
    me = min(terms.roster)
    given = clients[me], step, states[me], mail[me], make_vectors(terms)[me]
    answer_step(*given)
    with pytest.raises(RefusalError, match="answered before"):
        answer_step(*given)


def test_a_list_of_survivors_names_this_client_and_nobody_who_shared_no_secrets() -> None:
    # Clients that nobody has shares of would make up the number without hiding anyone.
    terms = make_terms(5)
    _, clients, states, mail = walk(terms, Step.AGREE)
    me, *others = sorted(terms.roster)
    state = states[me]
    assert isinstance(state, MaskedState)
    for members, said in ((others, "leaves out this client"), ([me, 100, 101], r"shared no secrets: \[100, 101\]")):
        with pytest.raises(RefusalError, match=said):
            clients[me].sign_survivors(state, encode(Survivors(tuple(members))))
    clients[me].sign_survivors(state, mail[me])


def test_who_is_not_in_the_sum_has_no_say_in_who_is() -> None:
    terms = make_terms(5)
    _, clients, states, _ = walk(terms, Step.AGREE)
    me, other, *_, gone = sorted(terms.roster)
    state = states[me]
    assert isinstance(state, MaskedState)
    agreed, reply = clients[me].sign_survivors(state, encode(Survivors(tuple(sorted(terms.roster))[:-1])))
    view = decode(Envelope, reply).body
    signed = {number: identity(number).sign(terms, Step.AGREE, view) for number in (me, other, gone)}
    assert len(signed) == terms.threshold
    with pytest.raises(RefusalError, match="but is not on it"):
        clients[me].reveal_shares(agreed, encode(SurvivorSignatures(signed)))


def test_no_two_sealed_messages_share_a_key() -> None:
    # They all have the same nonce: under one key, two of them would give both away.
    terms = make_terms(5)
    _, _, states, _ = walk(terms, Step.MASKED)
    opening = [key for state in states.values() for key in state.decryption_keys.values()]  # type: ignore[attr-defined]
    assert len(set(opening)) == len(opening) == 5 * 4


def test_a_restarted_client_sends_no_second_vector_under_the_same_masks(tmp_path: Path) -> None:
    terms = make_terms(5)
    _, _, states, mail = walk(terms, Step.MASKED)
    number = min(terms.roster)
    saved = encode(states[number])  # type: ignore[arg-type]
    first = SumClient(terms, identity(number), AnsweredStepsOnDisk(tmp_path), os.urandom)
    first.mask_vector(decode(SharesState, saved), mail[number], np.zeros(COORDINATES, np.uint64))
    again = SumClient(terms, identity(number), AnsweredStepsOnDisk(tmp_path), os.urandom)
    with pytest.raises(RefusalError, match="answered before"):
        again.mask_vector(decode(SharesState, saved), mail[number], np.ones(COORDINATES, np.uint64))


def test_a_refused_message_leaves_the_client_able_to_answer_the_right_one() -> None:
    terms = make_terms(5)
    _, clients, states, mail = walk(terms, Step.MASKED)
    number = min(terms.roster)
    state = states[number]
    assert isinstance(state, SharesState)
    with pytest.raises(RefusalError):
        clients[number].mask_vector(state, mail[number][:-1] + b"x", np.zeros(COORDINATES, np.uint64))
    clients[number].mask_vector(state, mail[number], np.zeros(COORDINATES, np.uint64))
