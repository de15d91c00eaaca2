"""A finished model as a folder: it loads, predicts, refuses what does not fit, and becomes ONNX."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from fedlog.cli.main import main
from fedlog.core.keys import Key
from fedlog.data.schema import Feature, FeatureKind, Schema
from fedlog.data.tables import TableEncoder
from fedlog.data.transforms import IDENTITY, Transform
from fedlog.errors import InputError
from fedlog.models.body import HEAD, draw_initial_head
from fedlog.models.catalog import make_body
from fedlog.models.frozen import refuse_trained_weights
from fedlog.models.model import Model
from fedlog.models.model_folder import (
    RUN_DESCRIPTION,
    WEIGHTS,
    load_model,
    load_models,
    save_model,
    save_run_models,
)
from fedlog.models.onnx_export import export_onnx

TABLE = Schema(
    "y", ("no", "yes"), (Feature("x", FeatureKind.NUMERIC), Feature("z", FeatureKind.CATEGORICAL, ("p", "q")))
)
IMAGES = Schema("y", ("a", "b", "c"), input_shape=(1, 12, 12))


def made(schema: Schema, name: str, encoder: TableEncoder | None, transform: Transform) -> Model:
    chosen = make_body(name, schema.shape)
    head = draw_initial_head(chosen.width, schema.n_class, Key(1))
    params = {**chosen.make_initial_params(Key(2)), HEAD: head}
    return Model(chosen, params, schema, encoder, transform, {"run": "run-1"})


def table_model() -> Model:
    return made(TABLE, "mlp:6,4", TableEncoder(TABLE, (1.0,), (2.0,), (0.5,)), IDENTITY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", table_model())


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "new.csv"
    path.write_text("z,other,x\np,1,2.5\n,2,\nr,3,0\n")
    return path


def by_hand(model: Model) -> torch.Tensor:
    """The three new rows through the layers, written out."""
    rows = torch.tensor([[1.0, 0, 1, 0, 0, 0], [-2.0, 1, 0, 0, 0, 1], [-4.0, 0, 0, 0, 1, 0]])
    p = model.params
    hidden = torch.relu(rows @ p["1.weight"].T + p["1.bias"])
    features = torch.relu(hidden @ p["3.weight"].T + p["3.bias"])
    return (features @ p[HEAD][:, 1:].T + p[HEAD][:, 0]).softmax(1)


def test_a_folder_loads_and_predicts(folder: Path, new: Path) -> None:
    model = load_model(folder)
    labels, probabilities = model.predict(str(new)).tolist(), model.predict_proba(new)
    expected = by_hand(model)
    np.testing.assert_allclose(probabilities, expected.numpy(), rtol=1e-5)
    assert labels == [TABLE.label_values[int(best)] for best in expected.argmax(1)]
    assert model.provenance == {"run": "run-1"}


def test_the_command_prints_labels_and_probabilities(
    folder: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(folder), "--data", str(new)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(rows[0]) == ["label", "p_no", "p_yes"]
    assert main(["predict", str(folder), "--data", str(new), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["labels"] == [row["label"] for row in rows]
    assert [row[1] for row in told["probabilities"]] == [float(row["p_yes"]) for row in rows]


def test_a_level_is_refused_for_classes(folder: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(folder), "--data", str(new), "--level", "0.8"]) == 2
    assert "--level is for a model that predicts a number" in capsys.readouterr().err


def test_what_does_not_fit_is_refused(folder: Path, new: Path, tmp_path: Path) -> None:
    for source in (str(tmp_path / "nothing.csv"), str(tmp_path), "new.npz"):
        with pytest.raises(InputError, match="expected"):
            load_model(folder).inputs(source)
    with pytest.raises(InputError, match="expected a model folder"):
        load_model(tmp_path)
    described = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**described, "body": "mlp:7,4,4"}))
    with pytest.raises(InputError, match="parameters of body mlp:7,4,4"):
        load_model(folder)
    assert main(["predict", str(folder)]) == 2


def test_images_are_scaled_as_at_the_site(tmp_path: Path) -> None:
    model = made(IMAGES, "cnn-small", None, Transform(mean=(0.5,), std=(0.25,)))
    loaded = load_model(save_model(tmp_path / "model", model))
    pixels = Key(3).numpy().integers(0, 256, (2, 12, 12)).astype(np.uint8)
    (tmp_path / "pictures").mkdir()
    for at, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "pictures" / f"{at}.png")
    np.savez(tmp_path / "a.npz", inputs=pixels[:, None])
    inputs = loaded.inputs(str(tmp_path / "pictures"))
    assert torch.equal(inputs, loaded.inputs(str(tmp_path / "a.npz")))
    torch.testing.assert_close(inputs, (torch.from_numpy(pixels[:, None]) / 255 - 0.5) / 0.25)


def test_what_is_said_of_an_image_stands_beside_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = made(IMAGES, "cnn-small", None, IDENTITY)
    save_model(tmp_path / "model", model)
    (tmp_path / "pictures").mkdir()
    pixels = Key(3).numpy().integers(0, 256, (2, 12, 12)).astype(np.uint8)
    for name, image in zip(("b.png", "a.png"), pixels, strict=True):
        Image.fromarray(image).save(tmp_path / "pictures" / name)
    command = ["predict", str(tmp_path / "model"), "--data", str(tmp_path / "pictures")]
    assert main(command) == 0
    rows = {row["file"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    np.savez(tmp_path / "b.npz", inputs=pixels[:1, None])
    expected = model.predict_proba(tmp_path / "b.npz")[0]
    found = [float(rows["b.png"][f"p_{name}"]) for name in IMAGES.label_values]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["a.png", "b.png"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter's own
@pytest.mark.parametrize("name", ["mlp:6,4", "cnn-small"])
def test_onnx_gives_what_pytorch_gives(tmp_path: Path, name: str) -> None:
    model = table_model() if name.startswith("mlp") else made(IMAGES, name, None, IDENTITY)
    (tmp_path / "exported").mkdir()
    assert export_onnx(model, tmp_path / "exported" / "model.onnx") < 1e-5
    assert [path.name for path in (tmp_path / "exported").iterdir()] == ["model.onnx"]  # the weights are in it


def test_a_frozen_body_has_the_weights_of_its_file_and_never_moves(tmp_path: Path) -> None:
    inner = make_body("mlp:6,4", (5,))
    weights = inner.make_initial_params(Key(4))
    save_file({**weights, HEAD: torch.zeros(2, 5)}, tmp_path / "w.safetensors", metadata={"body": "mlp:6,4"})
    chosen = make_body(f"frozen:{tmp_path / 'w.safetensors'}", (5,))
    inputs = torch.linspace(-1, 1, 15).reshape(3, 5)
    params = chosen.make_initial_params(Key(9))
    torch.testing.assert_close(
        chosen.compute_features(params, inputs, None), inner.compute_features(weights, inputs, None)
    )
    assert chosen.buffers == {name for layer in chosen.layers for name in layer}
    for bad in ("nothing.safetensors", "plain.safetensors", "short.safetensors"):
        save_file(weights, tmp_path / "plain.safetensors")
        save_file({"1.weight": weights["1.weight"]}, tmp_path / "short.safetensors", metadata={"body": "mlp:6,4"})
        with pytest.raises(InputError, match="body frozen"):
            make_body(f"frozen:{tmp_path / bad}", (5,))


def test_weights_that_a_run_has_written_are_told_from_others(tmp_path: Path, folder: Path) -> None:
    weights = make_body("mlp:6,4", (5,)).make_initial_params(Key(4))
    save_file(weights, tmp_path / "public.safetensors", metadata={"body": "mlp:6,4"})
    refuse_trained_weights(tmp_path / "public.safetensors")
    save_file(weights, tmp_path / "run.safetensors", metadata={"body": "mlp:6,4", "method": "fedlog"})
    for path in (tmp_path / "run.safetensors", folder / WEIGHTS):
        with pytest.raises(InputError, match="was not trained on private data"):
            refuse_trained_weights(path)
    with pytest.raises(InputError, match="cannot read weights"):
        refuse_trained_weights(tmp_path / "nothing.safetensors")


def own_body() -> torch.nn.Module:
    """A user's body, named `test_predict:own_body`."""
    return torch.nn.Linear(6, 4)


