"""Default settings: a preset for each data set, and the recipes `paper` and `tuned`.

The presets have the paper's settings (its Tables A.2 to A.4), or our own where the paper gives none. A comment marks
each value that the paper leaves open; we chose these values without test data, for the reasons in docs/deviations.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedlog.settings.privacy import BodyTraining
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import AdamMoments, Decay, Recipe

MethodOptions = Mapping[str, Any]
PAPERS_DATA = ("circle", "mnist", "mnist-selection", "cifar10", "cifar100", "leaf")
_OPTIMISER = ("moments", "decay", "weight_decay")


@dataclass(frozen=True)
class Preset:
    """The default settings of runs on one data set."""

    rounds: int
    batch_size: int
    epochs: int
    learning_rate: float
    body: str
    method_options: Mapping[str, MethodOptions] = field(default_factory=dict)
    batch_sizes: Mapping[str, int] = field(default_factory=dict)  # of methods whose table has another batch size

    def find_options(self, method: str) -> dict[str, Any]:
        """Return the default options of this method on the preset's data set."""
        return {"epochs": self.epochs, "learning_rate": self.learning_rate, **self.method_options.get(method, {})}

    def find_batch_size(self, method: str) -> int:
        """Return the default batch size of this method on the preset's data set."""
        return self.batch_sizes.get(method, self.batch_size)


OWN_DATA = Preset(rounds=10, batch_size=10, epochs=5, learning_rate=0.001, body="mlp:64,32")

# For tables in which a number is predicted. Their columns are the features.
NUMBER_DATA = Preset(rounds=1, batch_size=10, epochs=1, learning_rate=0.001, body="identity")

PRESETS: dict[str, Preset] = {
    "diabetes": NUMBER_DATA,
    "wine-alcohol": NUMBER_DATA,
    "digits": replace(OWN_DATA, method_options={"fedper": {"personal_layers": 1}, "fedrep": {"personal_layers": 1}}),
    "circle": Preset(rounds=1, batch_size=80, epochs=30, learning_rate=0.01, body="mlp-signed:16,2"),
    "mnist": Preset(
        rounds=100,
        batch_size=10,
        epochs=5,
        learning_rate=0.001,
        body="cnn",
        method_options={
            "feddbe": {"kappa": 1.0, "momentum": 1.0},  # by `select-feddbe-mnist`; the original has 50
            "fedrep": {"head_epochs": 10, "head_learning_rate": 0.005},
            "cs-fl": {"threshold": 0.005, "reduction": 0.1, "phase_1_rate": 0.001, "phase_2_rate": 0.001},
        },
    ),
    "cifar10": Preset(
        rounds=100,
        batch_size=50,
        epochs=1,
        learning_rate=0.0005,
        body="cnn",
        method_options={
            "fedrep": {"head_epochs": 10, "head_learning_rate": 0.0025},
            "fedbabu": {"fine_tune_learning_rate": 0.0005},
            "fedproto": {"regularisation": 10.0},  # by `select-fedproto-cifar10`; the original has 0.1
            "cs-fl": {"threshold": 0.0005, "reduction": 0.2, "phase_1_rate": 0.001, "phase_2_rate": 0.01},
        },
        batch_sizes={"cs-fl": 10},
    ),
    "cifar100": Preset(
        rounds=150,
        batch_size=50,
        epochs=3,
        learning_rate=0.0005,
        body="cnn",
        method_options={
            "fedlog-c": {"beta": 0.0001},  # the growth factor of the smaller sets at a hundred classes
            "fedproto": {"regularisation": 10.0},  # as on CIFAR-10
            "fedrep": {"head_epochs": 3, "head_learning_rate": 0.0025},
            "fedbabu": {"fine_tune_learning_rate": 0.0005},
            "cs-fl": {"epochs": 1, "threshold": 0.0005, "reduction": 0.1, "phase_1_rate": 0.001, "phase_2_rate": 0.01},
        },
        batch_sizes={"cs-fl": 10},
    ),
    "har": Preset(rounds=30, batch_size=50, epochs=1, learning_rate=0.001, body="signal-cnn"),
    "leaf": Preset(rounds=10, batch_size=10, epochs=20, learning_rate=0.0005, body="mobilenet-v2"),
}
PRESETS["mnist-selection"] = PRESETS["mnist"]


def find_preset(data: str) -> Preset:
    """Find the preset of this data set; a user's own data have the preset `OWN_DATA`."""
    return PRESETS.get(data, OWN_DATA)


FEWEST_RECORDS = 10
"""The fewest records for each of several Gaussians of a class: one of fewer would reveal single records."""
# The options that a deployment sets unless the user does, and so does a comparison on the files of sites.
DEPLOYED_OPTIONS: dict[str, MethodOptions] = {
    # Sites choose their bodies, so their untrained features cannot be added up to a first head.
    "fedlog-c": {"first_head": "random"},
    "fedpft": {"fewest": FEWEST_RECORDS},
}


@dataclass(frozen=True)
class TunedSettings:
    """The tuned settings of one method; its learning rate is `learning_rate_factor` times that of the preset."""

    learning_rate_factor: float
    moments: AdamMoments = AdamMoments.RUN
    decay: Decay = Decay.COSINE
    weight_decay: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


# The highest of each method's eight settings over the grids `select-equal-chances-table-mnist`, `-table-cifar10` and
# `-har` together, which use no test record; a test holds it. Methods that are not listed keep the paper's settings.
_AUTHORS_OPTIMISER: dict[str, Any] = {"moments": AdamMoments.EPOCH, "decay": Decay.NONE}
TUNED: dict[str, TunedSettings] = {
    "local": TunedSettings(8),
    "fedlog": TunedSettings(4, options={"first_head": "random"}),
    "fedlog-c": TunedSettings(4, options={"alpha": 0.1, "beta": 0.001}),
    "fedproto": TunedSettings(1, options={"regularisation": 10.0}, **_AUTHORS_OPTIMISER),
    "lg-fedavg-1": TunedSettings(8),
    "fedavg": TunedSettings(8),
    "feddbe": TunedSettings(4, options={"kappa": 1.0}, **_AUTHORS_OPTIMISER),
    "lg-fedavg-2": TunedSettings(8),
    "fedper": TunedSettings(8),
    "fedrep": TunedSettings(4, options={"head_epochs": 10}),
    "cs-fl": TunedSettings(4, options={"phase_1_rate": 1.0}),
    "fedbabu": TunedSettings(8),
}


def choose_recipe(data: str) -> Recipe:
    """Choose the default recipe of a run: `paper` on the paper's data sets, else `tuned`."""
    return Recipe.PAPER if data in PAPERS_DATA else Recipe.TUNED


def apply_recipe(spec: RunSpec, given: Collection[str]) -> RunSpec:
    """Set the settings of the recipe (`paper` or `tuned`), except those that the user has `given`.

    All options in the specification count as given. Runs with DP-SGD are not changed: DP-SGD has neither Adam's moments
    nor weight decay.
    """
    recipe = spec.recipe or choose_recipe(spec.data)
    tuned = TUNED.get(spec.method)
    spec = replace(spec, recipe=recipe)
    if recipe is Recipe.PAPER or tuned is None or spec.body_training is BodyTraining.DP_SGD:
        return spec
    settings = {name: getattr(tuned, name) for name in _OPTIMISER if name not in given}
    rate = {"learning_rate": tuned.learning_rate_factor * find_preset(spec.data).learning_rate}
    return replace(spec, options={**rate, **tuned.options, **spec.options}, **settings)
