"""Durations as text: the one place that chooses their unit and their number of digits."""

from __future__ import annotations


def describe_duration(seconds: float) -> str:
    """Return the duration as a short text, such as 0.35 s, 4.1 s, 85 s, 12 min or 2.5 h."""
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
