"""The architectures of the catalogue: perceptrons, the paper's CNNs, a CNN for signals, and MobileNetV2.

The paper's CNNs (its Table A.1) have dropout in the same places as the authors' code. Each is an `nn.Sequential` that
ends in ReLU and dropout; the head is not part of a body. MobileNetV2 (Sandler et al. 2018), for the paper's Table 2,
ends at its 1280 features.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn

# expansion factor, output channels, repeats, first stride
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
FEATURES = 1280


def mlp(inputs: int, widths: tuple[int, ...]) -> nn.Sequential:
    """A perceptron from `inputs` numbers to `widths[-1]` features, with ReLU after every layer."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise((inputs, *widths)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


def mlp_with_linear_output(inputs: int, widths: tuple[int, ...]) -> nn.Sequential:
    """A perceptron like `mlp` without the last ReLU, so that features may be negative; used to plot two features."""
    return nn.Sequential(*list(mlp(inputs, widths))[:-1])


def mnist_cnn() -> nn.Sequential:
    """The paper's CNN for MNIST: (1, 28, 28) -> 50 features; 21,330 parameters, 21,840 with a head for 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, 10, kernel_size=5),  # (10, 24, 24)
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, kernel_size=5),  # (20, 8, 8)
        nn.Dropout2d(0.5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        *_make_last_layers(320, 50),
    )


def cifar_cnn() -> nn.Sequential:
    """The paper's CNN for CIFAR-10 and CIFAR-100: (3, 32, 32) -> 100 features."""
    return nn.Sequential(
        *_make_cifar_convolutions(),
        nn.Linear(400, 120),
        nn.ReLU(),
        *_make_last_layers(120, 100),
    )


def cifar_cnn_small() -> nn.Sequential:
    """`cifar_cnn` without its second-last layer, for half of the clients in the experiment on different bodies."""
    return nn.Sequential(*_make_cifar_convolutions(), *_make_last_layers(400, 100))


def _make_cifar_convolutions() -> list[nn.Module]:
    return [
        nn.Conv2d(3, 6, kernel_size=5),  # (6, 28, 28)
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),  # (16, 10, 10)
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]


def _make_last_layers(inputs: int, features: int) -> list[nn.Module]:
    return [nn.Linear(inputs, features), nn.ReLU(), nn.Dropout(0.5)]


def remove_dropout(make: Callable[[], nn.Sequential]) -> nn.Sequential:
    """The body without its dropout layers, to measure the effect of dropout."""
    return nn.Sequential(*(layer for layer in make() if not isinstance(layer, nn.Dropout | nn.Dropout2d)))


def small_cnn(channels: int, height: int, width: int) -> nn.Sequential:
    """A small CNN for users' own images, of any size from 12 x 12 on: (channels, height, width) -> 50 features."""
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
        *_make_last_layers(16 * rows * columns, 50),
    )


def signal_cnn(channels: int, samples: int) -> nn.Sequential:
    """A CNN for signals such as UCI HAR: (channels, samples) -> 50 features."""
    length = ((samples - 8) // 2 - 8) // 4
    return nn.Sequential(
        nn.Conv1d(channels, 16, kernel_size=9),
        nn.MaxPool1d(2),
        nn.ReLU(),
        nn.Conv1d(16, 32, kernel_size=9),
        nn.MaxPool1d(4),
        nn.ReLU(),
        nn.Flatten(),
        *_make_last_layers(32 * length, 50),
    )


def _make_convolution(inputs: int, outputs: int, *, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class InvertedResidual(nn.Module):
    """A block of MobileNetV2: expand, filter each channel, project; the input is added if the shapes agree."""

    def __init__(self, inputs: int, outputs: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        expand = [*_make_convolution(inputs, hidden, kernel=1), nn.ReLU6()] if expansion > 1 else []
        self.layers = nn.Sequential(
            *expand,
            *_make_convolution(hidden, hidden, kernel=3, stride=stride, groups=hidden),
            nn.ReLU6(),
            *_make_convolution(hidden, outputs, kernel=1),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, inputs: Tensor) -> Tensor:
        """The block's output: (n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""
        outputs: Tensor = self.layers(inputs)
        return inputs + outputs if self.residual else outputs


def mobilenet_v2(channels: int = 3, dropout: float = 0.2) -> nn.Sequential:
    """MobileNetV2: images -> 1280 features; 2,223,872 parameters, 3,504,872 with the published head of 1000 classes."""
    layers: list[nn.Module] = [*_make_convolution(channels, 32, kernel=3, stride=2), nn.ReLU6()]
    width = 32
    for expansion, outputs, repeats, first_stride in _STAGES:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            layers.append(InvertedResidual(width, outputs, expansion=expansion, stride=stride))
            width = outputs
    layers += [*_make_convolution(width, FEATURES, kernel=1), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout))
