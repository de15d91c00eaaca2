"""Intervals over rows and repeated splits, and the advice that follows from them."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import stdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t

from fedlog.core.keys import Key
from fedlog.data.split import HeldOutShares, split_by_class
from fedlog.experiments.compare.advice import AdviceKind, advise
from fedlog.experiments.compare.findings import Findings, ScoredRun
from fedlog.experiments.compare.row_estimates import (
    HoldOutScheme,
    RowValueKind,
    RowValues,
    estimate_from_repetitions,
    estimate_from_rows,
    join_row_values,
)
from fedlog.experiments.run.records import Summary
from fedlog.experiments.run.scores import ClientScore, RunScores
from fedlog.settings.spec import RunSpec

REDRAWN = HoldOutScheme(redrawn=True, held_out_ratio=1 / 3)
SHARES = st.floats(0, 1)
SEEDS = 5


@given(st.lists(SHARES, min_size=2, max_size=8), SHARES)
def test_the_interval_is_centred_and_widens_with_the_shared_rows(values: list[float], share: float) -> None:
    found = estimate_from_repetitions(values, HoldOutScheme(True, share))
    wider = estimate_from_repetitions(values, HoldOutScheme(True, share + 0.1))
    assert found.low is not None
    assert found.high is not None
    assert found.value == pytest.approx((found.low + found.high) / 2, abs=1e-9)
    assert (wider.half_width or 0) >= (found.half_width or 0)


def test_the_correction_is_that_of_nadeau_and_bengio() -> None:
    values = [0.1, 0.3, 0.2, 0.25, 0.15]
    expected = t.ppf(0.975, 4) * stdev(values) * math.sqrt(1 / 5 + 1 / 3)
    assert estimate_from_repetitions(values, REDRAWN).half_width == pytest.approx(expected)
    assert estimate_from_repetitions([0.5], REDRAWN).half_width is None


def test_repetitions_that_agree_do_not_make_an_interval_of_zero_width() -> None:
    found = estimate_from_repetitions([0.0, 0.0, 0.0], REDRAWN, predictions=81)
    assert found.half_width == pytest.approx(3 / 81)
    wide = [0.1, 0.3, 0.2]
    assert estimate_from_repetitions(wide, REDRAWN, predictions=81) == estimate_from_repetitions(wide, REDRAWN)


def test_rows_that_all_sites_share_are_drawn_once() -> None:
    """Equal models at four sites know no more about 80 shared rows than one of them."""
    values = np.random.default_rng(0).permutation([1, 0, 0, 0, 0, -1, 0, 1] * 10)
    site = judged_once(values)
    alone = estimate_from_rows([site], RowValueKind.DIFFERENCE, by_class=False)
    joined = estimate_from_rows([join_row_values([site] * 4)], RowValueKind.DIFFERENCE, by_class=False)
    assert joined.value == pytest.approx(alone.value)
    assert joined.half_width == pytest.approx(alone.half_width)


def judged_once(values: np.ndarray, groups: np.ndarray | None = None) -> RowValues:
    """Rows of two classes, each judged by one of four repetitions."""
    rows = np.arange(len(values))
    return RowValues(rows % 4, rows, (rows // 4) % 2, values.astype(float), groups)


def test_the_variance_of_rows_is_that_of_agresti_and_min() -> None:
    values = np.random.default_rng(0).permutation([1, 0, 0, 0, 0, -1, 0, 0] * 10)
    found = estimate_from_rows([judged_once(values)], RowValueKind.DIFFERENCE, by_class=False)
    b = c = 10
    n, half = 80, 0.5
    plus, minus = (b + half) / (n + 2), (c + half) / (n + 2)
    expected = t.ppf(0.975, n + 1) * math.sqrt((plus + minus - (plus - minus) ** 2) / (n + 2))
    assert found.value == 0
    assert found.half_width == pytest.approx(expected)


def test_rows_without_a_difference_still_allow_one() -> None:
    found = estimate_from_rows([judged_once(np.zeros(60))], RowValueKind.DIFFERENCE, by_class=False)
    assert found.half_width == pytest.approx(3 / 60)


def test_a_row_that_is_judged_again_does_not_count_as_another_row() -> None:
    values = np.random.default_rng(0).permutation([1, 0, 0, 0, 0, -1, 0, 1] * 10)
    once = judged_once(values)
    twice = RowValues(*(np.concatenate([each, each]) for each in (once.seeds, once.rows, once.classes, once.values)))
    again = replace(twice, seeds=np.concatenate([once.seeds, once.seeds + 4]))
    widths = [estimate_from_rows([each], RowValueKind.DIFFERENCE, by_class=False).half_width for each in (once, again)]
    assert widths[0] == pytest.approx(widths[1])


def test_rows_of_one_group_count_as_one_draw() -> None:
    values, groups = np.repeat([1, 0, 0, -1, 1, 0], 20), np.repeat(np.arange(6), 20)
    alone = estimate_from_rows([judged_once(values)], RowValueKind.DIFFERENCE, by_class=False)
    together = estimate_from_rows([judged_once(values, groups)], RowValueKind.DIFFERENCE, by_class=False)
    residual = np.array([1, 0, 0, -1, 1, 0]) - values.mean()
    expected = t.ppf(0.975, 5) * math.sqrt(np.square(residual).sum() / 36 * 6 / 5)
    assert together.half_width == pytest.approx(expected)
    assert together.half_width > 3 * (alone.half_width or 0)


def test_by_class_the_rare_class_counts_as_much_as_the_common_one() -> None:
    classes = np.array([0] * 90 + [1] * 10)
    values = np.where(classes == 1, 1.0, 0.0)
    answers = RowValues(np.arange(100) % 4, np.arange(100), classes, values)
    assert estimate_from_rows([answers], RowValueKind.DIFFERENCE, by_class=True).value == pytest.approx(0.5)
    assert estimate_from_rows([answers], RowValueKind.DIFFERENCE, by_class=False).value == pytest.approx(0.1)


def test_repetitions_that_disagree_beyond_their_rows_widen_the_interval() -> None:
    seeds, rows = np.repeat(np.arange(4), 100), np.arange(400)
    steady = np.where(rows % 2 == 0, 1.0, 0.0)
    unstable = np.where(seeds < 2, 1.0, 0.0)  # half of the runs are right throughout, half never
    classes = np.zeros(400, dtype=np.int64)
    widths = [
        estimate_from_rows([RowValues(seeds, rows, classes, values)], RowValueKind.SHARE, by_class=False).half_width
        or 0
        for values in (steady, unstable)
    ]
    assert widths[1] > 10 * widths[0]


def test_the_same_rows_every_time_add_what_the_runs_differ_by() -> None:
    seeds, rows = np.repeat(np.arange(5), 50), np.tile(np.arange(50), 5)
    values = (rows % 5 < seeds).astype(float)
    found = estimate_from_rows(
        [RowValues(seeds, rows, np.zeros(250, dtype=np.int64), values)], RowValueKind.SHARE, by_class=False
    )
    between = np.var([0, 0.2, 0.4, 0.6, 0.8], ddof=1) / 5
    assert (found.half_width or 0) > t.ppf(0.975, 1000) * math.sqrt(between)


def test_intervals_hold_the_true_gain_nineteen_times_in_twenty() -> None:
    """Nearest means of own rows against those of all rows, on 80 federations of five small sites."""
    inside = [covers(number) for number in range(80)]
    # Between 0.90 and 1 for a share of 0.95: five standard errors below, and caution may bring it to 1.
    assert sum(inside) >= 0.85 * len(inside)
    assert sum(inside) < len(inside)  # an interval that always holds it would say nothing


def covers(number: int) -> bool:
    """Whether the interval of one federation's gain holds what the same models gain on fresh rows."""
    draw = np.random.default_rng(number)
    means, labels = 0.8 * draw.normal(size=(3, 6)), np.arange(45) % 3
    sites = [means[labels] + draw.normal(size=(45, 6)) for _ in range(5)]
    fresh_labels = np.arange(900) % 3
    fresh = means[fresh_labels] + draw.normal(size=(900, 6))
    seen: list[list[np.ndarray]] = [[] for _ in sites]
    true = []
    for seed in range(4):
        splits = [split_by_class(labels, HeldOutShares(split_seed=seed), Key(number).child(at)) for at in range(5)]
        everyone = np.stack([mean_of_class(sites, splits, c) for c in range(3)])
        for at, (rows, split) in enumerate(zip(sites, splits, strict=True)):
            own = np.stack([rows[split.train][labels[split.train] == c].mean(0) for c in range(3)])
            gain = [right(everyone, X, y) - right(own, X, y) for X, y in
                    ((rows[split.validation], labels[split.validation]), (fresh, fresh_labels))]  # fmt: skip
            entries = np.stack([np.full(len(gain[0]), seed), split.validation, labels[split.validation], gain[0]])
            seen[at].append(entries)
            true.append(gain[1].mean())
    answers = []
    for parts in seen:
        seeds, places, classes, values = np.concatenate(parts, axis=1)
        answers.append(RowValues(seeds.astype(int), places.astype(int), classes.astype(int), values))
    found = estimate_from_rows(answers, RowValueKind.DIFFERENCE, by_class=False)
    assert found.low is not None
    assert found.high is not None
    return bool(found.low <= np.mean(true) <= found.high)


