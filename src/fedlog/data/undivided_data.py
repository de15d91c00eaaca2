"""The training and test records of each named data set, before they are divided among clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.data.federation import Records
from fedlog.data.public_data_sets import CIFAR10, CIFAR100, HAR, MNIST, require_files
from fedlog.data.readers import read_cifar10, read_cifar100, read_digits, read_har, read_idx
from fedlog.data.transforms import IDENTITY, Transform
from fedlog.errors import InputError


@dataclass(frozen=True, eq=False)
class UndividedData:
    """The training and test records of a data set, before they are divided among clients."""

    train: Records
    test: Records
    transform: Transform
    class_names: tuple[str, ...]


DIGIT_NAMES = tuple(str(digit) for digit in range(10))
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100_WORDS = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""
CIFAR100_NAMES = tuple(_CIFAR100_WORDS.split())
HAR_NAMES = ("walking", "walking_upstairs", "walking_downstairs", "sitting", "standing", "laying")

MNIST_TRANSFORM = Transform(mean=(0.1307,), std=(0.3081,))
# The same mean and std for training and test.
CIFAR10_TRANSFORM = Transform(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616), crop_padding=4, flip=True)
CIFAR100_TRANSFORM = Transform(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762), crop_padding=4, flip=True)
# Rounded from the official training half. The mean of the total acceleration is not 0 because of gravity.
HAR_TRANSFORM = Transform(
    mean=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.8, 0.03, 0.09),
    std=(0.2, 0.12, 0.11, 0.4, 0.4, 0.26, 0.4, 0.4, 0.36),
)

# The circle of the paper's synthetic experiment.
CIRCLE_RADIUS = 26 / 7
CIRCLE_HALF_SIDE = 5.0
CIRCLE_TRAIN_RECORDS = 80
# The paper does not give the number of test points; with 1000 the standard error is at most 1.6 points.
CIRCLE_TEST_RECORDS = 1000


def load_sklearn_digits() -> UndividedData:
    """Scikit-learn's 1797 handwritten digits, 8 x 8 pixels from 0 to 1; every fourth digit of a class is for test."""
    pixels, target = read_digits()
    inputs = torch.from_numpy(pixels.astype(np.float32) / 16).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(target)
    rank_in_class = torch.empty_like(labels)
    for label in range(10):
        of_class = labels == label
        rank_in_class[of_class] = torch.arange(int(of_class.sum()))
    for_test = rank_in_class % 4 == 3
    everything = Records(inputs, labels)
    train, test = everything.at((~for_test).nonzero()[:, 0]), everything.at(for_test.nonzero()[:, 0])
    return UndividedData(train, test, IDENTITY, DIGIT_NAMES)


def make_circle(train_records: int | None, key: Key) -> UndividedData:
    """Points inside and outside a circle, drawn from the key: `train_records` (default 80) and 1000 for test."""
    train = draw_circle_points(train_records or CIRCLE_TRAIN_RECORDS, key.child("train"))
    test = draw_circle_points(CIRCLE_TEST_RECORDS, key.child("test"))
    return UndividedData(train, test, IDENTITY, ("inside", "outside"))


def draw_circle_points(n: int, key: Key) -> Records:
    """n points, uniform on the square [-5, 5] x [-5, 5]: class 0 inside the circle of radius 26/7, class 1 outside.

    The paper does not say which side is class 0.
    """
    points = (torch.rand(n, 2, generator=key.torch()) * 2 - 1) * CIRCLE_HALF_SIDE
    labels = (points.square().sum(dim=1) > CIRCLE_RADIUS**2).to(torch.int64)
    return Records(points, labels)


def load_mnist(folder: Path) -> UndividedData:
    """60000 training and 10000 test images of MNIST."""
    require_files(MNIST, folder)
    train, test = (_read_idx_pair(folder / "MNIST" / "raw", part) for part in ("train", "t10k"))
    return UndividedData(train, test, MNIST_TRANSFORM, DIGIT_NAMES)


def load_mnist_selection(folder: Path) -> UndividedData:
    """MNIST for choosing hyper-parameters: the paper's 3000 training images, and the next 10000 as test records.

    These 10000 images are in no reported result. If a part of the 3000 were used instead, each client would have only a
    dozen records to compare hyper-parameters on.
    """
    found = load_mnist(folder)
    used, unused = torch.arange(3000), torch.arange(3000, 13000)
    return replace(found, train=found.train.at(used), test=found.train.at(unused))


def load_cifar10(folder: Path) -> UndividedData:
    """50000 training and 10000 test images of CIFAR-10."""
    require_files(CIFAR10, folder)
    batches = [read_cifar10(folder / file.path) for file in CIFAR10.files]
    train = _make_image_records(*(np.concatenate(arrays) for arrays in zip(*batches[:-1], strict=True)))
    return UndividedData(train, _make_image_records(*batches[-1]), CIFAR10_TRANSFORM, CIFAR10_NAMES)


def load_cifar100(folder: Path) -> UndividedData:
    """50000 training and 10000 test images of CIFAR-100, with the fine labels."""
    require_files(CIFAR100, folder)
    train, test = (_make_image_records(*read_cifar100(folder / file.path)) for file in CIFAR100.files)
    return UndividedData(train, test, CIFAR100_TRANSFORM, CIFAR100_NAMES)


def load_har(folder: Path) -> UndividedData:
    """UCI HAR: windows of 9 signals x 128 samples, of 21 people for training and 9 others for test."""
    require_files(HAR, folder)
    halves = []
    for split in ("train", "test"):
        signals, activities, people = (torch.from_numpy(each) for each in read_har(folder / "UCI HAR Dataset", split))
        halves.append(Records(signals, activities - 1, people))
    train, test = halves
    return UndividedData(train, test, HAR_TRANSFORM, HAR_NAMES)


def find_recordings(windows: Tensor) -> Tensor:
    """For each window (n, ...), which recording it was cut from, as a number, (n,).

    Windows of a recording overlap by half, so windows that share a half, directly or through others, are of one
    recording. The order of the windows does not matter.
    """
    half = windows.shape[-1] // 2
    numbers: dict[bytes, int] = {}
    halves = [
        [numbers.setdefault(one.tobytes(), len(numbers)) for one in part.contiguous().numpy()]
        for part in (windows[..., :half], windows[..., half:])
    ]
    from scipy.sparse import coo_array  # here: slow to import, and only this data set needs it
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(len(windows), dtype=np.int8)
    joined = coo_array((ones, (np.array(halves[0]), np.array(halves[1]))), shape=(len(numbers), len(numbers)))
    _, of_half = connected_components(joined, directed=False)
    return torch.from_numpy(of_half[halves[0]].astype(np.int64))


def _read_idx_pair(folder: Path, part: str) -> Records:
    images, labels = (read_idx(folder / f"{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise InputError(f"{folder}: {part} images and labels do not match: {images.shape} and {labels.shape}")
    return _make_image_records(images[:, None], labels)


def _make_image_records(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Records:
    return Records(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))
