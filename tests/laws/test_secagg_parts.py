"""Laws of the parts of a secure sum: secret sharing, fixed point, bytes, terms, and the list of used steps."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.core.clip import parse_clip
from fedlog.errors import InputError
from fedlog.privacy.discrete import draw_discrete_gaussian
from fedlog.privacy.guarantee import Budget, Calibration, Trust, Unit
from fedlog.privacy.protection import ContributionBound, make_protection
from fedlog.privacy.secagg.answered_steps import AnsweredStepsInMemory, AnsweredStepsOnDisk
from fedlog.privacy.secagg.crypto import CheckSignature, SharedSignatureChecks, SigningIdentity, check_signature
from fedlog.privacy.secagg.encoding import RefusalError, decode, encode
from fedlog.privacy.secagg.fixed_point import FixedPoint, choose_fixed_point, pack_words, unpack_words
from fedlog.privacy.secagg.messages import KeyList, Survivors, digest_keys, digest_peers, digest_survivors
from fedlog.privacy.secagg.shamir import PRIME, combine_shares, compute_lagrange_weights, split_secret
from fedlog.privacy.secagg.terms import Step, Terms, compute_smallest_safe_threshold


def is_prime(n: int) -> bool:
    """Miller and Rabin with forty bases: wrong with probability below 4^-40."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        x = pow(base, odd, n)
        if x in (1, n - 1):
            continue
        if not any((x := x * x % n) == n - 1 for _ in range(twos - 1)):
            return False
    return True


def test_the_field_is_a_field() -> None:
    assert is_prime(PRIME)
    assert PRIME > 2**256
    assert not any(is_prime(n) for n in range(2**256 + 1, PRIME, 2))


@settings(deadline=None, max_examples=40)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 3), st.randoms(use_true_random=False))
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, threshold: int, spare: int, random: object) -> None:
    points = [1 + 7 * i for i in range(threshold + spare)]
    shares = split_secret(secret, threshold, points, os.urandom)
    for chosen in combinations(points, threshold):
        assert combine_shares(shares, compute_lagrange_weights(chosen)) == secret
    for chosen in combinations(points, threshold - 1):
        # One share fewer fits every secret: whatever is put at 0, one polynomial of that degree goes through.
        assert not chosen or combine_shares(shares, compute_lagrange_weights(chosen)) != secret


def test_a_wrong_share_gives_another_secret() -> None:
    secret = bytes(range(32))
    shares = split_secret(secret, 3, [1, 2, 3, 4], os.urandom)
    shares[2] = bytes(33)
    assert combine_shares(shares, compute_lagrange_weights([1, 2, 3])) != secret
    assert combine_shares(shares, compute_lagrange_weights([1, 3, 4])) == secret


@pytest.mark.parametrize(("threshold", "points"), [(0, [1]), (3, [1, 2]), (2, [1, 1]), (2, [0, 1])])
def test_impossible_sharings_are_refused(threshold: int, points: list[int]) -> None:
    with pytest.raises(InputError):
        split_secret(bytes(32), threshold, points, os.urandom)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 7),
    st.integers(-20, 3).map(lambda power: 2.0**power),
    st.lists(st.lists(st.floats(-40.0, 40.0), min_size=3, max_size=3), min_size=1, max_size=6),
)
def test_a_sum_of_words_is_the_sum_of_the_rounded_values_modulo_the_range(
    value_bytes: int, grid: float, rows: list[list[float]]
) -> None:
    fixed = FixedPoint(grid, value_bytes)
    total = np.zeros(3, dtype=np.uint64)
    exact = np.zeros(3, dtype=object)
    for row in rows:
        words = fixed.encode_words(np.array(row))
        total += unpack_words(pack_words(words, value_bytes), value_bytes)
        exact += np.array([math.trunc(value / grid) for value in row], dtype=object)
    wrapped = [(int(steps) + fixed.half_range) % (2 * fixed.half_range) - fixed.half_range for steps in exact]
    assert fixed.decode_words(total).tolist() == [steps * grid for steps in wrapped]


