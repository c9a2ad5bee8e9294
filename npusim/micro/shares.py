"""How cores share work: even parts, and the kinds of core that take them."""

from __future__ import annotations

from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec

__all__ = ["cores_of", "shares"]


def shares(extent: int, cores: int, step: int = 1) -> list[tuple[int, int]]:
    """Deal *extent* out to *cores* as evenly as steps of *step* allow: `(start, width)` of each.

    Cores that would get nothing are left out.

    >>> shares(100, 3, 16)
    [(0, 48), (48, 32), (80, 20)]
    """
    steps = ceil_div(extent, step)
    least, more = divmod(steps, cores)
    found, start = [], 0
    for core in range(cores):
        width = min((least + (core < more)) * step, extent - start)
        if width:
            found.append((start, width))
        start += width
    return found


def cores_of(spec: DeviceSpec, pipe: str, cores: int | None = None) -> tuple[str, int]:
    """The kind of core with *pipe* that comes first, and how many of its *cores* take part.

    Raises ValueError if the chip does not have so many; all of them if *cores* is left out.
    """
    kind, core = next((kind, core) for kind, core in spec.cores.items() if pipe in core.pipes)
    count = core.count if cores is None else cores
    if not 0 < count <= core.count:
        raise ValueError(
            f"micro: cores must lie in [1, {core.count}] on {spec.name}, not {count}; use fewer"
        )
    return kind, count
