"""Data sets, and how they are divided among clients."""

from fedlog.data.catalog import DEFAULTS, load_federation, resolve_data
from fedlog.data.data_spec import DataSpec
from fedlog.data.federation import Federation, Records, Shard, check_federation
from fedlog.data.transforms import Augmentation, Transform, draw_augmentation

__all__ = [
    "DEFAULTS",
    "Augmentation",
    "DataSpec",
    "Federation",
    "Records",
    "Shard",
    "Transform",
    "check_federation",
    "draw_augmentation",
    "load_federation",
    "resolve_data",
]
