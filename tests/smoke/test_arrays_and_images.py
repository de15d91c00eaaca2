"""Files with contents that do not fit their names: every reader refuses them with one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedlog.core.keys import Key
from fedlog.data.arrays import read_npz
from fedlog.data.catalog import DataSpec, load_federation
from fedlog.data.images import read_image, read_image_shape
from fedlog.data.schema import Schema
from fedlog.data.schema_draft import DraftOptions, draft_schema
from fedlog.data.site import load_site
from fedlog.errors import InputError


def cut_short(path: Path) -> None:
    np.savez(path, inputs=np.ones((50, 3)), labels=np.zeros(50))
    path.write_bytes(path.read_bytes()[:200])


def no_archive(path: Path) -> None:
    path.write_text("inputs")


def one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.ones(3))


@pytest.mark.parametrize("spoil", [cut_short, no_archive, one_array, Path.touch])
def test_a_spoilt_npz_file_is_refused_by_every_reader(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    path = tmp_path / "a.npz"
    spoil(path)
    for read in (
        lambda: load_site(str(path), Schema("labels", ("0", "1"), input_shape=(3,)), "a", Key(0)),
        lambda: draft_schema(path, DraftOptions()),
        lambda: read_npz(path, ("inputs",)),
    ):
        with pytest.raises(InputError, match=r"a\.npz is not an \.npz file of plain arrays"):
            read()


def test_an_array_that_is_not_there_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.ones((2, 3)))
    with pytest.raises(InputError, match="found none named: labels") as refused:
        draft_schema(tmp_path / "a.npz", DraftOptions())
    assert refused.value.hint == "np.savez('a.npz', inputs=..., labels=...)"


def test_an_array_that_nobody_asked_for_is_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.ones(2), notes=np.array([{"a": 1}], dtype=object))
    assert set(read_npz(tmp_path / "a.npz", ("inputs",), optional=("groups",))) == {"inputs"}


@pytest.mark.parametrize("values", [np.uint16([[0, 4095]]), np.int32([[0, 70000]]), np.float32([[0.0, 0.5]])])
def test_pictures_of_more_than_8_bits_are_refused_instead_of_cut_at_255(
    tmp_path: Path, values: np.ndarray[tuple[int, int], np.dtype[np.generic]]
) -> None:
    path = tmp_path / "x-ray.tiff"
    Image.fromarray(values).save(path)
    for read in (lambda: read_image(path, channels=1, size=(1, 2)), lambda: read_image_shape(path)):
        with pytest.raises(InputError, match=r"8 bits a channel, found more \(mode .*x-ray\.tiff") as refused:
            read()
        assert "in the same way at all sites" in str(refused.value.hint)


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)])
def test_pictures_of_8_bits_or_fewer_keep_their_range(tmp_path: Path, mode: str, channels: int) -> None:
    path = tmp_path / "a.png"
    grey = Image.fromarray(np.uint8([[0, 255]]))
    grey.convert(mode).save(path)
    assert read_image_shape(path) == (channels, 1, 2)
    assert read_image(path, channels, (1, 2))[0].tolist() == [[0, 255]]


def test_a_class_that_is_almost_anothers_is_pointed_out(tmp_path: Path) -> None:
    for site, classes in {"rome": ("healthy", "il"), "oslo": ("healthy", "ill"), "bonn": ("healthy", "ill")}.items():
        for name in classes:
            (tmp_path / site / name).mkdir(parents=True)
            for at in range(6):
                Image.new("L", (2, 2), at).save(tmp_path / site / name / f"{at}.png")
    found = load_federation(DataSpec(f"sites:{tmp_path}"))
    assert found.class_names == ("healthy", "il", "ill")
    assert found.notes == ("only site rome has class il, and it lacks class ill: is one of them mistyped?",)
    (tmp_path / "rome" / "il").rename(tmp_path / "rome" / "ill")
    assert load_federation(DataSpec(f"sites:{tmp_path}")).notes == ()


@pytest.mark.parametrize(
    ("source", "said", "hint"),
    [
        ("rme", "found: .*rme", "did you mean rome?"),
        ("empty", "expected images in the folders of .*empty", "empty/healthy/IMAGE.png"),
        ("typo", "found: il", "did you mean ill?"),
        ("notes.txt", "found: .*notes.txt", "convert it to one of these"),
    ],
)
def test_a_sites_folder_that_cannot_be_read_is_named_with_what_to_do(
    tmp_path: Path, source: str, said: str, hint: str
) -> None:
    for name in ("rome/ill", "empty", "typo/il"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("x")
    schema = Schema("folder", ("healthy", "ill"), input_shape=(1, 2, 2))
    with pytest.raises(InputError, match=said) as error:
        load_site(str(tmp_path / source), schema, "rome", Key(0))
    assert hint in str(error.value.hint)
