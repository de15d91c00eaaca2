"""Every setting is stated once: flags, files and Flower's settings follow from its field."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest

import fedlog
from fedlog.cli.main import COMMANDS, make_parser
from fedlog.data import catalog
from fedlog.errors import InputError
from fedlog.flower.protocol.plan import Plan, format_plan_settings, make_plan, read_plan, read_run_spec
from fedlog.privacy.guarantee import Calibration, NoiseSetting, Trust, Unit
from fedlog.settings.data import Partition
from fedlog.settings.fields import find_setting_info
from fedlog.settings.flags import add_flags, read_given_settings
from fedlog.settings.promise import Promise
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec, convert_spec_to_json, list_deployed_settings, make_spec, read_spec_file
from fedlog.settings.training import AdamMoments, Decay, Optimiser, Recipe

SETTINGS = fields(RunSpec)
RECIPE = {"moments": "run", "decay": "cosine", "weight_decay": 0.25}
PRIVATE = {"privacy": "client", "epsilon": 4.0, "delta": 1e-5, "trust": "local", "message_norm": 20.0}


def _flags(names: list[str], given: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_flags(parser, names)
    return read_given_settings(parser.parse_args(given))


def test_every_setting_says_what_it_is() -> None:
    assert len(SETTINGS) >= 45
    assert all(len(find_setting_info(entry).help) > 5 for entry in SETTINGS)
    assert {*RECIPE, *PRIVATE, "method", "options", "rounds", "codec"} <= {
        entry.name for entry in list_deployed_settings()
    }
    assert get_args(Partition) == get_args(catalog.Partition)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_of_every_command_has_a_help_text(command: str) -> None:
    def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for below in action.choices.values():
                    yield from actions(below)
            else:
                yield action

    found = list(actions(make_parser([command])))
    assert [action.dest for action in found if not action.help] == []
    assert len(found) > 2


def test_every_setting_of_the_optimiser_has_a_value_here() -> None:
    assert RECIPE.keys() == {entry.name for entry in fields(Optimiser)}


def test_flags_files_and_programs_mean_the_same_run(tmp_path: Path) -> None:
    asked = {"data": "circle", "rounds": 2, "body": ["mlp:4"], **RECIPE}
    typed = [part for name, value in asked.items() for part in _typed(name, value)]
    by_flags = RunSpec(**_flags([entry.name for entry in SETTINGS], typed))
    lines = [f"{name} = {json.dumps(value)}" for name, value in asked.items()]
    (tmp_path / "run.toml").write_text("\n".join(lines))
    by_program = RunSpec(
        data="circle", rounds=2, body=("mlp:4",), moments=AdamMoments.RUN, decay=Decay.COSINE, weight_decay=0.25
    )
    assert by_flags == read_spec_file(tmp_path / "run.toml") == by_program
    run = resolve(by_program)
    assert make_spec(json.loads(json.dumps(convert_spec_to_json(run.spec))), "here") == run.spec
    assert run.settings.optimiser == Optimiser(AdamMoments.RUN, Decay.COSINE, 0.25)


def _typed(name: str, value: Any) -> list[str]:
    return [f"--{name.replace('_', '-')}", value[0] if isinstance(value, list) else str(value)]


@pytest.mark.parametrize("more", [{}, PRIVATE, {"aggregation": "secure", "honest": 3}, {"clip": "l2:2"}])
def test_settings_reach_the_sites_as_they_reach_the_simulator(more: dict[str, Any]) -> None:
    asked = {"rounds": 3, "seed": 5, "codec": "f16", "batch_size": 7, **RECIPE, **more}
    typed = [part for name, value in asked.items() for part in _typed(name, value)]
    spec = RunSpec(**_flags([entry.name for entry in list_deployed_settings()], [*typed, "--set", "epochs=2"]))
    plan = make_plan(spec, "trial", lambda: 4)
    again = make_plan(read_run_spec(format_plan_settings(plan)), "trial", lambda: 4)
    assert plan == again == read_plan(json.loads(json.dumps(plan.as_json())))
    run = resolve(replace(spec, data="digits"))
    assert plan.optimiser == run.settings.optimiser == Optimiser(AdamMoments.RUN, Decay.COSINE, 0.25)
    assert (plan.rounds, plan.seed, plan.codec, plan.batch_size) == (3, 5, "f16", 7)
    assert plan.options == {"epochs": 2}
    assert plan.feature_clip == run.spec.clip
    if run.promise is None:
        assert plan.promise is None
    else:
        assert plan.promise == replace(run.promise, noise=NoiseSetting.DISCRETE)
        assert plan.promise == Promise(Unit.CLIENT, Trust.LOCAL, 4.0, 1e-5, message_norm=20.0)
    assert (plan.secure is None) == (run.sums is None)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"epsilon": 1.0, "clip": "l2:2"}, "these settings need --privacy: epsilon"),
    ({"privacy": "client"}, "needs a budget"),
    ({**PRIVATE, "delta": 2.0}, "delta must be"),
    ({**PRIVATE, "aggregation": "secure"}, "local noise cannot be used with secure sums"),
    ({**PRIVATE, "message_norm": -1.0}, "message norm must be above 0"),
    ({**PRIVATE, "codec": "rows"}, "cannot be used in a private run"),
    ({"aggregation": "secure", "codec": "rows"}, "cannot be used in a secure sum"),
    ({"honest": 3}, "these settings need a secure sum: honest"),
    ({"aggregation": "secure", "refused_share": 0.5}, "cannot be used with secure sums: they hide single uploads"),
    ({"clip": "l3:1"}, "clip"),
]


@pytest.mark.parametrize(("asked", "said"), CONTRADICTIONS, ids=[said for _, said in CONTRADICTIONS])
def test_privacy_settings_contradict_each_other_alike_everywhere(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as simulated:
        resolve(RunSpec(**asked))
    with pytest.raises(InputError, match=said) as deployed:
        make_plan(RunSpec(**asked), "trial", lambda: 5)
    assert str(simulated.value) == str(deployed.value)


def test_every_setting_of_a_deployment_changes_its_plan() -> None:
    """One that were left out of the plan would be taken and do nothing."""
    asked: dict[str, Any] = {
        "method": "fedlog-c", "options": {"epochs": 2}, "rounds": 3, "batch_size": 7, "seed": 5, "codec": "f16",
        "carry": 0.5, "aggregation": "secure", "clip": "l2:2", "codec_down": "q8", "skip_below": 0.1,
        "largest_share": 0.2, **RECIPE,
    }  # fmt: skip
    in_rows: dict[str, Any] = {"down": "differences", "world": "closed"}  # which not every codec can do
    together = {"epsilon", "delta", "trust", "message_norm", "privacy", "honest", "refused_share"}
    assert asked.keys() | in_rows.keys() | together | {"recipe"} == {entry.name for entry in list_deployed_settings()}
    paper, tuned = (make_plan(read_run_spec({"recipe": name}), "trial", lambda: 5) for name in Recipe)
    assert (paper, tuned) == (Plan("trial"), replace(paper, options=tuned.options, optimiser=tuned.optimiser))
    assert tuned.optimiser != paper.optimiser
    for name, value in asked.items():
        assert make_plan(RunSpec(**{name: value}), "trial", lambda: 5) != Plan("trial"), name
    for name, value in in_rows.items():
        made = make_plan(RunSpec(**{"codec": "rows+q8", name: value}), "trial", lambda: 5)
        assert made != Plan("trial", codec="rows+q8"), name


def test_what_only_the_simulator_can_promise_is_refused_at_sites() -> None:
    with pytest.raises(InputError, match="expected --privacy record or client in a deployment"):
        make_plan(RunSpec(privacy=Unit.PAPER, epsilon=1.0, delta=1e-5, clip="l2:2"), "trial", lambda: 3)
    with pytest.raises(InputError, match="exact calibration"):
        make_plan(RunSpec(**PRIVATE, calibration=Calibration.PAPER), "trial", lambda: 3)


@pytest.mark.parametrize(
    ("values", "said", "hint"),
    [
        ({"momments": "run"}, "here: unknown setting: momments", "did you mean moments"),
        ({"rounds": "3"}, "here: rounds must be of type int, found: '3'", "rounds"),
        ({"rounds": True}, "here: rounds must be of type int, found: True", "rounds"),
        ({"moments": "ever"}, "here: unknown moments: ever", "one of epoch, round, run"),
        ({"participation": 0}, "here: participation must be above 0 and at most 1, found: 0", "share of the clients"),
        ({"weight_decay": float("inf")}, "here: weight decay must be a finite number, found: inf", "AdamW"),
        ({"options": [1]}, "here: options must be a table of names and values", ""),
        ({"body": 3}, "here: body must be a name or a list of names, found: 3", ""),
    ],
)
def test_a_mistake_names_the_setting_what_is_expected_and_where(values: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        make_spec(values, "here")
    assert refused.value.message.startswith(said)
    assert hint in (refused.value.hint or "")


def test_a_falling_rate_is_set_for_its_rounds() -> None:
    falling = Plan("trial", rounds=3, optimiser=Optimiser(decay=Decay.COSINE))
    assert falling.list_forbidden_changes(replace(falling, rounds=4)) == ["rounds"]
    level = replace(falling, optimiser=Optimiser())
    assert level.list_forbidden_changes(Plan("trial", rounds=4)) == []
    assert level.list_forbidden_changes(Plan("trial", rounds=4, batch_size=7)) == ["batch_size"]


NEW_FIELD = """    beta2: NotNegative = setting(
        0.999, "how long Adam's second moment remembers", in_digest=InDigest.UNLESS_DEFAULT, deployed=True, metavar="B"
    )


