"""The compact frame, used by every codec except `f32`. `docs/wire.md` describes each byte.

    frame   = magic(2) version(1) codec(1) kind(1) flags(1) | payload | crc32(4)
    payload = arrays(varint) | array...
    array   = layout(1) dimensions(varint) sizes(varint each) | [row bitmap] | [counts] | entries

Statistics are sent as class means with their counts, because sums overflow small number formats. A frame can carry the
difference to an earlier message that the receiver has, or only say that this message is unchanged (kind SAME). The
frame's checksum then also covers the earlier message, so a receiver that does not have it refuses the frame.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.wire import frame
from fedlog.wire.frame import (
    PayloadReader,
    WireError,
    compute_starting_checksum,
    encode_varint,
    encode_zigzag,
    pack_bits,
)
from fedlog.wire.message import Kind, Message
from fedlog.wire.numbers import Float32Numbers, Floats, NumberFormat

MAX_WHOLE_COUNT = 2**53  # float64 is exact for whole numbers up to this one
VERSION = 2
_HEADER = struct.Struct("<2sBBBB")
_DIFFERENCE, _COMPRESSED = 1, 2  # flags
_BITS, _WHOLE, _WIDE_WHOLE, _FLOATS, _MEANS = range(5)  # layouts
_SIGNED, _FRACTIONAL, _SAME_COUNTS = 16, 32, 64  # flags in the same byte as the layout


def split_counts_and_means(sums: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Statistics as counts and class means; None if they cannot be sent in this form.

    They cannot if an entry is not finite, if a count is negative, or if a class has a count of 0 and other sums.
    """
    if sums.ndim != 2 or not sums.shape[1] or not sums.is_floating_point():
        return None
    entries = sums.to(torch.float64).numpy()
    counts = entries[:, 0]
    if not np.isfinite(entries).all() or (counts < 0).any() or entries[counts == 0].any():
        return None
    return counts, entries[:, 1:] / np.where(counts > 0, counts, 1.0)[:, None]


def pack_counts(counts: NDArray[np.float64]) -> tuple[bytes, bool]:
    """The bytes of the counts, and whether they are float64 instead of varints.

    They are float64 if one of them is a fraction, as in methods that keep a share of old counts, or is above
    `MAX_WHOLE_COUNT`.
    """
    if (counts == np.floor(counts)).all() and (counts <= MAX_WHOLE_COUNT).all():
        return b"".join(encode_varint(int(count)) for count in counts), False
    return counts.astype("<f8").tobytes(), True


def unpack_counts(reader: PayloadReader, rows: int, fractional: bool) -> NDArray[np.float64]:
    """Read one count for each of `rows` rows."""
    if not fractional:
        counts = np.array([reader.read_varint() for _ in range(rows)], np.float64)
        if (counts > MAX_WHOLE_COUNT).any():
            raise WireError(f"whole counts in a message must be at most {MAX_WHOLE_COUNT}, found: {counts.max():g}")
        return counts
    counts = np.frombuffer(reader.take(8 * rows), "<f8").astype(np.float64)
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise WireError(
            f"the counts of a message must be finite and 0 or more, found: {counts.min()} to {counts.max()}"
        )
    return counts


def compress(payload: bytes) -> bytes:
    """The payload compressed to one frame of zstandard, without the magic number that such a frame begins with."""
    settings = zstandard.ZstdCompressionParameters(
        compression_level=19, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=True
    )
    return zstandard.ZstdCompressor(compression_params=settings).compress(payload)


