"""Names of bodies that start with an encoder: `pretrained:efficientnet-lite0:128+project:256+unit`, `identity`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from glob import escape as glob_escape
from pathlib import Path

from torch import Tensor, nn

from fedlog.errors import InputError
from fedlog.models.encoders.maps import FeatureMap, parse_map, take_directions
from fedlog.models.encoders.onnx_encoder import ONNX, load_onnx, onnx_width
from fedlog.models.encoders.pixels import scale_to_bytes
from fedlog.models.encoders.pretrained import PRETRAINED, load_pretrained, principal_directions
from fedlog.models.encoders.shape import Encoder
from fedlog.models.encoders.text import TEXT, WIDTH, load_text_encoder

IDENTITY = "identity"


@dataclass(frozen=True)
class EncoderName:
    """The encoder, the maps behind it, and the clip, as a body's name gives them."""

    encoder: str
    maps: tuple[str, ...]
    clip: str


def split_name(name: str) -> EncoderName | None:
    """The parts of a body's name; None for a body that is no encoder."""
    plain, _, clip = name.partition("@")
    # A file's name may hold a plus sign; maps are split off from the end only where they read as maps.
    encoder, *maps = plain.split("+")
    while maps and encoder.startswith(ONNX) and not encoder.endswith(".onnx"):
        encoder = f"{encoder}+{maps.pop(0)}"
    if encoder == IDENTITY or encoder.startswith((PRETRAINED, ONNX, TEXT)):
        return EncoderName(encoder, tuple(maps), clip)
    if maps:
        raise InputError(f"body {name}: feature maps need an encoder", hint="identity+unit, or pretrained:...")
    return None


def is_encoder(name: str) -> bool:
    """Whether a body of that name is a frozen encoder."""
    return split_name(name) is not None


def load_encoder(encoder: str, input_shape: tuple[int, ...]) -> Encoder | None:
    """The encoder for raw records of that shape; None for `identity`. It is kept until its file is another one."""
    return _load_encoder(encoder, input_shape, _stamp_files(encoder))


def _stamp_files(encoder: str) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of an ONNX file and of all files beside it that may hold its weights."""
    path = Path(encoder.removeprefix(ONNX))
    if not encoder.startswith(ONNX) or not path.is_file():
        return ()
    beside = sorted(each for each in path.parent.glob(f"{glob_escape(path.name)}*") if each.is_file())
    return tuple((each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in beside)


@lru_cache(maxsize=4)
def _load_encoder(encoder: str, input_shape: tuple[int, ...], files: object) -> Encoder | None:
    if encoder == IDENTITY:
        return None
    if encoder.startswith(TEXT):
        return load_text_encoder(encoder, input_shape)
    return load_onnx(encoder, input_shape) if encoder.startswith(ONNX) else load_pretrained(encoder)


def find_encoded_shape(name: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a record after the encoder that a body's name begins with; the same shape without one."""
    parts = split_name(name)
    encoder = None if parts is None else load_encoder(parts.encoder, input_shape)
    return input_shape if encoder is None else (encoder.width,)


def describe_encoder(name: str, input_shape: tuple[int, ...]) -> str | None:
    """The encoder's digest, its maps and its clip: what such a body computes; None for a body without an encoder."""
    parts = split_name(name)
    if parts is None:
        return None
    encoder = load_encoder(parts.encoder, input_shape)
    content = IDENTITY if encoder is None else encoder.digest
    return "+".join((content, *parts.maps)) + f"@{parts.clip}"


class EncoderBody(nn.Module):
    """An encoder (None where records are its features already), then maps of features."""

    def __init__(self, encoder: Encoder | None, maps: tuple[FeatureMap, ...]) -> None:
        super().__init__()
        self._encoder = encoder
        self.maps = nn.Sequential(*maps)

    def forward(self, inputs: Tensor) -> Tensor:
        """The features. Images are scaled from 0..1 to 0..255 for the encoder; vectors are not changed."""
        raw = scale_to_bytes(inputs) if inputs.ndim == 4 else inputs
        features = inputs if self._encoder is None else self._encoder.encode(raw).to(inputs)
        mapped: Tensor = self.maps(features)
        return mapped


def _is_encoded(encoder: str, input_shape: tuple[int, ...]) -> bool:
    """Whether records of that shape are the encoder's features already; for vectors their width decides."""
    if len(input_shape) != 1:
        return False
    if encoder.startswith(TEXT):
        return input_shape == (WIDTH,)
    return not encoder.startswith(ONNX) or input_shape == (onnx_width(encoder),)


def _make_map(text: str, width: int, encoder: str, *, first: bool) -> FeatureMap:
    kind, _, size = text.partition(":")
    if kind != "principal":
        return parse_map(text, width)
    if not first or not encoder.startswith(PRETRAINED) or not size.isdecimal():
        raise InputError(
            f"principal directions are those of a pretrained network's classifier, and come first: {encoder}+{text}",
            hint="pretrained:efficientnet-lite0+principal:128, or +project:128",
        )
    return take_directions(principal_directions(encoder), int(size))


def make_encoder_body(parts: EncoderName, input_shape: tuple[int, ...]) -> EncoderBody:
    """The module of a body with an encoder; its maps alone where the records are the encoder's features already."""
    encoder = None if _is_encoded(parts.encoder, input_shape) else load_encoder(parts.encoder, input_shape)
    if encoder is None and len(input_shape) != 1:
        raise InputError(
            f"body {parts.encoder} expects feature vectors, found records of shape {input_shape}",
            hint="--body pretrained:efficientnet-lite0 for images",
        )
    width = input_shape[0] if encoder is None else encoder.width
    maps: list[FeatureMap] = []
    for text in parts.maps:
        maps.append(_make_map(text, maps[-1].width if maps else width, parts.encoder, first=not maps))
    return EncoderBody(encoder, tuple(maps))
