"""Options of single methods for the short runs of the contract."""

from __future__ import annotations

from typing import Any

# Short phases, and steps large enough that every method moves its model in a few rounds.
OPTIONS: dict[str, dict[str, Any]] = {
    "fedrep": {"head_epochs": 2},
    "fedbabu": {"fine_tune_epochs": 2},
    "feddbe": {"momentum": 0.5},  # at 1 no batch depends on the one before, and padding could do no harm
    "cs-fl": {"threshold": 0.002, "reduction": 0.3, "phase_1_rate": 1.0, "phase_2_rate": 0.01},
}
