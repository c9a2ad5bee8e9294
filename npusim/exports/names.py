"""The names of cores, lanes and colours in the vendor's tools.

Sources: Ascend/msopprof, csrc/op_profiling (timeline_visualizer) and docs/en/user_guide; the names
of stand-alone cores of arch 2002 are assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.devices.schema import Pipe
from npusim.exports.listing import Line
from npusim.isa import Barrier
from npusim.trace import Trace

__all__ = ["COLORS", "LANES", "PROCESSES", "Place", "lane_of", "places"]

LANES = {
    "SCALAR": 1,
    "MTE1": 3,
    "CUBE": 4,
    "FIXP": 5,
    "MTE2": 6,
    "VECTOR": 7,
    "MTE3": 8,
    "ALL": 11,
}
"""Lane -> its position among the lanes of a core."""
PROCESSES = {
    "SCALAR": 10,
    "VECTOR": 30,
    "CUBE": 40,
    "MTE1": 50,
    "MTE2": 60,
    "MTE3": 70,
    "FIXP": 80,
    "ALL": 100,
}
"""Lane -> the number of its process in the trace of a single core."""
COLORS = {
    "MTE1": "thread_state_running",
    "MTE2": "thread_state_iowait",
    "MTE3": "rail_response",
    "SCALAR": "startup",
    "VECTOR": "cq_build_failed",
    "CUBE": "background_memory_dump",
    "FIXP": "thread_state_unknown",
    "ALL": "good",
    "set": "black",
    "wait": "yellow",
}
"""Lane, or flag -> the vendor's name of its colour."""
OF_PIPE: dict[Pipe, str] = {
    "scalar": "SCALAR",
    "mte1": "MTE1",
    "cube": "CUBE",
    "fixpipe": "FIXP",
    "mte2": "MTE2",
    "vector": "VECTOR",
    "mte3": "MTE3",
}


def lane_of(line: Line | Pipe) -> str:
    """The lane of a pipe; a barrier for all pipes has a separate lane."""
    if isinstance(line, Line):
        is_for_all = isinstance(line.op, Barrier) and line.op.on is None
        return "ALL" if is_for_all else OF_PIPE[line.pipe]
    return OF_PIPE[line]


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a core among the others."""

    block: int
    """The block that it works on."""
    part: str
    """Its part of that block: cube0, vector0 or vector1."""
    name: str
    """The name of its folder, and of its process in a trace."""
    order: int
    """The sort key of cores, ascending."""
    group: int
    """Cube and vector cores of a group share flags."""


def places(trace: Trace) -> dict[int, Place]:
    """Core -> its position.

    A cube core and its vector cores share the block of their group when both kinds run, and the
    vector cores follow the cube core; alone, each core has its own block, and two vector
    cores share a number.
    """
    kinds = {core: trace.kind(core) for core in trace.cores}
    if not {"aic", "aiv"} <= set(kinds.values()):
        return {core: _place_alone(core, kind) for core, kind in kinds.items()}
    groups: dict[int, list[int]] = {}
    for core in trace.cores:
        groups.setdefault(trace.group(core), []).append(core)
    return {
        core: place
        for group, cores in groups.items()
        for core, place in _places_of_group(group, {core: kinds[core] for core in cores}).items()
    }


def _places_of_group(group: int, kinds: dict[int, str]) -> dict[int, Place]:
    """The positions of the cores of *group*; *kinds* are the kinds of its cores, ascending."""
    first = min(kinds)
    is_led = kinds[first] == "aic"
    found: dict[int, Place] = {}
    cubes = 0
    for core, kind in kinds.items():
        if kind == "aic":
            name = f"core{group}.cubecore{cubes}"
            found[core] = Place(group, f"cube{cubes}", name, 3 * group + 1, group)
            cubes += 1
        else:
            half = core - (first + is_led)
            name, order = f"core{group}.veccore{half}", 3 * group + 2 + half
            found[core] = Place(group, f"vector{half}", name, order, group)
    return found


def _place_alone(core: int, kind: str) -> Place:
    if kind == "aic":
        return Place(core, "cube0", f"core{core}.cubecore0", 3 * core + 1, core)
    if kind == "aiv":
        # Two vector cores belong to one cube core, which is not used here.
        pair, half = divmod(core, 2)
        return Place(core, "vector0", f"core{pair}.veccore{half}", 3 * pair + 2 + half, pair)
    return Place(core, "cube0", f"core{core}", 3 * core + 1, core)
