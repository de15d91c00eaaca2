"""MobileNetV2 (Sandler et al. 2018) up to its 1280 features, from the paper's Table 2."""

from __future__ import annotations

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


def _convolution(inputs: int, outputs: int, *, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project; the input is added where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        expand = [*_convolution(inputs, hidden, kernel=1), nn.ReLU6()] if expansion > 1 else []
        self.layers = nn.Sequential(
            *expand,
            *_convolution(hidden, hidden, kernel=3, stride=stride, groups=hidden),
            nn.ReLU6(),
            *_convolution(hidden, outputs, kernel=1),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""
        outputs: Tensor = self.layers(inputs)
        return inputs + outputs if self.residual else outputs


def mobilenet_v2(channels: int = 3, dropout: float = 0.2) -> nn.Sequential:
    """Images -> 1280 features; 2,223,872 parameters, 3,504,872 with a head for 1000 classes as published."""
    layers: list[nn.Module] = [*_convolution(channels, 32, kernel=3, stride=2), nn.ReLU6()]
    width = 32
    for expansion, outputs, repeats, first_stride in _STAGES:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            layers.append(InvertedResidual(width, outputs, expansion=expansion, stride=stride))
            width = outputs
    layers += [*_convolution(width, FEATURES, kernel=1), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout))
