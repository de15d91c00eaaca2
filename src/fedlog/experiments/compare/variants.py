"""List the runs of a comparison: every method with every codec, body, recipe (named settings) and seed.

With `--quick`, there are fewer methods and rounds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedlog.algorithms import registry
from fedlog.algorithms.interface import Bodies
from fedlog.data.data_spec import SITES
from fedlog.data.federation import Federation
from fedlog.errors import InputError
from fedlog.experiments.run.prepare import make_bodies
from fedlog.experiments.tables.cells import TableRow
from fedlog.files.names import did_you_mean
from fedlog.models.catalog import make_body as make_body
from fedlog.settings.fields import find_setting_types
from fedlog.settings.presets import DEPLOYED_OPTIONS, apply_recipe, find_preset
from fedlog.settings.spec import RunSpec, make_spec
from fedlog.wire.codec import find_codec

SETTINGS_HINT = "docs/running.md lists the settings, docs/methods the options of each method"
LOCAL, POOLED = "local", "pooled"
REFERENCES = (LOCAL, POOLED)  # training alone, and training on all rows in one place
METHODS = ("fedlog", "fedlog-c", "fedproto", "fedavg", *REFERENCES)
QUICK_METHODS = ("fedlog", "fedavg", *REFERENCES)
QUICK_ROUNDS, QUICK_BATCH = 5, 50
QUICK_STEPS = 40  # optimiser steps of an epoch at the largest site


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison: a variant (a method with its settings), a seed, and the folder of the run."""

    variant: TableRow
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """The name to show, such as `fedlog seed 0`."""
        return f"{self.variant.label} seed {self.seed}"

    @property
    def spec(self) -> RunSpec:
        """The specification of the run with its seed; the seed also decides which rows are held out."""
        spec = self.variant.spec
        return replace(spec, seed=self.seed, split_seed=self.seed if spec.data.startswith(SITES) else 0)


@dataclass(frozen=True)
class VariantChoices:
    """The methods, codecs, bodies and recipes to combine; for an empty field, the settings common to all runs hold."""

    methods: tuple[str, ...] = METHODS
    codecs: tuple[str, ...] = ()
    bodies: tuple[str, ...] = ()
    recipes: Mapping[str, Mapping[str, Any]] | None = None
    options: Mapping[str, Mapping[str, Any]] | None = None  # options of single methods, by the method's name
    given: frozenset[str] = frozenset()  # names of settings that the user gave for all runs


def make_variants(common: RunSpec, choices: VariantChoices) -> list[TableRow]:
    """Make a variant (a table row) for each combination; methods that send nothing get only the first codec.

    `common` has the settings that all variants share.
    """
    found: list[TableRow] = []
    own_bodies = common.data.startswith(SITES) or _have_different_bodies(common, choices)
    for recipe, settings in (choices.recipes or {"": {}}).items():
        for body in choices.bodies or ("",):
            for method in dict.fromkeys(choices.methods):
                codecs = choices.codecs[:1] if method in REFERENCES else choices.codecs
                for codec in codecs or ("",):
                    deployed = DEPLOYED_OPTIONS.get(method, {}) if own_bodies else {}
                    own = {**deployed, **settings, **(choices.options or {}).get(method, {})}
                    spec = _apply_settings(replace(common, method=method), own)
                    spec = apply_recipe(spec, given={*choices.given, *own})
                    spec = replace(spec, body=(body,)) if body else spec
                    spec = replace(spec, codec=codec) if codec else spec
                    shown_codec = codec if len(choices.codecs) > 1 and method not in REFERENCES else ""
                    shown_body = body if len(choices.bodies) > 1 else ""
                    label = " ".join(word for word in (method, shown_codec, shown_body, recipe) if word)
                    folder = re.sub(r"[^A-Za-z0-9.=_-]+", "-", label).strip("-")  # characters safe in its name
                    found.append(TableRow(folder, label, spec))
    return found


def _apply_settings(spec: RunSpec, given: Mapping[str, Any]) -> RunSpec:
    """Return a copy of the specification with the given settings; options that its method lacks are left out."""
    known, options = find_setting_types(RunSpec), registry.list_options(spec.method)
    settings = {name: value for name, value in given.items() if name in known}
    own = {name: value for name, value in given.items() if name not in known and name in options}
    shared = {name: value for name, value in spec.options.items() if name in options}
    return make_spec({**settings, "options": {**shared, **own}}, "the comparison", spec)


