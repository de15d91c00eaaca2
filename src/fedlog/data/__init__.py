"""Data sets, and how they are divided among clients."""

from fedlog.data.catalog import DEFAULTS, load_federation, resolved
from fedlog.data.data_spec import DataSpec
from fedlog.data.federation import Federation, Records, Shard, validated
from fedlog.data.transforms import Augmentation, Transform, draw_augmentation

__all__ = [
    "DEFAULTS",
    "Augmentation",
    "DataSpec",
    "Federation",
    "Records",
    "Shard",
    "Transform",
    "draw_augmentation",
    "load_federation",
    "resolved",
    "validated",
]
