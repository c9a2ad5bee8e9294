"""Chips with numbers so small that every time in the tests can be computed by hand."""

from __future__ import annotations

from typing import Any

from engine_times import assert_equal_traces

from npusim import chip, devices
from npusim.chip import Binding, Block, Engine, L2State
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec
from npusim.isa import MicroOp
from npusim.kernel.builder import Builder
from npusim.kernel.program import Program
from npusim.timing.compiled import is_built
from npusim.trace import ORDERING, Trace

UB_BYTES = 16 * 1024

# One gigahertz, so that a nanosecond is a cycle and a gigabyte a second is a byte a cycle.
NUMBERS: dict[str, Any] = {
    "gm.read_bytes_per_s": 32e9,
    "gm.write_bytes_per_s": 16e9,
    "gm.read_latency_ns": 10.0,
    "gm.write_latency_ns": 7.0,
    "gm.row_ns": 0.0,
    "gm.part_row_ns": 0.0,
    "gm.run_bytes": 0,
    "gm.apart_us": 0.0,
    "l2.line_bytes": 128,
    "l2.read_bytes_per_s": 128e9,
    "l2.write_bytes_per_s": 32e9,
    "l2.fills": "beside",
    "l2.read_latency_ns": 2.0,
    "l2.write_latency_ns": 4.0,
    "l2.row_ns": 0.0,
    "l2.ways": 64,
    "l2.same_line_ns": 0.0,
    "l2.aliased_bytes": 0,
    "l2.aliased_speed": 1.0,
    "transfer.issue_cycles": 1,
    "transfer.burst_cycles": 1,
    "transfer.ragged_block_cycles": 0,
    "transfer.sector_bytes": 32,
    "transfer.padded_bytes_per_cycle": 1000.0,
    "scalar.dispatch_cycles": 0,
    "scalar.mte1_queue": 0,
    "scalar.load_cycles": 4,
    "scalar.global_load_cycles": 30,
    "scalar.store_cycles": 3,
    "scalar.alu_cycles": 1,
    "sync.set_flag_cycles": 0,
    "sync.wait_flag_cycles": 0,
    "sync.barrier_cycles": 0,
    "cube.startup_cycles": 7,
    "cube.back_to_back_cycles": 2,
    "banks.groups": 16,
    "banks.banks_per_group": 2,
    "banks.bank_bytes": 512,
}
PATHS = {"gm_to_ub": 32.0, "l2_to_ub": 64.0, "ub_to_gm": 16.0, "ub_to_l2": 32.0}
CUBE_PATHS = {
    "gm_to_l1": (32.0, 0),
    "l2_to_l1": (64.0, 0),
    "l1_to_l0a": (256.0, 3),
    "l1_to_l0b": (128.0, 4),
    "l1_to_bt": (32.0, 5),
    "l1_to_fb": (32.0, 6),
    "l0c_to_l1": (128.0, 7),
    "l0c_to_gm": (16.0, 0),
    "l0c_to_l2": (32.0, 0),
    "l0c_to_ub": (256.0, 8),
    "ub_to_l0c": (512.0, 10),
    "ub_to_l1": (64.0, 9),
}
"""Path -> bytes a cycle and start-up, where the core has it."""
CROSS_CORE_CYCLES = 20
L2_BYTES = 8192


def tiny_spec(arch: str = "2201", **numbers: Any) -> DeviceSpec:
    """A chip of *arch*; *numbers* are dotted keys with two underscores in place of each dot."""
    l2_bytes = numbers.pop("l2__capacity_bytes", L2_BYTES)
    base = devices.load("ascend910b2" if arch == "2201" else "ascend310p3")
    data = base.model_dump(exclude={"sources"}) | {"name": "tiny", "aliases": ()}
    for kind in data["cores"]:
        put(data, f"cores.{kind}.clock_hz", 10**9)
        put(data, f"cores.{kind}.count", 2)
        if data["cores"][kind]["ub_bytes"]:
            put(data, f"cores.{kind}.ub_bytes", UB_BYTES)
            for path, rate in PATHS.items():
                put(data, f"cores.{kind}.paths.{path}.bytes_per_cycle", rate)
        for path, (rate, startup) in CUBE_PATHS.items():
            if path in data["cores"][kind]["paths"]:
                put(data, f"cores.{kind}.paths.{path}.bytes_per_cycle", rate)
                put(data, f"cores.{kind}.paths.{path}.startup_cycles", startup)
    if arch == "2201":
        put(data, "sync.cross_core_cycles", CROSS_CORE_CYCLES)
    for name in data["vector"]["classes"]:
        data["vector"]["classes"][name] = {
            "head_cycles": 2,
            "tail_cycles": 3,
            "cycles_per_repeat_16bit": 1.0,
            "cycles_per_repeat_32bit": 1.0,
        }
    changed = {name.replace("__", "."): value for name, value in numbers.items()}
    for key, value in (NUMBERS | changed).items():
        put(data, key, value)
    spec = DeviceSpec.model_validate(data)
    # An L2 that a test can fill is smaller than that of any chip, and than a file may state.
    l2 = spec.l2.model_copy(update={"capacity_bytes": l2_bytes})
    return spec.model_copy(update={"l2": l2})


def fewer_cores(name: str, **counts: int) -> DeviceSpec:
    """Chip *name* with so many cores of each kind named, so that one of them has several blocks."""
    spec = devices.load(name)
    cores = {
        kind: core.model_copy(update={"count": counts.get(kind, core.count)})
        for kind, core in spec.cores.items()
    }
    return spec.model_copy(update={"cores": cores})


def put(data: dict[str, Any], key: str, value: Any) -> None:
    """Set the entry of *data* that the dotted *key* names."""
    *tables, last = key.split(".")
    for table in tables:
        data = data[table]
    assert last in data, key
    data[last] = value


def builder(spec: DeviceSpec, name: str = "kernel") -> Builder:
    """A builder for the first kind of core that has a vector pipe."""
    return Builder(name, spec.cores[spec.vector_kinds[0]], spec.sync)


def play(
    spec: DeviceSpec,
    *programs: Program | tuple[MicroOp, ...],
    sizes: dict[str, int] | None = None,
    l2: L2State = "cold",
    every_core: bool = True,
    bindings: tuple[dict[str, Binding], ...] = (),
    kind: str | None = None,
) -> Trace:
    """Time one program a core; each name of global memory is a tensor of its own, of *sizes*.

    Both engines must find these times, so that what is computed by hand holds for either.
    """
    sizes = {"x": 8192, "y": 8192} if sizes is None else sizes
    same = {name: Binding(name) for name in sizes}
    blocks = tuple(
        Block(
            core,
            kind or spec.vector_kinds[0],
            program if isinstance(program, Program) else Program("kernel", program),
            bindings[core] if bindings else same,
        )
        for core, program in enumerate(programs)
    )
    tensors = [GlobalTensor(name, size) for name, size in sizes.items()]
    engines: tuple[Engine, ...] = ("simpy", "compiled") if is_built() else ("simpy",)
    trace, *others = (
        chip.time(blocks, tensors, spec, l2=l2, every_core=every_core, engine=engine)
        for engine in engines
    )
    for other in others:
        assert_equal_traces(trace, other)
    return trace


def log(trace: Trace, core: int = 0) -> list[tuple[str, int, int, int]]:
    """(pipe, start, pipe free, result there) of what *core* did besides flags and barriers."""
    return [
        (span.pipe, span.start, span.free, span.end)
        for span in trace.spans(core)
        if not isinstance(span.op, ORDERING)
    ]
