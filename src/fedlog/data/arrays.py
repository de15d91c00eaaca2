"""Plain arrays from an .npz file; nothing in it is unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlog.errors import InputError


def read_npz(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The needed arrays of the file by name, and those of the optional ones that it has."""
    try:
        with path.open("rb") as file:  # opened here: numpy leaves a file open that is no archive
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            found = {name: stored[name] for name in (*needed, *optional) if name in stored}
    except FileNotFoundError:
        raise InputError(f"expected an .npz file, found none: {path}") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"expected an .npz file of plain arrays, found {path}: {error}") from None
    absent = [name for name in needed if name not in found]
    if absent:
        raise InputError(
            f"expected arrays {' and '.join(needed)} in {path}, found none named: {', '.join(absent)}",
            hint=f"np.savez({path.name!r}, {', '.join(f'{name}=...' for name in needed)})",
        )
    return found
