"""The client's side of a secure sum: a method for each step, from state and message to the next state and a reply.

A state holds only what the client must remember until the next message; `encoding.encode` turns it into bytes for a
client that does not keep running in between. Each method first checks the message, then marks the step as answered
(`mark_answered`), and then makes the reply.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedlog.privacy.discrete import RandomBytes
from fedlog.privacy.secagg import crypto, messages
from fedlog.privacy.secagg.answered_steps import AnsweredSteps
from fedlog.privacy.secagg.crypto import SigningIdentity
from fedlog.privacy.secagg.encoding import RefusalError, decode, encode
from fedlog.privacy.secagg.fixed_point import Words, pack_words
from fedlog.privacy.secagg.shamir import SHARE_BYTES, split_secret
from fedlog.privacy.secagg.terms import Step, Terms


@dataclass(frozen=True)
class KeysState:
    """A client's state after step `keys`: its secrets for this round."""

    cipher_secret: bytes
    mask_secret: bytes
    seed: bytes


@dataclass(frozen=True)
class SharesState:
    """A client's state after step `shares`: its secrets, the keys of the other clients, and its own shares."""

    mask_secret: bytes
    seed: bytes
    keys_digest: bytes
    """Digest of the list of keys that the client got."""
    mask_keys: dict[int, bytes]
    """For each peer (other client on the list of keys): its public key for masks."""
    decryption_keys: dict[int, bytes]
    """For each peer: the key that decrypts the shares from it."""
    own_shares: bytes


@dataclass(frozen=True)
class MaskedState:
    """A client's state after step `masked`: its secrets are deleted, the shares from other clients are kept."""

    peers_digest: bytes
    """Digest of the list of clients that shared their secrets."""
    shares: dict[int, bytes]
    """For each client that shared its secrets: a share of its mask key, followed by a share of its seed."""


@dataclass(frozen=True)
class AgreedState:
    """A client's state after step `agree`: the list of survivors that it signed, and the shares from other clients."""

    survivors: tuple[int, ...]
    survivors_digest: bytes
    shares: dict[int, bytes]


