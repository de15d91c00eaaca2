"""`fedlog.run` and its result, in memory and in a folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.datasets import load_wine
from torch import nn

import fedlog
from fedlog import Callback, Federation, InputError
from fedlog.algorithms.averaging import Averaging
from fedlog.api.progress import make_progress_callbacks
from fedlog.cli.main import main
from fedlog.data.data_spec import DataSpec
from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.experiments.run.callbacks import RunStart
from fedlog.experiments.run.records import Summary

X, Y = load_wine(return_X_y=True)
SITES = {name: (X[at::3], Y[at::3]) for at, name in enumerate(("east", "north", "south"))}
SHORT: dict[str, Any] = {"rounds": 2, "epochs": 1, "body": "mlp:8"}


def federation() -> Federation:
    return Federation.from_arrays(SITES)


@pytest.fixture(scope="module")
def result() -> fedlog.Result:
    return fedlog.run(federation(), **SHORT)


def test_importing_loads_neither_torch_nor_anything_slow() -> None:
    code = "import sys, fedlog; dir(fedlog); print(sorted({'torch', 'numpy', 'polars', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_figures_of_a_run(result: fedlog.Result) -> None:
    assert list(result.per_client) == ["east", "north", "south"]
    assert result.accuracy == pytest.approx(np.mean(list(result.per_client.values())), abs=1e-5)
    assert result.bits == result.bits_up + result.bits_down == result.history["bits"].iloc[-1]
    assert result.history["accuracy"].iloc[-1] == result.accuracy
    assert list(result.history["round"]) == [1, 2]
    assert result.accuracy_after_closing is None
    assert "fedlog on arrays, 2 rounds, seed 0: accuracy" in repr(result)
    assert "north" in result._repr_html_()
    assert len(result.plot().axes) == 2


def test_a_model_predicts_what_the_run_judged(result: fedlog.Result) -> None:
    data = federation()
    for at, (name, share) in enumerate(result.per_client.items()):
        shard = data.shards[at]
        model = result.models[name]
        right = model.probabilities(data.test.inputs[shard.test]).argmax(1) == data.test.labels[shard.test]
        assert float(right.double().mean()) == pytest.approx(share, abs=1e-5)
        # Raw rows pass through the site's own scaling: the same rows come out as the run's records.
        rows = {tuple(row) for row in data.test.inputs[shard.test].tolist()}
        assert rows <= {tuple(row) for row in model.inputs(SITES[name][0]).tolist()}


def test_predictions_take_any_form_and_are_labels_as_given(result: fedlog.Result) -> None:
    model = result.models["north"]
    expected = model.predict_proba(X)
    frame = pl.DataFrame({f"x{at}": X[:, at] for at in range(13)})
    for form in (torch.tensor(X), frame, X.tolist()):
        assert np.array_equal(model.predict_proba(form), expected)
    assert model.predict(X).dtype.kind == "i"
    np.testing.assert_allclose(expected.sum(axis=1), 1, atol=1e-6)
    with pytest.raises(InputError, match="expected records of 13 columns"):
        model.predict(X[:, :3])
    named = {name: (rows, np.array(["red", "white", "rose"])[labels]) for name, (rows, labels) in SITES.items()}
    assert set(fedlog.run(Federation.from_arrays(named), **SHORT).models["east"].predict(X)) <= {"red", "rose", "white"}
    with pytest.raises(KeyError, match="no model of west; there are models of east, north, south"):
        result.models["west"]


def test_a_run_is_the_same_in_memory_saved_and_in_a_folder(
    result: fedlog.Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = fedlog.load(result.save(tmp_path / "saved"))
    kept = fedlog.run(federation(), out=tmp_path / "kept", **SHORT)
    for other in (saved, kept):
        assert repr(other) == repr(result)
        assert np.array_equal(other.models["south"].predict_proba(X), result.models["south"].predict_proba(X))
        assert other.models["south"].predict(X).tolist() == result.models["south"].predict(X).tolist()
    pl.DataFrame({f"x{at}": X[:, at] for at in range(13)}).write_csv(tmp_path / "new.csv")
    for folder in ("saved", "kept"):
        command = [
            "predict",
            str(tmp_path / folder / "models" / "north"),
            "--data",
            str(tmp_path / "new.csv"),
            "--json",
        ]
        assert main(command) == 0
        told = json.loads(capsys.readouterr().out)
        assert [int(label) for label in told["labels"]] == result.models["north"].predict(X).tolist()
        assert main(["report", str(tmp_path / folder)]) == 0
        capsys.readouterr()
    # The page of what was in memory shows all that the page of the folder shows; only times differ.
    saved_page, kept_page = (
        re.sub(r"[\d.]+ s\b", "", (tmp_path / folder / "report.html").read_text()) for folder in ("saved", "kept")
    )
    assert 'id="figure-geometry"' in saved_page
    assert "classes (records)" in saved_page
    assert saved_page == kept_page
    with pytest.raises(InputError, match="expected a new or empty folder, found files in"):
        result.save(tmp_path / "kept")
    with pytest.raises(InputError, match="found no run in"):
        fedlog.load(tmp_path)
    assert main(["predict", str(tmp_path / "kept"), "--data", "new.csv"]) == 2
    assert "hint: name one of its models: " in capsys.readouterr().err


@pytest.mark.parametrize("site", ["A/B clinic", "../away", "/root", "south.safetensors"])
def test_a_model_is_found_whatever_its_client_is_called(
    site: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = fedlog.run(Federation.from_arrays({site: SITES["east"]}), out=tmp_path / "run", **SHORT)
    expected = kept.models[site].predict(X).tolist()
    assert fedlog.load(tmp_path / "run").models[site].predict(X).tolist() == expected
    pl.DataFrame({f"x{at}": X[:, at] for at in range(13)}).write_csv(tmp_path / "new.csv")
    assert main(["predict", str(tmp_path / "run"), "--data", "new.csv"]) == 2
    model = capsys.readouterr().err.split("hint: name one of its models: ")[1].strip()
    assert main(["predict", model, "--data", str(tmp_path / "new.csv"), "--json"]) == 0
    assert [int(label) for label in json.loads(capsys.readouterr().out)["labels"]] == expected


def test_changed_data_are_refused_and_an_old_result_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = fedlog.run(federation(), out=tmp_path / "run", **SHORT)
    again = fedlog.run(federation(), out=tmp_path / "run", progress=True, **SHORT)
    assert again.accuracy == first.accuracy
    assert "was finished before: nothing was trained" in capsys.readouterr().err
    changed = {**SITES, "north": (SITES["north"][0] + 1e-3, SITES["north"][1])}
    with pytest.raises(InputError, match="holds a run with the same settings, but on other records") as error:
        fedlog.run(Federation.from_arrays(changed), out=tmp_path / "run", **SHORT)
    assert error.value.hint == "the data have changed: choose another out"


def test_changed_files_and_functions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sites"
    folder.mkdir()
    for name, (rows, labels) in SITES.items():
        table = {**{f"x{at}": rows[:, at] for at in range(13)}, "kind": labels}
        pl.DataFrame(table).write_csv(folder / f"{name}.csv")
    settings = {**SHORT, "label": "kind"}
    fedlog.run(f"sites:{folder}", out=tmp_path / "run", **settings)
    moved = folder.rename(tmp_path / "elsewhere")
    assert fedlog.run(f"sites:{moved}", out=tmp_path / "run", **settings).accuracy > 0
    text = (moved / "east.csv").read_text()
    (moved / "east.csv").write_text(text.replace("14.23", "14.32", 1))
    with pytest.raises(InputError, match="on other records"):
        fedlog.run(f"sites:{moved}", out=tmp_path / "run", **settings)
    module = type(sys)("changing_data")
    module.make = lambda spec: Federation.from_arrays(SITES)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "changing_data", module)
    fedlog.run("changing_data:make", out=tmp_path / "function", **SHORT)
    module.make = lambda spec: Federation.from_arrays(dict(list(SITES.items())[:2]))  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="on other records than those of changing_data:make"):
        fedlog.run("changing_data:make", out=tmp_path / "function", **SHORT)


class Diary(Callback):
    """A callback that writes down every call."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def run_began(self, start: RunStart) -> None:
        self.told.append((start.method, start.data, start.rounds, start.clients, len(start.done)))

    def round_ended(self, record: RoundRecord) -> None:
        self.told.append(record.round)

    def run_ended(self, summary: Summary, trained: bool) -> None:
        self.told.append((summary.rounds, trained))


