"""The answers of repeated runs, row by row, for data whose rows are known by their place in a site's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedlog.experiments.compare.row_estimates import Answers

if TYPE_CHECKING:
    from fedlog.experiments.compare.findings import ScoredRun
    from fedlog.experiments.run.scores import ClientScore


def gather_answers(
    own: Mapping[int, ScoredRun], reference: Mapping[int, ScoredRun] | None, part: str, sites: Sequence[str]
) -> list[Answers]:
    """Each site's answers: 1 where the model is right, else 0; with a reference, less the reference's answer.

    Empty where some run does not know its rows, as with named data sets that every seed deals out anew.
    """
    seeds = [seed for seed in own if reference is None or seed in reference]
    found = []
    for site in sites:
        scores = {seed: _score(own[seed], part, site) for seed in seeds}
        if any(score.places is None or score.classes is None for score in scores.values() if score.rows):
            return []
        compared = None if reference is None else {seed: _score(reference[seed], part, site) for seed in seeds}
        answers = _join(scores, compared)
        if len(answers.rows):
            found.append(answers)
    return found


def _score(run: ScoredRun, part: str, site: str) -> ClientScore:
    held: Mapping[str, ClientScore] = getattr(run.scores, part)
    return held[site]


def _join(scores: Mapping[int, ClientScore], compared: Mapping[int, ClientScore] | None) -> Answers:
    judged = {seed: score for seed, score in scores.items() if score.rows}
    values = [_digits(score.right) for score in judged.values()]
    if compared is not None:
        values = [mine - _digits(compared[seed].right) for mine, seed in zip(values, judged, strict=True)]
    groups = [score.groups for score in judged.values() if score.groups is not None]
    return Answers(
        seeds=_flat([[seed] * score.rows for seed, score in judged.items()]),
        rows=_flat([score.places or [] for score in judged.values()]),
        classes=_flat([score.classes or [] for score in judged.values()]),
        values=np.concatenate(values) if values else np.zeros(0),
        groups=_flat(groups) if groups and len(groups) == len(judged) else None,
    )


def _digits(text: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.float64) - ord("0")


def _flat(parts: Sequence[Sequence[int]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([value for part in parts for value in part], dtype=np.int64)
