"""What all cores of a chip can move or compute per second, from the numbers of its device file.

.. code-block:: text

    a path      bytes per cycle x cores x clock, summed over the kinds of cores that have it
    the cube    2 x m x n x k x cores x clock: a multiplication and an addition count as two
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from npusim.devices.schema import DeviceSpec

__all__ = ["Limit", "Term", "cube", "link", "path", "vector", "vector_bytes"]


@dataclass(frozen=True, slots=True)
class Term:
    """A product: *factor* times numbers of a device file."""

    factor: float
    numbers: tuple[tuple[str, float], ...]
    """Dotted key and value of each number, the most informative first."""

    @property
    def per_s(self) -> float:
        """Its value."""
        return prod((value for _, value in reversed(self.numbers)), start=self.factor)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit in bytes or operations per second: a sum of *terms*."""

    terms: tuple[Term, ...]

    @property
    def per_s(self) -> float:
        """Its value; 0 without terms, as for a path that no core has."""
        return float(sum(term.per_s for term in self.terms))


def link(key: str, bytes_per_s: float) -> Limit:
    """The limit of a link that all cores share; *key* is its dotted key in the device file."""
    return Limit((Term(1, ((key, bytes_per_s),)),))


def path(device: DeviceSpec, ways: Iterable[str]) -> Limit:
    """The limit of all cores over *ways*, of which each kind of core uses the fastest it has."""
    terms = []
    for kind, core in device.cores.items():
        own = [way for way in ways if way in core.paths]
        if own:
            way = max(own, key=lambda way: core.paths[way].bytes_per_cycle)
            rate = f"cores.{kind}.paths.{way}.bytes_per_cycle", core.paths[way].bytes_per_cycle
            terms.append(_on_all(device, kind, 1, rate))
    return Limit(tuple(terms))


def cube(device: DeviceSpec, dtype: str) -> Limit:
    """The peak of all cubes for elements of *dtype*; 0 for a type they do not have."""
    unit = device.cube
    if dtype not in unit.k_per_cycle:
        return Limit(())
    tile = (
        (f"cube.k_per_cycle.{dtype}", unit.k_per_cycle[dtype]),
        ("cube.m", unit.m),
        ("cube.n", unit.n),
        ("cube.tiles_per_cycle", unit.tiles_per_cycle),
    )
    return _unit(device, "cube", 2, *tile)


def vector(device: DeviceSpec, bits: int) -> Limit:
    """The peak of all vector units for elements of *bits* bits: one operation each per cycle."""
    return _unit(device, "vector", 8 / bits, ("vector.repeat_bytes", device.vector.repeat_bytes))


def vector_bytes(device: DeviceSpec, operands: int) -> Limit:
    """The bytes that they read or write per second with this many *operands* in a repeat."""
    return _unit(device, "vector", operands, ("vector.repeat_bytes", device.vector.repeat_bytes))


def _unit(device: DeviceSpec, pipe: str, factor: float, *numbers: tuple[str, float]) -> Limit:
    kinds = (kind for kind, core in device.cores.items() if pipe in core.pipes)
    return Limit(tuple(_on_all(device, kind, factor, *numbers) for kind in kinds))


def _on_all(device: DeviceSpec, kind: str, factor: float, *numbers: tuple[str, float]) -> Term:
    core = device.cores[kind]
    count, clock = (f"cores.{kind}.count", core.count), (f"cores.{kind}.clock_hz", core.clock_hz)
    return Term(factor, (*numbers, count, clock))
