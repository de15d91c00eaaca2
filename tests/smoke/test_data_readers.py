"""Readers on small files in the canonical formats, whole and damaged."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedlog.data.readers import HAR_SIGNALS, read_cifar10, read_cifar100, read_digits, read_har, read_idx
from fedlog.errors import InputError


def idx(array: np.ndarray) -> bytes:
    return b"\x00\x00\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def har_folder(folder: Path, rows: int = 4) -> Path:
    (folder / "train" / "Inertial Signals").mkdir(parents=True)
    for channel, signal in enumerate(HAR_SIGNALS):
        values = np.arange(rows * 128).reshape(rows, 128) / 64 - channel
        # The canonical files separate their numbers with one or two spaces, so that signs line up.
        lines = ["".join(f" {value: .7e}" for value in row) for row in values]
        (folder / "train" / "Inertial Signals" / f"{signal}_train.txt").write_text("\n".join(lines) + "\n")
    (folder / "train" / "y_train.txt").write_text("".join(f"{row % 6 + 1}\n" for row in range(rows)))
    (folder / "train" / "subject_train.txt").write_text("".join(f"{row % 30 + 1}\n" for row in range(rows)))
    return folder


def test_the_digits_are_those_of_scikit_learn() -> None:
    pixels, labels = read_digits()
    expected = load_digits()
    np.testing.assert_array_equal(pixels, expected.data)
    np.testing.assert_array_equal(labels, expected.target)


@pytest.mark.parametrize("shape", [(5,), (3, 4, 2)])
def test_idx_round_trip(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    np.testing.assert_array_equal(read_idx(written(tmp_path / "a.gz", gzip.compress(idx(array)))), array)


GOOD = idx(np.arange(12, dtype=np.uint8).reshape(3, 4))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gzip.compress(GOOD)[:-4], "not a complete gzip file"),
        (b"plain text", "not a complete gzip file"),
        (gzip.compress(GOOD[:-1]), "expected 24 bytes"),
        (gzip.compress(GOOD + b"x"), "expected 24 bytes"),
        (gzip.compress(GOOD[:6]), "expected a whole IDX header, found only: 6 bytes"),
        (gzip.compress(b"\x00\x00\x0d\x01" + GOOD[4:]), "not an IDX file"),
        (gzip.compress(b""), "not an IDX file"),
    ],
    # A gzip header holds the time, so the contents cannot name the cases: every process would collect other ones.
    ids=["cut off", "no gzip", "a byte short", "a byte long", "half a header", "another type", "empty"],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says) as failure:
        read_idx(written(tmp_path / "bad-idx.gz", content))
    assert "bad-idx.gz" in failure.value.message


def test_cifar_records_are_label_then_channels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)
    ten = written(tmp_path / "ten.bin", b"\x03" + pixels[0].tobytes() + b"\x09" + pixels[1].tobytes())
    images, labels = read_cifar10(ten)
    assert labels.tolist() == [3, 9]
    np.testing.assert_array_equal(images, pixels.reshape(2, 3, 32, 32))
    hundred = written(tmp_path / "hundred.bin", b"\x01\x63" + pixels[0].tobytes())
    images, labels = read_cifar100(hundred)
    assert labels.tolist() == [99]
    np.testing.assert_array_equal(images[0], pixels[0].reshape(3, 32, 32))


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "a multiple of"), (b"\x00" * 3072, "a multiple of"), (b"\x0a" + b"\x00" * 3072, "labels must be 0 to 9")],
)
def test_a_damaged_cifar_file_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says) as failure:
        read_cifar10(written(tmp_path / "bad.bin", content))
    assert "bad.bin" in failure.value.message


def test_har_windows_come_with_activity_and_person(tmp_path: Path) -> None:
    signals, activities, people = read_har(har_folder(tmp_path), "train")
    assert signals.shape == (4, 9, 128)
    assert signals[1, 2, 3] == pytest.approx((128 + 3) / 64 - 2)
    assert activities.tolist() == [1, 2, 3, 4]
    assert people.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("y_train.txt", "1\n2\n3\n7\n", "line 4 has: 7"),
        ("y_train.txt", "", "not a table of numbers"),
        ("subject_train.txt", "1\n2\n3\n", "found: 3"),
        ("Inertial Signals/body_acc_x_train.txt", "1 2 3\n", "expected 4 rows of 128 numbers"),
        ("Inertial Signals/total_acc_z_train.txt", "1 2\n1 2 3\n", "not a table of numbers"),
        ("Inertial Signals/total_acc_z_train.txt", "walking\n", "not a table of numbers"),
    ],
)
def test_a_damaged_har_file_is_named(tmp_path: Path, name: str, content: str, says: str) -> None:
    folder = har_folder(tmp_path)
    (folder / "train" / name).write_text(content)
    with pytest.raises(InputError, match=says) as failure:
        read_har(folder, "train")
    assert name.rsplit("/")[-1] in failure.value.message
