"""The findings of a comparison: the accuracy of each variant and its gain over training alone, overall and by site.

A variant is a method with its settings. It is run once for each seed; these runs are its repetitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

import numpy as np

from fedlog.experiments.compare.row_estimates import (
    HoldOutScheme,
    RowValueKind,
    RowValues,
    estimate_from_repetitions,
    estimate_from_rows,
    join_row_values,
)
from fedlog.experiments.compare.variants import LOCAL, REFERENCES
from fedlog.experiments.run.records import Summary
from fedlog.experiments.run.scores import ClientScore, RunScores
from fedlog.experiments.tables.significance import CONFIDENCE, Estimate
from fedlog.settings.spec import RunSpec

# The measures besides accuracy, which are fields of `ClientScore`, and their names in tables.
OTHER_MEASURES = {
    "balanced_accuracy": "balanced",
    "macro_f1": "macro-F1",
    "auroc": "AUROC",
    "calibration_error": "calibration error",
}
UNBALANCED = 2.0  # classes count as unbalanced if the largest has more than this many times the rows of the smallest
FEW_ROWS = 20  # a site with fewer validation rows gets a warning


def gather_row_values(
    runs: Mapping[int, ScoredRun], reference: Mapping[int, ScoredRun] | None, part: str, sites: Sequence[str]
) -> list[RowValues]:
    """Return the values of each site's rows: 1 for a correct prediction of these runs (given by seed), else 0.

    With `reference`, the value of its run with the same seed is subtracted. `part` says which rows: `validation` or
    `test`. If all sites share their rows, the list has one entry with the values of all sites. The list is empty if a
    run did not record which rows it held out, as for named data sets.
    """
    seeds = [seed for seed in runs if reference is None or seed in reference]
    found = []
    for site in sites:
        scores = {seed: runs[seed].scores.find_scores_on(part)[site] for seed in seeds}
        if any(score.places is None or score.classes is None for score in scores.values() if score.rows):
            return []
        reference_scores = (
            None if reference is None else {seed: reference[seed].scores.find_scores_on(part)[site] for seed in seeds}
        )
        values = _make_row_values(scores, reference_scores)
        if len(values.rows):
            found.append(values)
    # Rows that all sites share are drawn once: then the values of all sites are about one set of rows.
    return [join_row_values(found)] if found and all((site.rows < 0).all() for site in found) else found


def _make_row_values(
    scores: Mapping[int, ClientScore], reference_scores: Mapping[int, ClientScore] | None
) -> RowValues:
    """Make the values (0 or 1) of one site's rows from scores by seed; subtract those of the reference, if given."""
    scored = {seed: score for seed, score in scores.items() if score.rows}
    values = [_parse_correctness(score.right) for score in scored.values()]
    if reference_scores is not None:
        subtracted = [_parse_correctness(reference_scores[seed].right) for seed in scored]
        values = [mine - other for mine, other in zip(values, subtracted, strict=True)]
    groups = [score.groups for score in scored.values() if score.groups is not None]
    return RowValues(
        seeds=_concatenate_to_array([[seed] * score.rows for seed, score in scored.items()]),
        rows=_concatenate_to_array([score.places or [] for score in scored.values()]),
        classes=_concatenate_to_array([score.classes or [] for score in scored.values()]),
        values=np.concatenate(values) if values else np.zeros(0),
        groups=_concatenate_to_array(groups) if groups and len(groups) == len(scored) else None,
    )


