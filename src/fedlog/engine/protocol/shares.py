"""A cap on what one client can weigh in a sum, so that nobody owns the head by stating a count that is too large.

A client's count is the number of records that it says are behind its statistics. One that is above its share is scaled
down as a whole: its class means stay, its weight shrinks. Whether the means are true, no count can tell; a clip bounds
how far they can lie off (`privacy.limits`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import fsum

from fedlog.errors import InputError
from fedlog.wire.message import Contribution, Kind, Message


@dataclass(frozen=True)
class Capped:
    """A client whose statistics were scaled down, and the share of all records that it had stated."""

    client: str
    stated_share: float


def cap_shares(
    uploads: Mapping[str, Contribution], largest: float
) -> tuple[dict[str, Contribution], tuple[Capped, ...]]:
    """The uploads, scaled so that none has more than the share `largest` of all counts, and the scaled clients.

    With fewer than 1 / largest clients, all get the same weight.
    """
    counts = {client: float(upload.arrays[0][:, 0].sum()) for client, upload in uploads.items()}
    most = _largest_count(sorted((count for count in counts.values() if count > 0), reverse=True), largest)
    everything = sum(counts.values())
    capped = tuple(Capped(client, count / everything) for client, count in counts.items() if count > most)
    taken = dict(uploads)
    for one in capped:
        upload, weight = uploads[one.client], most / counts[one.client]
        taken[one.client] = replace(upload, arrays=tuple(weight * array for array in upload.arrays))
    return taken, capped


def check_cap(patterns: Mapping[str, Message | None]) -> None:
    """Refuse a cap on counts where uploads have none."""
    for pattern in patterns.values():
        if pattern is not None and pattern.kind not in (Kind.STATISTICS, Kind.MOMENTS):
            raise InputError(
                f"--largest-share caps the counts of statistics; this method sends {pattern.kind.name.lower()}",
                hint="fedlog, fedlog-c or a method of one exchange that sends statistics",
            )


def _largest_count(counts: list[float], largest: float) -> float:
    """The largest count that is allowed: if larger ones are cut to it, none is above its share of all.

    `counts` are sorted, the largest first.
    """
    for above, count in enumerate(counts):
        # With so many of them cut to c, c = largest * (above * c + the rest).
        if above * largest >= 1:
            break
        cut = largest * fsum(counts[above:]) / (1 - above * largest)
        if count <= cut * (1 + 1e-12):
            return cut
    return counts[-1] if counts else 0.0
