"""A finished model as a folder: body, head, schema, the site's scaling, and where it comes from.

    model = load_model(Path("north/models/run-1"))
    labels, probabilities = model.predict("new.csv")

Files: `model.safetensors` (all parameters, the head among them), `model.json` (the body's name, the scaling of images,
provenance), `schema.toml`, and for tables `encoder.json`, the medians and scales of the site's own training rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedlog.data.arrays import read_npz
from fedlog.data.images import IMAGE_SUFFIXES, image_files, read_image
from fedlog.data.schema import Schema, dump_schema, load_schema
from fedlog.data.tables import TABLE_SUFFIXES, Encoder, read_unlabelled
from fedlog.data.transforms import Transform
from fedlog.errors import InputError, RunError
from fedlog.files.durable import write_file
from fedlog.models.body import HEAD, SHIFT, Body, Params, logits
from fedlog.models.catalog import body as body_named
from fedlog.models.weights_file import METHOD

VERSION = 1
WEIGHTS, DESCRIPTION, SCHEMA, ENCODER = "model.safetensors", "model.json", "schema.toml", "encoder.json"
ONNX_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A classifier with everything that new records must pass through."""

    body: Body
    params: Params
    schema: Schema
    encoder: Encoder | None
    transform: Transform
    provenance: Mapping[str, Any]

    def inputs(self, source: str) -> Tensor:
        """What the body sees of the records in a table, an .npz file or a folder of images; labels are not needed."""
        path = Path(source)
        if path.suffix in TABLE_SUFFIXES:
            if self.encoder is None:
                raise InputError(f"expected images or arrays for this model, found a table: {path}")
            return self.encoder.encode(read_unlabelled(path, self.schema))
        if self.encoder is not None:
            raise InputError(f"expected a table ({', '.join(TABLE_SUFFIXES)}) for this model, found: {source}")
        return self.transform.prepare(_raw_inputs(path, self.schema))

    def probabilities(self, inputs: Tensor) -> Tensor:
        """(n, *input_shape) -> (n, n_class), rows that sum to 1."""
        with torch.no_grad():
            features = self.body.features(self.params, inputs, None)
            return logits(features, self.params).softmax(1)

    def predict(self, source: str) -> tuple[list[str], NDArray[np.float64]]:
        """The most probable label of every record, and the probabilities in the order of the schema's labels."""
        probabilities = self.probabilities(self.inputs(source))
        labels = [self.schema.label_values[int(best)] for best in probabilities.argmax(1)]
        return labels, probabilities.numpy().astype(np.float64)


def save_model(folder: Path, model: SavedModel) -> Path:
    """The folder, written; what was there under the same names is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.contiguous().clone() for name, value in model.params.items()}
    # So that nobody takes them for weights that never saw private data.
    save_file(tensors, folder / WEIGHTS, metadata={METHOD: "a federation"})
    described = {
        "version": VERSION,
        "body": model.body.name,
        "mean": list(model.transform.mean),
        "std": list(model.transform.std),
        "provenance": dict(model.provenance),
    }
    write_file(folder / DESCRIPTION, json.dumps(described, indent=1) + "\n")
    write_file(folder / SCHEMA, dump_schema(model.schema))
    if model.encoder is not None:
        write_file(folder / ENCODER, model.encoder.to_json() + "\n")
    return folder


def load_model(folder: Path) -> SavedModel:
    """The model in a folder that `save_model` wrote; an InputError says which part is missing or does not fit."""
    try:
        described = json.loads((folder / DESCRIPTION).read_text())
        if described["version"] != VERSION:
            raise InputError(f"expected a model folder of version {VERSION}, found {described['version']}: {folder}")
        params = load_file(folder / WEIGHTS)
        transform = Transform(mean=tuple(described["mean"]), std=tuple(described["std"]))
        schema = load_schema(folder / SCHEMA)
        body = body_named(described["body"], schema.shape)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(
            f"expected a model folder, found: {folder} ({type(error).__name__}: {error})",
            hint="a site writes one at the end of a run: SITE/models/RUN",
        ) from None
    encoder = Encoder.from_json((folder / ENCODER).read_text(), schema) if (folder / ENCODER).exists() else None
    _check_parameters(body, params, schema, folder)
    return SavedModel(body, params, schema, encoder, transform, described.get("provenance", {}))


def export_onnx(model: SavedModel, path: Path) -> float:
    """The largest difference between PyTorch's and onnxruntime's probabilities, after the model was written as ONNX.

    The graph goes from encoded inputs (`SavedModel.inputs`) to probabilities, with any number of records.
    """
    import onnxruntime  # an extra

    trial = torch.linspace(-2, 2, 3 * int(np.prod(model.body.input_shape))).reshape(3, *model.body.input_shape)
    module = _Whole(model).eval()
    torch.onnx.export(
        module,
        (trial,),
        path,
        input_names=["inputs"],
        output_names=["probabilities"],
        dynamic_shapes={"inputs": {0: torch.export.Dim("records")}},
        verbose=False,
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for inputs in (trial, torch.cat([trial, trial.flip(0)])):
        (found,) = session.run(None, {"inputs": inputs.numpy()})
        worst = max(worst, float(np.abs(found - model.probabilities(inputs).numpy()).max()))
    if not worst <= ONNX_TOLERANCE:
        raise RunError(
            f"expected ONNX outputs within {ONNX_TOLERANCE} of PyTorch's, found a difference of {worst}: {path}"
        )
    return worst


class _Whole(nn.Module):
    """Body and head as one module, its parameters constants of the graph."""

    def __init__(self, model: SavedModel) -> None:
        super().__init__()
        self._model = model
        self._head = {name: value for name, value in model.params.items() if name in (HEAD, SHIFT)}

    def forward(self, inputs: Tensor) -> Tensor:
        features = self._model.body.features(self._model.params, inputs, None)
        return logits(features, self._head).softmax(1)


def _check_parameters(body: Body, params: Params, schema: Schema, folder: Path) -> None:
    expected = {name for layer in body.layers for name in layer}
    found = set(params) - {HEAD, SHIFT}
    if expected != found or HEAD not in params or tuple(params[HEAD].shape) != (schema.n_class, 1 + body.width):
        raise InputError(
            f"expected the parameters of body {body.name} and a head for {schema.n_class} classes in "
            f"{folder / WEIGHTS}, found: {', '.join(sorted(params))}"
        )


def _raw_inputs(path: Path, schema: Schema) -> Tensor:
    if path.suffix == ".npz":
        values = read_npz(path, ("inputs",))["inputs"]
        if values.shape[1:] != schema.input_shape:
            raise InputError(f"expected inputs of shape (n, {schema.input_shape}) in {path}, found: {values.shape}")
        return torch.from_numpy(values if values.dtype == np.uint8 else values.astype(np.float32))
    if not path.is_dir():
        raise InputError(f"expected an .npz file or a folder of images, found: {path}")
    files = image_files(path)
    if not files:
        raise InputError(f"expected images ({', '.join(sorted(IMAGE_SUFFIXES))}) in {path}, found none")
    return torch.from_numpy(
        np.stack([read_image(file, schema.input_shape[0], schema.input_shape[1:]) for file in files])
    )