@dataclass(frozen=True, kw_only=True)
class RoundSettings("""
USE = """
import json, sys
from fedlog.cli.main import main
from fedlog.cli.federate import add_arguments
from fedlog.cli.main import Parser
from fedlog.engine.training.tasks import make_adam_arguments
from fedlog.flower.protocol.plan import format_plan_settings, make_plan, read_plan, read_run_spec
from fedlog.settings.flags import read_given_settings
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec, read_spec_file
from pathlib import Path

Path("run.toml").write_text("beta2 = 0.5")
spec = read_spec_file(Path("run.toml"))
top = Parser()
add_arguments(top)
typed = RunSpec(**read_given_settings(top.parse_args(["run", "server", "--beta2", "0.5"])))
plan = make_plan(typed, "trial", lambda: 0)
plan = make_plan(read_run_spec(format_plan_settings(plan)), "trial", lambda: 0)
plan = read_plan(json.loads(json.dumps(plan.as_json())))
for rule in (resolve(spec).settings.optimiser, plan.optimiser):
    assert make_adam_arguments(rule, 0.1)["beta2"] == 0.5
small = ["--data", "circle", "--rounds", "1", "--set", "epochs=1", "--jobs", "1", "--quiet"]
assert main(["run", *small, "--beta2", "0.5", "--out", "run"]) == 0
changed = json.loads(Path("run/config.json").read_text())["digest"]
print(json.dumps([resolve(RunSpec(data="circle", rounds=1, options={"epochs": 1})).digest, changed]))
"""


def test_a_new_setting_of_the_optimiser_is_one_field_and_its_use(tmp_path: Path) -> None:
    """Two source files change, and the setting is in flags, files, Flower's settings, the plan and the training."""
    copied = tmp_path / "src" / "fedlog"
    shutil.copytree(Path(fedlog.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in [
        ("settings/training.py", "\n\n@dataclass(frozen=True, kw_only=True)\nclass RoundSettings(", NEW_FIELD),
        ("engine/training/tasks.py", '"beta2": 0.999', '"beta2": rule.beta2'),
    ]:
        path = copied / name
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(copied.parent)!r})\n{USE}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    default, changed = json.loads(found.stdout.splitlines()[-1])
    before = resolve(RunSpec(data="circle", rounds=1, options={"epochs": 1})).digest
    assert default == before != changed  # records made before stay what they are
