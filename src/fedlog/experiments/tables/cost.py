"""Bits to an accuracy, by the paper's rule, and the rule by which the paper sets that accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedlog.engine.simulate.simulator import ACCURACY_ROUNDING, RoundRecord, reaches
from fedlog.experiments.run.records import Summary
from fedlog.wire.ledger import Direction


@dataclass(frozen=True)
class Cost:
    """What had crossed by the end of a round, opening included, and whether the threshold was reached there."""

    bits_up: int
    bits_down: int
    round: int
    reached: bool

    @property
    def both(self) -> int:
        """The bits of both directions."""
        return self.bits_up + self.bits_down


def cost_to(threshold: float, rounds: Sequence[RoundRecord], summary: Summary) -> Cost:
    """The bits up to the first round that reaches the threshold; if none does, up to the (first) most accurate one."""
    up, down = count_opening_bits(rounds, summary)
    reaching = (record for record in rounds if reaches(record.accuracy_mean_over_clients, threshold))
    last = next(reaching, None)
    reached = last is not None
    last = last or max(rounds, key=lambda record: record.accuracy_mean_over_clients)
    for record in rounds:
        up, down = up + record.bits_up, down + record.bits_down
        if record.round == last.round:
            break
    return Cost(up, down, last.round, reached)


def count_opening_bits(rounds: Sequence[RoundRecord], summary: Summary) -> tuple[int, int]:
    """(up, down): what crossed before round 1, which is in the totals and in no round."""
    told = summary.bits_opening
    if told:
        up, down = (sum(n for kind, n in told.items() if kind.endswith(f" {way}")) for way in Direction)
        return up, down
    # An older summary does not say, and a run without an opening has nothing to say.
    return (
        summary.bits_up - sum(record.bits_up for record in rounds),
        summary.bits_down - sum(record.bits_down for record in rounds),
    )


def threshold_by_rule(best_accuracies: Iterable[float]) -> int | None:
    """The largest whole per cent that every competitive method reaches on every seed; None without runs."""
    found = list(best_accuracies)
    return math.floor(100 * (min(found) + ACCURACY_ROUNDING)) if found else None
