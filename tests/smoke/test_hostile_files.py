"""Archives that no honest program writes end in one clear line."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedlog.data.arrays import read_npz
from fedlog.errors import InputError


def packed(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inputs.npy", content)
    return path


def patched(path: Path, at: int, value: bytes) -> Path:
    """The archive with these bytes at a place after the signature of its file entry, in both of its headers."""
    packed(path, b"")
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        start = data.index(signature) + at + offset
        data[start : start + len(value)] = value
    path.write_bytes(data)
    return path


def test_an_archive_that_claims_terabytes_is_one_line(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    with pytest.raises(InputError, match="arrays fit the memory"):
        read_npz(packed(tmp_path / "claims.npz", header.getvalue()), ["inputs"])


@pytest.mark.parametrize(("at", "value"), [(6, b"\x01\x00"), (8, b"\x63\x00")], ids=["encrypted", "exotic"])
def test_an_archive_that_cannot_be_unpacked_is_one_line(tmp_path: Path, at: int, value: bytes) -> None:
    with pytest.raises(InputError, match=r"expected an \.npz file of plain arrays"):
        read_npz(patched(tmp_path / "strange.npz", at, value), ["inputs"])
