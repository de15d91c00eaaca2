"""Methods that users write: options on the command line, names of clients, and a run repeated from its command."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import save_file

import fedlog
from fedlog.algorithms.fedlog import FedLog
from fedlog.algorithms.one_exchange.solved_heads import FedNCM
from fedlog.algorithms.registry import read_options
from fedlog.cli.main import main
from fedlog.core.keys import Key
from fedlog.core.stats import Moments
from fedlog.data.catalog import load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.data.federation import Federation
from fedlog.errors import InputError
from fedlog.models.catalog import make_body
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec, read_spec_file

# In a module that knows neither `ModelPlan` nor `FirstHead`, whose names are among the inherited annotations.
INHERITING = """
from __future__ import annotations
from dataclasses import dataclass
from fedlog.algorithms.fedlog import FedLog

@dataclass(frozen=True)
class Mine(FedLog):
    shout: bool = False
"""


@dataclass(frozen=True)
class Telling(FedLog):
    """FedLog with options of all kinds."""

    shout: bool = False
    size: Literal["small", "large"] = "small"
    anything: Any = None
    parts: tuple[int, ...] = ()
    limit: int | None = None


@pytest.fixture(autouse=True)
def own_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("fedlog_own_methods")
    vars(module)["Telling"] = Telling
    monkeypatch.setitem(sys.modules, "fedlog_own_methods", module)
    return module


TELLING = "fedlog_own_methods:Telling"


@pytest.mark.parametrize(
    ("name", "said", "meant"),
    [
        ("shout", "false", False),
        ("shout", "True", True),
        ("shout", True, True),
        ("size", "large", "large"),
        ("anything", "3", "3"),
        ("anything", None, None),
        ("parts", (1, 2), (1, 2)),
        ("limit", "none", None),
        ("limit", "4", 4),
    ],
)
def test_an_option_becomes_what_its_type_says(name: str, said: Any, meant: Any) -> None:
    assert read_options(TELLING, {name: said}) == {name: meant}


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [("shout", "0", "true or false"), ("size", "huge", "one of small, large"), ("limit", "some", "int")],
)
def test_what_an_option_cannot_be_is_refused_with_what_it_can(name: str, said: str, expected: str) -> None:
    with pytest.raises(InputError, match=f"option {name} of .* cannot be '{said}'") as refused:
        read_options(TELLING, {name: said})
    assert refused.value.hint == f"expected {expected}"


class Making(FedLog):
    """FedLog with a constructor of its own."""

    def __init__(self, plan: Any, strength: float = 1, limit: float | None = None) -> None:
        super().__init__(plan)


def test_the_types_of_an_own_constructor_count(own_module: ModuleType) -> None:
    vars(own_module)["Making"] = Making
    told = {"strength": "0.5", "limit": "0.25"}
    assert read_options("fedlog_own_methods:Making", told) == {"strength": 0.5, "limit": 0.25}


def test_options_without_annotations_are_of_the_defaults_types(own_module: ModuleType) -> None:
    def mine(plan, steps=3, note=None):  # type: ignore[no-untyped-def]
        return FedLog(plan)

    vars(own_module)["mine"] = mine
    assert read_options("fedlog_own_methods:mine", {"steps": "4", "note": "x"}) == {"steps": 4, "note": "x"}


def test_a_method_that_inherits_its_options_can_be_told_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fedlog_inheriting.py").write_text(INHERITING)
    monkeypatch.syspath_prepend(str(tmp_path))
    typed_in = "run --data circle --rounds 1 --quiet --json --out r --method fedlog_inheriting:Mine --set shout=false"
    assert main([*typed_in.split(), "--set", "first_head=random", "--set", "epochs=1"]) == 0
    capsys.readouterr()
    options = json.loads(Path("r/config.json").read_text())["spec"]["options"]
    assert (options["shout"], options["first_head"], options["epochs"]) == (False, "random", 1)


def test_a_long_name_becomes_a_file_name_of_its_own(own_module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def hospitals(spec: DataSpec) -> Federation:
        circle = load_federation(DataSpec("circle", clients=2))
        names = [f"Городская клиническая больница имени Боткина {number}" for number in (1, 2)]
        shards = [replace(shard, name=name) for shard, name in zip(circle.shards, names, strict=True)]
        return replace(circle, shards=tuple(shards))

    vars(own_module)["hospitals"] = hospitals
    given = ["--body", "mlp:4", "--rounds", "1", "--quiet", "--out", "r"]
    assert main(["run", "--data", "fedlog_own_methods:hospitals", *given]) == 0
    capsys.readouterr()
    files = sorted(path.name for path in Path("r/models").glob("*.safetensors"))
    assert len(files) == 2
    assert all(name.startswith("%D0%93") and len(name) < 255 for name in files)


def test_one_experiment_said_in_two_ways_is_one_run(tmp_path: Path) -> None:
    lines = ('data = "digits"', 'partition = "dirichlet"', "dirichlet_alpha = 1", "participation = 1")
    (tmp_path / "whole.toml").write_text("\n".join(lines))
    written = resolve(read_spec_file(tmp_path / "whole.toml"))
    typed_in = RunSpec(data="digits", partition="dirichlet", dirichlet_alpha=1.0, participation=1.0)
    assert written.digest == resolve(typed_in).digest
    assert written.digest == resolve(replace(typed_in, refused_share=0)).digest
    assert written.digest != resolve(replace(typed_in, refused_share=0.5)).digest


def test_a_run_goes_on_from_another_folder_with_its_body_s_file_named_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = make_body("mlp:4", (2,))
    save_file(found.make_initial_params(Key(1)), tmp_path / "start.safetensors")
    save_file(
        {name: torch.zeros_like(value) for name, value in found.make_initial_params(Key(1)).items()}, tmp_path / "other"
    )
    given = ["--body", "mlp:4", "--rounds", "2", "--quiet", "--body-file", "start.safetensors"]
    assert main(["run", "--data", "circle", *given, "--out", "my run"]) == 0
    Path("my run/summary.json").unlink()  # as if it had been killed at the end
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    capsys.readouterr()
    assert main(["run", "--resume", "../my run", "--quiet"]) == 2
    assert main(["run", "--resume", "../my run", "--quiet", "--body-file", "../other"]) == 2
    assert "holds a run with other settings; the new run has another body file\n" in capsys.readouterr().err
    assert main(["run", "--resume", "../my run", "--quiet", "--body-file", "../start.safetensors"]) == 0
    assert main(["run", "--resume", "../my run", "--rounds", "3"]) == 2
    assert "--resume '../my run'" in capsys.readouterr().err


@dataclass(frozen=True)
class TooWide(FedNCM):
    """A method whose head has a column too many."""

    def solve(self, moments: Moments, noise_std: float = 0.0) -> torch.Tensor:
        return torch.ones(moments.n_class, 2 + moments.width, dtype=torch.float64)


def test_a_head_of_the_wrong_shape_is_refused_by_its_shape(own_module: ModuleType) -> None:
    vars(own_module)["TooWide"] = TooWide
    with pytest.raises(InputError, match=r"a head of 1 \+ 32 columns for the body's features, found shape: \(10, 34\)"):
        fedlog.run("digits", method="fedlog_own_methods:TooWide", rounds=1)
