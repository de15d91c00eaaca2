"""Stacked clients: the convolution and linear blocks that train many small networks together."""

from fedlog.engine.training.block.compile import compile_body
from fedlog.engine.training.block.network import BlockNetwork

__all__ = ["BlockNetwork", "compile_body"]
