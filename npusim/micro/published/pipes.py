"""Busy times of pipes in the kernels of the vendor's examples, by its profiler.

Means over the cores, in microseconds. If a page gives a time per instruction instead, it is written
as that time multiplied by their number on a core.
"""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec, Pipe
from npusim.trace import Trace

__all__ = ["PIPES_US", "mean_pipes_us"]

CLOCK_MHZ = 1850
"""Cycles per microsecond of the chip that was measured."""
ADD_TILES, STEPS = 8192 * 8192 / 4096, 8192 * 8192 * 8192 / (128 * 256 * 64)
"""Tiles of 4096 elements of the addition, and steps of 128 x 256 x 64 of the product."""


def _us(cycles: float, count: float) -> float:
    """*count* instructions of *cycles* each."""
    return cycles * count / CLOCK_MHZ


# mirror-cann/asc-devkit@82b89a1, examples/01_simd_cpp_api/05_best_practices; for the product with
# L2 tiles by the basic API it is not certain that these are its times and not those without.
PIPES_US: dict[str, dict[Pipe, float]] = {
    "m0658": {
        "mte2": _us(350.5, 2 * ADD_TILES),
        "vector": _us(86.0, ADD_TILES),
        "mte3": _us(295, ADD_TILES),
    },
    "m0663": {
        "mte2": _us(584, 2 * ADD_TILES / 48),
        "vector": _us(86.1, ADD_TILES / 48),
        "mte3": _us(294.5, ADD_TILES / 48),
    },
    "m0669": {
        "mte2": _us(1998.5, ADD_TILES / 2 / 48),
        "vector": _us(278.5, ADD_TILES / 4 / 48),
        "mte3": _us(1243, ADD_TILES / 4 / 48),
    },
    "m0685": {"mte2": 176.0, "vector": 6.95, "mte3": 160.3},
    "m0699": {
        "mte2": _us(1380.5, STEPS),
        "mte1": _us(367.0, STEPS),
        "cube": _us(575.0, STEPS),
    },
    "m0713": {"mte1": _us(367.0, STEPS / 24), "cube": _us(575.0, STEPS / 24)},
    "m0748": {"mte2": 3436.0, "cube": _us(521.1, STEPS / 24)},
    "m0762": {"mte2": 3487.0, "mte1": 2553.0, "cube": _us(522.0, STEPS / 24)},
    "m0813": {"mte2": 548.2},
    "m0814": {"mte2": 220.8},
    "m0815": {"mte2": 202.7},
    "m0816": {"mte2": 259.0},
    "m0818": {"mte2": 354.6},
    "m0819": {"mte2": 474.7},
    "m0820": {"mte2": 307.4},
    "m0821": {"mte2": 283.5},
    "m0822": {"mte2": 214.5},
    "m0823": {"mte2": 422.5},
    "m0826": {"mte2": 240.2},
    "m0827": {"mte2": 209.8},
    "m0828": {"vector": 47.8},
    "m0833": {"vector": 7.1},
    "m0857": {"mte2": 90.0},
    "m0858": {"mte2": 69.9},
}
"""Row -> pipe -> its busy time."""


def mean_pipes_us(trace: Trace, spec: DeviceSpec) -> dict[Pipe, float]:
    """The busy time of each pipe, as the mean over the cores."""
    cores = trace.counters().values()
    cycles: dict[Pipe, int] = {}
    for pipes in cores:
        for pipe, counter in pipes.items():
            cycles[pipe] = cycles.get(pipe, 0) + counter.busy_cycles
    return {pipe: sum_ / len(cores) / spec.clock_hz * 1e6 for pipe, sum_ in cycles.items()}
