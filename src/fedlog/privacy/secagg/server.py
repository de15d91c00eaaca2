"""The server's side of a secure sum: it receives messages one by one, closes the step, and sends the next messages.

States are values that never change. `receive_message` returns the state with one more message, or raises
`RefusalError`; `close_step` returns the state of the next step and what to send to whom, or raises `RoundFailedError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from fedlog.privacy.secagg import crypto, messages
from fedlog.privacy.secagg.encoding import RefusalError, RoundFailedError, decode, encode
from fedlog.privacy.secagg.fixed_point import Words, unpack_words
from fedlog.privacy.secagg.shamir import SHARE_BYTES, combine_shares, compute_lagrange_weights
from fedlog.privacy.secagg.terms import Step, Terms

T = TypeVar("T")


@dataclass(frozen=True)
class SecureSumResult:
    """The result of a secure sum: the sum over the survivors, their client numbers, and who sent wrong shares."""

    total: Words
    survivors: tuple[int, ...]
    left_out: int | None = None
    """The client whose shares did not fit those of the others and were not used; None if all fitted."""


@dataclass(frozen=True)
class ServerRound:
    """The server's state in one round of a secure sum: the messages that it has received so far."""

    terms: Terms
    step: Step = Step.KEYS
    keys: Mapping[int, bytes] = field(default_factory=dict)
    """Client -> its encoded public keys, followed by the signature."""
    sealed: Mapping[int, Mapping[int, bytes]] = field(default_factory=dict)
    masked: Mapping[int, bytes] = field(default_factory=dict)
    agreed: Mapping[int, bytes] = field(default_factory=dict)
    unmasking: Mapping[int, messages.UnmaskingShares] = field(default_factory=dict)
    list_digest: bytes = b""
    """The digest of the list that the last step ended with; every message of this step must refer to it."""

    @property
    def survivors(self) -> messages.Survivors:
        """The clients whose masked vectors arrived in time."""
        return messages.Survivors(tuple(sorted(self.masked)))


def receive_message(state: ServerRound, blob: bytes) -> ServerRound:
    """Return the state with one more client's message of the current step; raise RefusalError if it is invalid."""
    envelope = messages.open_envelope(state.terms, state.step, blob)
    match state.step:
        case Step.KEYS:
            messages.decode_keys(envelope.body)
            return replace(state, keys=_add_once(state.keys, envelope.sender, envelope.body + envelope.signature))
        case Step.SHARES:
            return replace(
                state, sealed=_add_once(state.sealed, envelope.sender, _decode_sealed_shares(state, envelope))
            )
        case Step.MASKED:
            return replace(
                state, masked=_add_once(state.masked, envelope.sender, _decode_masked_vector(state, envelope))
            )
        case Step.AGREE:
            if envelope.sender not in state.masked:
                raise RefusalError(
                    f"client {envelope.sender} signed a list of the clients that are still in this secure sum, but the "
                    "server has no masked vector from it"
                )
            if envelope.body != state.list_digest:
                raise RefusalError(
                    f"client {envelope.sender} signed another list of the clients that are still in this secure sum "
                    "than the server's"
                )
            return replace(state, agreed=_add_once(state.agreed, envelope.sender, envelope.signature))
        case Step.UNMASK:
            return replace(
                state, unmasking=_add_once(state.unmasking, envelope.sender, _decode_unmasking_shares(state, envelope))
            )


