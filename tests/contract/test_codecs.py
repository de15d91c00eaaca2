"""Every codec keeps to one contract: right kinds and shapes, exact counts, no bias, strict bytes, and no surprises."""

from __future__ import annotations

import random
import re
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.wire.codec import CODECS, Codec, WireError
from fedlog.wire.frame import PayloadReader, compute_starting_checksum, encode_varint, encode_zigzag
from fedlog.wire.message import Kind, Message

ALL = sorted(CODECS)
SMALL = [name for name in ALL if CODECS[name].supports_differences]
LOSSLESS = ["f32", "rows", "rows+zstd"]
FUZZ_INPUTS = 108_000


def statistics(classes: int = 10, width: int = 6, held: tuple[int, ...] = (2, 7)) -> Tensor:
    """Sums of features behind a ReLU, with counts of up to five digits in column 0."""
    sums = torch.zeros(classes, 1 + width, dtype=torch.float64)
    draws = Key(3).torch()
    for row in held:
        count = int(torch.randint(1, 70_000, (), generator=draws))
        sums[row] = torch.cat([torch.ones(1), 4 * torch.rand(width, generator=draws)]).double() * count
    return sums


def messages() -> dict[str, Message]:
    """A message of every kind, as the methods send them, and the awkward ones."""
    draws = Key(4).torch()
    weights = torch.randn(5, 3, 2, 2, generator=draws)
    means = statistics()[:, 1:].float() / 9
    return {
        "seed": Message(Kind.SEED, (torch.tensor([2**62 + 5]),)),
        "head": Message(Kind.HEAD, (torch.randn(10, 300, generator=draws),)),
        "statistics": Message(Kind.STATISTICS, (statistics(),)),
        "all statistics, with noise": Message(
            Kind.STATISTICS, (torch.randn(4, 7, generator=draws).double() * 1e5, torch.tensor([0.5]))
        ),
        "grid steps": Message(Kind.STATISTICS, (torch.randint(-(2**40), 2**40, (4, 7), generator=draws),)),
        "decayed statistics": Message(Kind.STATISTICS, (statistics() * 0.3,)),
        "parameters": Message(Kind.PARAMETERS, (weights, torch.zeros(7), torch.tensor(3.0), torch.tensor([12]))),
        "means up": Message(Kind.MEANS, (means, torch.tensor([0, 0, 5, 0, 0, 0, 0, 900, 0, 0]))),
        "means down": Message(Kind.MEANS, (means, means.any(dim=1))),
        "measurements": Message(Kind.MEASUREMENTS, (torch.randn(33, generator=draws), torch.tensor([4, 12]))),
        "signs": Message(Kind.SIGNS, (torch.rand(33, generator=draws) < 0.5, torch.tensor([-3]))),
        "moments": Message(Kind.MOMENTS, (statistics(), torch.randn(10, 21, generator=draws).square() * 1e6)),
        "moments in steps": Message(
            Kind.MOMENTS, (torch.ones(4, 7, dtype=torch.int64), torch.ones(1, 28, dtype=torch.int64))
        ),
        "heads": Message(Kind.HEADS, (torch.randn(3, 7, generator=draws), torch.randn(3, 7, generator=draws))),
        "quadratic": Message(
            Kind.QUADRATIC_HEAD, (torch.randn(3, 7, generator=draws), torch.randn(3, 21, generator=draws))
        ),
        "class means": Message(Kind.CLASS_MEANS, (means, torch.arange(10))),
        "mixtures": Message(Kind.MIXTURES, (torch.ones(4), torch.ones(4, 3), torch.ones(4, 3))),
        "same": Message(Kind.SAME, ()),
        "number head": Message(
            Kind.NUMBER_HEAD,
            (torch.randn(1, 7, generator=draws), torch.randn(7, 6, generator=draws), torch.tensor([[0.5, 30.0]])),
        ),
        "nothing in it": Message(Kind.PARAMETERS, (torch.zeros(0, 4), torch.zeros(3, 0), torch.tensor([1]))),
    }


NAMES = sorted(messages())


def tolerance(codec: Codec, array: Tensor) -> float:
    """By how much any entry can be off: a share of the largest one, and more where it is a mean times a count."""
    share = {"f16": 2.0**-10, "q8": 1.02 / 127, "q4": 1.02 / 7}
    kinds = [share[part] for part in codec.name.split("+") if part in share]
    return kinds[0] * float(array.abs().max()) if kinds and array.numel() else 0.0


def test_the_registry_is_what_the_document_lists() -> None:
    assert len(ALL) == 15
    assert len({CODECS[name].number for name in ALL}) == len(ALL)
    assert {CODECS[name].name for name in ALL} == set(ALL)
    assert {message.kind for message in messages().values()} == set(Kind)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("which", NAMES)
