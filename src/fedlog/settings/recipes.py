"""Two sets of default settings: those of the paper's tables, and those that a selection supports.

A recipe fills in what was not given. The settings themselves are recorded, the recipe's name is not part of a digest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedlog.settings.presets import preset
from fedlog.settings.privacy import BodyTraining
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import AdamMoments, Decay, Recipe

PAPERS_DATA = ("circle", "mnist", "mnist-selection", "cifar10", "cifar100", "leaf")


@dataclass(frozen=True)
class TunedSettings:
    """The settings that a selection supports for one method: rate (as a multiple of the data set's) and options."""

    times_rate: float
    moments: AdamMoments = AdamMoments.RUN
    decay: Decay = Decay.COSINE
    weight_decay: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


# From `select-rate-mnist`, `select-weight-decay-mnist` and `select-fedlog-c-once-more-mnist`: no table's images.
# A method that is not here was not selected for, and keeps the paper's settings.
TUNED: dict[str, TunedSettings] = {
    "local": TunedSettings(8),
    "fedlog": TunedSettings(2),
    "fedlog-c": TunedSettings(4, weight_decay=0.3, options={"beta": 0.003}),
}
_OPTIMISER = ("moments", "decay", "weight_decay")


def choose_recipe(data: str) -> Recipe:
    """The recipe of a run that names none: the paper's on the paper's data sets, the tuned one elsewhere."""
    return Recipe.PAPER if data in PAPERS_DATA else Recipe.TUNED


def apply_recipe(spec: RunSpec, given: Collection[str]) -> RunSpec:
    """The specification with its recipe's settings in place of those that were not given.

    All options in the specification count as given. DP-SGD keeps no moments and has no weight decay: its runs stay.
    """
    recipe = spec.recipe or choose_recipe(spec.data)
    tuned = TUNED.get(spec.method)
    spec = replace(spec, recipe=recipe)
    if recipe is Recipe.PAPER or tuned is None or spec.body_training is BodyTraining.DP_SGD:
        return spec
    settings = {name: getattr(tuned, name) for name in _OPTIMISER if name not in given}
    rate = {"learning_rate": tuned.times_rate * preset(spec.data).learning_rate}
    return replace(spec, options={**rate, **tuned.options, **spec.options}, **settings)