def close_step(state: ServerRound) -> tuple[ServerRound, dict[int, bytes]]:
    """End the current step; return the state of the next step and the message for each client.

    Raise RoundFailedError if too few clients have answered.
    """
    match state.step:
        case Step.KEYS:
            _require_enough_clients(len(state.keys), state.terms.fewest_survivors, "sent keys")
            key_list = messages.KeyList(dict(state.keys))
            following = replace(state, step=Step.SHARES, list_digest=messages.digest_keys(key_list))
            return following, dict.fromkeys(state.keys, encode(key_list))
        case Step.SHARES:
            _require_enough_clients(len(state.sealed), state.terms.fewest_survivors, "shared their secrets")
            following = replace(
                state, step=Step.MASKED, list_digest=messages.digest_peers(state.list_digest, state.sealed)
            )
            return following, {receiver: _make_share_delivery(state, receiver) for receiver in state.sealed}
        case Step.MASKED:
            _require_enough_clients(len(state.masked), state.terms.fewest_survivors, "sent a masked vector")
            following = replace(
                state, step=Step.AGREE, list_digest=messages.digest_survivors(state.list_digest, state.survivors)
            )
            return following, dict.fromkeys(state.masked, encode(state.survivors))
        case Step.AGREE:
            _require_enough_clients(
                len(state.agreed),
                state.terms.threshold,
                "signed the list of the clients that are still in this secure sum",
            )
            # All survivors sign, but a client needs only `threshold` signatures: a shorter list is cheaper to check.
            chosen = {number: state.agreed[number] for number in sorted(state.agreed)[: state.terms.threshold]}
            return replace(state, step=Step.UNMASK), dict.fromkeys(
                state.agreed, encode(messages.SurvivorSignatures(chosen))
            )
        case Step.UNMASK:
            raise RoundFailedError("the last step (unmask) ends with `unmask_sum`, not with `close_step`")


def unmask_sum(state: ServerRound) -> SecureSumResult:
    """Unmask the sum over the survivors with the shares of the last step; raise RoundFailedError if that fails."""
    terms = state.terms
    if state.step is not Step.UNMASK:
        raise RoundFailedError(
            f"the sum can be unmasked only in the last step (unmask), found: step {state.step.name.lower()}"
        )
    _require_enough_clients(len(state.unmasking), terms.threshold, "helped to unmask")
    secrets, left_out = _find_secrets(state)
    total = np.zeros(terms.coordinates, dtype=np.uint64)
    for number, vector in state.masked.items():
        total += unpack_words(vector, terms.value_bytes) - crypto.make_mask(terms, secrets[number])
    for number in sorted(state.sealed.keys() - state.masked.keys()):
        total -= _sum_masks_of_dropout(state, number, secrets[number])
    return SecureSumResult(total & np.uint64((1 << 8 * terms.value_bytes) - 1), state.survivors.members, left_out)


def _find_secrets(state: ServerRound) -> tuple[dict[int, bytes], int | None]:
    """Return client -> the secret that removes its masks, and the client whose wrong shares were left out, if any.

    If more clients than the threshold answered, the secrets can be rebuilt without one client that sent wrong shares.
    So this client alone cannot make every sum fail.
    """
    helpers, needed = sorted(state.unmasking), state.terms.threshold
    try:
        return _rebuild_secrets(state, helpers[:needed]), None
    except RoundFailedError as failed:
        for left_out in helpers[:needed] if len(helpers) > needed else []:
            with suppress(RoundFailedError):
                return _rebuild_secrets(state, [each for each in helpers if each != left_out][:needed]), left_out
        raise failed


def _rebuild_secrets(state: ServerRound, helpers: Sequence[int]) -> dict[int, bytes]:
    """Rebuild all secrets from the shares of these clients; check each secret against what its owner published."""
    weights = compute_lagrange_weights([number + 1 for number in helpers])
    found: dict[int, bytes] = {}
    for number in state.masked:
        seed = combine_shares({helper + 1: state.unmasking[helper].seeds[number] for helper in helpers}, weights)
        if seed is None or crypto.commit_to_seed(state.terms, number, seed) != _read_keys(state, number).commitment:
            raise RoundFailedError(
                f"the shares of client {number}'s seed do not give the seed that it committed to",
                hint=_describe_suspects(number, helpers),
            )
        found[number] = seed
    for number in sorted(state.sealed.keys() - state.masked.keys()):
        secret = combine_shares({helper + 1: state.unmasking[helper].mask_keys[number] for helper in helpers}, weights)
        if secret is None or crypto.derive_public_key(secret) != _read_keys(state, number).mask:
            raise RoundFailedError(
                f"the shares of client {number}'s mask key do not give the key that it published",
                hint=_describe_suspects(number, helpers),
            )
        found[number] = secret
    return found


def _describe_suspects(owner: int, helpers: Sequence[int]) -> str:
    """Return a hint that names the clients of which one made or sent wrong shares of the owner's secret."""
    return f"nothing was unmasked; client {owner} or one of clients {list(helpers)} sent wrong shares: repeat the round"


