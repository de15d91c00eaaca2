"""The last, lossless stage of a codec: zstandard."""

from __future__ import annotations

import zstandard

from fedlog.wire.frame import WireError, largest_from


def compress(body: bytes) -> bytes:
    """The body as one zstandard frame without its magic number."""
    settings = zstandard.ZstdCompressionParameters(
        compression_level=19, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=True
    )
    return zstandard.ZstdCompressor(compression_params=settings).compress(body)


def decompress(body: bytes) -> bytes:
    """The body again; `WireError` for anything else, and for one that would become too large."""
    limit = largest_from(len(body))
    try:
        size = zstandard.get_frame_parameters(body, format=zstandard.FORMAT_ZSTD1_MAGICLESS).content_size
        if size > limit:  # an unknown size is the largest number there is
            raise WireError("a message that becomes too large when it is opened")
        opener = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS, max_window_size=2**23)
        return opener.decompress(body, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(f"a message that zstandard cannot open: {error}") from None
