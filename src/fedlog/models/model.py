"""A trained model with the encoding and scaling that new records need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlog.core.heads.regression import NumberHead
from fedlog.data.arrays import read_npz, to_tensor
from fedlog.data.images import IMAGE_SUFFIXES, list_images, read_image
from fedlog.data.schema import Range, Schema, unscale_targets
from fedlog.data.transforms import Transform
from fedlog.errors import InputError, add_default_hint
from fedlog.models.body import Body, Params, find_number_head, logits

if TYPE_CHECKING:
    from fedlog.data.tables import TableEncoder  # not at run time, because polars is slow to import

# The entry of a model's provenance, or of the report in its folder: classes without a training row at its site.
UNSEEN = "unseen_classes"


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A client's trained model: its body and head, and the encoding and scaling of new records.

    `Result.models["north"]` is a `Model`; `fedlog predict` loads a `Model` from a folder.
    """

    body: Body
    params: Params
    schema: Schema
    encoder: TableEncoder | None
    transform: Transform
    provenance: Mapping[str, Any]
    labels: tuple[int, ...] = field(default=())
    """The number of each class in the user's data, if labels are numbers; empty if the schema has them as texts."""

    @property
    def classes(self) -> NDArray[Any]:
        """The labels, numbers or texts as in the training data, in the order of the columns of `predict_proba`."""
        return np.array(self.labels or self.schema.label_values)

    def predict(self, records: Any) -> NDArray[Any]:
        """The most probable label of each record, or its expected number if the model predicts numbers.

        Args:
            records: an array, tensor or data frame like the training records, without labels; or the path of a table,
                an .npz file or a folder of images.

        Returns:
            For each record its label, a whole number or a text as in the training data; if the model predicts numbers,
            its expected number.

        """
        if self.schema.target_range is not None:
            head, features, number = self._prepare_regression(records)
            return unscale_targets(head.predict(features)[0].numpy(), number)
        found: NDArray[Any] = self.classes[self.predict_proba(records).argmax(axis=1)]
        return found

    def predict_interval(self, records: Any, level: float = 0.9) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The interval in which each record's number lies with a given probability.

        Args:
            records: as for `predict`.
            level: the probability, between 0 and 1.

        Returns:
            The low ends and the high ends, one for each record, in the unit of the number.

        """
        head, features, number = self._prepare_regression(records)
        low, high = (unscale_targets(end.numpy(), number) for end in head.predict_interval(features, level))
        return low, high

    def _prepare_regression(self, records: Any) -> tuple[NumberHead, Tensor, Range]:
        """The model's head, the records' features and the number's range; InputError if the model predicts classes."""
        head = find_number_head(self.params)
        if self.schema.target_range is None or head is None:
            raise InputError(
                f"this model predicts classes, not a number: {self!r}", hint="use predict or predict_proba"
            )
        with torch.no_grad():
            return head, self.body.compute_features(self.params, self.inputs(records), None), self.schema.target_range

    def predict_proba(self, records: Any) -> NDArray[np.float64]:
        """The probability of each class for each record.

        Args:
            records: as for `predict`.

        Returns:
            An array (records, classes) with rows that sum to 1, and columns in the order of `classes`.

        """
        if self.schema.target_range is not None:
            raise InputError(
                f"this model predicts a number, not classes: {self!r}", hint="use predict or predict_interval"
            )
        return self.probabilities(self.inputs(records)).numpy().astype(np.float64)

    @add_default_hint("give records like those that the model was trained on")
    def inputs(self, records: Any) -> Tensor:
        """The records as inputs of the body: tables encoded, images scaled.

        Args:
            records: as for `predict`.

        Returns:
            A tensor (n, *input_shape).

        """
        from fedlog.data.arrays_in_memory import convert_inputs, convert_to_feature_columns
        from fedlog.data.tables import TABLE_SUFFIXES, read_feature_columns

        if isinstance(records, str | Path):
            path, where = Path(records), str(records)
            if (path.suffix in TABLE_SUFFIXES) is not (self.encoder is not None):
                kind = "images or arrays" if self.encoder is None else f"a table ({', '.join(TABLE_SUFFIXES)})"
                raise InputError(f"expected {kind} for {self!r}, found: {path}")
            if self.encoder is not None:
                return self.encoder.encode(read_feature_columns(path, self.schema))
            raw = _read_file(path, self.schema)
        else:
            where = "the records to predict"
            found = convert_inputs(records, where)
            if self.encoder is not None:
                return self.encoder.encode(convert_to_feature_columns(found, self.schema, where))
            raw = np.asarray(found)
        if raw.shape[1:] != self.schema.input_shape:
            raise InputError(f"{where}: expected records of shape {self.schema.input_shape}, found: {raw.shape[1:]}")
        return self.transform.prepare(to_tensor(raw))

    def probabilities(self, inputs: Tensor) -> Tensor:
        """The probability of each class, as `predict_proba`, for records that `inputs` has already encoded.

        Args:
            inputs: (n, *input_shape), as `inputs` returns them.

        Returns:
            (n, n_class), with rows that sum to 1.

        """
        with torch.no_grad():
            features = self.body.compute_features(self.params, inputs, None)
            return logits(features, self.params).softmax(1)

    def __repr__(self) -> str:
        if self.schema.target_range is not None:
            return f"Model with body {self.body.name} for the number {self.schema.label_column}"
        classes = ", ".join(str(label) for label in self.classes[:10].tolist())
        more = ", ..." if self.schema.n_class > 10 else ""
        return f"Model with body {self.body.name} for classes {classes}{more}"


def _read_file(path: Path, schema: Schema) -> NDArray[Any]:
    """The inputs in an .npz file, or the pixels of the images in a folder."""
    if path.suffix == ".npz":
        return read_npz(path, ("inputs",))["inputs"]
    if not path.is_dir():
        raise InputError(f"records to predict must be an .npz file or a folder of images, found: {path}")
    files = list_images(path)
    if not files:
        raise InputError(f"expected images ({', '.join(sorted(IMAGE_SUFFIXES))}) in {path}, found none")
    return np.stack([read_image(file, schema.input_shape[0], schema.input_shape[1:]) for file in files])