def rename_body(folder: Path, name: str) -> None:
    path = folder / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "body": name}))


@pytest.mark.parametrize("name", ["os:abort", "os:abort@clamp:2", "antigravity:x"])
def test_a_model_folder_cannot_name_code(
    folder: Path, new: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    rename_body(folder, name)
    assert main(["predict", str(folder), "--data", str(new)]) == 2
    assert f"is a function that would be run: {name.partition('@')[0]}" in capsys.readouterr().err
    assert main(["predict", str(folder), "--data", str(new), "--allow-code", "os:getpid"]) == 2  # must match


def test_the_metadata_of_weights_cannot_name_code(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"weight": torch.zeros(4, 6), "bias": torch.zeros(4)}, path, metadata={"body": "os:abort"})
    with pytest.raises(InputError, match="is a function that would be run: os:abort"):
        make_body(f"frozen:{path}", (6,))


def test_code_that_is_allowed_by_name_is_used(
    tmp_path: Path, new: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDLOG_ALLOW_CODE", "")
    path = tmp_path / "weights.safetensors"
    save_file({"weight": torch.zeros(4, 6), "bias": torch.zeros(4)}, path, metadata={"body": "test_predict:own_body"})
    with monkeypatch.context() as changed:
        changed.setenv("FEDLOG_ALLOW_CODE", "test_predict:own_body")
        model = made(TABLE, f"frozen:{path}", TableEncoder(TABLE, (1.0,), (2.0,), (0.5,)), IDENTITY)
    folder = save_model(tmp_path / "own", model)
    assert main(["predict", str(folder), "--data", str(new)]) == 2
    assert main(["predict", str(folder), "--data", str(new), "--allow-code", "test_predict:own_body"]) == 0
    assert capsys.readouterr().out.startswith("label,")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"version": 1', '"version": 7', "expected a model folder of version 1, found 7"),
        ('"clients"', '"people"', "expected a model folder, found: .*KeyError: 'clients'"),
        ('"weights"', '"wights"', "expected a model folder, found: .*KeyError: 'weights'"),
        ("{", "", "expected a model folder, found: "),
    ],
)
def test_a_damaged_description_of_a_runs_models_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    save_run_models(tmp_path, {"north": table_model()})
    assert set(load_models(tmp_path)) == {"north"}
    description = tmp_path / RUN_DESCRIPTION
    assert old in description.read_text()
    description.write_text(description.read_text().replace(old, new, 1))
    for load in (lambda: load_models(tmp_path), lambda: load_model(tmp_path / "north")):
        with pytest.raises(InputError, match=says):
            load()
