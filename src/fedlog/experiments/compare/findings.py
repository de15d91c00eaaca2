"""What a comparison found: each variant's figures over all repetitions, against training alone, overall and by site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

from fedlog.experiments.compare.estimates import CONFIDENCE, Estimate, Splits, estimate, variance_of_rows
from fedlog.experiments.compare.variants import LOCAL, REFERENCES
from fedlog.experiments.run.records import Summary
from fedlog.experiments.run.scores import ClientScore, RunScores
from fedlog.settings.spec import RunSpec

BESIDE_ACCURACY = ("balanced_accuracy", "macro_f1", "auroc", "calibration_error")
UNBALANCED = 2.0  # times the rows of the smallest class
FEW_ROWS = 20  # validation rows of a site below which it is named
NO_DIFFERENCE_SEEN = 3.0  # the rule of three: n rows without a difference allow 3/n of them


@dataclass(frozen=True)
class ScoredRun:
    """One finished run and its scores."""

    spec: RunSpec
    summary: Summary
    scores: RunScores


@dataclass(frozen=True)
class SiteFigures:
    """One site's figures with one variant."""

    accuracy: Estimate | None  # on test rows
    gain: Estimate | None  # over training alone, on validation rows
    gain_on_test: Estimate | None
    validation_rows: int
    test_rows: int


