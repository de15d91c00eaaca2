"""Test the rows of an experiment against its reference row, and write the outcome for a table."""

from __future__ import annotations

from collections.abc import Mapping

from fedlog.experiments.tables.cells import Arrow, Experiment
from fedlog.experiments.tables.significance import (
    AGREES_WITHIN,
    LEVEL,
    Alternative,
    BySeed,
    Shift,
    SignificanceTest,
    compare_all_with_reference,
    count_seeds_needed,
)
from fedlog.report.parts.tables import p_value

BOUNDS = ("local", "pooled")  # nothing is federated in these: they bound the methods and do not compete
OUTSIDE = "-"  # shown instead of a corrected p value for rows outside the correction


def family(experiment: Experiment) -> frozenset[str]:
    """The rows that Holm's correction includes: those that the paper prints; if it prints none, the federated ones."""
    printed = {row.name for row in experiment.rows if row.printed is not None}
    chosen = printed or {row.name for row in experiment.rows if row.name not in BOUNDS}
    return frozenset(chosen - {experiment.reference})


def comparisons(experiment: Experiment, values: Mapping[str, BySeed]) -> dict[str, SignificanceTest]:
    """The test of each row against the reference, by row; empty if the reference has not been run."""
    if experiment.reference is None or experiment.reference not in values:
        return {}
    return compare_all_with_reference(values, experiment.reference, family(experiment))


def reference_label(experiment: Experiment) -> str:
    """The display name of the reference row."""
    return experiment.row(experiment.reference).label if experiment.reference else "reference"


def arrow_text(test: SignificanceTest | None) -> str:
    """A space and the paper's arrow if the difference is significant, else an empty string."""
    if test is None or not test.significant:
        return ""
    return f" {Arrow.UP if test.side is Alternative.GREATER else Arrow.DOWN}"


def p_text(test: SignificanceTest | None) -> str:
    """The p value and its direction, or why there is none."""
    if test is None or not test.pairs:
        return ""
    if not test.differing:
        return "no difference"
    if test.p is None:
        differing = f"{test.pairs}" if test.differing == test.pairs else f"{test.differing} of {test.pairs} differ"
        return f"too few seeds ({differing})"
    if test.side is None:
        return p_value(test.p)
    return f"{p_value(test.p)} ({'higher' if test.side is Alternative.GREATER else 'lower'})"


def holm_text(test: SignificanceTest | None) -> str:
    """The corrected p value, `too few seeds` if it could never be small enough, or a dash if it is not corrected."""
    if test is None or not test.pairs:
        return ""
    if not test.in_family:
        return OUTSIDE
    if test.p is None:
        return ""
    return "too few seeds" if test.p_holm is None else p_value(test.p_holm)


def interval_text(found: Shift | None) -> str:
    """`-0.31 [-0.52, -0.11]`; blank with too few pairs for an interval."""
    if found is None or found.low is None or found.high is None:
        return ""
    return f"{found.estimate:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def ratio_text(found: Shift | None) -> str:
    """`1.71 [1.29, 2.30]`, or the estimate alone with too few pairs for an interval."""
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return _format_ratio(found.estimate)
    return f"{_format_ratio(found.estimate)} [{_format_ratio(found.low)}, {_format_ratio(found.high)}]"


def _format_ratio(ratio: float) -> str:
    """Three digits of a ratio, without an exponent."""
    return f"{ratio:.{0 if ratio >= 100 else 1 if ratio >= 10 else 2}f}"


HOW_TO_READ = (
    "Accuracies are means over clients, each on its own held-out records; ± is the standard error over seeds. The "
    "final round is the headline of every run; the best round is chosen on test data and cannot be had in practice.",
    "Verdict: from the 95 % interval of our final round minus the paper's figure (Welch's, from both standard errors). "
    "*Above* and *below* where it excludes 0; *agrees* where it includes 0 and reaches no further than "
    f"{AGREES_WITHIN:g} point; else *undecided*, as with a single seed.",
    "Minus: the mean difference over common seeds with its standard error. Hodges-Lehmann: the median of the pairwise "
    "means of those differences, in points, with its exact interval of at least 95 %, from 6 common seeds on.",
    f"p: one-tailed Wilcoxon signed-rank test, paired by seed, in the direction that was seen; p < {LEVEL} takes at "
    f"least {count_seeds_needed(LEVEL)} common seeds that differ. Arrows, as in the paper: p < {LEVEL} without "
    "correction. The direction is chosen after looking, so by chance alone an arrow comes up about twice as often as "
    "this level says; the paper does the same, and Holm's column is there for caution.",
    "Bits are those of the encoded messages of all clients, framing and opening exchange included. Times a "
    "reference's: both directions, paired by seed; Hodges-Lehmann on logarithms with its exact interval from 6 common "
    "seeds on, below that the geometric mean alone. % of FedAvg's: both directions, means over the seeds that both "
    "have.",
)


def holm_note(experiment: Experiment, tests: Mapping[str, SignificanceTest]) -> str:
    """A note on the rows for which p was corrected, and on how many seeds that needs."""
    tested = sum(test.in_family and test.p is not None for test in tests.values())
    printed = any(row.printed is not None for row in experiment.rows)
    members = "the rows that the paper prints" if printed else "the federated methods"
    enough = f" ({count_seeds_needed(LEVEL, tested)} differing seeds of each would do)" if tested > 1 else ""
    return (
        f"Holm: p corrected for {members}, of which {tested or 'none'} could be tested{enough}; "
        f"the others are outside the correction ({OUTSIDE})."
    )
