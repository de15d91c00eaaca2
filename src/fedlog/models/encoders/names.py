"""Make bodies from names that start with an encoder, such as `pretrained:efficientnet-lite0:128+project:256+unit`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from glob import escape as glob_escape
from pathlib import Path

from torch import Tensor, nn

from fedlog.errors import InputError
from fedlog.models.encoders.cache import Encoder
from fedlog.models.encoders.maps import FeatureMap, make_direction_map, make_feature_map
from fedlog.models.encoders.onnx_encoder import ONNX, load_onnx, read_onnx_width
from fedlog.models.encoders.pixels import scale_to_255
from fedlog.models.encoders.pretrained import (
    PRETRAINED,
    find_principal_directions,
    load_pretrained,
    parse_network_and_side,
)
from fedlog.models.encoders.text import TEXT, WIDTH, load_text_encoder

IDENTITY = "identity"


@dataclass(frozen=True)
class EncoderBodyName:
    """The parts of the name of an encoder body: the encoder, the feature maps after it, and the clip."""

    encoder: str
    maps: tuple[str, ...]
    clip: str


def split_name(name: str) -> EncoderBodyName | None:
    """The encoder, the feature maps and the clip in a body's name; None for a body that is not an encoder."""
    plain, _, clip = name.partition("@")
    # The name of an ONNX file may contain a plus sign, so maps begin only after `.onnx`.
    encoder, *maps = plain.split("+")
    while maps and encoder.startswith(ONNX) and not encoder.endswith(".onnx"):
        encoder = f"{encoder}+{maps.pop(0)}"
    if encoder == IDENTITY or encoder.startswith((PRETRAINED, ONNX, TEXT)):
        return EncoderBodyName(encoder, tuple(maps), clip)
    if maps:
        raise InputError(
            f"body {name} has feature maps but no encoder", hint="for example identity+unit, or pretrained:NAME+unit"
        )
    return None


def is_encoder(name: str) -> bool:
    """Whether a body of that name is a frozen encoder."""
    return split_name(name) is not None


def load_encoder(encoder: str, input_shape: tuple[int, ...]) -> Encoder | None:
    """The encoder for raw records of that shape, kept in memory until its file changes; None for `identity`."""
    return _load_encoder_once(encoder, input_shape, _fingerprint_files(encoder))


def _fingerprint_files(encoder: str) -> tuple[tuple[str, int, int], ...]:
    """Name, size and modification time of an ONNX file and of the files next to it that may hold its weights."""
    path = Path(encoder.removeprefix(ONNX))
    if not encoder.startswith(ONNX) or not path.is_file():
        return ()
    beside = sorted(each for each in path.parent.glob(f"{glob_escape(path.name)}*") if each.is_file())
    return tuple((each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in beside)


@lru_cache(maxsize=4)
def _load_encoder_once(encoder: str, input_shape: tuple[int, ...], files: object) -> Encoder | None:
    """The encoder, kept in memory until `files`, the fingerprint of its files, changes."""
    if encoder == IDENTITY:
        return None
    if encoder.startswith(TEXT):
        return load_text_encoder(encoder, input_shape)
    return load_onnx(encoder, input_shape) if encoder.startswith(ONNX) else load_pretrained(encoder)


def find_encoded_shape(name: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a record after the encoder in a body's name; `input_shape` if the body has no encoder."""
    parts = split_name(name)
    encoder = None if parts is None else load_encoder(parts.encoder, input_shape)
    return input_shape if encoder is None else (encoder.width,)


def fingerprint_encoder(name: str, input_shape: tuple[int, ...]) -> str | None:
    """A text that is equal for two encoder bodies exactly if they compute equal features; None for other bodies."""
    parts = split_name(name)
    if parts is None:
        return None
    encoder = load_encoder(parts.encoder, input_shape)
    content = IDENTITY if encoder is None else encoder.digest
    return "+".join((content, *parts.maps)) + f"@{parts.clip}"


class EncoderBody(nn.Module):
    """A frozen encoder followed by feature maps; the encoder is None if records are already features."""

    def __init__(self, encoder: Encoder | None, maps: tuple[FeatureMap, ...]) -> None:
        super().__init__()
        self._encoder = encoder
        self.maps = nn.Sequential(*maps)

    def forward(self, inputs: Tensor) -> Tensor:
        """The features. Images are scaled from 0..1 to 0..255 for the encoder; vectors are not changed."""
        raw = scale_to_255(inputs) if inputs.ndim == 4 else inputs
        features = inputs if self._encoder is None else self._encoder.encode(raw).to(inputs)
        mapped: Tensor = self.maps(features)
        return mapped


def _is_encoded(encoder: str, input_shape: tuple[int, ...]) -> bool:
    """Whether records of that shape are already the encoder's features: vectors of its width (any for `identity`)."""
    if len(input_shape) != 1:
        return False
    if encoder == IDENTITY:
        return True
    if encoder.startswith(TEXT):
        return input_shape == (WIDTH,)
    if encoder.startswith(ONNX):
        return input_shape == (read_onnx_width(encoder),)
    return input_shape == (parse_network_and_side(encoder)[0].width,)


def _make_map_after_encoder(text: str, width: int, encoder: str, *, first: bool) -> FeatureMap:
    """The feature map of that name; `principal:N` must come `first`, and takes its directions from the encoder."""
    kind, _, size = text.partition(":")
    if kind != "principal":
        return make_feature_map(text, width)
    if not first or not encoder.startswith(PRETRAINED) or not size.isdecimal():
        raise InputError(
            f"principal:N must be the first map after a pretrained network, found: {encoder}+{text}",
            hint="use pretrained:efficientnet-lite0+principal:128, or +project:128",
        )
    return make_direction_map(find_principal_directions(encoder), int(size))


def make_encoder_body(parts: EncoderBodyName, input_shape: tuple[int, ...]) -> EncoderBody:
    """The module of an encoder body for records of this shape; if these are already features, it has only the maps."""
    encoded = _is_encoded(parts.encoder, input_shape)
    if not encoded and parts.encoder.startswith(PRETRAINED) and len(input_shape) != 3:
        raise InputError(
            f"body {parts.encoder} expects images, found records of shape {input_shape}",
            hint="--body identity for tables: the head is then solved from the records themselves",
        )
    encoder = None if encoded else load_encoder(parts.encoder, input_shape)
    if encoder is None and len(input_shape) != 1:
        raise InputError(
            f"body {parts.encoder} expects feature vectors, found records of shape {input_shape}",
            hint="--body pretrained:efficientnet-lite0 for images",
        )
    width = input_shape[0] if encoder is None else encoder.width
    maps: list[FeatureMap] = []
    for text in parts.maps:
        maps.append(_make_map_after_encoder(text, maps[-1].width if maps else width, parts.encoder, first=not maps))
    return EncoderBody(encoder, tuple(maps))