def mean_of_class(sites: list[np.ndarray], splits: list, c: int) -> np.ndarray:
    labels = np.arange(45) % 3
    chosen = [rows[split.train][labels[split.train] == c] for rows, split in zip(sites, splits, strict=True)]
    return np.concatenate(chosen).mean(0)


def right(means: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return (np.square(rows[:, None] - means).sum(-1).argmin(1) == labels).astype(float)


def scored(method: str, seed: int, validation: float, test: float, rows: int = 1000) -> ScoredRun:
    """A run in which every site has these accuracies, on its quarter of the rows that take turns."""

    def held(share: float, first: int) -> dict[str, ClientScore]:
        right = "1" * round(share * rows) + "0" * (rows - round(share * rows))
        places = list(range(first, first + rows))
        classes = [at % 2 for at in range(rows)]
        return {site: ClientScore(rows, share, share, share, share, 0.0, right, classes, places) for site in ("a", "b")}

    bits = 0 if method in ("local", "pooled") else 1000
    summary = Summary(
        method, "x", seed, "d", 10, test, [test] * 2, None, 1, test, bits, bits, 1.0, "", clients=["a", "b"]
    )
    spec = RunSpec(data="x:y", method=method, seed=seed, data_sha256=str(seed))
    parts = held(validation, rows * (1 + seed % 4)), held(test, 0)
    return ScoredRun(spec, summary, RunScores(*parts, {"a": [2000, 1000], "b": [1500, 1500]}))


def findings(gains: list[float], test_gain: float = 0.0, rows: int = 1000) -> Findings:
    """Training alone at 0.7, and `fedlog` above it by these gains, one a seed."""
    runs = {("local", seed): scored("local", seed, 0.7, 0.7, rows) for seed in range(len(gains))}
    own = {("fedlog", s): scored("fedlog", s, 0.7 + g, 0.7 + test_gain, rows) for s, g in enumerate(gains)}
    return Findings("x", {**own, **runs})


@pytest.mark.parametrize(
    ("gains", "kind"),
    [
        ([0.10, 0.11, 0.09, 0.10, 0.10], AdviceKind.FEDERATE),
        ([0.001, 0.0, -0.001, 0.0, 0.001], AdviceKind.ALONE),
        ([-0.1, -0.11, -0.09, -0.1, -0.1], AdviceKind.ALONE),
        ([0.2, -0.1, 0.1, 0.0, 0.15], AdviceKind.UNCLEAR),
        ([0.1], AdviceKind.UNCLEAR),
    ],
)
def test_the_advice_follows_the_interval(gains: list[float], kind: AdviceKind) -> None:
    assert advise(findings(gains)).kind is kind


@settings(deadline=None, max_examples=10)
@given(st.floats(-0.6, 0.25))
def test_test_rows_have_no_part_in_the_advice(test_gain: float) -> None:
    gains = [0.10, 0.11, 0.09, 0.10, 0.10]
    advice = advise(findings(gains, test_gain, rows=200))
    assert advice.sentence == advise(findings(gains, rows=200)).sentence
    assert advice.winners == ("a", "b")


def test_few_rows_are_named_and_cannot_support_a_claim() -> None:
    few = findings([0.04] * SEEDS, rows=4)
    assert advise(few).kind is AdviceKind.UNCLEAR
    assert any("a has 16 validation rows" in warning for warning in few.warnings)


@pytest.mark.parametrize(("methods", "level"), [(1, 0.9), (2, 0.95), (4, 0.975)])
def test_the_interval_of_the_advice_to_federate_is_wider_for_more_methods(methods: int, level: float) -> None:
    """The levels that docs/worth-federating.md names: a one-sided test at 5 %, divided by the number of methods."""
    found = findings([0.10, 0.11, 0.09, 0.10, 0.10])
    others = {
        (f"fedavg rounds={number}", seed): scored("fedavg", seed, 0.75, 0.7)
        for number in range(1, methods)
        for seed in range(SEEDS)
    }
    found = Findings("x", {**found.runs, **others})
    assert advise(found).method == "fedlog"
    assert advise(found).gain == found.estimate_gain("fedlog", "validation", level)


def test_the_advice_sends_less_where_the_gain_is_the_same() -> None:
    cheap = findings([0.10, 0.11, 0.09, 0.10, 0.10])
    dear = {("fedavg", seed): scored("fedavg", seed, 0.805, 0.8) for seed in range(SEEDS)}
    runs = dict(cheap.runs)
    for key, run in dear.items():
        runs[key] = ScoredRun(run.spec, Summary(**{**vars(run.summary), "bits_up": 10**6}), run.scores)
    assert advise(Findings("x", runs)).method == "fedlog"


def test_unbalanced_classes_are_judged_by_balanced_accuracy() -> None:
    """A method that gives up the rare class gains accuracy and loses balanced accuracy: it is not advised."""
    even = findings([0.0] * SEEDS, rows=400)
    classes = [1 if at % 10 == 0 else 0 for at in range(400)]
    common = ["1" if at % 7 else "0" for at in range(400)]  # training alone: both classes alike
    given_up = ["0" if classes[at] else ("1" if at % 29 else "0") for at in range(400)]
    runs = {}
    for (label, seed), run in even.runs.items():
        digits = "".join(given_up if label == "fedlog" else common)
        score = {site: replace(each, right=digits, classes=classes) for site, each in run.scores.validation.items()}
        training = {"a": [900, 100], "b": [900, 100]}
        runs[label, seed] = replace(run, scores=RunScores(score, run.scores.test, training))
    found = Findings("x", runs)
    assert found.is_unbalanced
    assert found.gain_measure == "balanced_accuracy"
    gain, plain = found.estimate_gain("fedlog", "validation"), found.results["fedlog"].validation_accuracy
    assert gain is not None
    assert plain is not None
    assert plain.value > found.results["local"].validation_accuracy.value  # type: ignore[union-attr]
    assert gain.value < -0.2
    assert advise(found).kind is AdviceKind.ALONE
