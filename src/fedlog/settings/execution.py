"""Settings of the computation (device, processes, threads). They change results by rounding errors at most."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fedlog.settings.fields import AtLeastOne, Section, local_setting


class BackendChoice(StrEnum):
    """How clients are trained: one after another, or in one of the ways to train many at once."""

    AUTO = "auto"
    """The fastest of the others."""
    BLOCK = "block"
    """Many at once: their tensors are stacked, and each layer has a stacked version (a block)."""
    MIXED = "mixed"
    """Many at once, with blocks for the layers that have one, and `vmap` or the loop for the others."""
    VMAP = "vmap"
    """Many at once, with `torch.func.vmap` for the whole body."""
    LOOP = "loop"
    """One after another."""


@dataclass(frozen=True)
class Execution(Section):
    """Where and how a run is computed: the device, the backend, worker processes and threads."""

    device: str = local_setting("cpu", "cpu, cuda, ...")
    backend: BackendChoice = local_setting(
        BackendChoice.AUTO, "how clients are trained: stacked or one after another (auto: the fastest)"
    )
    jobs: AtLeastOne = local_setting(
        1, "worker processes, one thread each (on the command line: all cores)", metavar="N"
    )
    # The kernels are too small to split.
    threads: AtLeastOne = local_setting(1, "PyTorch threads in each process", metavar="N")
