"""Encoders that onnxruntime runs: a user's ONNX file, or the graph of a pretrained network."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.errors import InputError, get_first_line_of_error
from fedlog.files.json_text import digest_json
from fedlog.files.names import hint_at_missing_path
from fedlog.models.encoders.pixels import IMAGENET_MEAN, IMAGENET_STD, PixelFormat

ONNX = "onnx:"  # in a body's name, before the file
# Every batch has this many records; the last one is padded. Otherwise a record's features would depend, in the last
# bit, on the number of records in the batch, since kernels are chosen by it.
BATCH = 16
ONE_FILE = "keep both files in one folder, or export with external_data=False"


@dataclass(frozen=True, eq=False)
class OnnxEncoder:
    """An encoder that onnxruntime runs: a graph from one input (n, ...) to one output (n, width)."""

    name: str
    width: int
    digest: str
    session: Any
    pixels: PixelFormat | None  # None: records are not images and are not changed
    mixes_records: bool = False  # whether the records of a batch affect each other's features

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxEncoder:
        return self  # calls do not change a session, so copies can share it

    def encode(self, raw: Tensor) -> Tensor:
        """The features of raw records, (n, *input_shape) -> (n, width) float32."""
        if not len(raw):
            return torch.zeros(0, self.width)
        # A record that would affect the others of its batch is encoded in a batch of its own, padded with zeros.
        return torch.cat([self._encode_batch(part) for part in torch.split(raw, 1 if self.mixes_records else BATCH)])

    def _encode_batch(self, raw: Tensor) -> Tensor:
        inputs = self.pixels.prepare(raw) if self.pixels is not None else raw.to(torch.float32)
        padded = torch.zeros(BATCH, *inputs.shape[1:])
        padded[: len(inputs)] = inputs
        try:
            (features,) = self.session.run(None, {self.session.get_inputs()[0].name: padded.numpy()})
        except Exception as error:  # onnxruntime raises many kinds of errors; here they are about shapes
            shape = tuple(raw.shape[1:])
            raise InputError(
                f"encoder {self.name} cannot take records of shape {shape}: {error}",
                hint=f"export it for records of this shape, and for batches of any number of records (or of {BATCH})",
            ) from None
        return torch.from_numpy(np.asarray(features, dtype=np.float32).reshape(BATCH, -1))[: len(inputs)].clone()


def open_session(source: str | bytes) -> Any:
    """Open an onnxruntime session on one thread of the CPU."""
    import onnxruntime  # an extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def read_onnx_width(name: str) -> int:
    """The number of features that the ONNX file declares; InputError if it declares none."""
    width = _open_and_digest_file(name)[0].get_outputs()[0].shape[-1]
    if not isinstance(width, int):
        raise InputError(
            f"body {name}: the ONNX file does not say how many features it has", hint="export it with a fixed width"
        )
    return width


def _open_and_digest_file(name: str) -> tuple[Any, str]:
    """Open an encoder's file: return its session, and the sha256 of the file together with its weight files."""
    path = Path(name.removeprefix(ONNX))
    try:
        content = path.read_bytes()
    except OSError as error:
        hint = "is it a file that you may read?" if path.exists() else hint_at_missing_path(path)
        raise InputError(f"body {name}: the encoder cannot be read: {error.strerror}", hint=hint) from None
    try:
        weight_files = find_external_weights(path, content)
        found = hashlib.sha256(content)
        for each in weight_files:
            found.update(hashlib.sha256(each.read_bytes()).digest())
        # onnxruntime needs the path to find weight files in the same folder.
        return open_session(str(path) if weight_files else content), found.hexdigest()
    except (ImportError, InputError):
        raise
    except Exception as error:
        raise InputError(
            f"body {name}: not an ONNX model that onnxruntime can run: {get_first_line_of_error(error)}",
            hint="export it again, perhaps with an older opset",
        ) from None


