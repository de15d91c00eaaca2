"""Count how often the advice of `fedlog compare` is wrong, over hundreds of synthetic federations.

    python -m benchmarks.advice_errors [--draws 40]

The federations are those of `benchmarks.advice`. Instead of networks, the models are nearest class means in a few
random columns, which takes milliseconds; rows, splits, intervals and advice are computed as in a real comparison. The
learner `shared` uses the rows of all sites, `mixed` counts a site's own rows four times, and `nothing` uses own rows
only, like `local`, so its true gain is zero. Writes results/advice-errors/errors.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.advice import CLASSES, COLUMNS, FRESH, KINDS, SIZES, Rows
from fedlog.core.keys import Key
from fedlog.data.split import HeldOutShares, Split, split_by_class
from fedlog.engine.software import list_software_versions
from fedlog.experiments.compare.advice import WORTH, Advice, AdviceKind, advise
from fedlog.experiments.compare.findings import Findings, ScoredRun
from fedlog.experiments.run.records import Summary
from fedlog.experiments.run.scores import ClientScore, RunScores
from fedlog.settings.spec import RunSpec

OUT = Path("results/advice-errors")
SEEDS = (4, 20)
COLUMNS_A_RUN = 6
LEARNERS: dict[str, tuple[str, ...]] = {"something to gain": ("shared", "mixed"), "nothing to gain": ("nothing",)}

Guess = Callable[[NDArray[np.float64]], NDArray[np.int64]]


def learn(rows: NDArray[np.float64], labels: NDArray[np.int64], draw: np.random.Generator) -> Guess:
    """A model that predicts the class with the nearest mean, in a few random columns."""
    columns = draw.permutation(COLUMNS)[:COLUMNS_A_RUN]
    classes = np.unique(labels)
    means = np.stack([rows[labels == each].mean(0) for each in classes])[:, columns]
    return lambda new: classes[np.square(new[:, None, columns] - means).sum(-1).argmin(1)]


def learn_all(
    learner: str, sites: Mapping[str, Rows], splits: Mapping[str, Split], draw: np.random.Generator
) -> dict[str, Guess]:
    """The model of every site, by its name."""
    own = {name: (rows[splits[name].train], labels[splits[name].train]) for name, (rows, labels) in sites.items()}
    everyone = tuple(np.concatenate([part[at] for part in own.values()]) for at in (0, 1))
    if learner == "shared":
        shared = learn(everyone[0], everyone[1], draw)
        return dict.fromkeys(sites, shared)
    if learner == "mixed":
        return {
            name: learn(np.concatenate([everyone[0], *[rows] * 3]), np.concatenate([everyone[1], *[labels] * 3]), draw)
            for name, (rows, labels) in own.items()
        }
    return {name: learn(rows, labels, draw) for name, (rows, labels) in own.items()}


def score(guess: Guess, rows: Rows, places: NDArray[np.int64]) -> ClientScore:
    """The score of a model on these rows of a site."""
    right = guess(rows[0][places]) == rows[1][places]
    digits = "".join("1" if each else "0" for each in right)
    share = float(right.mean()) if len(right) else None
    return ClientScore(len(places), share, share, None, None, None, digits, rows[1][places].tolist(), places.tolist())


def compare(
    sites: Mapping[str, Rows], fresh: Mapping[str, Rows], learners: Sequence[str], seeds: int, number: int
) -> tuple[Findings, dict[str, float]]:
    """The findings of a comparison, and the true gain of each learner."""
    runs, true = {}, dict.fromkeys((*learners, "local"), 0.0)
    training = {name: np.bincount(labels, minlength=CLASSES).tolist() for name, (_, labels) in sites.items()}
    for seed in range(seeds):
        splits = {
            name: split_by_class(labels, HeldOutShares(split_seed=seed), Key(number).child("site", name))
            for name, (_, labels) in sites.items()
        }
        for learner in true:
            draw = Key(number).child("learn", learner, seed).numpy()
            models = learn_all(learner, sites, splits, draw)
            held = [
                {name: score(models[name], rows, getattr(splits[name], part)) for name, rows in sites.items()}
                for part in ("validation", "test")
            ]
            bits = 0 if learner == "local" else 1000
            summary = Summary(
                learner, "x", seed, "", 1, 0.0, [0.0], None, 1, 0.0, bits, bits, 0.0, "", clients=list(sites)
            )
            spec = RunSpec(data="x:y", method=learner, seed=seed, data_sha256=str(seed))
            runs[learner, seed] = ScoredRun(spec, summary, RunScores(held[0], held[1], training))
            right = [float(np.mean(models[name](rows) == labels)) for name, (rows, labels) in fresh.items()]
            true[learner] += float(np.mean(right)) / seeds
    return Findings("x", runs), {learner: true[learner] - true["local"] for learner in learners}


def count(kind: str, size: int, what: str, seeds: int, draws: int) -> dict[str, Any]:
    """How often the advice was right, wrong or missing, over `draws` federations."""
    told: dict[str, int] = dict.fromkeys(("right", "wrong", "no answer"), 0)
    inside = entries = 0
    for number in range(draws):
        drawn = KINDS[kind](Key(number).child(kind, size, "errors"), size)
        rows = {name: draw(many) for name, (many, draw) in drawn.items()}
        fresh = {name: draw(FRESH) for name, (_, draw) in drawn.items()}
        found, gains = compare(rows, fresh, LEARNERS[what], seeds, number)
        told[_judge(advise(found), gains, nothing=what == "nothing to gain")] += 1
        for learner, gain in gains.items():
            interval = found.estimate_gain(learner, "validation")
            assert interval is not None
            inside += int((interval.low or 0) <= gain <= (interval.high or 0))
            entries += 1
    return {"kind": kind, "size": size, "what": what, "seeds": seeds, **told, "covered": inside / entries}


def _judge(advice: Advice, gains: Mapping[str, float], *, nothing: bool) -> str:
    """`right`, `wrong` or `no answer`; if there is nothing to gain, any advice to federate is wrong."""
    if advice.kind is AdviceKind.UNCLEAR:
        return "no answer"
    if advice.kind is AdviceKind.ALONE:
        return "right" if max(gains.values()) < WORTH else "wrong"
    return "right" if not nothing and gains[str(advice.method)] > 0 else "wrong"


def describe(path: Path = OUT / "errors.json") -> list[str]:
    """The rows of the table in docs/worth-federating.md, from the record."""
    entries = json.loads(path.read_text())["entries"]
    lines = []
    for what in LEARNERS:
        for seeds in SEEDS:
            here = [entry for entry in entries if entry["what"] == what and entry["seeds"] == seeds]
            counts = [sum(entry[name] for entry in here) for name in ("right", "wrong", "no answer")]
            covered = sum(entry["covered"] for entry in here) / len(here)
            lines.append(f"| {what}, {seeds} seeds | {sum(counts)} | {' | '.join(map(str, counts))} | {covered:.1%} |")
    return lines


def main() -> None:
    """Count over all kinds, in the smaller size of each, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=40, help="federations of each kind")
    args = parser.parse_args()
    entries = []
    for kind in KINDS:
        for what in LEARNERS:
            for seeds in SEEDS:
                entries.append(count(kind, SIZES[kind][0], what, seeds, args.draws))
                print(entries[-1], flush=True)
    record = {
        "command": f"python -m benchmarks.advice_errors --draws {args.draws}",
        "made_with": list_software_versions(),
    }
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "errors.json").write_text(json.dumps({**record, "entries": entries}, indent=1) + "\n")


if __name__ == "__main__":
    main()
