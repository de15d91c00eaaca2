"""Measure the cost of a secure sum: bytes, message turns and milliseconds for one client and for the server.

    python -m benchmarks.secagg

writes benchmarks/records/secagg.json. The server and one client are the real ones and do all their work. The other
clients are stand-ins that send valid messages of the real size but save themselves work that nobody measures: they mask
only against the measured client and against those that will drop out, and share their secrets by constant polynomials.
The sum is checked against the plain one. One client in twenty drops out after sharing its secrets, the costly moment.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import cryptography
import numpy as np

from fedlog.privacy.secagg import crypto
from fedlog.privacy.secagg.answered_steps import AnsweredStepsInMemory
from fedlog.privacy.secagg.client import KeysState, SumClient
from fedlog.privacy.secagg.encoding import decode, encode
from fedlog.privacy.secagg.fixed_point import Words, pack_words
from fedlog.privacy.secagg.messages import (
    SEALED_BYTES,
    Envelope,
    MaskedVector,
    SealedShares,
    UnmaskingShares,
    decode_keys,
    sign_envelope,
)
from fedlog.privacy.secagg.server import ServerRound, close_step, receive_message, unmask_sum
from fedlog.privacy.secagg.shamir import SHARE_BYTES
from fedlog.privacy.secagg.terms import (
    Step,
    Terms,
    compute_smallest_safe_threshold,
)

RECORDS = Path(__file__).parent / "records"
SHAPES = {"10x51": 10 * 51, "100x101": 100 * 101}
CLIENTS = (10, 100, 1000)
VALUE_BYTES = 5  # 50,000 records with features up to 2 on the grid of noise with a std of 450, and the noise
MEASURED = 0

T = TypeVar("T")


@dataclass
class Clock:
    """Measures wall-clock and CPU milliseconds of calls of `run`; on an idle machine they agree."""

    wall_ms: float = 0.0
    cpu_ms: float = 0.0

    def run(self, work: Callable[[], T]) -> T:
        """Call `work`, add its time to the clock, and return its result."""
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        self.wall_ms += 1e3 * (time.perf_counter() - wall)
        self.cpu_ms += 1e3 * (time.process_time() - cpu)
        return result


@dataclass
class Party:
    """The clock and the bytes of one side: the measured client, or the server."""

    clock: Clock = field(default_factory=Clock)
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class StandIn:
    """A client that is not measured; its secrets are not protected."""

    client: SumClient
    secrets: KeysState

    @property
    def number(self) -> int:
        """The client's number in the list of participants."""
        return self.client.identity.number

    def key_with(self, public: bytes, other: int) -> bytes:
        """The key of the mask between this client and another."""
        agreement = crypto.KeyAgreement(self.secrets.mask_secret)
        (key,) = agreement.derive_keys(
            other, public, crypto.make_mask_key_context(self.client.terms, self.number, other)
        )
        return key

    def say(self, step: Step, body: bytes) -> bytes:
        """Make a signed message."""
        return sign_envelope(self.client.terms, self.client.identity, step, body)


def make_constant_share(secret: bytes) -> bytes:
    """The share, at every point, of a secret hidden by a polynomial of degree 0."""
    return b"\0" * (SHARE_BYTES - 32) + secret