def test_callbacks_hear_of_the_start_of_every_round_and_of_the_end(tmp_path: Path) -> None:
    diary, other = Diary(), Diary()
    fedlog.run(federation(), out=tmp_path / "run", callbacks=[diary, other, Callback()], **SHORT)
    start = ("fedlog", "arrays", 2, ("east", "north", "south"), 0)
    assert diary.told == other.told == [start, 1, 2, (2, True)]
    fedlog.run(federation(), out=tmp_path / "run", callbacks=[diary], **SHORT)
    assert diary.told[4:] == [(2, False)]


def test_a_callback_that_raises_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    class Impatient(Callback):
        def round_ended(self, record: RoundRecord) -> None:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        fedlog.run(federation(), out=tmp_path / "run", callbacks=[Impatient()], **SHORT)
    diary = Diary()
    resumed = fedlog.run(federation(), out=tmp_path / "run", callbacks=[diary], **SHORT)
    assert diary.told[1:] == [2, (2, True)]
    assert repr(resumed) == repr(fedlog.run(federation(), **SHORT))


def make_body(input_shape: tuple[int, ...], width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU())


def test_bodies_are_names_modules_or_functions() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(26, 8))
    settings = {**SHORT, "rounds": 1}
    given = fedlog.run(federation(), **{**settings, "body": module})
    other = fedlog.run(federation(), **{**settings, "body": nn.Sequential(nn.Linear(26, 8))})
    assert given.spec.digest != other.spec.digest  # the parameters it starts from count
    assert fedlog.run(federation(), **{**settings, "body": module}).spec.digest == given.spec.digest
    assert fedlog.run(federation(), **{**settings, "body": make_body}).models["east"].body.width == 32
    narrow = partial(make_body, width=5)
    assert fedlog.run(federation(), **{**settings, "body": narrow}).models["east"].body.width == 5
    several = {"east": "mlp:9,8", "north": module, "south": lambda: nn.Linear(26, 8)}
    mixed = fedlog.run(federation(), **{**settings, "body": several})
    assert mixed.models["east"].body.name == "mlp:9,8"
    assert mixed.spec.body[1] == f"north={given.spec.body[0]}"
    with pytest.raises(InputError, match="does not know: depth"):
        fedlog.run(federation(), **{**settings, "body": lambda depth: nn.Linear(26, depth)})
    with pytest.raises(InputError, match="body is missing for clients: east, south"):
        fedlog.run(federation(), **{**settings, "body": {"north": "mlp:8"}})