def test_values_that_are_no_numbers_or_too_large_raise_nothing() -> None:
    fixed = FixedPoint(2.0**-10, 4)
    words = fixed.encode_words(np.array([math.nan, math.inf, -math.inf, 1e300, -1e300]))
    assert fixed.decode_words(words)[:3].tolist() == [0.0, 0.0, 0.0]
    assert np.isfinite(fixed.decode_words(words)).all()


def test_without_privacy_an_overflow_is_an_error() -> None:
    fixed = FixedPoint(1.0, 1)
    assert fixed.decode_words(fixed.encode_words_or_raise(np.array([41.0, -41.0]), parties=3)).tolist() == [41.0, -41.0]
    for bad in (43.0, math.nan):
        with pytest.raises(InputError, match="coarser grid"):
            fixed.encode_words_or_raise(np.array([bad]), parties=3)


@settings(deadline=None, max_examples=60)
@given(
    st.floats(0.0, 1e6),
    st.floats(0.0, 1e3).map(lambda std: round(std, 3)),
    st.integers(1, 10_100),
    st.sampled_from([1e-3, 1e-9, 2.0**-80]),
)
def test_the_modulus_holds_the_sum_and_its_noise(bound: float, std: float, d: int, probability: float) -> None:
    fixed = choose_fixed_point(2.0**-10, bound, std, d, probability)
    room = (fixed.half_range - 1) * fixed.grid - bound
    assert room >= 0
    if std > 0:
        assert d * 2 * math.exp(-((room / std) ** 2) / 2) <= probability
        assert fixed.wrap_probability == probability
    if fixed.value_bytes > 1:
        smaller = FixedPoint(fixed.grid, fixed.value_bytes - 1)
        reach = bound + std * math.sqrt(2 * math.log(2 * d / probability))
        assert smaller.half_range * fixed.grid <= reach + 2 * fixed.grid


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 100.0])  # noise above all messages, and far below them
def test_the_modulus_of_a_private_run_holds_the_sum_of_all_its_clients(unit: Unit, epsilon: float) -> None:
    bound = ContributionBound(parse_clip("clamp:2")) if unit is Unit.RECORD else ContributionBound(message_norm=20.0)
    largest = 2**16 * math.sqrt(1 + 50 * 4) if unit is Unit.RECORD else 20.0
    for clients in (2**power for power in range(2, 13)):
        guard = make_protection(
            Budget(epsilon, 1e-5),
            unit=unit,
            trust=Trust.DISTRIBUTED,
            calibration=Calibration.EXACT,
            bound=bound,
            releases=10,
            statistics_shape=(10, 51),
            clients=clients,
            honest_survivors=3,
        )
        assert guard.fixed_point is not None
        # A chance of 2^-80 for one of 510 coordinates is eleven standard deviations out.
        reach = clients * largest + 11 * guard.mechanism.client_std * math.sqrt(clients)
        assert guard.fixed_point.half_range * guard.mechanism.grid > reach


def test_the_stated_probability_covers_what_really_wraps() -> None:
    # 500 sums of 510 coordinates at a stated chance of 1 in 100; the true chance is 1 in 1,200.
    std, probability = 40, 0.01
    reach = std * math.sqrt(2 * math.log(2 * 510 / probability))
    draws = draw_discrete_gaussian(510 * 500, std).reshape(500, 510)
    assert (np.abs(draws).max(axis=1) > reach).mean() <= probability


@dataclass(frozen=True)
class Everything:
    number: int
    raw: bytes
    members: tuple[int, ...]
    table: dict[int, bytes]


values = st.builds(
    Everything,
    st.integers(0, 2**64 - 1),
    st.binary(max_size=20),
    st.sets(st.integers(0, 2**32 - 1), max_size=5).map(lambda items: tuple(sorted(items))),
    st.dictionaries(st.integers(0, 2**32 - 1), st.binary(max_size=10), max_size=4),
)


