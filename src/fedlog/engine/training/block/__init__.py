"""Train many clients with small networks at once: their tensors are stacked, and layers run over the whole stack."""

from fedlog.engine.training.block.compile import compile_module
from fedlog.engine.training.block.network import BlockNetwork

__all__ = ["BlockNetwork", "compile_module"]
