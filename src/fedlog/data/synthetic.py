"""Data made here: the circle of the paper's synthetic experiment."""

from __future__ import annotations

import torch

from fedlog.core.keys import Key
from fedlog.data.federation import Records

CIRCLE_RADIUS = 26 / 7
CIRCLE_HALF_SIDE = 5.0
CIRCLE_TRAIN_RECORDS = 80
# The paper does not give the number of test points; 1000 leave a standard error of at most 1.6 points.
CIRCLE_TEST_RECORDS = 1000


def circle_points(n: int, key: Key) -> Records:
    """n points, uniform on the square [-5, 5] x [-5, 5]: class 0 inside the circle of radius 26/7, class 1 outside.

    The paper does not say which side is class 0.
    """
    points = (torch.rand(n, 2, generator=key.torch()) * 2 - 1) * CIRCLE_HALF_SIDE
    labels = (points.square().sum(dim=1) > CIRCLE_RADIUS**2).to(torch.int64)
    return Records(points, labels)
