"""docs/timing.md: the numbers of its table are those of the device file of an Atlas A2."""

from __future__ import annotations

import re
from pathlib import Path

from npusim import devices
from npusim.isa import LoadData

PAGE = (Path(__file__).parents[1] / "docs" / "timing.md").read_text(encoding="utf-8")
A2 = devices.load("Atlas A2")
LAUNCH, GM, L2, CUBE = A2.launch, A2.gm, A2.l2, A2.cube
CODE = A2.cores["aiv"].code
CUBES, VECTORS = A2.cores["aic"].paths, A2.cores["aiv"].paths
ELEMENT = 2 * A2.scalar.load_cycles + A2.scalar.alu_cycles + A2.scalar.store_cycles
"""Cycles of a loop that loads twice, adds and stores."""
NUMBERS = {
    "launch": (
        f"{LAUNCH.base_us:g} us, {LAUNCH.start_us:g} us a core, {LAUNCH.completion_us:g} us at the "
        f"end"
    ),
    "code": (
        f"{CODE.line_ns:g} ns and {CODE.turn_ns:g} a vector core, {A2.cores['aic'].code.line_ns:g} "
        f"and {A2.cores['aic'].code.turn_ns:g} a cube core, for a line of {CODE.line_bytes} B from "
        f"global memory, and {CODE.l2_speed:g} and {A2.cores['aic'].code.l2_speed:g} times as fast "
        f"from the L2"
    ),
    "length of code": (
        f"{CODE.kernel_bytes} B, {CODE.tiling_bytes} more with tiling data on vector cores and "
        f"{A2.cores['aic'].code.tiling_bytes} on cube cores, and {CODE.micro_op_bytes} for each "
        f"place"
    ),
    "instruction caches": (
        f"{A2.cores['aic'].code.cache_bytes >> 10} KiB of a cube core and "
        f"{CODE.cache_bytes >> 10} of a vector core"
    ),
    "tiling data": (
        f"{LAUNCH.tiling_us:g} us before an operator's first copy, and {LAUNCH.tiling_turn_us:g} a "
        f"core each time"
    ),
    "mixed kernels": f"{LAUNCH.mix_us:g} us when",
    "global memory": (
        f"{GM.read_bytes_per_s / 1e12:.3f} TB/s; fair shares; {GM.read_latency_ns:g} ns from"
    ),
    "written back": f"written at {GM.write_bytes_per_s / 1e12:.3f} TB/s",
    "fills and stores": f"{L2.write_bytes_per_s / 1e12:.2f} TB/s of stores alone",
    "dispatch": f"{A2.scalar.dispatch_cycles} cycles of the scalar unit",
    "cores apart": f"in {GM.apart_us:g} us",
    "rows in memory": f"as much as {GM.run_bytes} bytes more",
    "the L2": f"lines of {L2.line_bytes} B",
    "lines on their way": f"a round trip, {GM.read_latency_ns:g} ns",
    "the same lines": f"answers to one line come {L2.same_line_ns:g} ns apart",
    "ragged rows": f"blocks of 32 B, {A2.transfer.ragged_block_cycles} cycles each",
    "strides of 32 KiB": f"{L2.aliased_speed:g} of the speed",
    "rows into fractals": f"{GM.row_ns:g} ns from memory and one in {L2.row_ns:g} ns from the L2",
    "padded bursts": f"at most {A2.transfer.padded_bytes_per_cycle:g} B a cycle",
    "a core's ports": (
        f"{VECTORS['gm_to_ub'].bytes_per_cycle:.0f} B a cycle into UB, "
        f"{CUBES['gm_to_l1'].bytes_per_cycle:.0f} into L1 from memory, "
        f"{CUBES['l2_to_l1'].bytes_per_cycle:.0f} from the L2"
    ),
    "Mmad": f"{CUBE.startup_cycles} cycles alone, {CUBE.back_to_back_cycles} behind another",
    "L1 to L0": (
        f"{CUBES['l1_to_l0a'].bytes_per_cycle:.0f} and {CUBES['l1_to_l0b'].bytes_per_cycle:.0f} B "
        f"a cycle, {CUBES['l1_to_l0a'].startup_cycles} cycles each"
    ),
    "fixpipe": f"{CUBES['l0c_to_gm'].bytes_per_cycle:.0f} B a cycle out of L0C",
    "vector": f"{A2.vector.repeat_bytes} B a cycle",
    "scalar": f"{ELEMENT} cycles an element of a loop that loads twice, adds and stores",
    "the queue of mte1": f"{A2.scalar.mte1_queue} instructions, of which a load to L0 is "
    f"{('one', 'two', 'three')[LoadData.instructions - 1]}",
    "flags between cores": f"{A2.sync.cross_core_cycles} cycles from",
}


def test_the_table_says_what_the_device_file_says() -> None:
    table = PAGE.partition("| effect | what is simulated |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", table, re.MULTILINE))
    rows.pop("---", None)

    # These rows state a rule, not of a number.
    assert set(rows) - set(NUMBERS) == {"past the L2", "banks", "replacement", "odd rows"}
    for effect, numbers in NUMBERS.items():
        assert numbers in rows[effect]
