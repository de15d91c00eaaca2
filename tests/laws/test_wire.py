"""Laws of the wire: messages survive encoding, damaged bytes are refused, and only encoded bytes are counted."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.wire.codec import Float32Codec, WireError, find_codec
from fedlog.wire.frame import MAX_ARRAYS, MAX_DIMENSIONS
from fedlog.wire.ledger import Direction, Ledger
from fedlog.wire.message import _CONVERSIONS, Contribution, Kind, Message, add_contributions, make_contribution

CODEC = Float32Codec()
# kind -> the kinds of array in it: f float, i whole, b truth value; `*` any number of the first
ARRAYS = {
    Kind.SEED: "i",
    Kind.HEAD: "f",
    Kind.STATISTICS: "f",
    Kind.PARAMETERS: "*fi",
    Kind.MEANS: "fi",
    Kind.MEASUREMENTS: "fi",
    Kind.SIGNS: "*bi",
    Kind.MOMENTS: "ff",
    Kind.HEADS: "*f",
    Kind.QUADRATIC_HEAD: "ff",
    Kind.CLASS_MEANS: "fi",
    Kind.MIXTURES: "fff",
    Kind.SAME: "",
    Kind.NUMBER_HEAD: "fff",
}


@st.composite
def arrays(draw: st.DrawFn, sort: str) -> Tensor:
    """An array of that sort, of up to three dimensions, empty and non-contiguous ones among them."""
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    generator = Key(draw(st.integers(0, 2**32))).torch()
    if sort == "b":
        made = torch.rand(shape, generator=generator) < 0.5
    elif sort == "i":
        made = torch.randint(-(2**62), 2**62, shape, generator=generator)
    else:
        made = torch.randn(shape, generator=generator) * draw(st.sampled_from([1e-30, 1.0, 1e30]))
        made = made.to(draw(st.sampled_from([torch.float32, torch.float64])))
    return made.mT if made.ndim >= 2 and draw(st.booleans()) else made


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """A message of any kind."""
    kind = draw(st.sampled_from(Kind))
    sorts = ARRAYS[kind]
    if sorts.startswith("*"):
        sorts = sorts[1] * draw(st.integers(0, 4)) + sorts[2:]
    return Message(kind, tuple(draw(arrays(sort)) for sort in sorts))


def test_every_kind_is_drawn() -> None:
    assert set(ARRAYS) == set(Kind)


@settings(deadline=None, max_examples=120)
@given(messages())
def test_decoding_gives_back_what_was_encoded(message: Message) -> None:
    received = CODEC.decode(CODEC.encode(message))
    assert received.kind is message.kind
    for sent, got in zip(message.arrays, received.arrays, strict=True):
        expected = sent.to(torch.float32) if sent.is_floating_point() else sent
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


@settings(deadline=None, max_examples=60)
@given(messages())
def test_encoding_twice_changes_nothing_more(message: Message) -> None:
    blob = CODEC.encode(message)
    assert CODEC.encode(CODEC.decode(blob)) == blob


@settings(deadline=None, max_examples=300)
@given(messages(), st.data())
def test_forged_bytes_with_a_right_checksum_are_refused_or_small(message: Message, data: st.DataObject) -> None:
    """Whoever can compute a CRC can pass it: the parser itself must hold, and never make more than it was sent."""
    body = bytearray(CODEC.encode(message)[:-4])
    for _ in range(data.draw(st.integers(1, 6))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from([0, 1, 2, 3, 8, 9, 127, 255]))
    blob = _sealed(bytes(body))
    try:
        received = CODEC.decode(blob)
    except WireError:
        return
    assert sum(array.numel() for array in received.arrays) <= 8 * len(blob)


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(noise: bytes) -> None:
    for blob in (noise, _sealed(b"fl\x01" + noise)):
        try:
            CODEC.decode(blob)
        except WireError:
            continue
        assert blob != noise, "bytes without the magic were believed"


@pytest.mark.parametrize("code", [1, 2, 3])
@pytest.mark.parametrize("shape", [(2**32 - 1,), (2**16, 2**16), (0, 2**32 - 1, 2**32 - 1, 2**32 - 1), (2**31,)])
def test_a_forged_size_is_refused_before_anything_is_allocated(shape: tuple[int, ...], code: int) -> None:
    array = struct.pack(f"<BB{len(shape)}I", code, len(shape), *shape)
    blob = _sealed(b"fl" + struct.pack("<BBBH", 1, Kind.STATISTICS, 1, 1) + array + b"\0" * 64)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=r"must have at most \d+ entries|cut short"):
            CODEC.decode(blob)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [(0, ord("x"), "version"), (2, 2, "version"), (3, 99, "kind"), (3, 0, "kind"), (4, 7, "codec"), (7, 9, "type")],
)
def test_another_version_kind_codec_or_type_is_named(at: int, value: int, said: str) -> None:
    body = bytearray(CODEC.encode(Message(Kind.HEAD, (torch.ones(2, 3),)))[:-4])
    body[at] = value
    with pytest.raises(WireError, match=said):
        CODEC.decode(_sealed(bytes(body)))


def test_bytes_behind_the_last_array_are_refused_even_under_a_right_checksum() -> None:
    body = CODEC.encode(Message(Kind.HEAD, (torch.ones(2, 3),)))[:-4]
    with pytest.raises(WireError, match=r"found more bytes: 3$"):
        CODEC.decode(_sealed(body + b"abc"))


def test_what_a_frame_cannot_tell_is_refused_when_encoding() -> None:
    with pytest.raises(WireError, match=f"at most {MAX_ARRAYS} arrays, found: {MAX_ARRAYS + 1}"):
        CODEC.encode(Message(Kind.SIGNS, (torch.ones(1, dtype=torch.bool),) * (MAX_ARRAYS + 1)))
    with pytest.raises(WireError, match=f"an array of a message must have at most {MAX_DIMENSIONS} dimensions"):
        CODEC.encode(Message(Kind.SIGNS, (torch.ones((1,) * (MAX_DIMENSIONS + 1)),)))


def test_a_model_of_more_than_255_arrays_can_be_sent() -> None:
    """MobileNetV2 has 260."""
    many = tuple(torch.full((1,), float(number)) for number in range(300))
    received = CODEC.decode(CODEC.encode(Message(Kind.PARAMETERS, many)))
    assert [float(array) for array in received.arrays] == list(range(300))


def test_an_unknown_codec_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="f23") as caught:
        find_codec("f23")
    assert "f32" in str(caught.value.hint)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Direction), messages(), st.integers(0, 4)), max_size=12))
def test_the_ledger_counts_eight_times_the_length_and_nothing_else(
    bookings: list[tuple[int, Direction, Message, int]],
) -> None:
    ledger = Ledger()
    expected: dict[tuple[int, Direction], int] = {}
    for at, way, message, copies in bookings:
        blob = CODEC.encode(message)
        ledger.count(at, way, message.kind, blob, copies)
        expected[at, way] = expected.get((at, way), 0) + 8 * len(blob) * copies
    for way in Direction:
        assert ledger.sum_bits(way) == sum(bits for (_, direction), bits in expected.items() if direction is way)
        for at in range(4):
            assert ledger.sum_bits(way, round_number=at) == expected.get((at, way), 0)
    for at in range(4):
        assert sum(ledger.sum_bits_by_kind(at).values()) == sum(
            bits for (when, _), bits in expected.items() if when == at
        )
    assert Ledger.from_rows(ledger.as_rows()).entries == ledger.entries


@st.composite
def uploads(draw: st.DrawFn) -> list[Message]:
    """Several clients' uploads of one kind and shape; whole entries, so that float64 sums are exact in any order."""
    kind = draw(st.sampled_from([kind for kind in _CONVERSIONS if kind is not Kind.MIXTURES]))
    classes, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    generator = Key(draw(st.integers(0, 2**32))).torch()

    def whole(*shape: int) -> Tensor:
        return torch.randint(-100, 100, shape, generator=generator).float()

    def counts(size: int) -> Tensor:
        return torch.randint(0, 50, (size,), generator=generator)

    def one() -> Message:
        made = {
            Kind.STATISTICS: lambda: (whole(classes, width),),
            Kind.PARAMETERS: lambda: (whole(classes, width), whole(width), counts(1)),
            Kind.MEANS: lambda: (whole(classes, width), counts(classes)),
            Kind.MEASUREMENTS: lambda: (whole(width), counts(2)),
            Kind.SIGNS: lambda: (whole(width) >= 0, counts(1) // 25),
            Kind.MOMENTS: lambda: (whole(classes, width), whole(1, width)),
            Kind.CLASS_MEANS: lambda: (whole(classes, 1), counts(classes)),
        }[kind]()
        return Message(kind, made)

    return [one() for _ in range(draw(st.integers(1, 6)))]


@settings(deadline=None, max_examples=80)
@given(uploads(), st.integers(0, 2**32))
def test_lifted_uploads_sum_in_any_order_and_grouping(sent: list[Message], seed: int) -> None:
    lifted = [make_contribution(message) for message in sent]
    whole = add_contributions(lifted)
    assert whole.clients == len(sent)
    assert all(array.dtype == torch.float64 for array in whole.arrays)
    order = Key(seed).numpy().permutation(len(sent))
    cut = int(order[0]) + 1
    shuffled = [lifted[at] for at in order]
    parts = (
        add_contributions(shuffled[:cut])
        if cut == len(sent)
        else add_contributions(shuffled[:cut]) + add_contributions(shuffled[cut:])
    )
    assert parts.clients == whole.clients
    for a, b in zip(parts.arrays, whole.arrays, strict=True):
        assert torch.equal(a, b)


def test_independent_noises_add_by_their_squares() -> None:
    found = Contribution((torch.ones(2),), noise_std=3.0) + Contribution((torch.ones(2),), 2, noise_std=4.0)
    assert (found.noise_std, found.clients, found.arrays[0].tolist()) == (5.0, 3, [2.0, 2.0])


@settings(deadline=None, max_examples=80)
@given(uploads())
def test_lifting_means_what_each_kind_says(sent: list[Message]) -> None:
    """Against plain numpy, client by client."""
    kind = sent[0].kind
    found = [array.numpy() for array in add_contributions([make_contribution(message) for message in sent]).arrays]
    columns = [[array.numpy().astype(np.float64) for array in message.arrays] for message in sent]
    if kind is Kind.PARAMETERS:  # (theta, n) -> (n * theta, n): the quotient is the weighted mean
        expected = [sum(c[at] * c[-1] for c in columns) for at in range(len(columns[0]) - 1)]
        expected.append(sum(c[-1] for c in columns))
    elif kind is Kind.MEANS:
        expected = [sum(c[0] * c[1][:, None] for c in columns), sum(c[1] for c in columns)]
    elif kind is Kind.MEASUREMENTS:
        expected = [sum(c[0] * c[1][1] for c in columns), sum(c[1] * [c[1][1], 1] for c in columns)]
    elif kind is Kind.SIGNS:  # a client without records has no vote
        voters = [c for c in columns if c[1] > 0]
        votes = sum((np.where(c[0] > 0, 1.0, -1.0) for c in voters), np.zeros(len(columns[0][0])))
        expected = [votes, np.array([float(len(voters))])]
    elif kind is Kind.CLASS_MEANS:  # of one feature: counts and sums, n * mean^2, and who holds the class
        expected = [
            sum(np.stack([c[1], c[1] * c[0][:, 0]], axis=1) for c in columns),
            sum(c[1][:, None] * c[0] ** 2 for c in columns),
            sum((c[1] > 0).astype(np.float64) for c in columns),
        ]
    else:
        expected = [sum(c[at] for c in columns) for at in range(len(columns[0]))]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", [Kind.SEED, Kind.HEAD])
def test_what_cannot_be_summed_is_refused_by_name(kind: Kind) -> None:
    with pytest.raises(InputError, match=kind.name):
        make_contribution(Message(kind, (torch.ones(1),)))


def test_contributions_of_different_shapes_do_not_add() -> None:
    one = Contribution((torch.zeros(2, 3),))
    with pytest.raises(InputError, match=r"\(2, 3\).*\(3, 2\)"):
        one + replace(one, arrays=(torch.zeros(3, 2),))


def _sealed(body: bytes) -> bytes:
    return body + struct.pack("<I", zlib.crc32(body))


def test_mixtures_are_listed_and_not_summed() -> None:
    one, other = (
        Message(Kind.MIXTURES, (torch.ones(2), torch.full((2, 3), at), torch.ones(2, 3))) for at in (1.0, 2.0)
    )
    found = add_contributions([make_contribution(one), make_contribution(other)])
    assert found.clients == 2
    assert found.arrays[1][:, 0].tolist() == [1.0, 1.0, 2.0, 2.0]