def test_methods_are_names_or_classes() -> None:
    named = fedlog.run(federation(), "fedavg", recipe="paper", **SHORT)  # a class of one's own was not tuned

    def mine(plan: Any, epochs: int = 1, learning_rate: float = 0.001) -> Any:
        from fedlog.algorithms.averaging import fedavg

        made = fedavg(plan, epochs=epochs, learning_rate=learning_rate)
        assert isinstance(made, Averaging)
        return made

    own = fedlog.run(federation(), mine, **SHORT)
    assert own.per_client == named.per_client
    assert own.summary.method.endswith("mine")
    with pytest.raises(InputError, match="expected a method's name or class"):
        fedlog.run(federation(), 3, **SHORT)  # type: ignore[arg-type]


SITES_SORTED = ["east", "north", "south"]


def test_a_comparison_has_a_table(tmp_path: Path) -> None:
    found = fedlog.compare(
        federation(), ["fedlog", "local"], seeds=2, out=tmp_path / "all", options={"local": {"epochs": 2}}, **SHORT
    )
    assert found.methods == ("fedlog", "local", "pooled")  # pooling is always there
    assert [row.repetitions for row in found.rows] == [2, 2, 2]
    assert found.runs["local", 1].spec.options["epochs"] == 2
    assert found.rows[1].bits == 0
    assert list(found.table["site"]) == ["all", *SITES_SORTED] * 3
    assert "± " in repr(found)
    assert found._repr_html_().count("<tr>") == 8  # a head, three methods, a head, three sites
    assert len(found.plot().axes) == 4  # all sites, and each
    again = fedlog.compare(federation(), ["fedlog"], seeds=[1], out=tmp_path / "all", **SHORT)
    assert again.runs["fedlog", 1].accuracy == found.runs["fedlog", 1].accuracy
    with pytest.raises(InputError, match="different seeds"):
        fedlog.compare(federation(), seeds=[1, 1])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"roundz": 3}, "unknown setting: roundz"),
        ({"clients": 3}, "does not use clients: a federation made in Python is already divided among clients"),
        ({"validation_fraction": 0.1}, "it already has validation records"),
        ({"rounds": 0}, "rounds must be at least 1, found: 0"),
        ({"method": "fedlgo"}, "unknown method: fedlgo"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        fedlog.run(federation(), **settings)


def test_record_privacy_takes_rows_that_were_prepared_alone() -> None:
    private = {
        "privacy": "record",
        "epsilon": 5.0,
        "delta": 1e-5,
        "body_training": "frozen",
        "clip": "l2:3",
        "rounds": 1,
    }
    with pytest.raises(InputError, match="was scaled with the mean and spread of all its rows") as error:
        fedlog.run(federation(), **private)
    assert error.value.hint == "make the federation with rows_alone=True"
    alone = Federation.from_arrays(SITES, rows_alone=True)
    assert (fedlog.run(alone, **private).summary.privacy or {})["unit"] == "record"


def test_a_run_leaves_the_callers_threads_and_random_numbers_alone() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        torch.manual_seed(3)
        expected = torch.rand(1)
        torch.manual_seed(3)
        fedlog.run(federation(), **{**SHORT, "rounds": 1})
        assert torch.equal(torch.rand(1), expected)
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)


