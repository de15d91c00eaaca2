"""Read inputs and labels from an .npz file, without unpickling anything, and check them against the schema."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlog.data.rows import BadRowPolicy, BadRowsError, find_codes, find_group_codes, read_usable_rows, refuse_bad_rows
from fedlog.data.schema import Schema, scale_targets
from fedlog.errors import InputError, add_default_hint


@dataclass(frozen=True, eq=False)
class Arrays:
    """The records of a site as arrays: images, arrays of numbers, or the rows of a table after their encoding."""

    inputs: Tensor  # (n, *input_shape) uint8 or float32
    labels: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None  # (n,) positions in `group_names`
    group_names: tuple[str, ...] = ()
    targets: NDArray[np.float32] | None = None  # (n,) numbers to predict, scaled so that the schema's range is -1..1


@add_default_hint("np.savez('FILE.npz', inputs=..., labels=...) writes one")
def read_npz(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name: all that are `needed`, and the `optional` ones that the file has."""
    try:
        with path.open("rb") as file:  # opened here, because numpy does not close a file that is no archive
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array without a name, as np.save writes; expected named arrays")
            wanted = [name for name in (*needed, *optional) if name in stored]
            if stored.zip is not None:
                _refuse_oversized_arrays(stored.zip, wanted)
            found = {name: stored[name] for name in wanted}
    except FileNotFoundError:
        raise InputError(f"expected an .npz file, found no file: {path}", hint="is the path right?") from None
    except MemoryError:
        raise InputError(
            f"the arrays of {path} do not fit into memory",
            hint="store fewer records, or a smaller type (uint8 for images)",
        ) from None
    # RuntimeError: an encrypted archive, or (as NotImplementedError) a compression that Python does not know.
    except (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        # Cut, because the error may quote a whole header.
        raise InputError(f"{path} is not an .npz file of plain arrays: {str(error)[:200]}") from None
    absent = [name for name in needed if name not in found]
    if absent:
        raise InputError(
            f"expected arrays {' and '.join(needed)} in {path}, found none named: {', '.join(absent)}",
            hint=f"np.savez({path.name!r}, {', '.join(f'{name}=...' for name in needed)})",
        )
    return found


def _refuse_oversized_arrays(archive: zipfile.ZipFile, names: Sequence[str]) -> None:
    """Raise MemoryError if these arrays do not fit into memory: a small archive may unpack to gigabytes."""
    sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
    if sum(sizes.get(name, 0) for name in names) > psutil.virtual_memory().available:
        raise MemoryError


@add_default_hint("docs/data.md, under 'One file a site', says what the arrays of a site must be")
def check_arrays(
    inputs: NDArray[Any], labels: NDArray[Any], groups: NDArray[Any] | None, schema: Schema, where: str
) -> Arrays:
    """The records checked against the schema; InputError for the first record that does not fit."""
    if not schema.input_shape:
        raise InputError(
            f"the schema describes a table ([[feature]]), but {where} has arrays",
            hint="write [input] shape = [...] into the schema, instead of its [[feature]] sections",
        )
    if labels.ndim != 1:
        raise InputError(f"expected one label for each record in {where}, found labels of shape: {labels.shape}")
    if len(labels) == 0:
        raise InputError(f"expected at least one record in {where}, found none")
    if inputs.shape != (len(labels), *schema.input_shape):
        expected = (len(labels), *schema.input_shape)
        raise InputError(f"expected inputs of shape {expected} in {where}, found: {inputs.shape}")
    if inputs.dtype != np.uint8 and inputs.dtype.kind not in "fiu":
        raise InputError(f"expected inputs that are numbers in {where}, found: {inputs.dtype}")
    if groups is not None and groups.shape != labels.shape:
        raise InputError(f"expected {len(labels)} groups, one for each record, in {where}, found: shape {groups.shape}")
    if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
        bad = ~np.isfinite(inputs.reshape(len(inputs), -1)).all(axis=1)
        row = int(np.flatnonzero(bad)[0])
        raise BadRowsError(
            f"expected finite inputs in {where}, found NaN or infinity in row {row + 1}",
            hint="correct or remove the row",
            bad=bad,
        )
    targets = None if schema.target_range is None else convert_labels_to_targets(labels, schema.target_range, where)
    codes = _find_label_codes(labels, schema, where) if targets is None else np.zeros(len(labels), dtype=np.int64)
    numbers, names = (None, ()) if groups is None else find_group_codes(groups)
    return Arrays(to_tensor(inputs), codes, numbers, names, targets)


def to_tensor(values: NDArray[Any]) -> Tensor:
    """The array as a tensor: uint8 stays uint8, all other numbers become float32."""
    typed = values if values.dtype == np.uint8 else values.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(typed))


def keep_usable_records(
    inputs: NDArray[Any],
    labels: NDArray[Any],
    groups: NDArray[Any] | None,
    schema: Schema,
    where: str,
    bad_rows: BadRowPolicy,
) -> tuple[Arrays, str | None]:
    """The usable records, checked against the schema, and a sentence about bad records that were left out, or None.

    `bad_rows` decides whether bad records are left out, or refused with an InputError.
    """
    lengths = {len(part) for part in (inputs, labels, groups) if part is not None}
    if bad_rows is BadRowPolicy.REFUSED or len(lengths) > 1:
        return check_arrays(inputs, labels, groups, schema, where), None

    def read(kept: NDArray[np.int64]) -> Arrays:
        return check_arrays(inputs[kept], labels[kept], None if groups is None else groups[kept], schema, where)

    return read_usable_rows(read, len(labels), bad_rows)


def convert_labels_to_targets(
    labels: NDArray[Any], target_range: tuple[float, float], where: str
) -> NDArray[np.float32]:
    """The labels as numbers to predict, scaled so that the agreed range is -1..1; InputError for infinity or NaN."""
    if labels.dtype.kind not in "fiu":
        raise InputError(f"expected labels that are numbers in {where}, found: {labels.dtype}")
    refuse_bad_rows(~np.isfinite(labels), labels, "a finite label", where)
    return scale_targets(labels, target_range)


def _find_label_codes(labels: NDArray[Any], schema: Schema, where: str) -> NDArray[np.int64]:
    """The position of each label in the schema's list of labels; a label that is a whole number is the position."""
    if labels.dtype.kind in "iu":
        bad = (labels < 0) | (labels >= schema.n_class)
        codes = labels.astype(np.int64)
        expected = f"a label from 0 to {schema.n_class - 1}"
    elif labels.dtype.kind == "U":
        codes = find_codes(labels.tolist(), schema.label_values)
        bad = codes < 0
        expected = f"one of the label values {', '.join(schema.label_values)}"
    else:
        raise InputError(f"expected labels that are whole numbers or texts in {where}, found: {labels.dtype}")
    refuse_bad_rows(bad, labels, expected, where)
    return codes
