"""Recipes: what they fill in, what they leave alone, and that a run can be repeated by its command."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import fedlog
from fedlog.cli.main import parse_arguments
from fedlog.cli.run_work import _choose_spec_and_folder
from fedlog.experiments.compare.variants import VariantChoices, make_variants
from fedlog.experiments.run.execute import read_spec
from fedlog.settings.differences import format_repeat_command
from fedlog.settings.presets import PAPERS_DATA, TUNED, apply_recipe, choose_recipe, find_preset
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import AdamMoments, Decay, Recipe


def command_line(text: str) -> RunSpec:
    """What `fedlog run` would run."""
    return _choose_spec_and_folder(parse_arguments(["run", *shlex.split(text)]))[0]


def test_the_papers_data_keep_the_papers_settings_and_other_data_get_the_tuned_ones() -> None:
    assert all(choose_recipe(data) is Recipe.PAPER for data in PAPERS_DATA)
    assert all(
        choose_recipe(data) is Recipe.TUNED for data in ("digits", "har", "wine", "sites:folder", "own:function")
    )
    for method, tuned in TUNED.items():
        found = apply_recipe(RunSpec(data="digits", method=method), given=())
        assert (found.moments, found.decay) == (tuned.moments, tuned.decay)
        assert found.options["learning_rate"] == tuned.learning_rate_factor * find_preset("digits").learning_rate
        plain = RunSpec(data="mnist", method=method)
        assert resolve(apply_recipe(plain, given=())).digest == resolve(plain).digest


def test_what_is_given_is_kept_even_where_it_is_the_default() -> None:
    spec = RunSpec(data="digits", method="local", moments=AdamMoments.EPOCH, options={"learning_rate": 0.5})
    found = apply_recipe(spec, given=("moments",))
    assert found.moments is AdamMoments.EPOCH
    assert found.decay is TUNED["local"].decay
    assert found.options["learning_rate"] == 0.5


def test_a_method_that_was_not_selected_for_and_dp_sgd_stay_as_they_are() -> None:
    for spec in (
        RunSpec(data="digits", method="fedprox"),
        RunSpec(data="digits", method="fedlog", body_training="dp-sgd"),
    ):
        assert apply_recipe(spec, given=()) == replace(spec, recipe=Recipe.TUNED)


def test_the_command_line_files_and_comparisons_take_the_recipe(tmp_path: Path) -> None:
    tuned, paper = command_line("--method local"), command_line("--method local --recipe paper")
    assert (tuned.moments, tuned.decay) == (AdamMoments.RUN, Decay.COSINE)
    assert (paper.moments, paper.decay, dict(paper.options)) == (AdamMoments.EPOCH, Decay.NONE, {})
    (tmp_path / "run.toml").write_text('method = "local"\ndecay = "none"\n')
    assert command_line(f"{tmp_path / 'run.toml'}").decay is Decay.NONE
    assert command_line("--data mnist --method local --recipe tuned").options["learning_rate"] == pytest.approx(
        TUNED["local"].learning_rate_factor * 0.001
    )
    variants = make_variants(
        RunSpec(data="digits", decay=Decay.NONE), VariantChoices(("fedlog", "local"), given=frozenset({"decay"}))
    )
    for variant in variants:
        assert variant.spec.moments is TUNED[variant.spec.method].moments
        assert variant.spec.decay is Decay.NONE


@pytest.mark.parametrize("recipe", ["paper", "tuned"])
def test_a_run_in_python_has_the_recipe_and_its_command_repeats_it(recipe: str, tmp_path: Path) -> None:
    fedlog.run("digits", "local", recipe=recipe, rounds=1, epochs=1, out=tmp_path / "run", progress=False)
    stored = read_spec(tmp_path / "run")
    assert stored.moments is (AdamMoments.RUN if recipe == "tuned" else AdamMoments.EPOCH)
    again = command_line(format_repeat_command(stored).removeprefix("fedlog run"))
    assert resolve(again).digest == resolve(stored).digest
