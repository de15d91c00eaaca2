"""Rows as a data frame: pandas' where it is installed, else polars'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any


def make_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """The rows as a pandas data frame, or as a polars one where pandas is not installed."""
    if find_spec("pandas") is not None:
        import pandas

        return pandas.DataFrame(list(rows))
    import polars

    return polars.DataFrame(list(rows))