def test_what_comes_back_has_the_same_kind_shapes_and_sorts_and_is_close(name: str, which: str) -> None:
    codec, message = CODECS[name], messages()[which]
    received = codec.decode(codec.encode(message, Key(1)))
    assert received.kind is message.kind
    for sent, got in zip(message.arrays, received.arrays, strict=True):
        assert got.shape == sent.shape
        assert got.is_floating_point() == sent.is_floating_point()
        if sent.is_floating_point():
            assert float((got.double() - sent.double()).abs().max() if sent.numel() else 0.0) <= max(
                tolerance(codec, sent), 1e-7 * float(sent.abs().max() if sent.numel() else 0.0)
            )
        else:
            assert torch.equal(got, sent)
    if which == "statistics":
        assert torch.equal(received.arrays[0][:, 0].double(), message.arrays[0][:, 0])


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("which", NAMES)
def test_lossless_codecs_give_back_every_bit(name: str, which: str) -> None:
    message = messages()[which]
    awkward = torch.tensor([[0.0, -0.0], [0.0, 0.0], [float("nan"), float("-inf")], [1e-45, 3.4e38]])
    for sent in (message, Message(Kind.HEAD, (awkward,))):
        received = CODECS[name].decode(CODECS[name].encode(sent))
        for a, b in zip(sent.arrays, received.arrays, strict=True):
            assert b.dtype == (torch.float32 if a.is_floating_point() else a.dtype)
            assert a.to(b.dtype).numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("which", NAMES)
def test_equal_keys_give_equal_bytes(name: str, which: str) -> None:
    codec, message = CODECS[name], messages()[which]
    assert codec.encode(message, Key(1)) == codec.encode(message, Key(1))


@pytest.mark.parametrize("name", [name for name in SMALL if "q" in name])
def test_rounding_by_chance_is_right_on_average_and_depends_on_the_key(name: str) -> None:
    codec = CODECS[name]
    (exact,) = messages()["statistics"].arrays
    draws = [
        codec.decode(codec.encode(Message(Kind.STATISTICS, (exact,)), Key(2).child(n))).arrays[0] for n in range(300)
    ]
    drawn = torch.stack(draws)
    assert len({tuple(draw.flatten().tolist()) for draw in drawn}) > 1
    # Six standard errors: an entry moves by at most one step of its row, so its std is at most half a step.
    step = exact.abs().amax(dim=1, keepdim=True) / (7 if "q4" in name else 127)
    assert bool(((drawn.mean(0) - exact).abs() <= 6 * step / 2 / 300**0.5 + 1e-9).all())


@pytest.mark.parametrize("name", [name for name in SMALL if "q" in name])
def test_a_codec_that_rounds_by_chance_asks_for_its_key(name: str) -> None:
    with pytest.raises(ValueError, match="needs a key"):
        CODECS[name].encode(messages()["head"])


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("which", ["head", "statistics", "decayed statistics", "parameters", "means down"])
def test_differences_add_up_without_drift(name: str, which: str) -> None:
    """Each difference is to what the receiver really has, so the error of one is made good by the next."""
    codec, message = CODECS[name], messages()[which]
    known = codec.decode(codec.encode(message, Key(1)))
    first = _distance(known, message)
    for turn in range(12):
        known = codec.decode(codec.encode(message, Key(1).child(turn), known), known)
    assert _distance(known, message) <= first / 8 + 1e-6 * (1 + first)


@pytest.mark.parametrize("name", SMALL)
def test_a_difference_to_something_else_is_refused(name: str) -> None:
    codec, message = CODECS[name], messages()["head"]
    known = codec.decode(codec.encode(message, Key(1)))
    blob = codec.encode(message, Key(2), known)
    others = [None, messages()["statistics"], Message(Kind.HEAD, (known.arrays[0] + 1e-3,))]
    for other in others:
        with pytest.raises(WireError, match=r"does not have|checksum"):
            codec.decode(blob, other)


@pytest.mark.parametrize("name", ALL)
def test_same_says_which_message_still_stands(name: str) -> None:
    codec, known = CODECS[name], messages()["statistics"]
    word = Message(Kind.SAME, ())
    blob = codec.encode(word, known=known)
    assert len(blob) == len(codec.encode(word))
    assert codec.decode(blob, known).kind is Kind.SAME
    for other in (None, messages()["head"], Message(Kind.STATISTICS, (known.arrays[0] + 1,))):
        with pytest.raises(WireError, match="checksum"):
            codec.decode(blob, other)


