"""Follow the pages in docs/extend: the code of each page is imported, run and checked against the contract."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import test_codecs as codec_contract
import torch

from fedlog.algorithms.registry import METHODS
from fedlog.cli.main import main
from fedlog.core.keys import Key
from fedlog.data.catalog import load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.engine.clients import list_clients, make_model_plan
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.block.compile import compile_stacked_body
from fedlog.engine.training.block.registry import BLOCKS
from fedlog.engine.training.tasks import Settings, Task
from fedlog.models.body import HEAD, draw_initial_head
from fedlog.models.catalog import make_body
from fedlog.settings.execution import BackendChoice
from fedlog.testing import check_method
from fedlog.testing.trial import find_largest_difference
from fedlog.wire.codec import CODECS, find_codec

PAGES = Path(__file__).parents[2] / "docs" / "extend"
Follow = Callable[[str], ModuleType]
SHORT = ["--set", "epochs=1", "--train-records", "300"]


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follow]:
    """A function that saves a page's code under the name that the page gives, and imports it.

    Layers that the code registers are taken back after the test.
    """
    saved: list[str] = []

    def followed(page: str) -> ModuleType:
        text = (PAGES / f"{page}.md").read_text()
        (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        (name,) = re.findall(r"Save it as `(\w+)\.py`", text)
        (tmp_path / f"{name}.py").write_text(code)
        saved.append(name)
        return importlib.import_module(name)

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with mock.patch.dict(BLOCKS):
        yield followed
    for name in saved:
        sys.modules.pop(name, None)


def command_of(page: str) -> list[str]:
    """The arguments of the command on a page, for one round."""
    (line,) = re.findall(r"^\$ PYTHONPATH=\. fedlog (.*)$", (PAGES / f"{page}.md").read_text(), re.MULTILINE)
    told = line.replace("--rounds 5", "--rounds 1").split()
    return [*told, "--quiet", "--json", "--out", "run"]


def accuracy(capsys: pytest.CaptureFixture[str]) -> float:
    return float(json.loads(capsys.readouterr().out)["accuracy_mean_over_clients"])


@pytest.mark.parametrize(("page", "options"), [("method", SHORT), ("one-exchange", [])])
def test_the_methods_of_the_pages(
    page: str, options: list[str], follow: Follow, capsys: pytest.CaptureFixture[str]
) -> None:
    follow(page)
    assert main([*command_of(page), *options]) == 0
    assert accuracy(capsys) > 0.2
    (checked,) = re.findall(r"check_method\('(.*)'\)", (PAGES / f"{page}.md").read_text())
    check_method(checked)


def test_the_codec_of_the_page(
    follow: Follow, small: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CODECS, "zipped", find_codec("f32"))  # taken back after the test
    made = follow("codec").CODECS["zipped"]
    assert find_codec("zipped") is made
    assert made.number not in {each.number for name, each in CODECS.items() if name != "zipped"}
    for which in codec_contract.NAMES:
        codec_contract.test_what_comes_back_has_the_same_kind_shapes_and_sorts_and_is_close("zipped", which)
    runs = {name: small.simulation("fedlog", small.federation([5, 8]), codec=name) for name in ("f32", "zipped")}
    records = {name: list(simulation.rounds()) for name, simulation in runs.items()}
    assert [r.correct_per_client for r in records["f32"]] == [r.correct_per_client for r in records["zipped"]]
    assert find_largest_difference(*(small.models(simulation) for simulation in runs.values())) == 0
    # Damaged bytes are refused, whatever was done to them.
    blob = made.encode(codec_contract.messages()["statistics"], Key(1))
    for damaged in (b"", blob[:-1], blob[1:], blob + b"x", b"\x01" + blob[1:]):
        with pytest.raises(codec_contract.WireError):
            made.decode(damaged)


@pytest.mark.parametrize(("page", "name"), [("body", "digit_bodies:digit_cnn"), ("layer", "learned_swish:swish_cnn")])
def test_the_bodies_of_the_pages(page: str, name: str, follow: Follow, capsys: pytest.CaptureFixture[str]) -> None:
    follow(page)
    assert main([*command_of(page), *SHORT]) == 0
    assert accuracy(capsys) > 0.2
    federation = load_federation(DataSpec("digits", clients=5, train_records=60))
    found = make_body(name, federation.input_shape)
    bodies = [found] * 5
    algorithm = METHODS["fedavg"](make_model_plan(federation, bodies), epochs=1, learning_rate=0.01)
    clients = list_clients(federation, bodies, algorithm)
    start = {HEAD: draw_initial_head(found.width, federation.n_class, Key(1)), **found.make_initial_params(Key(1))}
    work = algorithm.start_exchange("average", {name: value.double() for name, value in start.items()}, {})
    tasks = [Task(c, work, algorithm.schedule.round[0].phases, Key(2).child(c.name)) for c in clients]
    settings = Settings(batch_size=5, dtype=torch.float64)
    trained = {}
    for choice in (BackendChoice.LOOP, BackendChoice.BLOCK, BackendChoice.VMAP):
        (backend,) = Engine(settings, choice).make_backends(federation, clients).values()
        trained[choice] = {str(at): fit.params for at, fit in enumerate(backend.train(tasks))}
    for choice in (BackendChoice.BLOCK, BackendChoice.VMAP):
        assert find_largest_difference(trained[choice], trained[BackendChoice.LOOP]) < 1e-9


def test_the_layer_of_the_page_is_computed_by_its_block(follow: Follow) -> None:
    followed = follow("layer")
    found = compile_stacked_body(make_body("learned_swish:swish_cnn", (1, 8, 8)))
    assert found is not None
    assert found.training.without_block == ()
    assert followed.LearnedSwishStage in {type(step.stage) for step in found.training.steps}


def test_the_partition_of_the_page(follow: Follow, capsys: pytest.CaptureFixture[str]) -> None:
    divide = follow("partition").divide_by_size
    parts = divide(1797, 6, Key(3))
    assert sorted(at for part in parts for at in part.tolist()) == list(range(1797))
    assert [len(part) for part in parts] == sorted((len(part) for part in parts), reverse=True)
    assert all((one == again).all() for one, again in zip(parts, divide(1797, 6, Key(3)), strict=True))
    assert main([*command_of("partition"), "--set", "epochs=1"]) == 0
    assert accuracy(capsys) > 0.2


def test_every_page_is_followed() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {
        "method", "one-exchange", "codec", "body", "layer", "partition"
    }  # fmt: skip