def _parse_correctness(right: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Convert the digits of `ClientScore.right` to an array: 1 for each right prediction, 0 for each wrong one."""
    return np.frombuffer(right.encode(), dtype=np.uint8).astype(np.float64) - ord("0")


def _concatenate_to_array(parts: Sequence[Sequence[int]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([value for part in parts for value in part], dtype=np.int64)


@dataclass(frozen=True)
class ScoredRun:
    """A finished run: its settings, its summary and the scores of its models."""

    spec: RunSpec
    summary: Summary
    scores: RunScores


@dataclass(frozen=True)
class SiteResults:
    """The results of one variant of a method at one site; gains are differences of `Findings.gain_measure`."""

    accuracy: Estimate | None  # on test rows
    gain: Estimate | None  # over training alone, on validation rows
    gain_on_test: Estimate | None
    validation_rows: int
    test_rows: int


@dataclass(frozen=True)
class VariantResults:
    """The results of one variant of a method, as means over sites; gains are over training alone."""

    label: str
    method: str
    repetitions: int
    accuracy: Estimate | None  # on test rows
    validation_accuracy: Estimate | None
    other_measures: dict[str, Estimate | None]  # other measures, on validation rows
    gain: Estimate | None  # on validation rows
    gain_on_test: Estimate | None
    sites: dict[str, SiteResults]
    bits: float  # up and down, all sites, mean over repetitions
    bits_a_site_and_round: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Findings:
    """The finished runs of a comparison, by (label of the variant, seed), and the results computed from them."""

    data: str
    runs: Mapping[tuple[str, int], ScoredRun]
    failed: Mapping[str, str] = field(default_factory=dict)  # why a run failed, by its name

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the variants, in the order they were given."""
        return tuple(dict.fromkeys(label for label, _ in self.runs))

    def find_runs_by_seed(self, label: str) -> dict[int, ScoredRun]:
        """Return the runs of one variant, by seed."""
        return {seed: run for (name, seed), run in self.runs.items() if name == label}

    def find_method(self, label: str) -> str:
        """Return the name of the method of the variant with this label."""
        return next(iter(self.find_runs_by_seed(label).values())).spec.method

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites."""
        return tuple(next(iter(self.runs.values())).scores.test)

    @cached_property
    def hold_out_scheme(self) -> HoldOutScheme:
        """How the repetitions (seeds) of this comparison hold out rows."""
        first = self.find_runs_by_seed(self.labels[0])
        digests = {run.spec.data_sha256 for run in first.values()}
        scores = next(iter(first.values())).scores
        held_out = max(sum(score.rows for score in part.values()) for part in (scores.validation, scores.test))
        trained = sum(sum(counts) for counts in scores.training.values())
        # Named data sets have no digest, and every seed divides them differently.
        return HoldOutScheme(digests == {None} or len(digests) > 1, held_out / max(trained, 1))

    @property
    def gain_measure(self) -> str:
        """The measure that gains and advice use: accuracy, or balanced accuracy if classes are unbalanced."""
        return "balanced_accuracy" if self.is_unbalanced else "accuracy"

    @cached_property
    def local_label(self) -> str | None:
        """The label of the variant that trains alone; None if there is none.

        If several variants train alone, it is the one with the best accuracy on validation rows.
        """
        found = [label for label in self.labels if self.find_method(label) == LOCAL]
        means = {label: fmean(self._average_by_seed(label, "validation").values() or [0.0]) for label in found}
        return max(means, key=means.__getitem__, default=None)

    @property
    def federated_labels(self) -> tuple[str, ...]:
        """The labels of the federated variants: all except training alone and training on pooled rows."""
        return tuple(label for label in self.labels if self.find_method(label) not in REFERENCES)

    @cached_property
    def results(self) -> dict[str, VariantResults]:
        """The results of each variant, by its label."""
        return {label: self._make_variant_results(label) for label in self.labels}

    @property
    def is_unbalanced(self) -> bool:
        """Whether one class has more than twice the training rows of another, all sites together."""
        counts = [sum(each) for each in zip(*next(iter(self.runs.values())).scores.training.values(), strict=True)]
        present = [count for count in counts if count]
        return len(present) > 1 and max(present) > UNBALANCED * min(present)

    def estimate_gain(
        self, label: str, part: str, confidence: float = CONFIDENCE, sites: Sequence[str] | None = None
    ) -> Estimate | None:
        """Estimate the gain over training alone on one part of the rows (`validation` or `test`), mean over sites.

        None if no site has such rows, if no variant trains alone, or if this variant is training alone.
        """
        scored = [run.scores.find_scores_on(part) for run in self.runs.values()]
        sites = [site for site in sites or self.sites if any(scores[site].rows for scores in scored)]
        if self.local_label is None or self.local_label == label or not sites:
            return None
        own, reference = self.find_runs_by_seed(label), self.find_runs_by_seed(self.local_label)
        if not own.keys() & reference.keys():
            return None
        rows = gather_row_values(own, reference, part, sites)
        if rows:
            return estimate_from_rows(rows, RowValueKind.DIFFERENCE, by_class=self.is_unbalanced, confidence=confidence)
        means = [self._average_by_seed(name, part, sites, self.gain_measure) for name in (label, self.local_label)]
        differences = [means[0][seed] - means[1][seed] for seed in means[0] if seed in means[1]]
        if not differences:
            return None
        predictions = self._count_predictions(own, part, sites)
        return estimate_from_repetitions(differences, self.hold_out_scheme, confidence, predictions)

    def _count_rows(self, part: str, site: str) -> int:
        """Count the site's rows of this part in all repetitions, each row once.

        If a run did not record the positions of its rows, count the rows of one run.
        """
        scores = [run.scores.find_scores_on(part)[site] for run in self.find_runs_by_seed(self.labels[0]).values()]
        places = [score.places for score in scores if score.places is not None]
        if len(places) < len(scores):
            return scores[0].rows
        return len({place for each in places for place in each})

    @staticmethod
    def _count_predictions(runs: Mapping[int, ScoredRun], part: str, sites: Sequence[str]) -> int:
        """Count the predictions of all these runs for one part of the rows (`validation` or `test`) of these sites."""
        return sum(run.scores.find_scores_on(part)[site].rows for run in runs.values() for site in sites)

    def _average_by_seed(
        self, label: str, part: str, sites: Sequence[str] | None = None, score: str = "accuracy"
    ) -> dict[int, float]:
        """Return the mean of a score (a field of `ClientScore`) over these sites, by seed, without undefined values."""
        found = {}
        for seed, run in self.find_runs_by_seed(label).items():
            held = run.scores.find_scores_on(part)
            values = [getattr(held[site], score) for site in sites or held]
            known = [value for value in values if value is not None]
            if known:
                found[seed] = fmean(known)
        return found

    def _make_variant_results(self, label: str) -> VariantResults:
        """Compute the results of one variant over all sites."""
        runs = self.find_runs_by_seed(label)
        summaries = [run.summary for run in runs.values()]
        bits = fmean(summary.bits_up + summary.bits_down for summary in summaries)
        return VariantResults(
            label=label,
            method=self.find_method(label),
            repetitions=len(runs),
            accuracy=self._estimate_accuracy(label, "test"),
            validation_accuracy=self._estimate_accuracy(label, "validation"),
            other_measures={name: self._estimate_score(label, name) for name in OTHER_MEASURES},
            gain=self.estimate_gain(label, "validation"),
            gain_on_test=self.estimate_gain(label, "test"),
            sites={site: self._make_site_results(label, site) for site in self.sites},
            bits=bits,
            bits_a_site_and_round=bits / len(self.sites) / fmean(summary.rounds for summary in summaries),
            seconds=sum(summary.seconds for summary in summaries),
        )

    def _estimate_accuracy(self, label: str, part: str, sites: Sequence[str] | None = None) -> Estimate | None:
        """Estimate the accuracy on `validation` or `test` rows, mean over sites; None if there are no such rows."""
        runs, sites = self.find_runs_by_seed(label), sites or self.sites
        rows = gather_row_values(runs, None, part, sites)
        if rows:
            return estimate_from_rows(rows, RowValueKind.SHARE, by_class=False)
        values = list(self._average_by_seed(label, part, sites).values())
        if not values:
            return None
        predictions = self._count_predictions(runs, part, sites)
        return estimate_from_repetitions(values, self.hold_out_scheme, predictions=predictions)

    def _estimate_score(self, label: str, score: str) -> Estimate | None:
        """Estimate a score (a field of `ClientScore`) on validation rows, mean over sites; None if it is undefined."""
        values = list(self._average_by_seed(label, "validation", score=score).values())
        return (
            estimate_from_repetitions(values, HoldOutScheme(True, self.hold_out_scheme.held_out_ratio))
            if values
            else None
        )

    def _make_site_results(self, label: str, site: str) -> SiteResults:
        """Compute the results of one variant at one site."""
        return SiteResults(
            accuracy=self._estimate_accuracy(label, "test", (site,)),
            gain=self.estimate_gain(label, "validation", sites=(site,)),
            gain_on_test=self.estimate_gain(label, "test", sites=(site,)),
            validation_rows=self._count_rows("validation", site),
            test_rows=self._count_rows("test", site),
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings: sites with few rows or one class, seeds with equal splits, unbalanced classes, failed runs."""
        training = next(iter(self.runs.values())).scores.training
        found = []
        for site in self.sites:
            rows = self._count_rows("validation", site)
            if rows < FEW_ROWS:
                weight = (
                    f"{100 / rows:.1f} points of its accuracy" if rows else "missing, so nothing can be said about it"
                )
                found.append(f"{site} has {rows} validation rows: each is {weight}")
            if sum(count > 0 for count in training[site]) < 2:
                found.append(f"{site} has rows of a single class: alone it can only learn to predict that class")
        if not self.hold_out_scheme.redrawn:
            found.append("every repetition holds out the same rows: intervals are over seeds and over these rows")
        if self.is_unbalanced:
            found.append("one class has over twice the rows of another: gains are in points of balanced accuracy")
        return (*found, *(f"{name} failed: {why}" for name, why in self.failed.items()))
