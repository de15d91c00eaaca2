"""Encoders run by onnxruntime: a user's own ONNX file, or a graph made from a pretrained network."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlog.errors import InputError, first_line
from fedlog.files.json_text import digest_json
from fedlog.files.names import explain_missing
from fedlog.models.encoders.pixels import IMAGENET_MEAN, IMAGENET_STD, Pixels

ONNX = "onnx:"  # and the file, in a body's name
# Every call has this many records, the last one padded: kernels are chosen by the size of a call, so a record's
# features would else depend, in the last bit, on how many come with it.
BATCH = 16
ONE_FILE = "keep both files in one folder, or export with external_data=False"


@dataclass(frozen=True, eq=False)
class OnnxEncoder:
    """A graph from one input (n, ...) to one output (n, width)."""

    name: str
    width: int
    digest: str
    session: Any
    pixels: Pixels | None  # None: records go in as they are

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxEncoder:
        return self  # a session holds no state that a call changes

    def encode(self, raw: Tensor) -> Tensor:
        """(n, *input_shape) -> (n, width) float32."""
        if not len(raw):
            return torch.zeros(0, self.width)
        return torch.cat([self._encode_batch(part) for part in torch.split(raw, BATCH)])

    def _encode_batch(self, raw: Tensor) -> Tensor:
        inputs = self.pixels.prepare(raw) if self.pixels is not None else raw.to(torch.float32)
        padded = torch.zeros(BATCH, *inputs.shape[1:])
        padded[: len(inputs)] = inputs
        try:
            (features,) = self.session.run(None, {self.session.get_inputs()[0].name: padded.numpy()})
        except Exception as error:  # onnxruntime raises many kinds, all of them about shapes here
            raise InputError(f"encoder {self.name} refuses records of shape {tuple(raw.shape[1:])}: {error}") from None
        return torch.from_numpy(np.asarray(features, dtype=np.float32).reshape(BATCH, -1))[: len(inputs)].clone()


def open_session(source: str | bytes) -> Any:
    """An onnxruntime session on one thread of the CPU."""
    import onnxruntime  # an extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def onnx_width(name: str) -> int:
    """The number of features that the file declares; InputError where it declares none."""
    width = _open_file(name)[0].get_outputs()[0].shape[-1]
    if not isinstance(width, int):
        raise InputError(f"body {name}: the number of its features is not known", hint="export it with a fixed width")
    return width


def _open_file(name: str) -> tuple[Any, str]:
    """The session of an encoder's file, and the sha256 of its content and of the weights that lie beside it."""
    path = Path(name.removeprefix(ONNX))
    try:
        content = path.read_bytes()
    except OSError as error:
        hint = "is it a file that you may read?" if path.exists() else explain_missing(path)
        raise InputError(f"body {name}: the encoder cannot be read: {error.strerror}", hint=hint) from None
    try:
        beside = find_weights_beside(path, content)
        found = hashlib.sha256(content)
        for each in beside:
            found.update(hashlib.sha256(each.read_bytes()).digest())
        # By its path only where it must be: weights beside are looked for in the folder of the file.
        return open_session(str(path) if beside else content), found.hexdigest()
    except (ImportError, InputError):
        raise
    except Exception as error:
        raise InputError(f"body {name}: not an ONNX model that onnxruntime can run: {first_line(error)}") from None


def find_weights_beside(path: Path, content: bytes) -> list[Path]:
    """The files that a model keeps its weights in, beside the file itself: PyTorch writes one unless told not to."""
    import onnx  # an extra

    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's own
        raise InputError(f"body onnx:{path}: not an ONNX model: {first_line(error)}") from None
    graphs = [model.graph, *model.functions]
    names = {
        entry.value
        for graph in graphs
        for tensor in _list_tensors(graph)
        for entry in tensor.external_data
        if tensor.data_location == onnx.TensorProto.EXTERNAL and entry.key == "location"
    }
    for name in sorted(names):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(f"body onnx:{path}: its weights lie outside of its folder: {name}", hint=ONE_FILE)
        if not (path.parent / name).is_file():
            raise InputError(f"body onnx:{path}: the file with its weights is missing: {name}", hint=ONE_FILE)
    return [path.parent / name for name in sorted(names)]


def _list_tensors(graph: Any) -> Iterator[Any]:
    """All stored tensors of a graph or function, those of its inner graphs included."""
    yield from getattr(graph, "initializer", ())
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _list_tensors(inner)


def load_onnx(name: str, input_shape: tuple[int, ...]) -> OnnxEncoder:
    """The encoder in the file that a body's name `onnx:FILE` names, for records of that shape.

    The file's own metadata may say `mean` and `std` (three numbers each, in units of 0..255) and `side`; without them
    ImageNet's mean and std are taken, and the side that the graph's input has.
    """
    session, sha256 = _open_file(name)
    if len(session.get_inputs()) != 1 or len(session.get_outputs()) != 1:
        raise InputError(f"body {name}: an encoder has one input and one output", hint="export the features alone")
    told = dict(session.get_modelmeta().custom_metadata_map)
    pixels = _read_pixels(name, session.get_inputs()[0].shape, told) if len(input_shape) == 3 else None
    encoder = OnnxEncoder(name, 0, _make_digest("onnx", sha256, pixels), session, pixels)
    width = encoder._encode_batch(torch.zeros(1, *input_shape)).shape[1]
    if input_shape == (width,):
        raise InputError(
            f"body {name}: its input and output have the same width, so raw and encoded records look alike: {width}",
            hint="apply it to the table before, and use --body identity",
        )
    return OnnxEncoder(name, width, encoder.digest, session, pixels)


def _read_pixels(name: str, shape: list[Any], told: Mapping[str, str]) -> Pixels:
    side = told.get("side") or (shape[2] if len(shape) == 4 and isinstance(shape[2], int) else None)
    try:
        mean, std = (
            tuple(float(value) for value in told[key].split(",")) if key in told else default
            for key, default in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD))
        )
        if side is None or len(mean) != 3 or len(std) != 3:
            raise ValueError
        return Pixels(int(side), mean, std)
    except ValueError:
        raise InputError(
            f"body {name}: the size of its images is not known, or its metadata are no numbers: {dict(told)}, "
            f"input {shape}",
            hint="export it with a fixed height and width, or with the metadata side=224",
        ) from None


def _make_digest(kind: str, weights_sha256: str, pixels: Pixels | None) -> str:
    said = {"kind": kind, "weights": weights_sha256, "pixels": None if pixels is None else pixels.describe()}
    return digest_json(said)
