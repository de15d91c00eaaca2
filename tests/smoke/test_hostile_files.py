"""Files made to harm are refused with one clear line and little memory."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from fedlog.data import arrays
from fedlog.data.arrays import read_npz
from fedlog.data.images import read_image, read_image_shape
from fedlog.data.leaf import read_leaf
from fedlog.data.schema import Schema, load_schema, parse_schema
from fedlog.data.tables import read_feature_columns, read_frame, read_table
from fedlog.errors import InputError
from fedlog.files.toml import read_toml
from fedlog.flower.folders.keys import ROSTER, read_roster
from fedlog.models.model_folder import load_model
from fedlog.privacy.release_log import read_log

DEEP = "[" * 100_000 + "]" * 100_000


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
    with pytest.raises(InputError, match=r"the arrays of .* do not fit into memory"):
        read_npz(packed(tmp_path / "claims.npz", header.getvalue()), ["inputs"])


@pytest.mark.parametrize(("at", "value"), [(6, b"\x01\x00"), (8, b"\x63\x00")], ids=["encrypted", "exotic"])
def test_an_archive_that_cannot_be_unpacked_is_one_line(tmp_path: Path, at: int, value: bytes) -> None:
    with pytest.raises(InputError, match=r"is not an \.npz file of plain arrays"):
        read_npz(patched(tmp_path / "strange.npz", at, value), ["inputs"])


def test_an_archive_that_unpacks_to_more_than_the_memory_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "packed.npz"
    np.savez_compressed(path, inputs=np.zeros(10**7, np.uint8))
    assert path.stat().st_size < 10**5
    free = type("Memory", (), {"available": 10**6})
    monkeypatch.setattr(arrays.psutil, "virtual_memory", lambda: free)
    with pytest.raises(InputError, match=r"the arrays of .* do not fit into memory"):
        read_npz(path, ["inputs"])


def test_an_error_does_not_repeat_a_header_of_thousands_of_bytes(tmp_path: Path) -> None:
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + (b"(" * 4000 + b")" * 4000).ljust(8999) + b"\n"
    with pytest.raises(InputError) as refused:
        read_npz(packed(tmp_path / "deep.npz", header), ["inputs"])
    assert len(str(refused.value)) < 500


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(path: Path, width: int, height: int, before: bytes = b"", after: bytes = b"") -> Path:
    """A grey PNG file that claims this size, with extra chunks before and after its pixels."""
    size = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    content = before + chunk(b"IDAT", zlib.compress(bytes(100))) + after
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + content + chunk(b"IEND", b""))
    return path


def test_image_bombs_are_one_line(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    text = chunk(b"zTXt", b"key\0\0" + zlib.compress(b"A" * 50_000_000))
    bombs = [
        png(tmp_path / "huge.png", 60_000, 60_000),
        png(tmp_path / "large.png", 12_000, 9_000),
        png(tmp_path / "text.png", 4, 4, text),
        png(tmp_path / "chunk.png", 4, 4, chunk(b"IHDR", b"")),
        png(tmp_path / "name.png", 400, 400, after=chunk(b"\1\2\3\4", b"")),  # found while the pixels are read
    ]
    for path in bombs:
        with pytest.raises(InputError, match="expected an image"):
            read_image(path, 1, (8, 8))
    with pytest.raises(InputError, match="expected an image"):
        read_image_shape(bombs[1])
    assert not recwarn.list


def test_deep_nesting_is_one_line_wherever_a_file_comes_from_someone_else(tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text(f"a = {DEEP}\n")
    (tmp_path / "model.json").write_text(DEEP)
    (tmp_path / ROSTER).write_text(DEEP)
    (tmp_path / "privacy.jsonl").write_text(DEEP + "\n")
    for folder in ("train", "test"):
        (tmp_path / "leaf" / folder).mkdir(parents=True)
        (tmp_path / "leaf" / folder / "all.json").write_text(DEEP)
    for read in (
        lambda: read_toml(tmp_path / "deep.toml", "settings"),
        lambda: load_schema(tmp_path / "deep.toml"),
        lambda: load_model(tmp_path),
        lambda: read_roster(tmp_path),
        lambda: read_log(tmp_path / "privacy.jsonl"),
        lambda: read_leaf(tmp_path / "leaf"),
    ):
        with pytest.raises(InputError) as refused:
            read()
        assert len(str(refused.value)) < 1000


def schema() -> Schema:
    columns = "".join(f'[[feature]]\ncolumn = "{name}"\nkind = "numeric"\n' for name in "ab")
    return parse_schema(f'version = 1\n[label]\ncolumn = "label"\nvalues = ["x", "y"]\n{columns}', "the test")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("1,2,x\n1,x\n", "row 2 has 2 fields"),
        ("label\n1,2,x\n", None),
        ("1,2,x\n\n1,2,x\n", "row 2 is empty"),
        ('1,"2\n3",x\n1,2\n', "row 2 has 2 fields"),
    ],
)
def test_a_short_row_is_told_as_such(tmp_path: Path, rows: str, said: str | None) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"a,b,label\n{rows}")
    with pytest.raises(InputError, match=said or "row 1 has 1 fields"):
        read_table(path, schema())


def test_a_gap_in_the_last_column_is_no_short_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("label,a,b\nx,1,\ny,2,3\n")
    assert len(read_table(path, schema())[0].labels) == 2
    path.write_text("label,a,b\nx,1\ny,2,3\n")
    with pytest.raises(InputError, match="row 1 has 2 fields"):
        read_feature_columns(path, schema())


def test_a_table_that_is_no_utf8_text_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("a,b,label\n1,2,x\n".encode("utf-16"))
    with pytest.raises(InputError, match="UTF-8"):
        read_frame(path)


MILLION = """
import json, resource, sys
from pathlib import Path
from fedlog.data.schema import load_schema
from fedlog.data.tables import read_table
from fedlog.errors import InputError
folder = Path(sys.argv[1])
wanted = load_schema(folder / "schema.toml")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_table(folder / "million.csv", wanted)
except InputError as error:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([error.message, error.hint, used]))
"""


def test_a_million_columns_are_refused_by_name_in_little_memory(tmp_path: Path) -> None:
    names = ",".join(f"c{number}" for number in range(1_000_000))
    (tmp_path / "million.csv").write_text(f"a,b,label,{names}\n" + "1," * 1_000_002 + "1\n")
    columns = "".join(f'[[feature]]\ncolumn = "{name}"\nkind = "numeric"\n' for name in "ab")
    (tmp_path / "schema.toml").write_text(f'version = 1\n[label]\ncolumn = "label"\nvalues = ["x", "y"]\n{columns}')
    command = [sys.executable, "-c", MILLION, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    message, hint, kilobytes = json.loads(done.stdout)
    assert "found 1000003" in message
    assert (
        hint
        == f"remove columns that are not needed, such as: {', '.join(f'c{at}' for at in range(10))} and 999990 more"
    )
    assert kilobytes < 400_000
