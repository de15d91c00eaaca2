"""Intervals over repeated splits, and the advice that follows from them."""

from __future__ import annotations

import math
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from fedlog.experiments.compare.advice import AdviceKind, advise
from fedlog.experiments.compare.estimates import Splits, estimate, variance_of_rows
from fedlog.experiments.compare.findings import Findings, ScoredRun
from fedlog.experiments.run.records import Summary
from fedlog.experiments.run.scores import ClientScore, RunScores
from fedlog.settings.spec import RunSpec

REDRAWN = Splits(redrawn=True, judged_share=1 / 3)
SHARES = st.floats(0, 1)


@given(st.lists(SHARES, min_size=2, max_size=8), SHARES)
def test_the_interval_is_centred_and_widens_with_the_shared_rows(values: list[float], share: float) -> None:
    found = estimate(values, Splits(True, share))
    wider = estimate(values, Splits(True, share + 0.1))
    assert found.low is not None
    assert found.high is not None
    assert found.value == pytest.approx((found.low + found.high) / 2, abs=1e-9)
    assert (wider.half_width or 0) >= (found.half_width or 0)


def test_the_correction_is_that_of_nadeau_and_bengio() -> None:
    values = [0.1, 0.3, 0.2, 0.25, 0.15]
    expected = t.ppf(0.975, 4) * stdev(values) * math.sqrt(1 / 5 + 1 / 3)
    assert estimate(values, REDRAWN).half_width == pytest.approx(expected)


def test_equal_values_still_leave_what_so_many_rows_allow() -> None:
    assert estimate([0.0] * 5, REDRAWN, least=0.03).half_width == pytest.approx(0.03)
    assert estimate([0.5], REDRAWN).half_width is None


def test_the_same_rows_every_time_add_the_variance_of_the_rows() -> None:
    fixed = Splits(redrawn=False, judged_share=1 / 3)
    rows = variance_of_rows([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0]])
    assert rows == pytest.approx((0.25 / 4 + 0) / 4)
    assert estimate([0.2, 0.2], fixed, row_variance=rows).half_width == pytest.approx(t.ppf(0.975, 1) * math.sqrt(rows))


def scored(method: str, seed: int, validation: float, test: float, rows: int = 1000) -> ScoredRun:
    """A run in which every site has these accuracies."""

    def held(share: float) -> dict[str, ClientScore]:
        right = "1" * round(share * rows) + "0" * (rows - round(share * rows))
        return {site: ClientScore(rows, share, share, share, share, 0.0, right) for site in ("a", "b")}

    bits = 0 if method in ("local", "pooled") else 1000
    summary = Summary(
        method, "x", seed, "d", 10, test, [test] * 2, None, 1, test, bits, bits, 1.0, "", clients=["a", "b"]
    )
    spec = RunSpec(data="x:y", method=method, seed=seed, data_sha256=str(seed))
    return ScoredRun(spec, summary, RunScores(held(validation), held(test), {"a": [2000, 1000], "b": [1500, 1500]}))


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


@given(st.floats(-0.6, 0.25))
def test_test_rows_have_no_part_in_the_advice(test_gain: float) -> None:
    advice = advise(findings([0.10, 0.11, 0.09, 0.10, 0.10], test_gain))
    assert advice.sentence == advise(findings([0.10, 0.11, 0.09, 0.10, 0.10])).sentence
    assert advice.winners == ("a", "b")


def test_few_rows_are_named_and_cannot_support_a_claim() -> None:
    few = findings([0.04] * 5, rows=6)
    assert advise(few).kind is AdviceKind.UNCLEAR  # 60 rows without a difference allow one in twenty
    assert any("a has 6 validation rows" in warning for warning in few.warnings)


def test_the_advice_sends_less_where_the_gain_is_the_same() -> None:
    cheap = findings([0.10, 0.11, 0.09, 0.10, 0.10])
    dear = {("fedavg", seed): scored("fedavg", seed, 0.805, 0.8) for seed in range(5)}
    runs = dict(cheap.runs)
    for key, run in dear.items():
        runs[key] = ScoredRun(run.spec, Summary(**{**vars(run.summary), "bits_up": 10**6}), run.scores)
    assert advise(Findings("x", runs)).method == "fedlog"
