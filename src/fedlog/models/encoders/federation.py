"""Replace the records of a federation by their features under a frozen encoder."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fedlog.data.federation import Federation
from fedlog.data.transforms import IDENTITY
from fedlog.models.encoders.cache import FeatureCache, Progress
from fedlog.models.encoders.names import load_encoder, split_name
from fedlog.models.encoders.pixels import refuse_unscaled_images, scale_to_255


def encode_federation(federation: Federation, body: str, progress: Progress | None = None) -> Federation:
    """The federation with features instead of records if the body is an encoder; else the same federation.

    Training images are not cropped or flipped, since a record has only one feature vector.
    """
    parts = split_name(body)
    if parts is None:
        return federation
    encoder = load_encoder(parts.encoder, federation.input_shape)
    if encoder is None:
        return federation
    cache = FeatureCache(encoder)
    train, test = (
        _scale_pixels(each) for each in federation.raw_images or (federation.train.inputs, federation.test.inputs)
    )
    return replace(
        federation,
        input_shape=(encoder.width,),
        train=replace(federation.train, inputs=cache.get_or_encode(train, progress)),
        test=replace(federation.test, inputs=cache.get_or_encode(test, progress)),
        transform=IDENTITY,
        # A model gets raw records, and its encoder scales them.
        schema=federation.make_schema(),
        encodings=tuple(replace(each, transform=IDENTITY) for each in federation.encodings),
        raw_images=None,
    )


def _scale_pixels(records: Tensor) -> Tensor:
    """Images as pixels from 0 to 255; other records unchanged."""
    if records.ndim != 4:
        return records
    refuse_unscaled_images(records)
    return scale_to_255(records)