def decompress(payload: bytes) -> bytes:
    """The payload that `compress` compressed; `WireError` if it cannot be decompressed or would become too large."""
    limit = frame.compute_max_decoded_size(len(payload))
    try:
        size = zstandard.get_frame_parameters(payload, format=zstandard.FORMAT_ZSTD1_MAGICLESS).content_size
        if size > limit:  # zstandard gives an unknown size as the largest possible number
            raise WireError(f"a decompressed message must have at most {limit} bytes, found: more")
        opener = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS, max_window_size=2**23)
        return opener.decompress(payload, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(f"zstandard cannot decompress the message: {error}") from None


@dataclass(frozen=True)
class CompactCodec:
    """A codec that writes floats in the format `numbers`.

    With `rows` it leaves out rows of zeros; with `compressed` it compresses the payload with zstandard.
    """

    number: int
    numbers: NumberFormat
    rows: bool = False
    compressed: bool = False

    @property
    def name(self) -> str:
        """The codec's name: its parts joined with `+`, for example rows+q8+zstd; `rows` alone means rows of f32."""
        plain = self.rows and self.numbers.name == "f32"
        parts = [*(["rows"] if self.rows else []), *([] if plain else [self.numbers.name])]
        return "+".join([*parts, *(["zstd"] if self.compressed else [])])

    @property
    def hides_classes(self) -> bool:
        """Whether a message's length and layout hide which classes it has values for."""
        return not self.rows and not self.compressed

    @property
    def supports_differences(self) -> bool:
        """Whether the codec can send a message as the difference to an earlier one; f32 cannot, as it must be exact."""
        return not isinstance(self.numbers, Float32Numbers)

    @property
    def rounding(self) -> float:
        """An upper bound on |rounding error| / |row| for any row of an array, in L2 norms."""
        return self.numbers.rounding

    def _choose_codec(self, kind: int) -> CompactCodec:
        """The codec for messages of that kind; `Kind.MOMENTS` always uses float32, so that variances stay precise."""
        return replace(self, numbers=Float32Numbers()) if kind == Kind.MOMENTS else self

    def encode(self, message: Message, key: Key | None = None, known: Message | None = None) -> bytes:
        """The bytes of a message, as a difference to `known` if possible; equal keys give equal bytes."""
        frame.check_arrays(message)
        writer = self._choose_codec(message.kind)
        unchanged = message.kind is Kind.SAME  # the checksum then covers `known`, the message that is unchanged
        as_difference = writer.supports_differences and known is not None and frame.can_send_difference(message, known)
        known = known if unchanged or as_difference else None
        payload = encode_varint(len(message.arrays))
        for at, array in enumerate(message.arrays):
            old = None if known is None else known.arrays[at]
            payload += writer._pack_array(message.kind, array, old, None if key is None else key.child(at))
        flags = 0 if known is None or unchanged else _DIFFERENCE
        if self.compressed:
            smaller = compress(payload)
            if len(smaller) < len(payload) <= frame.compute_max_decoded_size(len(smaller)):
                payload, flags = smaller, flags | _COMPRESSED
        header = _HEADER.pack(frame.MAGIC, VERSION, self.number, message.kind, flags)
        return frame.add_checksum(header + payload, compute_starting_checksum(known))

    def decode(self, blob: bytes, known: Message | None = None) -> Message:
        """The message in these bytes; `WireError` if they are not a message. A difference is added to `known`."""
        codec, number, flags = frame.read_header(_HEADER, VERSION, blob)
        if codec != self.number:
            raise WireError(
                f"expected a message in codec {self.number} ({self.name}), found: codec {codec}", hint=frame.SAME_CODEC
            )
        if flags & ~(_DIFFERENCE | _COMPRESSED) or (flags & _COMPRESSED and not self.compressed):
            raise WireError(f"the message has unknown flags: {flags}")
        old = self._require_known_message(number, known) if flags & _DIFFERENCE else None
        kind, payload = frame.open_frame(
            _HEADER, blob, number, compute_starting_checksum(known if number == Kind.SAME else old)
        )
        return self._choose_codec(kind)._read_message(
            kind, decompress(bytes(payload)) if flags & _COMPRESSED else payload, old
        )

    def _require_known_message(self, kind: int, known: Message | None) -> Message:
        """The earlier message `known`; `WireError` if a difference of this kind cannot be added to it."""
        if not self._choose_codec(kind).supports_differences or known is None or known.kind != kind:
            raise WireError(
                "the message is a difference to an earlier message that the receiver does not have",
                hint="the sender must send the whole message once",
            )
        return known

    def _read_message(self, kind: Kind, payload: bytes | memoryview, known: Message | None) -> Message:
        reader, arrays = PayloadReader(payload), []
        entries_left = frame.compute_max_decoded_size(len(payload))
        count = reader.read_varint()
        if count > frame.MAX_ARRAYS or (known is not None and count != len(known.arrays)):
            expected = f"at most {frame.MAX_ARRAYS}" if known is None else str(len(known.arrays))
            raise WireError(f"expected a message with {expected} arrays, found: {count}")
        for at in range(count):
            array = self._unpack_array(kind, reader, None if known is None else known.arrays[at], entries_left)
            entries_left -= array.numel()
            arrays.append(array)
        reader.require_end()
        return Message(kind, tuple(arrays))

    def _pack_array(self, kind: Kind, array: Tensor, known: Tensor | None, key: Key | None) -> bytes:
        layout, payload = self._pack_entries(kind, array.detach().cpu(), known, key)
        return bytes([layout]) + b"".join(encode_varint(size) for size in (array.ndim, *array.shape)) + payload

    def _pack_entries(self, kind: Kind, array: Tensor, known: Tensor | None, key: Key | None) -> tuple[int, bytes]:
        """The layout byte of an array, and the bytes of its entries; floats as a difference to `known` if given."""
        if array.dtype == torch.bool:
            return _BITS, pack_bits(array.flatten().numpy())
        if not array.is_floating_point():
            whole = array.to(torch.int64).contiguous().numpy()
            if kind in (Kind.STATISTICS, Kind.MOMENTS):
                # Grid steps of a private run: varints would reveal their size by their length.
                return _WIDE_WHOLE, whole.astype("<i8").tobytes()
            return _WHOLE, b"".join(encode_varint(encode_zigzag(int(number))) for number in whole.reshape(-1))
        has_means = kind is Kind.STATISTICS and not isinstance(self.numbers, Float32Numbers)
        found = split_counts_and_means(array) if has_means else None
        if found is None:
            matrix = _reshape_to_matrix(array.to(torch.float32))
            if known is not None:
                matrix = _reshape_to_matrix(array.to(torch.float64) - known.to(torch.float64)).astype(np.float32)
            return self._pack_rows(_FLOATS, matrix, b"", key)
        counts, means = found
        layout = _MEANS
        if known is not None and (old := split_counts_and_means(known)) is not None:
            layout |= _SAME_COUNTS if np.array_equal(old[0], counts) else 0
            means = means - old[1]
        present = _find_filled_rows(counts[:, None]) if self.rows and known is None else np.ones(len(counts), bool)
        count_bytes, fractional = (b"", False) if layout & _SAME_COUNTS else pack_counts(counts[present])
        layout |= _FRACTIONAL if fractional else 0
        return self._pack_rows(layout, means.astype(np.float32), count_bytes, key, present)

    def _pack_rows(
        self, layout: int, matrix: Floats, counts: bytes, key: Key | None, present: NDArray[np.bool_] | None = None
    ) -> tuple[int, bytes]:
        """The layout byte with the flag for signed entries, and the bytes of the row bitmap, the counts and the rows.

        A codec without `rows` sends every row. A codec with `rows` sends those that `present` marks; without `present`,
        or with the counts of the known message, it sends the rows that are not zero.
        """
        if not self.rows:
            present = np.ones(len(matrix), bool)
        elif present is None or layout & _SAME_COUNTS:
            present = _find_filled_rows(matrix)
        bitmap = pack_bits(present) if self.rows else b""
        signed = bool((matrix < 0).any())
        return layout | (_SIGNED if signed else 0), bitmap + counts + self.numbers.pack(matrix, present, key, signed)

    def _unpack_array(self, kind: Kind, reader: PayloadReader, known: Tensor | None, entries_left: int) -> Tensor:
        """Read one array; `WireError` if it has more than `entries_left` entries. A difference is added to `known`."""
        layout, ndim = reader.read_byte(), reader.read_varint()
        shape = frame.check_shape([reader.read_varint() for _ in range(ndim)])
        sort, flags = layout & 15, layout & ~15
        if known is not None and tuple(known.shape) != shape:
            raise WireError(
                f"expected a difference of shape {tuple(known.shape)}, like the earlier message, found: {shape}"
            )
        rows, columns = _find_matrix_shape(shape)
        if max(prod(shape), rows) > entries_left:
            raise WireError(f"the message is too short for the array that it announces, of shape: {shape}")
        if sort in (_BITS, _WHOLE, _WIDE_WHOLE) and not flags:
            return _unpack_whole_numbers(reader, sort, shape)
        if sort == _FLOATS and not flags & ~_SIGNED:
            present = reader.read_bits(rows) if self.rows else np.ones(rows, bool)
            matrix = self._read_matrix(reader, present, columns, bool(flags & _SIGNED))
            found = torch.from_numpy(matrix).reshape(shape)
            return found if known is None else (known.to(torch.float64) + found).to(torch.float32)
        if sort != _MEANS or flags & 128 or len(shape) != 2 or not columns or kind is not Kind.STATISTICS:
            raise WireError(f"an array of the message has an unknown layout: {layout}")
        return self._unpack_means(reader, flags, rows, columns - 1, known)

    def _unpack_means(self, reader: PayloadReader, flags: int, rows: int, columns: int, known: Tensor | None) -> Tensor:
        """Read statistics that were sent as counts and class means; `flags` are those of the layout byte.

        `columns` is the number of features without the constant. Means that are a difference are added to `known`.
        """
        old = None if known is None else split_counts_and_means(known)
        if flags & _SAME_COUNTS and (old is None or flags & _FRACTIONAL):
            raise WireError(
                "the message refers to the counts of an earlier message that the receiver does not have",
                hint="the sender must send the whole message once",
            )
        present = reader.read_bits(rows) if self.rows else np.ones(rows, bool)
        counts = np.zeros(rows)
        if flags & _SAME_COUNTS and old is not None:
            counts = old[0]
        else:
            counts[present] = unpack_counts(reader, int(present.sum()), bool(flags & _FRACTIONAL))
        means = self._read_matrix(reader, present, columns, bool(flags & _SIGNED)).astype(np.float64)
        if old is not None:
            means = means + old[1]
        with np.errstate(invalid="ignore", over="ignore"):
            return torch.from_numpy(np.concatenate([counts[:, None], counts[:, None] * means], axis=1))

    def _read_matrix(self, reader: PayloadReader, present: NDArray[np.bool_], columns: int, signed: bool) -> Floats:
        found = self.numbers.unpack(reader, int(present.sum()), columns, signed)
        matrix = np.zeros((len(present), columns), np.float32)
        matrix[present] = found
        return matrix


def _reshape_to_matrix(array: Tensor) -> Floats:
    rows, columns = _find_matrix_shape(tuple(array.shape))
    found: Floats = array.contiguous().numpy().reshape(rows, columns)
    return found


def _find_matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """The rows (the first dimension) and columns (the product of all others); a vector or a number is one row."""
    return (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))


def _find_filled_rows(matrix: NDArray[np.floating]) -> NDArray[np.bool_]:
    """A mask of the rows with an entry other than +0; -0 counts as an entry, so that decoding is exact."""
    found: NDArray[np.bool_] = ((matrix != 0) | np.signbit(matrix)).any(axis=1)
    return found


def _unpack_whole_numbers(reader: PayloadReader, layout: int, shape: tuple[int, ...]) -> Tensor:
    entries = prod(shape)
    if layout == _BITS:
        return torch.from_numpy(reader.read_bits(entries)).reshape(shape)
    if layout == _WIDE_WHOLE:
        return torch.from_numpy(np.frombuffer(reader.take(8 * entries), "<i8").astype(np.int64)).reshape(shape)
    if entries > reader.bytes_left:
        raise WireError(
            f"expected {entries} whole numbers in an array of the message, found only {reader.bytes_left} bytes"
        )
    return torch.tensor([reader.read_signed_varint() for _ in range(entries)], dtype=torch.int64).reshape(shape)