def measure(clients: int, coordinates: int) -> dict[str, Any]:
    """The cost of one round for the measured client and the server."""
    identities = [crypto.SigningIdentity.create(number, os.urandom) for number in range(clients)]
    roster = {identity.number: identity.public_key for identity in identities}
    threshold = compute_smallest_safe_threshold(clients, 0)
    terms = Terms(os.urandom(16), 1, roster, threshold, 3, 0, coordinates, VALUE_BYTES)
    everyone = [SumClient(terms, identity, AnsweredStepsInMemory(), os.urandom) for identity in identities]
    dropped = set(range(clients - max(1, clients // 20), clients))
    generator = np.random.default_rng(0)
    vectors = {n: generator.integers(0, 2**64, coordinates, dtype=np.uint64) for n in range(clients)}
    one, server = Party(), Party()
    total = _run_round(terms, everyone, vectors, dropped, one, server)
    plain = np.sum([vectors[n] for n in range(clients) if n not in dropped], axis=0, dtype=np.uint64)
    assert (total == plain & np.uint64(256**VALUE_BYTES - 1)).all()
    return {
        "clients": clients,
        "coordinates": coordinates,
        "threshold": threshold,
        "dropped_out": len(dropped),
        "client": vars(one.clock) | {"bytes_up": one.bytes_up, "bytes_down": one.bytes_down},
        "server": vars(server.clock) | {"bytes_received": server.bytes_up, "bytes_sent": server.bytes_down},
        "plain_upload_bytes": coordinates * 4,
    }


def _run_round(
    terms: Terms, everyone: list[SumClient], vectors: dict[int, Words], dropped: set[int], one: Party, server: Party
) -> Words:
    state = ServerRound(terms)

    def deliver(blobs: list[bytes], reply: bytes) -> dict[int, bytes]:
        nonlocal state
        one.bytes_up += len(reply)
        for blob in [reply, *blobs]:
            server.bytes_up += len(blob)
            state = server.clock.run(partial(receive_message, state, blob))
        state, outgoing = server.clock.run(partial(close_step, state)) if state.step is not Step.UNMASK else (state, {})
        server.bytes_down += sum(len(blob) for blob in outgoing.values())
        one.bytes_down += len(outgoing.get(MEASURED, b""))
        return outgoing

    real = everyone[MEASURED]
    advertised, reply = one.clock.run(real.make_keys)
    opened = [client.make_keys() for client in everyone[1:]]
    others = [StandIn(client, secrets) for client, (secrets, _) in zip(everyone[1:], opened, strict=True)]
    mail = deliver([blob for _, blob in opened], reply)

    shared, reply = one.clock.run(lambda: real.share_secrets(advertised, mail[MEASURED]))
    real_shares = decode(SealedShares, decode(Envelope, reply).body).sealed
    mail = deliver([_make_shares(other, state) for other in others], reply)

    masked, reply = one.clock.run(lambda: real.mask_vector(shared, mail[MEASURED], vectors[MEASURED]))
    staying = [other for other in others if other.number not in dropped]
    mail = deliver([_make_masked_vector(other, state, vectors[other.number], dropped) for other in staying], reply)

    agreed, reply = one.clock.run(lambda: real.sign_survivors(masked, mail[MEASURED]))
    mail = deliver([other.say(Step.AGREE, state.list_digest) for other in staying], reply)

    reply = one.clock.run(lambda: real.reveal_shares(agreed, mail[MEASURED]))
    secrets = {other.number: other.secrets for other in others}
    deliver([_make_unmasking(other, state, secrets, real_shares, dropped) for other in staying], reply)
    return server.clock.run(partial(unmask_sum, state)).total


def _make_keys(state: ServerRound, number: int) -> Any:
    return decode_keys(state.keys[number][:-64])


def _make_shares(other: StandIn, state: ServerRound) -> bytes:
    """Make the encrypted shares: real for the measured client, noise of the right length for all others."""
    (key,) = crypto.KeyAgreement(other.secrets.cipher_secret).derive_keys(
        MEASURED,
        _make_keys(state, MEASURED).cipher,
        crypto.make_cipher_key_context(state.terms, other.number, MEASURED),
    )
    real = crypto.encrypt(key, make_constant_share(other.secrets.mask_secret) + make_constant_share(other.secrets.seed))
    noise = os.urandom(SEALED_BYTES)
    sealed = {n: real if n == MEASURED else noise for n in state.keys if n != other.number}
    return other.say(Step.SHARES, encode(SealedShares(state.list_digest, sealed)))


def _make_masked_vector(other: StandIn, state: ServerRound, vector: Words, dropped: set[int]) -> bytes:
    masked = vector + crypto.make_mask(state.terms, other.secrets.seed)
    for peer in {MEASURED, *dropped}:
        pairwise = crypto.make_mask(state.terms, other.key_with(_make_keys(state, peer).mask, peer))
        masked = masked + pairwise if peer > other.number else masked - pairwise
    return other.say(Step.MASKED, encode(MaskedVector(state.list_digest, pack_words(masked, VALUE_BYTES))))


def _make_unmasking(
    other: StandIn, state: ServerRound, secrets: dict[int, KeysState], real: dict[int, bytes], dropped: set[int]
) -> bytes:
    (key,) = crypto.KeyAgreement(other.secrets.cipher_secret).derive_keys(
        MEASURED,
        _make_keys(state, MEASURED).cipher,
        crypto.make_cipher_key_context(state.terms, MEASURED, other.number),
    )
    of_measured = crypto.decrypt(key, real[other.number], MEASURED)
    seeds = {n: make_constant_share(secrets[n].seed) for n in state.masked if n != MEASURED}
    body = UnmaskingShares(
        mask_keys={n: make_constant_share(secrets[n].mask_secret) for n in dropped},
        seeds={MEASURED: of_measured[SHARE_BYTES:], **seeds},
    )
    return other.say(Step.UNMASK, encode(body))


def main(out: Path = RECORDS, clients: tuple[int, ...] = CLIENTS) -> None:
    """Write secagg.json into the folder `out`."""
    measure(10, 51)  # loads and warms everything up
    rows = [{"shape": shape, **measure(n, coordinates)} for n in clients for shape, coordinates in SHAPES.items()]
    record = {
        "command": "python -m benchmarks.secagg",
        "settings": {"value_bytes": VALUE_BYTES, "dropouts": "one in twenty, at least one, before the masked vector"},
        "turns": {"first_round": len(Step), "later_rounds": len(Step) - 1},
        "made_with": {
            "python": platform.python_version(),
            "cryptography": cryptography.__version__,
            "numpy": np.__version__,
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "load_average_1min": os.getloadavg()[0],
        },
        "rows": rows,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "secagg.json").write_text(json.dumps(record, indent=1) + "\n")
    for row in rows:
        client, server = row["client"], row["server"]
        print(
            f"{row['shape']:>8} {row['clients']:>5} clients: client {client['cpu_ms']:8.1f} ms, "
            f"{client['bytes_up']:>8} B up, {client['bytes_down']:>8} B down; server {server['cpu_ms']:9.1f} ms"
        )


if __name__ == "__main__":
    main()
