"""Every method has one style everywhere, and styles differ without colours and for all kinds of colour vision."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedlog.algorithms import registry
from fedlog.report.parts.style import COLOURS, DASHES, MARKERS, METHODS, choose_styles, find_numbered_style, find_style

# Machado, Oliveira and Fernandes (2009), severity 1: red-blind, green-blind, blue-blind; on linear RGB.
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
PAPER = {"light": "#ffffff", "dark": "#1b1f26"}


def _linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(linear, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def _luminance(colour: str) -> float:
    return float(np.array([0.2126, 0.7152, 0.0722]) @ _linear(colour))


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("paper", PAPER)
def test_colours_are_far_apart_for_every_vision(paper: str, vision: str) -> None:
    # A CIELAB distance of 2 is just noticeable side by side; thin lines that lie apart need much more.
    for (one, a), (other, b) in combinations(COLOURS.items(), 2):
        seen = [_lab(VISION[vision] @ _linear(getattr(colour, paper))) for colour in (a, b)]
        assert np.linalg.norm(seen[0] - seen[1]) > 20, (one, other)


@pytest.mark.parametrize("paper", PAPER)
def test_colours_stand_out_from_the_paper(paper: str) -> None:
    # WCAG 2.2, 1.4.11: graphics need a contrast of 3 to 1.
    for name, colour in COLOURS.items():
        low, high = sorted([_luminance(getattr(colour, paper)), _luminance(PAPER[paper])])
        assert (high + 0.05) / (low + 0.05) >= 3, name


def test_in_grey_no_two_methods_look_alike() -> None:
    looks = [(style.marker, style.dash) for style in METHODS.values()]
    assert len(set(looks)) == len(looks) == len(METHODS)
    assert len({colour.marker for colour in COLOURS.values()}) == len(COLOURS)
    assert {colour.marker for colour in COLOURS.values()} == set(MARKERS)


def test_every_registered_method_has_a_look_of_its_own() -> None:
    assert set(registry.METHODS) == set(METHODS)


def test_own_methods_and_variants_get_what_is_left() -> None:
    known = {(style.colour, style.dash) for style in METHODS.values()}
    own = find_style("mine.module:Method")
    assert (own.colour, own.dash) not in known
    assert own == find_style("mine.module:Method")
    assert own.label == "Method"
    labels = {"fedlog": "fedlog", "fedlog codec=q8": "fedlog", "local": "local", "x:Y": "x:Y"}
    found = choose_styles(labels)
    assert found["fedlog"].colour == METHODS["fedlog"].colour == found["fedlog codec=q8"].colour
    assert (found["fedlog"].dash, found["local"].dash) == (METHODS["fedlog"].dash, METHODS["local"].dash)
    assert len({(style.colour, style.dash) for style in found.values()}) == len(labels)
    assert found["fedlog codec=q8"].label == "fedlog codec=q8"
    numbered = [find_numbered_style(at, str(at)) for at in range(len(COLOURS) * len(DASHES))]
    assert len({(style.colour, style.dash) for style in numbered}) == len(numbered)
    many = choose_styles({f"v{at}": "fedlog" for at in range(len(COLOURS) * len(DASHES))})
    assert len({(style.colour, style.dash) for style in many.values()}) == len(many)
