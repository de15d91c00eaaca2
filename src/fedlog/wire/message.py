"""The messages between clients and server, and how the server adds them up.

A message is a kind and a few arrays. The kind says what each array means, so no names are sent. `make_contribution`
turns a client's upload into a contribution that can be added to other clients' contributions. The server's step sees
only the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from fedlog.core.heads.mean_scatter import MeanScatterSums
from fedlog.errors import InputError


class Kind(IntEnum):
    """The kinds of messages, with the arrays of each. The numbers are part of the wire format: never reuse one."""

    SEED = 1  # (1,) int64: everyone derives the same start from it
    HEAD = 2  # (n_class, m): the global head, column 0 its bias
    STATISTICS = 3  # (n_class, m): sums of features, column 0 the counts; in a noisy broadcast (1,): std of the noise
    PARAMETERS = 4  # any arrays, then (1,) int64 the number of records they were trained on (0 in a broadcast)
    MEANS = 5  # (n_class, m - 1) class means; (n_class,) int64 counts, or in a broadcast bool: which classes have one
    MEASUREMENTS = 6  # (rows,) of a compressed difference; (2,) int64 size of its support and records (its number)
    SIGNS = 7  # (entries,) bool: positive or zero; (1,) int64 records (in a broadcast its number)
    MOMENTS = 8  # (n_class, m) as STATISTICS; second moments of the m - 1 features, 2-d: see core.stats
    HEADS = 9  # in a broadcast: several heads (n_class, m)
    QUADRATIC_HEAD = 10  # in a broadcast: (n_class, m) as HEAD; (n_class, m - 1) or (n_class, entries) of the squares
    CLASS_MEANS = 11  # (n_class, m - 1) class means; (n_class,) int64 counts; their scatter between clients counts
    MIXTURES = 12  # (parts,) records, (parts, m - 1) means and variances of Gaussians, the same number a class
    SAME = 13  # no arrays: the sender's last message is unchanged
    NUMBER_HEAD = 14  # in a broadcast: (1, m) as HEAD, (m, m - 1) and (1, 2): how sure it is, see core.heads.regression


@dataclass(frozen=True, eq=False)
class Message:
    """A message between client and server: its kind, and the arrays that `Kind` lists for it."""

    kind: Kind
    arrays: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Contribution:
    """An upload, or a sum of uploads, as float64 arrays that can be added, and the number of clients in it."""

    arrays: tuple[Tensor, ...]
    clients: int = 1
    noise_std: float = 0.0  # of the privacy noise in every entry; it is public, and server steps take it into account

    def __add__(self, other: Contribution) -> Contribution:
        if [a.shape for a in self.arrays] != [b.shape for b in other.arrays]:
            raise InputError(
                f"uploads of different shapes cannot be added: {[tuple(a.shape) for a in self.arrays]} "
                f"and {[tuple(b.shape) for b in other.arrays]}",
                hint="all clients need the same classes and the same number of features, or the same body",
            )
        summed = tuple(a + b for a, b in zip(self.arrays, other.arrays, strict=True))
        return Contribution(summed, self.clients + other.clients, math.hypot(self.noise_std, other.noise_std))


@dataclass(frozen=True, eq=False)
class JoinedContribution(Contribution):
    """A contribution whose `+` joins arrays end to end instead of summing them, so secure sums cannot be used."""

    def __add__(self, other: Contribution) -> Contribution:
        joined = tuple(torch.cat([a, b]) for a, b in zip(self.arrays, other.arrays, strict=True))
        return JoinedContribution(joined, self.clients + other.clients, math.hypot(self.noise_std, other.noise_std))


def _multiply_by_records(message: Message) -> tuple[Tensor, ...]:
    *values, records = (array.to(torch.float64) for array in message.arrays)
    return (*(value * records for value in values), records)


def _convert_means_to_sums(message: Message) -> tuple[Tensor, ...]:
    means, counts = (array.to(torch.float64) for array in message.arrays)
    return means * counts[:, None], counts


def _convert_to_float64(message: Message) -> tuple[Tensor, ...]:
    return tuple(array.to(torch.float64) for array in message.arrays)


def _multiply_measurements_by_records(message: Message) -> tuple[Tensor, ...]:
    measurements, (support, records) = (array.to(torch.float64) for array in message.arrays)
    return measurements * records, torch.stack([support * records, records])


def _convert_signs_to_votes(message: Message) -> tuple[Tensor, ...]:
    """One client's vote for each entry, +1 or -1, and its number of voters, 1; all 0 if it has no records."""
    signs, records = (array.to(torch.float64) for array in message.arrays)
    has_vote = (records > 0).to(torch.float64)  # a client without training records has no vote
    return (signs * 2 - 1) * has_vote, has_vote


def _convert_means_to_scatter_sums(message: Message) -> tuple[Tensor, ...]:
    """One client's part of `MeanScatterSums`, from its class means and counts."""
    scatter = MeanScatterSums.from_means(*message.arrays)
    return scatter.sums, scatter.outer, scatter.holders


_CONVERSIONS: dict[Kind, Callable[[Message], tuple[Tensor, ...]]] = {
    Kind.STATISTICS: _convert_to_float64,
    Kind.PARAMETERS: _multiply_by_records,
    Kind.MEANS: _convert_means_to_sums,
    Kind.MEASUREMENTS: _multiply_measurements_by_records,
    Kind.SIGNS: _convert_signs_to_votes,
    Kind.MOMENTS: _convert_to_float64,
    Kind.CLASS_MEANS: _convert_means_to_scatter_sums,
    Kind.MIXTURES: _convert_to_float64,
}


def make_contribution(message: Message) -> Contribution:
    """Convert an upload into a contribution that can be added to those of other clients.

    The conversion depends on the kind of message. For example, parameters are multiplied by the client's number of
    records, class means become sums, and signs become votes of +1 or -1.
    """
    if message.kind not in _CONVERSIONS:
        raise InputError(
            f"expected an upload that can be summed, found a message of kind: {message.kind.name}",
            hint=f"`finish_exchange` must return one of {', '.join(kind.name for kind in _CONVERSIONS)}",
        )
    make = JoinedContribution if message.kind is Kind.MIXTURES else Contribution
    return make(_CONVERSIONS[message.kind](message))


def add_contributions(contributions: Sequence[Contribution]) -> Contribution:
    """The sum of the contributions, added in this order in float64."""
    return sum(contributions[1:], contributions[0])
