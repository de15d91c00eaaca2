"""Read the original files of data sets: IDX (MNIST), the binary versions of CIFAR, the text files of UCI HAR.

A file that is cut short, too long or malformed raises an InputError with its path. Nothing is unpickled.
"""

from __future__ import annotations

import gzip
import warnings
import zlib
from importlib.metadata import distribution
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedlog.errors import InputError, add_default_hint

Bytes = NDArray[np.uint8]
Number = TypeVar("Number", np.float32, np.int64)

CIFAR_SHAPE = (3, 32, 32)
HAR_SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
HAR_SAMPLES = 128

FETCH_AGAIN = "fetch it again: fedlog data fetch"


@add_default_hint(FETCH_AGAIN)
def read_idx(path: Path) -> Bytes:
    """The array of a gzipped IDX file of unsigned bytes, in the shape that its header states."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a complete gzip file: {error}") from error
    # Header: two zero bytes, the type (8: unsigned byte), the number of dimensions, each dimension as big-endian int32.
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or content[3] == 0:
        raise InputError(f"{path}: not an IDX file of unsigned bytes; header: {content[:4].hex(' ')}")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise InputError(f"{path}: expected a whole IDX header, found only: {len(content)} bytes")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    expected = start + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise InputError(f"{path}: expected {expected} bytes for shape {shape}, found: {len(content)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def read_digits() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pixels (1797, 64) from 0 to 16 and labels (1797,) of the handwritten digits that come with scikit-learn.

    Equal to `sklearn.datasets.load_digits`, which is not used because its import takes longer than reading the file.
    """
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(path), np.int64, delimiter=",")
    return table[:, :-1].copy(), table[:, -1].copy()


@add_default_hint(FETCH_AGAIN)
def read_cifar10(path: Path) -> tuple[Bytes, Bytes]:
    """Images (n, 3, 32, 32) and labels (n,) of one binary batch of CIFAR-10."""
    images, labels = _read_cifar_records(path, label_bytes=1)
    return images, _check_labels(path, labels[:, 0], 10)


@add_default_hint(FETCH_AGAIN)
def read_cifar100(path: Path) -> tuple[Bytes, Bytes]:
    """Images (n, 3, 32, 32) and fine labels (n,) of one binary file of CIFAR-100."""
    images, labels = _read_cifar_records(path, label_bytes=2)  # coarse, fine
    return images, _check_labels(path, labels[:, 1], 100)


@add_default_hint(FETCH_AGAIN)
def read_har(folder: Path, split: str) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """The windows (n, 9, 128) of `folder/train` or `folder/test`, their activities (1 to 6) and people (1 to 30)."""
    activities = _read_har_column(folder / split / f"y_{split}.txt", 6)
    subjects = _read_har_column(folder / split / f"subject_{split}.txt", 30)
    if len(subjects) != len(activities):
        raise InputError(
            f"{folder / split / f'subject_{split}.txt'}: expected as many rows as y_{split}.txt has, "
            f"{len(activities)}, found: {len(subjects)}"
        )
    signals = np.empty((len(activities), len(HAR_SIGNALS), HAR_SAMPLES), np.float32)
    for channel, signal in enumerate(HAR_SIGNALS):
        path = folder / split / "Inertial Signals" / f"{signal}_{split}.txt"
        signals[:, channel] = _read_number_table(path, np.float32, rows=len(activities), columns=HAR_SAMPLES)
    return signals, activities, subjects


def _read_cifar_records(path: Path, label_bytes: int) -> tuple[Bytes, Bytes]:
    content = np.fromfile(path, np.uint8)
    size = label_bytes + int(np.prod(CIFAR_SHAPE))
    if len(content) == 0 or len(content) % size:
        raise InputError(f"{path}: expected a multiple of {size} bytes, the size of a record, found: {len(content)}")
    records = content.reshape(-1, size)
    return records[:, label_bytes:].reshape(-1, *CIFAR_SHAPE), records[:, :label_bytes]


def _check_labels(path: Path, labels: Bytes, n_class: int) -> Bytes:
    if int(labels.max()) >= n_class:
        raise InputError(f"{path}: labels must be 0 to {n_class - 1}, found: {int(labels.max())}")
    return labels


def _read_har_column(path: Path, highest: int) -> NDArray[np.int64]:
    values = _read_number_table(path, np.int64, rows=None, columns=1)[:, 0]
    outside = (values < 1) | (values > highest)
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise InputError(f"{path}: values must be 1 to {highest}; line {row + 1} has: {values[row]}")
    return values


def _read_number_table(path: Path, dtype: type[Number], *, rows: int | None, columns: int) -> NDArray[Number]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # numpy only warns about a file without numbers
            values = np.loadtxt(path, dtype=dtype, ndmin=2)
    except (ValueError, UserWarning) as error:
        raise InputError(f"{path}: not a table of numbers: {error}") from error
    if values.size == 0 or values.shape[1] != columns or rows not in (None, len(values)):
        expected = f"{'some' if rows is None else rows} rows of {columns} numbers"
        raise InputError(f"{path}: expected {expected}, found: {values.shape}")
    return values