@dataclass(frozen=True)
class VariantFigures:
    """One variant's figures. Accuracies are means over sites; gains are paired differences to training alone."""

    label: str
    method: str
    repetitions: int
    accuracy: Estimate | None  # on test rows
    validation_accuracy: Estimate | None
    beside: dict[str, float | None]  # on test rows: what to look at beside accuracy
    gain: Estimate | None  # on validation rows
    gain_on_test: Estimate | None
    sites: dict[str, SiteFigures]
    bits: float  # up and down, all sites, mean over repetitions
    bits_a_site_and_round: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Findings:
    """All finished runs of a comparison by label and seed."""

    data: str
    runs: Mapping[tuple[str, int], ScoredRun]
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> tuple[str, ...]:
        """The variants, in the order they were given."""
        return tuple(dict.fromkeys(label for label, _ in self.runs))

    def by_seed(self, label: str) -> dict[int, ScoredRun]:
        """The runs of one variant."""
        return {seed: run for (name, seed), run in self.runs.items() if name == label}

    def method_of(self, label: str) -> str:
        """The method behind a label."""
        return next(iter(self.by_seed(label).values())).spec.method

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites."""
        return tuple(next(iter(self.runs.values())).scores.test)

    @cached_property
    def splits(self) -> Splits:
        """Whether the repetitions hold out different rows, and how many of them."""
        first = self.by_seed(self.labels[0])
        digests = {run.spec.data_sha256 for run in first.values()}
        scores = next(iter(first.values())).scores
        judged = max(sum(score.rows for score in part.values()) for part in (scores.validation, scores.test))
        trained = sum(sum(counts) for counts in scores.training.values())
        # Named data sets have no digest, and every seed divides them anew.
        return Splits(digests == {None} or len(digests) > 1, judged / max(trained, 1))

    @cached_property
    def alone(self) -> str | None:
        """The label of training alone: where it was run in several ways, the best on validation rows."""
        found = [label for label in self.labels if self.method_of(label) == LOCAL]
        return max(found, key=self._validation_mean, default=None)

    def _validation_mean(self, label: str) -> float:
        return fmean(self._means(label, "validation").values() or [0.0])

    @property
    def candidates(self) -> tuple[str, ...]:
        """What could be advised: everything but training alone and pooling."""
        return tuple(label for label in self.labels if self.method_of(label) not in REFERENCES)

    @cached_property
    def figures(self) -> dict[str, VariantFigures]:
        """Each variant's figures by its label."""
        return {label: self._figures(label) for label in self.labels}

    @property
    def unbalanced(self) -> bool:
        """Whether one class has more than twice the rows of another, all sites together."""
        counts = [sum(each) for each in zip(*next(iter(self.runs.values())).scores.training.values(), strict=True)]
        present = [count for count in counts if count]
        return len(present) > 1 and max(present) > UNBALANCED * min(present)

    def gain(self, label: str, part: str, confidence: float = CONFIDENCE) -> Estimate | None:
        """The paired difference to training alone, mean over sites that have such rows."""
        sites = tuple(site for site in self.sites if self._rows(part, (site,)))
        return None if self.alone in (None, label) or not sites else self._gain(label, part, sites, confidence)

    def gain_at(self, site: str, label: str, part: str) -> Estimate | None:
        """The same at one site; None where it has no such rows."""
        rows = self._rows(part, (site,))
        return None if self.alone in (None, label) or not rows else self._gain(label, part, (site,), CONFIDENCE)

    def _gain(self, label: str, part: str, sites: Sequence[str], confidence: float) -> Estimate | None:
        assert self.alone is not None
        own, reference = self.by_seed(label), self.by_seed(self.alone)
        seeds = [seed for seed in own if seed in reference]
        if not seeds:
            return None
        means = [self._means(name, part, sites) for name in (label, self.alone)]
        differences = [means[0][seed] - means[1][seed] for seed in seeds]
        least = NO_DIFFERENCE_SEEN / (max(1, len(seeds) if self.splits.redrawn else 1) * self._rows(part, sites))
        spread = 0.0
        if not self.splits.redrawn:
            spread = variance_of_rows([_row_differences(own, reference, seeds, part, site) for site in sites])
        return estimate(differences, self.splits, confidence, spread, least)

    def _rows(self, part: str, sites: Sequence[str]) -> int:
        scores = next(iter(self.runs.values())).scores
        held: Mapping[str, ClientScore] = getattr(scores, part)
        return sum(held[site].rows for site in sites)

    def _means(
        self, label: str, part: str, sites: Sequence[str] | None = None, figure: str = "accuracy"
    ) -> dict[int, float]:
        """By seed, the mean over these sites of a figure; sites where it is not defined are left out."""
        found = {}
        for seed, run in self.by_seed(label).items():
            held: Mapping[str, ClientScore] = getattr(run.scores, part)
            values = [getattr(held[site], figure) for site in sites or held]
            known = [value for value in values if value is not None]
            if known:
                found[seed] = fmean(known)
        return found

    def _figures(self, label: str) -> VariantFigures:
        runs = self.by_seed(label)
        summaries = [run.summary for run in runs.values()]
        bits = fmean(summary.bits_up + summary.bits_down for summary in summaries)
        beside = {name: list(self._means(label, "test", figure=name).values()) for name in BESIDE_ACCURACY}
        return VariantFigures(
            label=label,
            method=self.method_of(label),
            repetitions=len(runs),
            accuracy=self._accuracy(label, "test"),
            validation_accuracy=self._accuracy(label, "validation"),
            beside={name: fmean(values) if values else None for name, values in beside.items()},
            gain=self.gain(label, "validation"),
            gain_on_test=self.gain(label, "test"),
            sites={site: self._site_figures(label, site) for site in self.sites},
            bits=bits,
            bits_a_site_and_round=bits / len(self.sites) / fmean(summary.rounds for summary in summaries),
            seconds=sum(summary.seconds for summary in summaries),
        )

    def _accuracy(self, label: str, part: str, sites: Sequence[str] | None = None) -> Estimate | None:
        values = list(self._means(label, part, sites).values())
        if not values:
            return None
        runs = self.by_seed(label)
        spread = 0.0
        if not self.splits.redrawn:
            spread = variance_of_rows([_row_differences(runs, None, list(runs), part, s) for s in sites or self.sites])
        return estimate(values, self.splits, row_variance=spread)

    def _site_figures(self, label: str, site: str) -> SiteFigures:
        return SiteFigures(
            accuracy=self._accuracy(label, "test", (site,)),
            gain=self.gain_at(site, label, "validation"),
            gain_on_test=self.gain_at(site, label, "test"),
            validation_rows=self._rows("validation", (site,)),
            test_rows=self._rows("test", (site,)),
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sites of which little can be said, and runs that failed."""
        scores = next(iter(self.runs.values())).scores
        found = []
        for site, score in scores.validation.items():
            classes = sum(count > 0 for count in scores.training[site])
            if score.rows < FEW_ROWS:
                found.append(f"{site} has {score.rows} validation rows: each is {_points_of_a_row(score.rows)}")
            if classes < 2:
                found.append(f"{site} has rows of a single class: alone it can only learn to say that class")
        if not self.splits.redrawn:
            found.append("every repetition holds out the same rows: intervals are over seeds and over these rows")
        return (*found, *(f"{name} failed: {why}" for name, why in self.failed.items()))


def _points_of_a_row(rows: int) -> str:
    return f"{100 / rows:.1f} points of its accuracy" if rows else "missing, and it can be judged by nothing"


def _row_differences(
    own: Mapping[int, ScoredRun], reference: Mapping[int, ScoredRun] | None, seeds: Sequence[int], part: str, site: str
) -> list[float]:
    """By row, how much more often the own runs are right than the reference's; without one, how often they are."""

    def share(runs: Mapping[int, ScoredRun]) -> list[float]:
        right = [getattr(runs[seed].scores, part)[site].right for seed in seeds]
        return [fmean(digit == "1" for digit in digits) for digits in zip(*right, strict=True)]

    mine = share(own)
    return mine if reference is None else [a - b for a, b in zip(mine, share(reference), strict=True)]