@dataclass(frozen=True)
class SumClient:
    """One client in one round of a secure sum; each method answers one step of the protocol."""

    terms: Terms
    identity: SigningIdentity
    answered: AnsweredSteps
    entropy: RandomBytes
    check_signature: crypto.CheckSignature = crypto.check_signature

    def make_keys(self) -> tuple[KeysState, bytes]:
        """Answer step `keys`: make new secrets for this round, and return them with the signed public keys to send."""
        state = KeysState(self.entropy(32), self.entropy(32), self.entropy(32))
        return state, self._mark_and_sign_reply(Step.KEYS, encode(self._derive_public_keys(state)))

    def share_secrets(self, state: KeysState, blob: bytes) -> tuple[SharesState, bytes]:
        """Answer step `shares`: split the secrets into shares, and encrypt one for each client on the list of keys."""
        key_list = decode(messages.KeyList, blob)
        keys = self._check_keys(key_list, state)
        me = self.identity.number
        points = [number + 1 for number in keys]
        mask_shares = split_secret(state.mask_secret, self.terms.threshold, points, self.entropy)
        seed_shares = split_secret(state.seed, self.terms.threshold, points, self.entropy)
        cipher = crypto.KeyAgreement(state.cipher_secret)
        sealed: dict[int, bytes] = {}
        decryption_keys: dict[int, bytes] = {}
        for number, public in keys.items():
            if number == me:
                continue
            outgoing, decryption_keys[number] = cipher.derive_keys(
                number,
                public.cipher,
                crypto.make_cipher_key_context(self.terms, me, number),
                crypto.make_cipher_key_context(self.terms, number, me),
            )
            sealed[number] = crypto.encrypt(outgoing, mask_shares[number + 1] + seed_shares[number + 1])
        keys_digest = messages.digest_keys(key_list)
        following = SharesState(
            mask_secret=state.mask_secret,
            seed=state.seed,
            keys_digest=keys_digest,
            mask_keys={number: public.mask for number, public in keys.items() if number != me},
            decryption_keys=decryption_keys,
            own_shares=mask_shares[me + 1] + seed_shares[me + 1],
        )
        return following, self._mark_and_sign_reply(Step.SHARES, encode(messages.SealedShares(keys_digest, sealed)))

    def mask_vector(self, state: SharesState, blob: bytes, vector: Words) -> tuple[MaskedState, bytes]:
        """Answer step `masked`: hide the vector under a mask for each other client and a private mask."""
        if vector.shape != (self.terms.coordinates,):
            raise RefusalError(f"expected a vector of {self.terms.coordinates} words, found shape: {vector.shape}")
        delivery = decode(messages.SealedShareDelivery, blob)
        me = self.identity.number
        shares = {me: state.own_shares}
        for number, sealed in delivery.sealed.items():
            if number not in state.decryption_keys:
                raise RefusalError(f"client {number} shared secrets, but is not on the list of keys")
            shares[number] = crypto.decrypt(state.decryption_keys[number], sealed, number)
            if len(shares[number]) != 2 * SHARE_BYTES:
                raise RefusalError(
                    f"expected two shares of {SHARE_BYTES} bytes each from client {number}, "
                    f"found: {len(shares[number])} bytes"
                )
        if len(shares) < self.terms.fewest_survivors:
            needed = self.terms.fewest_survivors
            raise RefusalError(f"too few clients shared their secrets: {len(shares)}, needed: {needed}")
        masked = vector + crypto.make_mask(self.terms, state.seed)
        agreement = crypto.KeyAgreement(state.mask_secret)
        for number in delivery.sealed:
            (key,) = agreement.derive_keys(
                number, state.mask_keys[number], crypto.make_mask_key_context(self.terms, me, number)
            )
            pairwise = crypto.make_mask(self.terms, key)
            masked = masked + pairwise if number > me else masked - pairwise
        peers_digest = messages.digest_peers(state.keys_digest, shares)
        contents = encode(messages.MaskedVector(peers_digest, pack_words(masked, self.terms.value_bytes)))
        return MaskedState(peers_digest, shares), self._mark_and_sign_reply(Step.MASKED, contents)

    def sign_survivors(self, state: MaskedState, blob: bytes) -> tuple[AgreedState, bytes]:
        """Answer step `agree`: sign the list of survivors (clients whose vectors arrived) if it is long enough."""
        survivors = decode(messages.Survivors, blob)
        self._check_survivors(survivors.members, state)
        survivors_digest = messages.digest_survivors(state.peers_digest, survivors)
        following = AgreedState(survivors.members, survivors_digest, state.shares)
        return following, self._mark_and_sign_reply(Step.AGREE, survivors_digest)

    def reveal_shares(self, state: AgreedState, blob: bytes) -> bytes:
        """Answer step `unmask`: return the shares that unmask the sum, if enough survivors signed the same list."""
        agreements = decode(messages.SurvivorSignatures, blob)
        for number, signature in agreements.signatures.items():
            if number not in state.survivors:
                raise RefusalError(
                    f"client {number} signed the list of the clients that are still in this secure sum, "
                    "but is not on it"
                )
            self.check_signature(self.terms, Step.AGREE, number, state.survivors_digest, signature)
        if len(agreements.signatures) < self.terms.threshold:
            found = len(agreements.signatures)
            raise RefusalError(
                "too few clients signed the list of the clients that are still in this secure sum: "
                f"{found}, needed: {self.terms.threshold}"
            )
        survived = set(state.survivors)
        contents = messages.UnmaskingShares(
            mask_keys={n: share[:SHARE_BYTES] for n, share in state.shares.items() if n not in survived},
            seeds={n: share[SHARE_BYTES:] for n, share in state.shares.items() if n in survived},
        )
        return self._mark_and_sign_reply(Step.UNMASK, encode(contents))

    def _derive_public_keys(self, state: KeysState) -> messages.PublicKeys:
        """Derive the public keys of this round's secrets, and a commitment to the seed of the private mask."""
        return messages.PublicKeys(
            crypto.derive_public_key(state.cipher_secret),
            crypto.derive_public_key(state.mask_secret),
            crypto.commit_to_seed(self.terms, self.identity.number, state.seed),
        )

    def _mark_and_sign_reply(self, step: Step, contents: bytes) -> bytes:
        """Mark the step as answered, then sign the reply.

        In this order, a client that restarts cannot send a second vector under the same masks.
        """
        self.answered.mark_answered(self.terms.round_name, step.name.lower())
        return messages.sign_envelope(self.terms, self.identity, step, contents)

    def _check_keys(self, key_list: messages.KeyList, state: KeysState) -> dict[int, messages.PublicKeys]:
        if len(key_list.keys) < self.terms.fewest_survivors:
            needed = self.terms.fewest_survivors
            raise RefusalError(f"too few clients sent keys: {len(key_list.keys)}, needed: {needed}")
        keys = {}
        for number, signed in key_list.keys.items():
            contents, signature = signed[:-64], signed[-64:]
            self.check_signature(self.terms, Step.KEYS, number, contents, signature)
            keys[number] = messages.decode_keys(contents)
        if keys.get(self.identity.number) != self._derive_public_keys(state):
            raise RefusalError("the list of keys does not contain the keys that this client sent")
        return keys

    def _check_survivors(self, members: tuple[int, ...], state: MaskedState) -> None:
        if self.identity.number not in members:
            raise RefusalError("the list of the clients that are still in this secure sum leaves out this client")
        strangers = set(members) - state.shares.keys()
        if strangers:
            raise RefusalError(
                "the list of the clients that are still in this secure sum names clients that shared no secrets: "
                f"{sorted(strangers)}"
            )
        if len(members) < self.terms.fewest_survivors:
            needed = self.terms.fewest_survivors
            raise RefusalError(f"too few clients sent a masked vector: {len(members)}, needed: {needed}")


def answer_step(client: SumClient, step: Step, state: object, blob: bytes, vector: Words) -> tuple[object, bytes]:
    """Return the client's next state and reply in this step; raise RefusalError if the client is at another step."""
    match step, state:
        case Step.KEYS, None:
            return client.make_keys()
        case Step.SHARES, KeysState():
            return client.share_secrets(state, blob)
        case Step.MASKED, SharesState():
            return client.mask_vector(state, blob, vector)
        case Step.AGREE, MaskedState():
            return client.sign_survivors(state, blob)
        case Step.UNMASK, AgreedState():
            return None, client.reveal_shares(state, blob)
    raise RefusalError(
        f"client {client.identity.number} was asked for step {step.name.lower()}, which does not follow the last step "
        "that it answered"
    )
