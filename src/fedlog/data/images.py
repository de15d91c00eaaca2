"""Read a folder of images by class, such as `folder/cat/001.png`, as records."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fedlog.data.arrays import Arrays
from fedlog.data.rows import BadRowPolicy, BadRowsError, read_usable_rows
from fedlog.data.schema import Schema
from fedlog.errors import InputError
from fedlog.files.names import did_you_mean

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff"})
MODES = {1: "L", 3: "RGB"}
# ValueError and SyntaxError: a PNG with texts that unpack to megabytes, or with broken chunks.
IMAGE_ERRORS = (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError,
          Image.DecompressionBombWarning)  # fmt: skip


def list_class_folders(folder: Path) -> tuple[str, ...]:
    """The names of the sub-folders, sorted; each is a class."""
    if not folder.is_dir():
        raise InputError(f"expected a folder of images by class, found no folder: {folder}", hint="is the path right?")
    return tuple(sorted(child.name for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")))


def list_images(folder: Path) -> tuple[Path, ...]:
    """The image files of one class, sorted by name, so that every machine reads them in the same order."""
    return tuple(sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES))


def read_images(folder: Path, schema: Schema, bad_rows: BadRowPolicy) -> tuple[Arrays, str | None]:
    """The images (n, channels, height, width) uint8 and their labels, and a sentence about images left out, or None.

    REFUSED raises an InputError for a broken image, and for a folder whose name is not a label of the schema.
    LEFT_OUT leaves both out, and the sentence names them.
    """
    unknown = sorted(set(list_class_folders(folder)) - set(schema.label_values))
    if unknown and bad_rows is BadRowPolicy.REFUSED:
        raise InputError(
            f"expected only folders with the names of the schema's labels in {folder}, found: {', '.join(unknown)}",
            hint=did_you_mean(
                unknown[0], schema.label_values, f"the labels are {', '.join(schema.label_values)}; move other folders"
            ),
        )
    # In the schema's order; a site may lack some classes.
    files = [
        (label, path)
        for label, name in enumerate(schema.label_values)
        if (folder / name).is_dir()
        for path in list_images(folder / name)
    ]
    arrays, left_out = read_usable_rows(
        lambda kept: _read_image_files([files[at] for at in kept], schema, folder), len(files), bad_rows
    )
    if not unknown:
        return arrays, left_out
    sentence = f"folders whose names are no labels are left out: {', '.join(unknown)}"
    return arrays, sentence if left_out is None else f"{sentence}; {left_out}"


def _read_image_files(files: Sequence[tuple[int, Path]], schema: Schema, folder: Path) -> Arrays:
    """The images and labels of these pairs (label, path); if images are broken, a BadRowsError marks them."""
    shape = schema.input_shape
    if len(shape) != 3 or shape[0] not in MODES:
        raise InputError(
            f"expected [input] shape = [1 or 3, height, width] in the schema for the images in {folder}, "
            f"found: {list(shape) or 'a schema of columns'}",
            hint="give the file of a table as --data FILE; `fedlog federate schema FOLDER` drafts a schema for images",
        )
    pixels: list[NDArray[np.uint8]] = []
    bad, first = np.zeros(len(files), dtype=bool), None
    for at, (_, path) in enumerate(files):
        try:
            pixels.append(read_image(path, shape[0], shape[1:]))
        except InputError as error:
            bad[at], first = True, first or error
    if first is not None:
        raise BadRowsError(first.message, hint=first.hint, bad=bad)
    if not pixels:
        raise InputError(
            f"expected images in the folders of {folder} ({', '.join(schema.label_values)}), found none",
            hint=f"for example {folder.name}/{schema.label_values[0]}/IMAGE.png or .jpg",
        )
    return Arrays(torch.from_numpy(np.stack(pixels)), np.array([label for label, _ in files], dtype=np.int64))


def read_image(path: Path, channels: int, size: tuple[int, ...]) -> NDArray[np.uint8]:
    """One image (channels, height, width) uint8, resized to `size` if needed."""
    height, width = size
    with open_image(path) as image:
        converted = image.convert(MODES[channels])
        if converted.size != (width, height):
            converted = converted.resize((width, height), Image.Resampling.BILINEAR)
        values = np.asarray(converted, dtype=np.uint8)
    return values[None] if channels == 1 else np.ascontiguousarray(values.transpose(2, 0, 1))


@contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """Open an image for reading; InputError if it is broken, too large, or has more than 8 bits a channel.

    Too large means so many pixels that Pillow warns that they may fill the memory.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = Image.open(path)
        with opened as image:
            # Pillow would cut every value at 255, so an X-ray of 12 bits would become white.
            if image.mode == "F" or image.mode.startswith("I"):
                raise InputError(
                    f"expected an image of 8 bits a channel, found more (mode {image.mode}): {path}",
                    hint="convert images to 8 bits in the same way at all sites, or give the numbers as an .npz file",
                )
            yield image
    except IMAGE_ERRORS as error:
        raise InputError(
            f"expected an image that can be read, found: {error} ({path})",
            hint="remove the file, or save the image again",
        ) from None


def read_image_shape(path: Path) -> tuple[int, int, int]:
    """The channels (1 or 3), height and width of one image file."""
    with open_image(path) as image:
        return (1 if image.mode in ("1", "L", "LA") else 3, image.height, image.width)