@given(values, st.binary(max_size=60))
def test_bytes_hold_one_value_and_that_value_one_form(value: Everything, noise: bytes) -> None:
    blob = encode(value)
    assert decode(Everything, blob) == value
    for wrong in (blob[:-1], blob + b"\0"):
        with pytest.raises(RefusalError):
            decode(Everything, wrong)
    with contextlib.suppress(RefusalError):
        # Whatever bytes are accepted at all are the ones that would have been written.
        assert encode(decode(Everything, noise)) == noise


TERMS = Terms(bytes(16), 3, {number: bytes(32) for number in range(8)}, 6, 4, 2, 510, 5)


@pytest.mark.parametrize(
    "change",
    [
        {"session": b"short"},
        {"round": -1},
        {"threshold": 5},
        {"threshold": 9},
        {"honest": 2},
        {"honest": 7},
        {"corrupted": -1},
        {"coordinates": 0},
        {"value_bytes": 8},
        {"roster": {0: b"short"}},
    ],
)
def test_unsafe_terms_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError):
        replace(TERMS, **change)  # type: ignore[arg-type]


def test_terms_differ_in_every_field() -> None:
    changes: list[dict[str, object]] = [
        {"session": bytes(15) + b"x"},
        {"round": 4},
        {"threshold": 7},
        {"honest": 3},
        {"corrupted": 1},
        {"coordinates": 511},
        {"value_bytes": 4},
        {"roster": {**TERMS.roster, 7: b"x" * 32}},
    ]
    digests = {TERMS.digest, *(replace(TERMS, **change).digest for change in changes)}  # type: ignore[arg-type]
    assert len(digests) == 9
    assert TERMS.fewest_survivors == 6
    assert TERMS.make_next_terms().round == 4
    assert compute_smallest_safe_threshold(8, 2) == 6
    assert compute_smallest_safe_threshold(5, 0) == 3


@pytest.mark.parametrize("check", [check_signature, SharedSignatureChecks().check_once])
def test_a_signature_is_for_one_round_one_step_one_sender_and_one_body(check: CheckSignature) -> None:
    identity = SigningIdentity.create(3, os.urandom)
    terms = replace(TERMS, roster=dict.fromkeys(TERMS.roster, identity.public_key))
    signature = identity.sign(terms, Step.AGREE, b"body")
    check(terms, Step.AGREE, 3, b"body", signature)
    check(terms, Step.AGREE, 3, b"body", signature)
    for at, step, sender, body in (
        (terms.make_next_terms(), Step.AGREE, 3, b"body"),
        (terms, Step.KEYS, 3, b"body"),
        (terms, Step.AGREE, 4, b"body"),
        (terms, Step.AGREE, 3, b"bode"),
    ):
        with pytest.raises(RefusalError, match="signature"):
            check(at, step, sender, body, signature)


def test_what_survivors_sign_depends_on_all_that_they_were_told() -> None:
    # Clients that saw different keys or peers must not count as having agreed.
    told = [
        (KeyList({1: key}), peers, members) for key in (b"a", b"b") for peers in ((1, 2), (1, 3)) for members in (4, 5)
    ]
    views = {digest_survivors(digest_peers(digest_keys(k), p), Survivors((m,))) for k, p, m in told}
    assert len(views) == len(told) == 8


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_step_is_answered_once(kind: str, tmp_path: Path) -> None:
    used = AnsweredStepsInMemory() if kind == "memory" else AnsweredStepsOnDisk(tmp_path / "used")
    used.mark_answered("s-1", "masked")
    used.mark_answered("s-2", "masked")
    used.mark_answered("s-1", "agree")
    with pytest.raises(RefusalError, match="answered before"):
        used.mark_answered("s-1", "masked")
    if kind == "disk":
        with pytest.raises(RefusalError, match="answered before"):
            AnsweredStepsOnDisk(tmp_path / "used").mark_answered("s-2", "masked")


def test_a_used_step_is_on_the_disk_and_so_is_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[int] = []
    force = os.fsync

    def noted(descriptor: int) -> None:
        force(descriptor)
        forced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    AnsweredStepsOnDisk(tmp_path / "used").mark_answered("s-1", "masked")
    (file,) = (tmp_path / "used").iterdir()
    assert forced == [file.stat().st_ino, (tmp_path / "used").stat().st_ino]