@pytest.mark.parametrize("name", SMALL)
def test_counts_that_stay_are_sent_once(name: str) -> None:
    codec, message = CODECS[name], Message(Kind.STATISTICS, (statistics(held=tuple(range(10))),))
    whole = codec.encode(message, Key(1))
    again = codec.encode(message, Key(2), codec.decode(whole))
    other = Message(Kind.STATISTICS, (statistics(held=tuple(range(10))) * 2,))
    assert codec.decode(again, codec.decode(whole)).arrays[0][:, 0].tolist() == message.arrays[0][:, 0].tolist()
    moved = codec.encode(other, Key(3), codec.decode(whole))
    assert codec.decode(moved, codec.decode(whole)).arrays[0][:, 0].tolist() == other.arrays[0][:, 0].tolist()
    if not name.endswith("zstd"):
        assert len(again) < len(whole) - 20


@pytest.mark.parametrize("name", [name for name in ALL if CODECS[name].hides_classes])
def test_a_dense_message_is_as_long_whatever_it_holds(name: str) -> None:
    codec = CODECS[name]
    full = torch.randint(-(2**50), 2**50, (5, 4), generator=Key(1).torch())
    lengths = {len(codec.encode(Message(Kind.STATISTICS, (steps,)), Key(1))) for steps in (full, full * 0, full // 9)}
    assert len(lengths) == 1
    floats = torch.randn(5, 4, generator=Key(1).torch())
    holes = floats.clone()
    holes[1:] = 0
    assert len({len(codec.encode(Message(Kind.HEAD, (each,)), Key(1))) for each in (floats, holes, floats * 1e9)}) == 1


@pytest.mark.parametrize("name", SMALL)
def test_what_is_not_finite_stays_so(name: str) -> None:
    """The server refuses such an upload by name; a codec must not turn it into a number."""
    for bad in (float("nan"), float("inf")):
        message = Message(Kind.STATISTICS, (torch.tensor([[1.0, bad], [2.0, 3.0]]),))
        received = CODECS[name].decode(CODECS[name].encode(message, Key(1)))
        assert not bool(torch.isfinite(received.arrays[0]).all())


@pytest.mark.parametrize("name", SMALL)
def test_a_row_of_huge_numbers_spoils_no_other_row(name: str) -> None:
    """Some heads have the lowest float there is as the bias of a class that nobody holds."""
    head = torch.tensor([[1.0, 2.0], [torch.finfo(torch.float32).min, 0.0], [-3.0, 0.5]])
    received = CODECS[name].decode(CODECS[name].encode(Message(Kind.HEAD, (head,)), Key(1))).arrays[0]
    assert bool(torch.isfinite(received).all())
    assert float(received[1, 0]) < -1e38
    assert float((received - head)[[0, 2]].abs().max()) < 0.5


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("which", ["statistics", "parameters", "signs"])
def test_every_cut_every_added_byte_and_every_flipped_bit_is_refused(name: str, which: str) -> None:
    codec = CODECS[name]
    blob = codec.encode(messages()[which], Key(1))
    damaged = [blob[:size] for size in range(len(blob))] + [blob + bytes([byte]) for byte in range(256)]
    for bit in range(8 * len(blob)):
        flipped = bytearray(blob)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for each in damaged:
        with pytest.raises(WireError):
            codec.decode(each)


def believe_forged(name: str, inputs: int) -> int:
    """How many of so many forged messages are believed: whole ones, differences and `same`, all with a right checksum.

    What is believed is small; anything but WireError ends the test.
    """
    codec, draws = CODECS[name], random.Random(name)
    whole = [message for message in messages().values() if message.kind is not Kind.HEAD]
    seeds: list[tuple[bytes, Message | None]] = [(codec.encode(message, Key(1))[:-4], None) for message in whole]
    for message in [*whole, Message(Kind.HEAD, (torch.randn(4, 5, generator=Key(6).torch()),))]:
        known = codec.decode(codec.encode(message, Key(2)))
        seeds.append((codec.encode(message, Key(3), known)[:-4], known))
    believed = 0
    for _ in range(inputs):
        seed, known = draws.choice(seeds)
        body = bytearray(seed)
        for _ in range(draws.randint(1, 4)):
            at = min(draws.randrange(len(body)), draws.randrange(len(body)))
            body[at] = draws.choice((0, 1, 2, 3, 7, 8, 9, 13, 127, 128, 255, draws.randrange(256)))
        if draws.random() < 0.2:
            body = body[: draws.randrange(len(body) + 1)]
        start = compute_starting_checksum(known) if _refers_to_known(name, body) else 0
        blob = bytes(body) + struct.pack("<I", zlib.crc32(bytes(body), start))
        try:
            received = codec.decode(blob, known)
        except WireError:
            continue
        believed += 1
        assert sum(array.numel() for array in received.arrays) <= 2**22 + 64 * (2**22 + 64 * len(blob))
    return believed


def _refers_to_known(name: str, body: bytes | bytearray) -> bool:
    """Whether the checksum starts from the known message: in a difference, and in `same`."""
    if len(body) < 6:
        return False
    kind = body[3] if name == "f32" else body[4]
    return kind == Kind.SAME or (name != "f32" and bool(body[5] & 1))


@pytest.mark.parametrize("name", ALL)
def test_forged_bytes_are_refused_or_small(name: str) -> None:
    """Whoever can compute a CRC can pass it: the parser itself must hold. All codecs together: over 100,000 inputs."""
    assert believe_forged(name, FUZZ_INPUTS // len(ALL)), "no forged input was close enough to the format to test it"


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_hundred_thousand_forged_messages_of_each_codec_are_refused_or_small(name: str) -> None:
    assert believe_forged(name, 100_000)


@pytest.mark.parametrize("name", [name for name in ALL if name != "f32"])
@pytest.mark.parametrize("shape", [(2**31 - 1,), (2**20, 2**11), (0, 2**31), (2**31, 0), (8, 2**28)])
@pytest.mark.parametrize("layout", [0, 1, 2, 3, 4, 19, 20])
def test_a_forged_size_is_refused_before_anything_is_allocated(name: str, shape: tuple[int, ...], layout: int) -> None:
    array = bytes([layout]) + encode_varint(len(shape)) + b"".join(encode_varint(size) for size in shape) + b"\0" * 64
    body = struct.pack("<2sBBBB", b"fl", 2, CODECS[name].number, Kind.STATISTICS, 0) + encode_varint(1) + array
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            CODECS[name].decode(body + struct.pack("<I", zlib.crc32(body)))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def _distance(received: Message, sent: Message) -> float:
    pairs = [(a.double(), b.double()) for a, b in zip(received.arrays, sent.arrays, strict=True)]
    return max(float((a - b).abs().max()) for a, b in pairs if a.numel())


PAGE = Path(__file__).parents[2] / "docs" / "wire.md"


def document_examples() -> dict[str, bytes]:
    """The bytes of each worked example, by its heading."""
    _, _, section = PAGE.read_text().partition("## Worked examples")
    found = re.findall(r"^### (.+?)$(.*?)(?=^###|\Z)", section, re.MULTILINE | re.DOTALL)
    lines = {title: re.findall(r"^    ((?:[0-9a-f]{2} )+) ", text, re.MULTILINE) for title, text in found}
    return {title: bytes.fromhex("".join(each)) for title, each in lines.items()}


def test_the_documents_examples_decode_to_what_they_say() -> None:
    codec, found = CODECS["rows+q8"], document_examples()
    assert {title: len(blob) for title, blob in found.items()} == {
        "Statistics": 21,
        "A difference": 20,
        "Nothing new": 11,
    }
    first = codec.decode(found["Statistics"])
    assert first.kind is Kind.STATISTICS
    assert first.arrays[0].tolist() == [[0.0, 0.0, 0.0], [4.0, 2.015625, 7.99951171875], [0.0, 0.0, 0.0]]
    second = codec.decode(found["A difference"], first)
    assert second.arrays[0].tolist()[1] == [4.0, 2.499847412109375, 7.499542236328125]
    assert codec.decode(found["Nothing new"], second).kind is Kind.SAME
    with pytest.raises(WireError, match="checksum"):
        codec.decode(found["Nothing new"], first)
    assert [f"{compute_starting_checksum(each):#x}" for each in (first, second)] == re.findall(
        r"0x[0-9a-f]{8}", PAGE.read_text()
    )


def test_the_document_lists_every_codec_with_its_number() -> None:
    listed: dict[str, int] = {}
    for names, numbers in re.findall(r"^\| (`[^|]*`) \| ([0-9][^|]*) \|", PAGE.read_text(), re.MULTILINE):
        first, _, last = numbers.partition(" to ")
        run = range(int(first), int(last) + 1) if last else [int(number) for number in numbers.split(", ")]
        listed |= zip(re.findall(r"`([^`]*)`", names), run, strict=True)
    assert listed == {name: CODECS[name].number for name in ALL}


@pytest.mark.parametrize("blob", [b"\x80\x00", b"\xff" * 11, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", b"\x80"])
def test_a_whole_number_that_is_written_otherwise_than_it_must_be_is_refused(blob: bytes) -> None:
    with pytest.raises(WireError):
        PayloadReader(blob).read_varint()


@pytest.mark.parametrize("number", [0, 1, -1, 63, -64, 64, 2**62, -(2**63), 2**63 - 1])
def test_whole_numbers_of_either_sign_come_back(number: int) -> None:
    assert PayloadReader(encode_varint(encode_zigzag(number))).read_signed_varint() == number
