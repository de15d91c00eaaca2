"""A comparison cut short: fewer methods, rounds and steps, and a sentence for each thing left out."""

from __future__ import annotations

import math
from dataclasses import replace

from fedlog.data.federation import Federation
from fedlog.experiments.compare.variants import METHODS, REFERENCES, Choices
from fedlog.settings.presets import preset
from fedlog.settings.spec import RunSpec

QUICK_METHODS = ("fedlog", "fedavg", *REFERENCES)
QUICK_ROUNDS, QUICK_BATCH = 5, 50
QUICK_STEPS = 40  # of an epoch at the largest site


def shorten(
    spec: RunSpec, choices: Choices, federation: Federation | None, *, asked_for: bool
) -> tuple[RunSpec, Choices, tuple[str, ...]]:
    """The settings and choices of a quick comparison, and what it leaves out. What was asked for by name stays.

    A step takes as many rows as suits the largest site of the federation, where one's own data are given.
    """
    notes = []
    if not asked_for:
        choices = replace(choices, methods=QUICK_METHODS)
        notes.append(f"quick: left out {', '.join(name for name in METHODS if name not in QUICK_METHODS)}")
    usual = preset(spec.data)
    if spec.rounds is None and usual.rounds > QUICK_ROUNDS:
        spec = replace(spec, rounds=QUICK_ROUNDS)
        notes.append(f"quick: {QUICK_ROUNDS} rounds instead of {usual.rounds}")
    largest = 0 if federation is None else max(len(shard.train) for shard in federation.shards)
    batch = max(QUICK_BATCH, math.ceil(largest / QUICK_STEPS))
    if spec.batch_size is None and usual.batch_size < batch:
        spec = replace(spec, batch_size=batch)
        notes.append(f"quick: steps on {batch} rows instead of {usual.batch_size}, so fewer of them")
    return spec, choices, tuple(notes)