def test_progress_shows_where_someone_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_progress_callbacks(False) == make_progress_callbacks(None) == []
    assert len(make_progress_callbacks(True)) == 1
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert len(make_progress_callbacks(None)) == 1
    monkeypatch.setattr("fedlog.api.progress.find_spec", lambda name: None)
    (in_notebook,) = make_progress_callbacks(None)
    assert in_notebook._show_bar(title="rounds", total=1) is None  # lines, where ipywidgets are not installed


def test_a_named_data_set_by_its_name_and_as_a_federation() -> None:
    settings: dict[str, Any] = {"rounds": 1, "epochs": 1}
    by_name = fedlog.run("digits", clients=5, **settings)
    given = fedlog.run(Federation.named("digits", clients=5), **settings)
    assert by_name.per_client == given.per_client
    assert by_name.models["client-0"].predict(np.zeros((2, 1, 8, 8))).shape == (2,)
    assert DataSpec("digits").label is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fedlog.run("digits", out=5), "argument out must be a text or a path or None, found: 5"),
        (lambda: fedlog.compare("digits", jobs="2"), "argument jobs must be a whole number, found: '2'"),
        (lambda: fedlog.compare("digits", worth="1"), "argument worth must be a number, found: '1'"),
        (lambda: fedlog.compare("digits", methods=5), "argument methods must be a list, found: 5"),
        (lambda: fedlog.compare("digits", seeds=2.5), "argument seeds must be a whole number or a list or None"),
        (lambda: fedlog.compare("digits", seeds="12"), "every seed must be a whole number from 0 on, found: '1'"),
        (lambda: fedlog.compare("digits", seeds=[0, -1]), "every seed must be a whole number from 0 on, found: -1"),
        (lambda: fedlog.compare("digits", seeds=[True]), "every seed must be a whole number from 0 on, found: True"),
        (lambda: fedlog.compare("digits", seeds=[]), "expected at least one seed, found none"),
        (lambda: fedlog.compare("digits", seeds=[1, 1]), "expected different seeds, found: 1, 1"),
        (lambda: fedlog.compare("digits", methods=[]), "expected at least one method, found none"),
        (lambda: fedlog.load(None), "argument folder must be a text or a path, found: None"),
        (lambda: fedlog.Federation.from_csv("x", label=3), "argument label must be a text or None, found: 3"),
        (lambda: fedlog.Federation.from_arrays({}, name=3), "argument name must be a text, found: 3"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as found:
        call()
    assert found.value.hint
