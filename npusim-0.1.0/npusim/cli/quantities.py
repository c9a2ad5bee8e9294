"""Numbers with their units, as people read them."""

from __future__ import annotations

from npusim.reports.style import rate_named

__all__ = ["bytes_named", "hz_named", "quantity"]

UNITS = (
    ("bytes_per_cycle", "bytes/cycle"),
    ("cycles_per_repeat_16bit", "cycles/repeat"),
    ("cycles_per_repeat_32bit", "cycles/repeat"),
    ("k_per_cycle", "elements/cycle"),
    ("tiles_per_cycle", "tiles/cycle"),
    ("_cycles", "cycles"),
    ("_ns", "ns"),
    ("_us", "us"),
)
"""End of a name -> unit."""


def bytes_named(count: float) -> str:
    """A number of bytes, in the largest unit that leaves few digits.

    >>> bytes_named(196608), bytes_named(1000), bytes_named(33554432)
    ('192 KiB', '1000 bytes', '32 MiB')
    """
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.6g} {unit}"
    return f"{count:g} bytes"


def hz_named(clock_hz: float) -> str:
    """A clock.

    >>> hz_named(1_060_000_000)
    '1.06 GHz'
    """
    return f"{clock_hz / 1e9:.6g} GHz"


def quantity(key: str, value: float) -> str:
    """The number of a device file at dotted *key*, with the unit that its name ends in.

    >>> quantity("cores.aiv.ub_bytes", 196608), quantity("launch.base_us", 0.25)
    ('192 KiB', '0.25 us')
    """
    name = key if key.rpartition(".")[2] not in DTYPE_KEYS else key.rpartition(".")[0]
    if name.endswith("_bytes_per_s"):
        return rate_named(value)
    if name.endswith("_hz"):
        return hz_named(value)
    for end, unit in UNITS:
        if name.endswith(end):
            return f"{value:g} {unit}"
    return bytes_named(value) if name.endswith("_bytes") else f"{value:g}"


DTYPE_KEYS = ("int4", "int8", "float16", "bfloat16", "float32")
"""Entries of a table by dtype, whose unit stands in the name of the table."""
