"""How cores share work: equal parts, and the kind of core that takes them."""

from __future__ import annotations

from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import share

__all__ = ["cores_of", "shares"]


def shares(extent: int, cores: int, step: int = 1) -> list[tuple[int, int]]:
    """Divide *extent* among *cores* in steps of *step*, evenly: `(start, width)` of each core.

    Cores without work are left out.

    >>> shares(100, 3, 16)
    [(0, 48), (48, 32), (80, 20)]
    """
    runs = (share(ceil_div(extent, step), cores, core) for core in range(cores))
    # The last step may be shorter than *step*.
    return [
        (run.start * step, min(run.stop * step, extent) - run.start * step) for run in runs if run
    ]


def cores_of(spec: DeviceSpec, pipe: str, cores: int | None = None) -> tuple[str, int]:
    """The first kind of core with *pipe*, and how many of its *cores* take part.

    Raises ValueError if the chip has fewer; all of them if *cores* is None.
    """
    kind, core = next((kind, core) for kind, core in spec.cores.items() if pipe in core.pipes)
    count = core.count if cores is None else cores
    if not 0 < count <= core.count:
        raise ValueError(
            f"micro: cores must lie in [1, {core.count}] on {spec.name}, not {count}; use fewer"
        )
    return kind, count
