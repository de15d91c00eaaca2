"""Numbers of bits as text for people, with a suitable unit and three digits."""

from __future__ import annotations

UNITS = (("Tb", 1e12), ("Gb", 1e9), ("Mb", 1e6), ("kb", 1e3))
ROUNDS_UP = 0.9995  # from this share of a unit on, three digits round up to it: 999.7 kb is written 1.00 Mb


def choose_unit(bits: float) -> tuple[str, float]:
    """The unit for a number of bits (b, kb, Mb, Gb or Tb), and how many bits that unit is."""
    return next(((unit, size) for unit, size in UNITS if bits >= ROUNDS_UP * size), ("b", 1.0))


def describe_bits(bits: float) -> str:
    """The number of bits with three digits and a unit: 934 b, 12.4 kb, 3.10 Mb, 6.82 Gb."""
    unit, size = choose_unit(bits)
    if size == 1.0:
        return f"{bits:.0f} b"
    return f"{bits / size:#.3g}".rstrip(".") + f" {unit}"
