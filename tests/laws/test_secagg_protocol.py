"""The secure sum under a hostile courier: the sum over the survivors, or no sum; nothing in between."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secagg_parties import COORDINATES, VALUE_BYTES, identity, make_clients, make_terms, make_vectors, plain_sum, walk

from fedlog.core.clip import Clamp
from fedlog.core.keys import Key
from fedlog.privacy.guarantee import Trust, Unit
from fedlog.privacy.mechanisms import DiscreteSampler, Mechanism, add_noise, sum_clipped_moments
from fedlog.privacy.secagg.client import answer_step
from fedlog.privacy.secagg.encoding import RefusalError, RoundFailedError, decode, encode
from fedlog.privacy.secagg.fixed_point import choose_fixed_point, unpack_words
from fedlog.privacy.secagg.messages import (
    Envelope,
    KeyList,
    MaskedVector,
    SealedShareDelivery,
    UnmaskingShares,
    sign_envelope,
)
from fedlog.privacy.secagg.server import SecureSumResult, ServerRound, close_step, receive_message, unmask_sum
from fedlog.privacy.secagg.simulated_round import Mail, RoundObservations, run_secure_round
from fedlog.privacy.secagg.terms import Step, Terms, compute_smallest_safe_threshold


@dataclass
class HostileCourier:
    """Drops, doubles, corrupts, shuffles, misdelivers and replays; remembers all mail it ever saw."""

    random: Random
    harm: float
    kinds: tuple[str, ...]
    seen: list[bytes] = field(default_factory=list)
    sent: dict[Step, list[Envelope]] = field(default_factory=dict)

    def __call__(self, step: Step, direction: str, mail: Mail) -> Mail:
        if direction == "up":
            self.sent[step] = [decode(Envelope, blob) for _, blob in mail]
        arriving: Mail = []
        for number, blob in mail:
            kind = self.random.choice(self.kinds) if self.random.random() < self.harm else "pass"
            if kind == "double":
                arriving.append((number, blob))
            elif kind == "replay" and self.seen:
                arriving.append((number, self.random.choice(self.seen)))
            elif kind == "misdeliver":
                number = self.random.choice([other for other, _ in mail])
            elif kind == "corrupt":
                place = self.random.randrange(len(blob))
                changed = blob[place] ^ (1 << self.random.randrange(8))
                blob = blob[:place] + bytes([changed]) + blob[place + 1 :]
            elif kind == "cut":
                blob = blob[: self.random.randrange(len(blob))]
            if kind != "drop":
                arriving.append((number, blob))
        self.seen += [blob for _, blob in mail]
        if "shuffle" in self.kinds:
            self.random.shuffle(arriving)
        return arriving


def check_that_no_secret_was_given_away(courier: HostileCourier) -> None:
    """For each client, the server saw shares of its mask key or of its seed, never of both."""
    mask_keys: set[int] = set()
    seeds: set[int] = set()
    for envelope in courier.sent.get(Step.UNMASK, []):
        body = decode(UnmaskingShares, envelope.body)
        mask_keys |= body.mask_keys.keys()
        seeds |= body.seeds.keys()
    assert not mask_keys & seeds


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(4, 7), st.integers(0, 1), st.sampled_from([0.02, 0.08, 0.25]))
def test_the_sum_over_the_survivors_or_no_sum(seed: int, clients: int, corrupted: int, harm: float) -> None:
    terms = make_terms(clients, corrupted=corrupted)
    vectors = make_vectors(terms, seed)
    kinds = ("drop", "double", "replay", "misdeliver", "corrupt", "cut", "shuffle")
    courier = HostileCourier(Random(seed), harm, kinds)
    courier.seen = [sign_envelope(terms.make_next_terms(), identity(1), Step.KEYS, b"another round")]
    try:
        found = run_secure_round(terms, make_clients(terms), vectors, courier)
    except RoundFailedError:
        found = None
    check_that_no_secret_was_given_away(courier)
    if found is not None:
        assert len(found.survivors) >= terms.fewest_survivors
        assert found.total.tolist() == plain_sum(vectors, found.survivors)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.sampled_from(list(Step)), st.sampled_from(["up", "down"]), st.integers(0, 6))
def test_dropouts_at_every_step(seed: int, step: Step, direction: str, dropped: int) -> None:
    terms = make_terms(6)
    vectors = make_vectors(terms, seed)
    gone = set(Random(seed).sample(sorted(terms.roster), dropped))

    def courier(at: Step, way: str, mail: Mail) -> Mail:
        return [(n, blob) for n, blob in mail if not ((at, way) == (step, direction) and n in gone)]

    if step is Step.KEYS and direction == "down":
        gone = set()
    stays = len(terms.roster) - len(gone)
    observed = RoundObservations()
    if stays < terms.fewest_survivors:
        with pytest.raises(RoundFailedError, match="too few"):
            run_secure_round(terms, make_clients(terms), vectors, courier, observed)
        return
    found = run_secure_round(terms, make_clients(terms), vectors, courier, observed)
    # Who drops out after its masked vector has arrived is still in the sum.
    counted = set(terms.roster) - (gone if step <= Step.MASKED else set())
    assert set(found.survivors) == counted
    assert found.total.tolist() == plain_sum(vectors, counted)
    assert observed.refused == []


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(list(Step)), st.sampled_from(["up", "down"]), st.floats(0, 1, exclude_max=True), st.integers(0, 7)
)
def test_one_changed_bit_costs_its_client_the_round_and_nobody_else(
    step: Step, direction: str, place: float, bit: int
) -> None:
    terms = make_terms(5)
    vectors = make_vectors(terms)
    victim = sorted(terms.roster)[2]

    def courier(at: Step, way: str, mail: Mail) -> Mail:
        if (at, way) != (step, direction):
            return mail
        return [(number, flipped(blob, place, bit) if number == victim else blob) for number, blob in mail]

    observed = RoundObservations()
    found = run_secure_round(terms, make_clients(terms), vectors, courier, observed)
    left_out = {victim} if step <= Step.MASKED and (step, direction) != (Step.KEYS, "down") else set()
    assert set(found.survivors) == set(terms.roster) - left_out
    assert found.total.tolist() == plain_sum(vectors, found.survivors)
    assert len(observed.refused) == (0 if (step, direction) == (Step.KEYS, "down") else 1)


def flipped(blob: bytes, place: float, bit: int) -> bytes:
    index = int(place * len(blob))
    return blob[:index] + bytes([blob[index] ^ (1 << bit)]) + blob[index + 1 :]


@pytest.mark.parametrize("step", [Step.SHARES, Step.MASKED])
def test_a_client_that_was_shown_fewer_peers_is_left_out(step: Step) -> None:
    # Well-formed and validly signed, but one entry short: its masks would not cancel against the missing peer's.
    terms = make_terms(6)
    vectors = make_vectors(terms)
    victim, missing = sorted(terms.roster)[2:4]

    def courier(at: Step, way: str, mail: Mail) -> Mail:
        if (at, way) != (step, "down"):
            return mail
        kind = KeyList if step is Step.SHARES else SealedShareDelivery
        shown = []
        for number, blob in mail:
            table = next(iter(vars(decode(kind, blob)).values()))
            table = {n: item for n, item in table.items() if number != victim or n != missing}
            shown.append((number, encode(kind(table))))
        return shown

    found = run_secure_round(terms, make_clients(terms), vectors, courier)
    assert set(found.survivors) == set(terms.roster) - {victim}
    assert found.total.tolist() == plain_sum(vectors, found.survivors)


def test_nobody_speaks_for_another_client() -> None:
    terms = make_terms(4)
    one, other, *_ = sorted(terms.roster)
    _, blob = make_clients(terms)[one].make_keys()
    envelope = decode(Envelope, blob)
    with pytest.raises(RefusalError, match="signature"):
        receive_message(ServerRound(terms), encode(Envelope(other, envelope.step, envelope.body, envelope.signature)))
    with pytest.raises(RefusalError, match="roster"):
        receive_message(ServerRound(terms), encode(Envelope(999, envelope.step, envelope.body, envelope.signature)))
    with pytest.raises(RefusalError, match="signature"):
        receive_message(ServerRound(terms.make_next_terms()), blob)
    with pytest.raises(RefusalError, match=r"expected one message of this step from client \d+, found a second one"):
        receive_message(receive_message(ServerRound(terms), blob), blob)


def test_below_the_honest_minimum_nothing_is_unmasked() -> None:
    terms = make_terms(6, honest=6)
    assert terms.threshold == 4
    courier = HostileCourier(Random(0), 0.0, ("drop",))
    gone = min(terms.roster)

    def one_is_lost(step: Step, direction: str, mail: Mail) -> Mail:
        mail = courier(step, direction, mail)
        return [(n, blob) for n, blob in mail if not (step is Step.MASKED and direction == "up" and n == gone)]

    with pytest.raises(RoundFailedError, match="sent a masked vector: 5, needed: 6"):
        run_secure_round(terms, make_clients(terms), make_vectors(terms), one_is_lost)
    assert Step.AGREE not in courier.sent
    assert Step.UNMASK not in courier.sent


def test_states_survive_being_written_down() -> None:
    terms = make_terms(5)
    vectors = make_vectors(terms)
    clients = make_clients(terms)
    server, mail = ServerRound(terms), dict.fromkeys(terms.roster, b"")
    states: dict[int, object] = dict.fromkeys(terms.roster)
    for step in Step:
        for number in terms.roster:
            state = states[number]
            restored = None if state is None else decode(type(state), encode(state))  # type: ignore[arg-type,type-var]
            states[number], reply = answer_step(clients[number], step, restored, mail[number], vectors[number])
            server = receive_message(server, reply)
        if step is not Step.UNMASK:
            server, mail = close_step(server)
    found = unmask_sum(server)
    assert found.total.tolist() == plain_sum(vectors, terms.roster)


@pytest.mark.parametrize("part", ["seeds", "mask_keys"])
@pytest.mark.parametrize("lying", [1, 2])
def test_wrong_shares_of_one_client_are_found_out_and_those_of_more_end_the_round(part: str, lying: int) -> None:
    terms = make_terms(5)  # three shares are needed, and four clients help
    *others, gone = sorted(terms.roster)
    liars = others[1 : 1 + lying]

    def lie(number: int, blob: bytes) -> bytes:
        body = decode(UnmaskingShares, decode(Envelope, blob).body)
        wrong = {about: bytes(len(share)) for about, share in getattr(body, part).items()}
        return sign_envelope(terms, identity(number), Step.UNMASK, encode(replace(body, **{part: wrong})))

    def courier(step: Step, way: str, mail: Mail) -> Mail:
        if (step, way) == (Step.MASKED, "up"):
            return [(number, blob) for number, blob in mail if number != gone]
        if (step, way) != (Step.UNMASK, "up"):
            return mail
        return [(number, lie(number, blob) if number in liars else blob) for number, blob in mail]

    vectors = make_vectors(terms)
    if lying > 1:
        with pytest.raises(
            RoundFailedError,
            match=r"the shares of client \d+'s (seed|mask key) do not give the "
            r"(seed that it committed to|key that it published)",
        ):
            run_secure_round(terms, make_clients(terms), vectors, courier)
        return
    found = run_secure_round(terms, make_clients(terms), vectors, courier)
    assert found.left_out == liars[0]
    assert found.total.tolist() == plain_sum(vectors, others)


def test_a_masked_vector_shows_nothing_of_its_input() -> None:
    # Not a proof: 40 rounds of the same constant vector, and no byte value stands out.
    terms = make_terms(4)
    bytes_seen: list[int] = []
    for _ in range(40):
        sent: dict[Step, list[Envelope]] = {}

        def courier(step: Step, way: str, mail: Mail, sent: dict[Step, list[Envelope]] = sent) -> Mail:
            if way == "up":
                sent[step] = [decode(Envelope, blob) for _, blob in mail]
            return mail

        run_secure_round(
            terms, make_clients(terms), {n: np.zeros(COORDINATES, np.uint64) for n in terms.roster}, courier
        )
        for envelope in sent[Step.MASKED]:
            bytes_seen += decode(MaskedVector, envelope.body).vector
    counts = np.bincount(bytes_seen, minlength=256)
    expected = len(bytes_seen) / 256
    # Chi-square with 255 degrees of freedom exceeds 400 with probability 1e-8.
    assert ((counts - expected) ** 2 / expected).sum() < 400
    assert unpack_words(bytes(VALUE_BYTES), VALUE_BYTES).tolist() == [0]


def test_distributed_noise_arrives_exactly_once_per_survivor() -> None:
    mechanism = Mechanism(Unit.RECORD, Trust.DISTRIBUTED, 5.0, Clamp(2.0).sensitivity(7), honest_survivors=4)
    fixed = choose_fixed_point(mechanism.grid, 6 * 10 * 2.0, mechanism.compute_std_of_sum(6), 21)
    members = [3 * number + 1 for number in range(6)]
    roster = {number: identity(number).public_key for number in members}
    terms = Terms(
        bytes(16),
        0,
        roster,
        compute_smallest_safe_threshold(6, 0),
        mechanism.honest_survivors,
        0,
        21,
        fixed.value_bytes,
    )
    messages = {}
    for number in members:
        features = 3 * torch.randn((10, 6), generator=Key(number).torch())
        labels = torch.randint(0, 3, (10,), generator=Key(number, ("labels",)).torch())
        exact = sum_clipped_moments(features, labels, 3, Clamp(2.0), mechanism.grid).statistics.sums
        messages[number] = add_noise(exact, mechanism.client_std, DiscreteSampler(mechanism.grid)).reshape(-1).numpy()
    words = {number: fixed.encode_words(message) for number, message in messages.items()}
    found = run_secure_round(
        terms, make_clients(terms), words, lambda step, way, mail: mail[1:] if step is Step.MASKED else mail
    )
    assert isinstance(found, SecureSumResult)
    assert 4 <= len(found.survivors) < 6
    expected = np.sum([messages[number] for number in found.survivors], axis=0)
    assert fixed.decode_words(found.total).tolist() == expected.tolist()


def test_the_list_of_survivors_is_signed_by_survivors_alone() -> None:
    terms = make_terms(5)
    server, clients, states, mail = walk(terms, Step.MASKED)
    vectors = make_vectors(terms)
    late, *others = terms.roster
    for number in others:
        server = receive_message(
            server, answer_step(clients[number], Step.MASKED, states[number], mail[number], vectors[number])[1]
        )
    server, _ = close_step(server)
    for number in others:
        assert (
            number
            in receive_message(server, sign_envelope(terms, identity(number), Step.AGREE, server.list_digest)).agreed
        )
    with pytest.raises(RefusalError, match=f"client {late} signed .*, but the server has no masked vector from it"):
        receive_message(server, sign_envelope(terms, identity(late), Step.AGREE, server.list_digest))
