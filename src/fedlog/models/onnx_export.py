"""Export a model as an ONNX file, and check it against PyTorch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedlog.errors import InputError, RunError
from fedlog.models.body import RESERVED, logits
from fedlog.models.model import Model

ONNX_TOLERANCE = 1e-4


def export_onnx(model: Model, path: Path) -> float:
    """Write the model as ONNX; return the largest difference between PyTorch's and onnxruntime's probabilities.

    The graph goes from encoded inputs (`Model.inputs`) to probabilities, with any number of records.
    """
    if model.schema.target_range is not None:
        raise InputError(
            f"a model that predicts a number cannot be exported as ONNX: {model!r}",
            hint="use `fedlog predict`, or Model.predict in Python",
        )
    import onnxruntime  # an extra

    trial = torch.linspace(-2, 2, 3 * int(np.prod(model.body.input_shape))).reshape(3, *model.body.input_shape)
    module = _WholeModel(model).eval()
    with _hide_warnings():
        torch.onnx.export(
            module,
            (trial,),
            path,
            input_names=["inputs"],
            output_names=["probabilities"],
            dynamic_shapes={"inputs": {0: torch.export.Dim("records")}},
            verbose=False,
            external_data=False,  # else the weights are in a second file, and the first is useless without it
        )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for inputs in (trial, torch.cat([trial, trial.flip(0)])):
        (found,) = session.run(None, {"inputs": inputs.numpy()})
        worst = max(worst, float(np.abs(found - model.probabilities(inputs).numpy()).max()))
    if not worst <= ONNX_TOLERANCE:
        raise RunError(
            f"expected ONNX outputs within {ONNX_TOLERANCE} of PyTorch's, found a difference of {worst}: {path}",
            hint="do not use this file; other versions of torch and onnxruntime may agree",
        )
    return worst


@contextmanager
def _hide_warnings() -> Iterator[None]:
    """Hide the exporter's warnings about packages that are not needed; its errors are still raised."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


class _WholeModel(nn.Module):
    """Body and head as one module, with their parameters as constants of the graph."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model
        self._head = {name: value for name, value in model.params.items() if name in RESERVED}

    def forward(self, inputs: Tensor) -> Tensor:
        features = self._model.body.compute_features(self._model.params, inputs, None)
        return logits(features, self._head).softmax(1)