def _sum_masks_of_dropout(state: ServerRound, dropped: int, secret: bytes) -> Words:
    """Sum the masks that the survivors share with a client that dropped out before it sent its vector."""
    terms = state.terms
    agreement = crypto.KeyAgreement(secret)
    total = np.zeros(terms.coordinates, dtype=np.uint64)
    for number in state.masked:
        (key,) = agreement.derive_keys(
            number, _read_keys(state, number).mask, crypto.make_mask_key_context(terms, number, dropped)
        )
        pairwise = crypto.make_mask(terms, key)
        total = total + pairwise if dropped > number else total - pairwise
    return total


def _read_keys(state: ServerRound, number: int) -> messages.PublicKeys:
    return messages.decode_keys(state.keys[number][:-64])


def _decode_sealed_shares(state: ServerRound, envelope: messages.Envelope) -> dict[int, bytes]:
    contents = decode(messages.SealedShares, envelope.body)
    if envelope.sender not in state.keys:
        raise RefusalError(
            f"client {envelope.sender} sent shares of its secrets, but the server has no public keys from it"
        )
    if contents.keys_digest != state.list_digest:
        raise RefusalError(
            f"client {envelope.sender} made its secret shares for another list of public keys than this round's"
        )
    if contents.sealed.keys() != state.keys.keys() - {envelope.sender}:
        raise RefusalError(f"client {envelope.sender} did not send shares of its secrets to all other clients")
    if any(len(sealed) != messages.SEALED_BYTES for sealed in contents.sealed.values()):
        raise RefusalError(
            f"expected encrypted shares of {messages.SEALED_BYTES} bytes from client {envelope.sender}, "
            f"found lengths: {sorted({len(sealed) for sealed in contents.sealed.values()})}"
        )
    return contents.sealed


def _decode_masked_vector(state: ServerRound, envelope: messages.Envelope) -> bytes:
    contents = decode(messages.MaskedVector, envelope.body)
    if envelope.sender not in state.sealed:
        raise RefusalError(
            f"client {envelope.sender} sent a masked vector, but the server has no shares of its secrets from it"
        )
    # Masks for other peers would not cancel in the sum: such a client counts as dropped out.
    if contents.peers_digest != state.list_digest:
        raise RefusalError(f"client {envelope.sender} masked its vector for another list of clients than this round's")
    if len(contents.vector) != state.terms.coordinates * state.terms.value_bytes:
        expected = state.terms.coordinates * state.terms.value_bytes
        raise RefusalError(
            f"expected a vector of {expected} bytes from client {envelope.sender}, found: {len(contents.vector)} bytes"
        )
    return contents.vector


def _decode_unmasking_shares(state: ServerRound, envelope: messages.Envelope) -> messages.UnmaskingShares:
    contents = decode(messages.UnmaskingShares, envelope.body)
    if envelope.sender not in state.agreed:
        raise RefusalError(
            f"client {envelope.sender} sent shares that unmask the sum, but the server has no signature from it under "
            "the list of the clients that are still in this secure sum"
        )
    dropped = state.sealed.keys() - state.masked.keys()
    if contents.seeds.keys() != state.masked.keys() or contents.mask_keys.keys() != dropped:
        raise RefusalError(
            f"client {envelope.sender} sent shares for another list of the clients that are still in this secure sum "
            "than the server's"
        )
    if any(len(share) != SHARE_BYTES for share in (*contents.seeds.values(), *contents.mask_keys.values())):
        lengths = sorted({len(share) for share in (*contents.seeds.values(), *contents.mask_keys.values())})
        raise RefusalError(
            f"expected shares of {SHARE_BYTES} bytes from client {envelope.sender}, found lengths: {lengths}"
        )
    return contents


def _make_share_delivery(state: ServerRound, receiver: int) -> bytes:
    return encode(
        messages.SealedShareDelivery(
            {sender: sealed[receiver] for sender, sealed in state.sealed.items() if sender != receiver}
        )
    )


def _add_once(received: Mapping[int, T], sender: int, item: T) -> dict[int, T]:
    if sender in received:
        raise RefusalError(f"expected one message of this step from client {sender}, found a second one")
    return {**received, sender: item}


def _require_enough_clients(found: int, needed: int, what: str) -> None:
    if found < needed:
        raise RoundFailedError(
            f"too few clients {what}: {found}, needed: {needed}", hint="nothing was unmasked; repeat the round"
        )
