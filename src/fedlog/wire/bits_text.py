"""Numbers of bits as people read them: the one place that chooses their unit and digits."""

from __future__ import annotations

UNITS = (("Tb", 1e12), ("Gb", 1e9), ("Mb", 1e6), ("kb", 1e3))
ROUNDS_UP = 0.9995  # from here on three digits would round to the next unit: 999.7 kb is 1.00 Mb


def choose_unit(bits: float) -> tuple[str, float]:
    """The unit that suits a number of bits, and how many bits it has."""
    return next(((unit, size) for unit, size in UNITS if bits >= ROUNDS_UP * size), ("b", 1.0))


def describe_bits(bits: float) -> str:
    """A number of bits to three digits: 934 b, 12.4 kb, 3.10 Mb, 6.82 Gb."""
    unit, size = choose_unit(bits)
    if size == 1.0:
        return f"{bits:.0f} b"
    return f"{bits / size:#.3g}".rstrip(".") + f" {unit}"