def check_options(methods: Iterable[str], names: Iterable[str]) -> None:
    """Refuse a name that is neither a setting nor an option of one of the methods."""
    known = {*find_setting_types(RunSpec), *(name for method in methods for name in registry.list_options(method))}
    for name in names:
        if name not in known:
            raise InputError(f"unknown setting: {name}", hint=did_you_mean(name, known, SETTINGS_HINT))


def check_codecs_and_bodies(choices: VariantChoices, common: RunSpec, federation: Federation | None) -> None:
    """Refuse unknown codecs and bodies, and bodies for sites that do not exist, before any run starts."""
    for name in choices.codecs or (common.codec,):
        find_codec(name)
    if federation is None:
        return
    for name in choices.bodies:
        make_body(name, federation.input_shape)
    if common.body and not choices.bodies:
        make_bodies(common, federation)


def drop_methods_needing_equal_bodies(
    choices: VariantChoices, common: RunSpec, named: Sequence[str]
) -> tuple[VariantChoices, tuple[str, ...]]:
    """If sites have different bodies, drop methods that need equal bodies, unless the user asked for them (`named`).

    Return the remaining choices, and notes on what was dropped.
    """
    if not _have_different_bodies(common, choices):
        return choices, ()
    equal = registry.find_methods(lambda method: method.bodies is not Bodies.ANY)
    left_out = [name for name in choices.methods if name in equal and name not in named]
    kept = tuple(name for name in choices.methods if name not in left_out)
    note = f"left out, because they need one body for all sites: {', '.join(left_out)}"
    return replace(choices, methods=kept), (note,) if left_out else ()


def _have_different_bodies(common: RunSpec, choices: VariantChoices) -> bool:
    """Return whether the common settings give sites different bodies, and `choices` names no body for all sites."""
    return not choices.bodies and len({name.rpartition("=")[2] for name in common.body}) > 1


def set_required_rounds(choices: VariantChoices, common: RunSpec) -> tuple[VariantChoices, tuple[str, ...]]:
    """Set the rounds of methods that need a certain number, as methods with one exchange need 1 round.

    This number replaces that of common settings and recipes. Return the new choices, and a note if the user gave
    another number for all methods.
    """
    own = {name: registry.find_method_rounds(name) for name in choices.methods}
    options = dict(choices.options or {})
    kept = []
    for name, rounds in own.items():
        if rounds is not None and "rounds" not in options.get(name, {}):
            options[name] = {**options.get(name, {}), "rounds": rounds}
            kept += [f"{name} {rounds}"] if common.rounds not in (None, rounds) else []
    note = f"methods with their own number of rounds: {', '.join(kept)}; more rounds would send the same sums again"
    return replace(choices, options=options), (note,) if kept else ()


def list_runs(variants: Sequence[TableRow], seeds: Sequence[int], out: Path) -> list[ComparedRun]:
    """List the runs, each with its folder below `out`: all variants with the first seed, then with the second, ..."""
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InputError(
            f"each of these run folders would belong to several variants of a method: {', '.join(twice)}",
            hint="give recipes names that differ in letters or digits, and each codec and body only once",
        )
    return [ComparedRun(variant, seed, out / variant.name / f"seed-{seed}") for seed in seeds for variant in variants]


def make_quick_settings(
    spec: RunSpec, choices: VariantChoices, federation: Federation | None, *, methods_named: bool
) -> tuple[RunSpec, VariantChoices, tuple[str, ...]]:
    """Return the settings and choices of a quick comparison, and notes on how it differs from a full one.

    Rounds and batch sizes that the user has set are kept. If the user named the
    methods (`methods_named`), they are kept. Batches are larger if the largest site has many rows.
    """
    notes = []
    if not methods_named:
        choices = replace(choices, methods=QUICK_METHODS)
        notes.append(f"quick: left out {', '.join(name for name in METHODS if name not in QUICK_METHODS)}")
    usual = find_preset(spec.data)
    if spec.rounds is None and usual.rounds > QUICK_ROUNDS:
        spec = replace(spec, rounds=QUICK_ROUNDS)
        notes.append(f"quick: {QUICK_ROUNDS} rounds instead of {usual.rounds}")
    largest = 0 if federation is None else max(len(shard.train) for shard in federation.shards)
    batch = max(QUICK_BATCH, math.ceil(largest / QUICK_STEPS))
    if spec.batch_size is None and usual.batch_size < batch:
        spec = replace(spec, batch_size=batch)
        notes.append(f"quick: steps on {batch} rows instead of {usual.batch_size}, so fewer of them")
    return spec, choices, tuple(notes)