def find_external_weights(path: Path, content: bytes) -> list[Path]:
    """The files that hold an ONNX model's weights (PyTorch writes one by default); InputError if one is missing."""
    import onnx  # an extra

    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's own
        raise InputError(
            f"body onnx:{path}: not an ONNX model: {get_first_line_of_error(error)}",
            hint="give a file that an exporter such as torch.onnx wrote",
        ) from None
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
            raise InputError(f"body onnx:{path}: its weight file is in another folder: {name}", hint=ONE_FILE)
        if not (path.parent / name).is_file():
            raise InputError(f"body onnx:{path}: its weight file is missing: {name}", hint=ONE_FILE)
    return [path.parent / name for name in sorted(names)]


def _list_tensors(graph: Any) -> Iterator[Any]:
    """Yield all tensors stored in an ONNX graph or function, also those in its inner graphs."""
    yield from getattr(graph, "initializer", ())
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _list_tensors(inner)


def load_onnx(name: str, input_shape: tuple[int, ...]) -> OnnxEncoder:
    """The encoder of a body named `onnx:FILE`, for records of that shape.

    The file's metadata may have `mean` and `std` (three numbers each, for pixels from 0 to 255), and `side`, the height
    and width of the square input images in pixels. Defaults: ImageNet's mean and std, and the size that the graph has.
    """
    session, sha256 = _open_and_digest_file(name)
    if len(session.get_inputs()) != 1 or len(session.get_outputs()) != 1:
        raise InputError(
            f"body {name}: an encoder must have one input and one output, found: {len(session.get_inputs())} and "
            f"{len(session.get_outputs())}",
            hint="export only the features",
        )
    metadata = dict(session.get_modelmeta().custom_metadata_map)
    pixels = _read_pixel_format(name, session.get_inputs()[0].shape, metadata) if len(input_shape) == 3 else None
    content = {"kind": "onnx", "weights": sha256, "pixels": None if pixels is None else pixels.describe()}
    encoder = OnnxEncoder(name, 0, digest_json(content), session, pixels)
    width = encoder._encode_batch(torch.zeros(1, *input_shape)).shape[1]
    mixes = _mixes_records(encoder, input_shape)
    if mixes:  # another digest, so that features from batches with other records are not taken from the cache
        content["records"] = "one in a call"
    if input_shape == (width,):
        raise InputError(
            f"body {name} makes {width} features of records of {width} numbers, so their shape does not tell "
            "whether they are records or features",
            hint="encode the table yourself, and use --body identity",
        )
    return OnnxEncoder(name, width, digest_json(content), session, pixels, mixes)


def _mixes_records(encoder: OnnxEncoder, input_shape: tuple[int, ...]) -> bool:
    """Whether a record's features depend on the other records of its batch, or on its position in the batch.

    For example, a dynamically quantised network rounds to steps that depend on the largest value of the batch.
    A record of middling values is encoded alone, then as the first and as the last of a batch of records with extreme
    values; its features must be the same each time.
    """
    draws, largest = Key(0).child("mixed records").torch(), 255.0 if encoder.pixels is not None else 1.0
    record = largest * (0.4 + 0.2 * torch.rand(1, *input_shape, generator=draws))
    others = largest * torch.randint(0, 2, (BATCH - 1, *input_shape), generator=draws)
    alone = encoder._encode_batch(record)
    first, last = encoder._encode_batch(torch.cat([record, others])), encoder._encode_batch(torch.cat([others, record]))
    return not all(torch.allclose(row, alone, rtol=0, atol=0, equal_nan=True) for row in (first[:1], last[-1:]))


def _read_pixel_format(name: str, shape: list[Any], metadata: Mapping[str, str]) -> PixelFormat:
    side = metadata.get("side") or (shape[2] if len(shape) == 4 and isinstance(shape[2], int) else None)
    try:
        mean, std = (
            tuple(float(value) for value in metadata[key].split(",")) if key in metadata else default
            for key, default in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD))
        )
        if side is None or len(mean) != 3 or len(std) != 3:
            raise ValueError
        return PixelFormat(int(side), mean, std)
    except ValueError:
        raise InputError(
            f"body {name}: the ONNX file must state the side of its images, and mean and std as three numbers each, "
            f"found: input {shape}, metadata {dict(metadata)}",
            hint="export it with a fixed height and width, or with the metadata side=224",
        ) from None
