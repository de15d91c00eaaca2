"""The paper's convolutional bodies (its Table A.1), with dropout where the authors' code has it, and a 1-d one.

Each is a plain `nn.Sequential` up to the features; the head is not part of a body. All end in ReLU then dropout.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def mnist_cnn() -> nn.Sequential:
    """(1, 28, 28) -> 50 features; 21,330 parameters, 21,840 with a head for 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, 10, kernel_size=5),  # (10, 24, 24)
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, kernel_size=5),  # (20, 8, 8)
        nn.Dropout2d(0.5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        *_last_layers(320, 50),
    )


def cifar_cnn() -> nn.Sequential:
    """(3, 32, 32) -> 100 features, for CIFAR-10 and CIFAR-100."""
    return nn.Sequential(
        *_cifar_convolutions(),
        nn.Linear(400, 120),
        nn.ReLU(),
        *_last_layers(120, 100),
    )


def cifar_cnn_small() -> nn.Sequential:
    """(3, 32, 32) -> 100 features without the second-last layer: half of the clients in the flexible experiment."""
    return nn.Sequential(*_cifar_convolutions(), *_last_layers(400, 100))


def _cifar_convolutions() -> list[nn.Module]:
    return [
        nn.Conv2d(3, 6, kernel_size=5),  # (6, 28, 28)
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),  # (16, 10, 10)
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]


def _last_layers(inputs: int, features: int) -> list[nn.Module]:
    return [nn.Linear(inputs, features), nn.ReLU(), nn.Dropout(0.5)]


def without_dropout(make: Callable[[], nn.Sequential]) -> nn.Sequential:
    """The body without its dropout layers, to measure what dropout is worth."""
    return nn.Sequential(*(layer for layer in make() if not isinstance(layer, nn.Dropout | nn.Dropout2d)))


def small_cnn(channels: int, height: int, width: int) -> nn.Sequential:
    """Images of any size from 12 x 12 -> 50 features: a modest default for one's own pictures."""
    rows, columns = ((size - 2) // 2 for size in (height, width))
    rows, columns = ((size - 2) // 2 for size in (rows, columns))
    return nn.Sequential(
        nn.Conv2d(channels, 8, kernel_size=3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(8, 16, kernel_size=3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        *_last_layers(16 * rows * columns, 50),
    )


def signal_cnn(channels: int, samples: int) -> nn.Sequential:
    """(channels, samples) signals -> 50 features, for recordings such as UCI HAR."""
    length = ((samples - 8) // 2 - 8) // 4
    return nn.Sequential(
        nn.Conv1d(channels, 16, kernel_size=9),
        nn.MaxPool1d(2),
        nn.ReLU(),
        nn.Conv1d(16, 32, kernel_size=9),
        nn.MaxPool1d(4),
        nn.ReLU(),
        nn.Flatten(),
        *_last_layers(32 * length, 50),
    )
