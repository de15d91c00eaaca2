"""The paper's rules for costs: the bits until a threshold is reached, and how the threshold is chosen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedlog.engine.simulate.simulator import ACCURACY_ROUNDING, RoundRecord, reaches_target
from fedlog.experiments.run.records import Summary
from fedlog.wire.ledger import Direction


@dataclass(frozen=True)
class Cost:
    """The bits sent by the end of a round, opening included, and whether the threshold was reached in that round."""

    bits_up: int
    bits_down: int
    round: int
    reached: bool

    @property
    def bits_both_ways(self) -> int:
        """The bits of both directions."""
        return self.bits_up + self.bits_down


def cost_to_reach(threshold: float, rounds: Sequence[RoundRecord], summary: Summary) -> Cost:
    """The bits up to the first round that reaches the threshold; if none does, up to the (first) most accurate one."""
    up, down = count_opening_bits(rounds, summary)
    reaching = (record for record in rounds if reaches_target(record.accuracy_mean_over_clients, threshold))
    last = next(reaching, None)
    reached = last is not None
    last = last or max(rounds, key=lambda record: record.accuracy_mean_over_clients)
    for record in rounds:
        up, down = up + record.bits_up, down + record.bits_down
        if record.round == last.round:
            break
    return Cost(up, down, last.round, reached)


def count_opening_bits(rounds: Sequence[RoundRecord], summary: Summary) -> tuple[int, int]:
    """(up, down): the bits sent before round 1, which are in the totals of the summary and in no round."""
    opening = summary.bits_opening
    if opening:
        up, down = (sum(n for kind, n in opening.items() if kind.endswith(f" {way}")) for way in Direction)
        return up, down
    # Summaries of older versions, and of runs without an opening, do not list these bits.
    return (
        summary.bits_up - sum(record.bits_up for record in rounds),
        summary.bits_down - sum(record.bits_down for record in rounds),
    )


def choose_threshold(best_accuracies: Iterable[float]) -> int | None:
    """The largest whole per cent that every competitive method reaches on every seed; None without runs."""
    found = list(best_accuracies)
    return math.floor(100 * (min(found) + ACCURACY_ROUNDING)) if found else None
