"""The numbers in the tables of `msprof op`, by the names of their columns.

Source: Ascend/msopprof, pmu_calculate.cpp: a ratio is cycles of a pipe / cycles of the core, a time
is cycles / clock, GB/s are bytes / time / 2^30, a usage rate is the bytes of a path / the most it
could have moved in the time of the core, at most 100. Numbers that npusim does not model are
missing here.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from npusim.devices.schema import DeviceSpec, Pipe
from npusim.exports.facts import cube_kind, cube_ops, traffic, vector_kind, vector_ops
from npusim.exports.listing import Listing
from npusim.exports.tally import Tally
from npusim.isa import Product, WaitFlag
from npusim.trace import ORDERING, PipeCounter

__all__ = ["Measures", "measures"]

Measures = dict[str, float]

GB = 1 << 30
KB = 1 << 10
SHORT: dict[Pipe, str] = {"vector": "vec"}
"""Pipe -> its name in columns, if that differs."""
BANDWIDTHS = {
    "l1_read_bw(GB/s)": "read l1",
    "l1_write_bw(GB/s)": "write l1",
    "main_mem_read_bw(GB/s)": "read gm",
    "main_mem_write_bw(GB/s)": "write gm",
    "ub_to_gm_bw(GB/s)": "ub to gm",
    "gm_to_ub_bw(GB/s)": "gm to ub",
    "l0a_read_bw(GB/s)": "read l0a",
    "l0a_write_bw(GB/s)": "write l0a",
    "l0b_read_bw(GB/s)": "read l0b",
    "l0b_write_bw(GB/s)": "write l0b",
    "l0c_read_bw(GB/s)": "read l0c",
    "l0c_write_bw(GB/s)": "write l0c",
    "l0c_read_bw_cube(GB/s)": "cube read l0c",
    "l0c_write_bw_cube(GB/s)": "cube write l0c",
    "ub_read_bw_vector(GB/s)": "vector read ub",
    "ub_write_bw_vector(GB/s)": "vector write ub",
    "ub_read_bw_scalar(GB/s)": "scalar read ub",
    "ub_write_bw_scalar(GB/s)": "scalar write ub",
}
AMOUNTS = {"read_main_memory_datas(KB)": "read gm", "write_main_memory_datas(KB)": "write gm"}
PATHS = {
    "GM_to_L1": "gm to l1",
    "L0C_to_L1": "l0c to l1",
    "L0C_to_GM": "l0c to gm",
    "GM_to_UB": "gm to ub",
    "UB_to_GM": "ub to gm",
}


def measures(tally: Tally, listing: Listing, spec: DeviceSpec) -> Measures:
    """The measures of each core of *tally*."""
    cycles = int(tally.lane.end.max(initial=0))
    seconds = cycles / spec.clock_hz
    moved, by_pipe = _moved(tally, listing)
    found: Measures = {"time(us)": seconds * 1e6, "total_cycles": cycles}
    counters = tally.lane.counters()
    for pipe in spec.cores[tally.lane.kind].pipes:
        counter = counters.get(pipe, PipeCounter(0, 0, 0))
        found |= _of_pipe(SHORT.get(pipe, pipe), counter, cycles, spec.clock_hz)
    found |= {
        f"{name}_wait_ratio": waited / cycles for name, waited in _waited(tally, listing).items()
    }
    found |= {name: moved[what] / seconds / GB for name, what in BANDWIDTHS.items()}
    found |= {name: moved[what] / KB for name, what in AMOUNTS.items()}
    for name, what in PATHS.items():
        found[f"{name}_datas(KB)"] = moved[what] / KB
        path = spec.cores[tally.lane.kind].paths.get(what.replace(" ", "_"))
        if path is not None:
            share = moved[what] / (path.bytes_per_cycle * cycles)
            found[f"{name}_bw_usage_rate(%)"] = min(100.0, 100 * share)
    for pipe, nbytes in by_pipe.items():
        busy = counters[pipe].busy_cycles if pipe in counters else 0
        found[f"{pipe}_active_bw(GB/s)"] = nbytes / (busy / spec.clock_hz) / GB if busy else 0.0
    lane = tally.lane
    if lane.l2_bytes:
        found["total_hit_rate(%)"] = 100 * lane.l2_hit_bytes / lane.l2_bytes
    return found | _calculated(tally, listing, cycles)


def _of_pipe(name: str, counter: PipeCounter, cycles: int, clock_hz: int) -> Measures:
    return {
        f"{name}_time(us)": counter.busy_cycles / clock_hz * 1e6,
        f"{name}_ratio": counter.busy_cycles / cycles,
        f"{name}_instructions": counter.micro_ops,
    }


def _moved(tally: Tally, listing: Listing) -> tuple[Counter[str], dict[Pipe, int]]:
    """Bytes by operation and memory, and bytes that a pipe copies to or from global memory."""
    moved: Counter[str] = Counter()
    by_pipe: dict[Pipe, int] = {"mte2": 0, "mte3": 0, "fixpipe": 0}
    for line, calls in zip(listing.lines, tally.calls.tolist(), strict=True):
        if not calls:
            continue
        for what, nbytes in traffic(line.op).items():
            moved[what] += calls * nbytes
            moved[f"{line.pipe} {what}"] += calls * nbytes
        if line.pipe in by_pipe:
            by_pipe[line.pipe] += calls * line.nbytes
    return moved, by_pipe


def _waited(tally: Tally, listing: Listing) -> dict[str, int]:
    """Pipe, by its name in columns -> cycles in which it waited for flags of other pipes."""
    found = {SHORT.get(pipe, pipe): 0 for pipe in ("cube", "vector", "mte1", "mte2", "mte3")}
    for line, waited in zip(listing.lines, tally.occupied.tolist(), strict=True):
        name = SHORT.get(line.pipe, line.pipe)
        if isinstance(line.op, WaitFlag) and name in found:
            found[name] += waited
    return found


def _calculated(tally: Tally, listing: Listing, cycles: int) -> Measures:
    """The operations of the cube and the vector unit, by type."""
    occupied: dict[str, int] = defaultdict(int)
    count: dict[str, int] = defaultdict(int)
    rows = zip(listing.lines, tally.calls.tolist(), tally.occupied.tolist(), strict=True)
    for line, calls, line_cycles in rows:
        work = line.op.work
        if isinstance(work, Product):
            kind = cube_kind(work)
            count["cube_fops"] += calls * cube_ops(work)
            count[f"cube_{'int' if kind == 'int8' else 'fp'}_instr_number"] += calls
            occupied[f"cube_{kind}_ratio"] += line_cycles
        elif line.pipe == "vector" and not isinstance(line.op, ORDERING):
            count["vec_fops"] += calls * vector_ops(line.op)
            occupied[f"vec_{vector_kind(line.op)}_ratio"] += line_cycles
    found: Measures = {
        name: count[name]
        for name in ("cube_fops", "cube_fp_instr_number", "cube_int_instr_number", "vec_fops")
    }
    found["cube_total_instr_number"] = sum(count[f"cube_{x}_instr_number"] for x in ("fp", "int"))
    kinds = [f"vec_{kind}_ratio" for kind in ("fp32", "fp16", "int32", "int16", "misc")]
    ratios = {
        name: occupied[name] / cycles for name in (*kinds, "cube_fp16_ratio", "cube_int8_ratio")
    }
    return found | ratios
