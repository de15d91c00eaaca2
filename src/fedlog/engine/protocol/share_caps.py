"""A limit on the weight of one client in a sum, so that no client can dominate the head by claiming a large count.

A client's count is the number of records that it claims for its statistics. If a client has too large a share of all
counts, its statistics are scaled down: the class means stay the same, and their weight in the sum shrinks. Whether the
means are true cannot be checked; a clip bounds how wrong they can be (`privacy.limits`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import fsum

from fedlog.errors import InputError
from fedlog.wire.message import Contribution, Kind, Message


@dataclass(frozen=True)
class CappedClient:
    """A client whose statistics were scaled down, and the share of all records that it claimed."""

    client: str
    stated_share: float


def cap_shares(
    uploads: Mapping[str, Contribution], largest: float
) -> tuple[dict[str, Contribution], tuple[CappedClient, ...]]:
    """Scale down uploads with more than the share `largest` of all counts; return all uploads, and who was capped.

    If there are too few clients for that (fewer than 1 / largest), all get the same weight.
    """
    counts = {client: float(upload.arrays[0][:, 0].sum()) for client, upload in uploads.items()}
    most = _compute_count_cap(sorted((count for count in counts.values() if count > 0), reverse=True), largest)
    everything = sum(counts.values())
    capped = tuple(CappedClient(client, count / everything) for client, count in counts.items() if count > most)
    taken = dict(uploads)
    for one in capped:
        upload, weight = uploads[one.client], most / counts[one.client]
        taken[one.client] = replace(upload, arrays=tuple(weight * array for array in upload.arrays))
    return taken, capped


def check_uploads_have_counts(method: str, templates: Mapping[str, Message | None]) -> None:
    """Refuse a method whose uploads have no counts of records, because --largest-share needs them."""
    for template in templates.values():
        if template is not None and template.kind not in (Kind.STATISTICS, Kind.MOMENTS):
            raise InputError(
                f"--largest-share needs a method that sends statistics, found: {method}, which sends "
                f"{template.kind.name.lower()}",
                hint="use fedlog, fedlog-c or a method of one exchange that sends statistics",
            )


def _compute_count_cap(counts: list[float], largest: float) -> float:
    """The largest count allowed: if larger counts are cut to it, none exceeds the share `largest` of the new sum.

    If that is impossible, the smallest count. `counts` must be sorted, the largest first.
    """
    for above, count in enumerate(counts):
        # If the first `above` counts are cut to c, then c = largest * (above * c + the rest).
        if above * largest >= 1:
            break
        cut = largest * fsum(counts[above:]) / (1 - above * largest)
        if count <= cut * (1 + 1e-12):
            return cut
    return counts[-1] if counts else 0.0
