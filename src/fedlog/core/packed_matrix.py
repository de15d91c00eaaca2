"""Packed symmetric matrices: the upper triangle, row by row.

Entries off the diagonal are multiplied by sqrt(2), so that the packed second moments phi phi^T of one record have
exactly the L2 norm |phi|^2. Privacy noise is scaled to that norm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def count_triangle_entries(width: int) -> int:
    """The number of entries of a packed (width, width) matrix."""
    return width * (width + 1) // 2


def find_diagonal(width: int) -> Tensor:
    """The positions of the diagonal in a packed matrix, (width,)."""
    rows = torch.arange(width)
    return rows * width - rows * (rows - 1) // 2


def pack_triangle(matrix: Tensor) -> Tensor:
    """Pack symmetric matrices (..., w, w) as (..., w (w + 1) / 2), with entries off the diagonal times sqrt(2)."""
    rows, columns, scale = _index_packed_entries(matrix.shape[-1], matrix)
    return matrix[..., rows, columns] * scale


def unpack_triangle(packed: Tensor, width: int) -> Tensor:
    """The symmetric (..., w, w) matrix that `pack_triangle` packed."""
    rows, columns, scale = _index_packed_entries(width, packed)
    matrix = packed.new_zeros((*packed.shape[:-1], width, width))
    values = packed / scale
    matrix[..., rows, columns] = values
    matrix[..., columns, rows] = values
    return matrix


def _index_packed_entries(width: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The row, the column and the factor (1 or sqrt(2)) of each packed entry, on the device of `like`."""
    rows, columns = torch.triu_indices(width, width, device=like.device)
    scale = torch.where(rows == columns, 1.0, math.sqrt(2)).to(like)
    return rows, columns, scale
