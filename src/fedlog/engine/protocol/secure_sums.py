"""The part of secure sums that the simulator and Flower share: the parameters of a sum, and its fixed-point encoding.

Clients make their uploads addable (`make_contribution`), so all methods whose uploads are summed can use secure sums.
The server cannot check masked values. A value out of range wraps around in a private run; in a run without privacy, the
client raises an error instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np
import torch

from fedlog.privacy.protection import Protection, split_into_shapes
from fedlog.privacy.secagg.fixed_point import FixedPoint, Words
from fedlog.privacy.secagg.server import SecureSumResult
from fedlog.privacy.secagg.terms import Terms, compute_smallest_safe_threshold
from fedlog.wire.message import Contribution

# The encoding of uploads without privacy, such as parameters times records: sums below 2^31, with a step of 2^-24.
PLAIN = FixedPoint(grid=2.0**-24, value_bytes=7)


def choose_encoding(protection: Protection | None) -> FixedPoint:
    """The fixed-point encoding of values in a secure sum: that of `protection` or, without privacy, a default."""
    return PLAIN if protection is None else protection.encoding


def encode_for_sum(upload: Contribution, protection: Protection | None, parties: int) -> Words:
    """The contribution as fixed-point integers for a secure sum of `parties` clients.

    Without privacy, InputError if the sum could overflow.
    """
    values = np.concatenate([array.reshape(-1).numpy() for array in upload.arrays])
    encoding = choose_encoding(protection)
    return encoding.encode_words_or_raise(values, parties) if protection is None else encoding.encode_words(values)


def decode_sum(
    result: SecureSumResult, protection: Protection | None, shapes: Sequence[tuple[int, ...]]
) -> Contribution:
    """The contribution that the result of a secure sum encodes, with arrays of these shapes."""
    arrays = split_into_shapes(torch.from_numpy(choose_encoding(protection).decode_words(result.total)), shapes)
    noise = 0.0 if protection is None else protection.mechanism.client_std
    return Contribution(arrays, len(result.survivors), noise * sqrt(len(result.survivors)))


def make_sum_terms(
    session: bytes, number: int, roster: Mapping[int, bytes], honest: int, coordinates: int, value_bytes: int
) -> Terms:
    """The parameters of one secure sum, which server and clients must agree on.

    `number` counts the sums of a session. `roster` has each client's public key. A sum has `coordinates` values of
    `value_bytes` bytes each. At least `honest` clients must stay to the end of the sum. The threshold (the number of
    clients needed to unmask the sum) is at least `honest`. It is safe as long as no client shares what it sees with the
    server.
    """
    return Terms(
        session=session,
        round=number,
        roster=roster,
        threshold=max(honest, compute_smallest_safe_threshold(len(roster), 0)),
        honest=honest,
        corrupted=0,
        coordinates=coordinates,
        value_bytes=value_bytes,
    )
