"""Test each row (method) of an experiment against the reference row, and format the outcome for a table."""

from __future__ import annotations

from collections.abc import Mapping

from fedlog.experiments.tables.cells import Arrow, Experiment
from fedlog.experiments.tables.significance import (
    AGREES_WITHIN,
    LEVEL,
    Alternative,
    BySeed,
    Mean,
    PairedEstimate,
    SignificanceTest,
    compare_all_with_reference,
    count_differing_pairs_needed,
)
from fedlog.report.parts.tables import format_p_value, format_with_interval

NOT_FEDERATED = ("local", "pooled")  # nothing is federated in these: they bound the methods and do not compete
NOT_CORRECTED = "-"  # shown instead of a corrected p value for rows outside the correction


def find_corrected_rows(experiment: Experiment) -> frozenset[str]:
    """Return the rows whose p values get Holm's correction.

    They are the rows that the paper prints or, if it prints none, all federated methods; never the reference row.
    """
    printed = {row.name for row in experiment.rows if row.printed is not None}
    chosen = printed or {row.name for row in experiment.rows if row.name not in NOT_FEDERATED}
    return frozenset(chosen - {experiment.reference})


def compare_rows(experiment: Experiment, values: Mapping[str, BySeed]) -> dict[str, SignificanceTest]:
    """Test every row against the reference row, and return the tests by row; empty if the reference was not run."""
    if experiment.reference is None or experiment.reference not in values:
        return {}
    return compare_all_with_reference(values, experiment.reference, find_corrected_rows(experiment))


def find_reference_label(experiment: Experiment) -> str:
    """Return the label of the experiment's reference row, with which the other rows are compared."""
    return experiment.find_row(experiment.reference).label if experiment.reference else "reference"


def format_arrow(test: SignificanceTest | None) -> str:
    """Return a space and the paper's arrow up or down if the difference is significant; else an empty string."""
    if test is None or not test.significant:
        return ""
    return f" {Arrow.UP if test.side is Alternative.GREATER else Arrow.DOWN}"


def format_test(test: SignificanceTest | None) -> str:
    """Return the p value and the direction of the difference as text, or the reason why there is no p value."""
    if test is None or not test.pairs:
        return ""
    if not test.differing:
        return "no difference"
    if test.p is None:
        differing = f"{test.pairs}" if test.differing == test.pairs else f"{test.differing} of {test.pairs} differ"
        return f"too few seeds ({differing})"
    if test.side is None:
        return format_p_value(test.p)
    return f"{format_p_value(test.p)} ({'higher' if test.side is Alternative.GREATER else 'lower'})"


def format_holm_test(test: SignificanceTest | None) -> str:
    """Format the p value after Holm's correction; `too few seeds` if no outcome could be significant.

    A dash if this row is not corrected; blank if there was no test.
    """
    if test is None or not test.pairs:
        return ""
    if not test.in_family:
        return NOT_CORRECTED
    if test.p is None:
        return ""
    return "too few seeds" if test.p_holm is None else format_p_value(test.p_holm)


def format_paired_difference(difference: PairedEstimate | None) -> str:
    """Format a difference with its interval, as `-0.31 [-0.52, -0.11]`; blank with too few pairs for an interval."""
    if difference is None or difference.low is None:
        return ""
    return format_with_interval(difference.estimate, difference.low, difference.high)


def format_gain(gain: Mean | None, digits: int = 2) -> str:
    """Format a mean gain in points with its 95 % interval, as `+0.31 [+0.11, +0.52]`; blank for None."""
    return "" if gain is None else format_with_interval(gain.value, *gain.interval, digits)


def judge_gain(gain: Mean | None) -> str:
    """Return `above` or `below` if the 95 % interval of the gain excludes 0, else `undecided`; blank for None."""
    if gain is None:
        return ""
    low, high = gain.interval
    if low is None or high is None or low <= 0 <= high:
        return "undecided"
    return "above" if low > 0 else "below"


def format_paired_ratio(ratio: PairedEstimate | None) -> str:
    """Format a ratio with its interval, as `1.71 [1.29, 2.30]`; as `1.71` with too few pairs for an interval."""
    return "" if ratio is None else format_ratio_with_interval(ratio.estimate, ratio.low, ratio.high)


def format_ratio_with_interval(ratio: float, low: float | None, high: float | None) -> str:
    """Format a ratio with the ends of its interval to about three digits, as `1.71 [1.29, 2.30]` or `1.71`."""
    written, *ends = (_format_three_digits(each) for each in (ratio, low, high) if each is not None)
    return f"{written} [{', '.join(ends)}]" if ends else written


def _format_three_digits(ratio: float) -> str:
    """Format a ratio with two decimals below 10, one below 100, and none from 100 on."""
    return f"{ratio:.{0 if ratio >= 100 else 1 if ratio >= 10 else 2}f}"


HOW_TO_READ = (
    "**Accuracy**: the mean over clients, each on its own held-out records, in per cent. ± is the standard error over "
    "seeds.",
    "**Final round**: the result of a run. The best round is chosen on test data, so nobody can have it in practice.",
    "**Verdict**: our final round minus the paper's figure, with its 95 % interval (Welch's, from both standard "
    "errors). *Above* or *below*: the interval excludes 0. *Agrees*: it includes 0 and reaches no further than "
    f"{AGREES_WITHIN:g} point. Otherwise *undecided*, as with a single seed.",
    "**Minus**: the mean difference over common seeds, with its standard error.",
    "**Hodges-Lehmann**: the median of the pairwise means of these differences, in points. From 6 common seeds on it "
    "has an exact interval of at least 95 %.",
    "**p**: a one-tailed Wilcoxon signed-rank test, paired by seed, in the direction that was seen. To reach "
    f"p < {LEVEL} it needs at least {count_differing_pairs_needed(LEVEL)} common seeds that differ.",
    f"**Arrows**: p < {LEVEL} without correction, as in the paper. The direction is chosen after looking, so chance "
    "alone makes an arrow about twice as often as this level says. Holm's column is corrected for the number of tests.",
    "**Bits**: those of the encoded messages of all clients, with framing and the opening exchange.",
    "**Times the paper's**: our mean bits over those printed, counted in the directions that the print fits, with a "
    "95 % interval (Welch's, over the printed mean).",
    "**Times a reference's**: bits of both directions, paired by seed. From 6 common seeds on it is the Hodges-Lehmann "
    "estimate on logarithms, with its exact interval; below that, the geometric mean.",
    "**% of FedAvg's**: bits of both directions, means over the seeds that both have.",
)


def describe_correction(experiment: Experiment, tests: Mapping[str, SignificanceTest]) -> str:
    """Return a note for a table: which p values are corrected, and how many seeds a significant one needs."""
    tested = sum(test.in_family and test.p is not None for test in tests.values())
    printed = any(row.printed is not None for row in experiment.rows)
    members = "the rows that the paper prints" if printed else "the federated methods"
    enough = ""
    if tested > 1:
        enough = (
            f" For p < {LEVEL}, each of these needs {count_differing_pairs_needed(LEVEL, tested)} seeds that differ."
        )
    return (
        f"Holm: p corrected for {members}; {tested or 'none'} of them could be tested.{enough} "
        f"Other rows are not corrected ({NOT_CORRECTED})."
    )
