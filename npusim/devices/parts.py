"""The tables of a device file: cores, memories, units, and what launches cost.

Units stand in the names: ``_bytes``, ``_hz``, ``_cycles`` (of the core that is meant), ``_ns``,
``_us``, ``_bytes_per_cycle``, ``_bytes_per_s``.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from npusim.devices.names import Line, visible
from npusim.devices.ranges import (
    BankBytes,
    BiasTableBytes,
    BlockBytes,
    BytesPerCycle,
    BytesPerSecond,
    CodeBytes,
    CodeLineBytes,
    CopyBytes,
    Cores,
    CubeDepth,
    CubeEdge,
    Cycles,
    CyclesPerRepeat,
    EventIds,
    FixpipeBytes,
    GlobalBytes,
    GroupBanks,
    Groups,
    Hz,
    Instructions,
    L0Bytes,
    L0cBytes,
    L1Bytes,
    L2Bytes,
    LineBytes,
    Microseconds,
    Nanoseconds,
    RepeatBytes,
    ReservedBytes,
    ReservedEventIds,
    RunBytes,
    Stride,
    TilesPerCycle,
    Times,
    UbBytes,
    Ways,
)

__all__ = [
    "NUMBER",
    "Banks",
    "Code",
    "Confidence",
    "Core",
    "Cube",
    "GlobalMemory",
    "L2Cache",
    "Part",
    "Path",
    "Pipe",
    "Scalar",
    "Source",
    "Sync",
    "Transfer",
    "Vector",
    "VectorClass",
    "VectorClassName",
]

NUMBER = '{ value = ..., source = "...", confidence = "..." }'
"""How a number is written."""
Pipe = Literal["scalar", "vector", "cube", "mte1", "mte2", "mte3", "fixpipe"]
VectorClassName = Literal[
    "add",
    "mul",
    "max",
    "adds",
    "muls",
    "maxs",
    "div",
    "cast",
    "duplicate",
    "broadcast",
    "reduce",
    "block_reduce",
    "logic",
    "select",
    "copy",
    "muladd",
    "transcendental",
    "ln",
    "sqrt",
    "rsqrt",
    "compare",
    "gather",
    "transpose",
    "sort",
    "merge",
    "gather_mask",
]
Memory = Literal["gm", "l2", "l1", "l0a", "l0b", "l0c", "ub", "bt", "fb"]
CUBE_DTYPES = ("int4", "int8", "float16", "bfloat16", "float32")
"""What `mmad` multiplies: asc-devkit, docs/zh/api, Cube指令理论性能汇总.md."""
Confidence = Literal[
    "vendor file",  # platform files that ship with the toolkit, an engine's own source
    "vendor doc",  # official guides, API pages, product pages
    "vendor tool",  # a constant inside a vendor's cost model: a prior or a fit, not a specification
    "measured",  # a time taken on silicon, or what follows from it by arithmetic
    "paper",
    "calibrated",  # settled on measured rows, which the source names
    "inferred",  # follows from other facts, the source says how
    "assumed",  # nothing public was found
]


class Source(NamedTuple):
    """Where one number of a device file comes from."""

    text: Line
    confidence: Confidence


class Part(BaseModel):
    """A table of a file whose numbers have sources."""

    thing: ClassVar[str] = "chip"  # what the file describes
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _known_way(name: str) -> str:
    known = get_args(Memory)
    ends = name.split("_to_")
    if len(ends) != 2 or not set(ends) <= set(known):
        raise ValueError(
            f"must be named <from>_to_<to> with memories out of {', '.join(known)}; rename it"
        )
    return name


class Path(Part):
    """A way between two memories, named ``<from>_to_<to>``."""

    pipe: Pipe
    """The pipe that moves the bytes."""
    bytes_per_cycle: BytesPerCycle
    """Rate of one core without contention, in bytes a cycle of the core's clock."""
    startup_cycles: Cycles
    """Cycles a transfer holds the pipe before its first byte moves."""


class Code(Part):
    """How a core gets the code of a kernel: from its instruction cache, the L2 or global memory."""

    cache_bytes: CodeBytes
    line_bytes: CodeLineBytes
    """What is fetched at a time."""
    kernel_bytes: CodeBytes
    """What every kernel runs through, whatever it does."""
    tiling_bytes: CodeBytes
    """The same of kernels that read their tiling from global memory and set queues up by it."""
    micro_op_bytes: CodeBytes
    """For each place in a kernel that hands a micro-op or a flag to a pipe."""
    line_ns: Nanoseconds
    """To fetch a line from global memory, what the next lines hide left out."""
    turn_ns: Nanoseconds
    """Added for each core: all want the same lines, and are served in turn."""
    l2_speed: Times
    """How fast lines come out of the L2, as a multiple of the speed from global memory."""

    def nbytes(self, micro_ops: int, reads_tiling: int) -> int:
        """The code of a kernel with *micro_ops* places that write one."""
        tiling_bytes = self.tiling_bytes if reads_tiling else 0
        return self.kernel_bytes + tiling_bytes + micro_ops * self.micro_op_bytes

    def fetch_us(self, nbytes: int, cores: int, l2_share: float) -> float:
        """How long *cores* fetch *nbytes*, of which the L2 has *l2_share*."""
        lines = nbytes / self.line_bytes
        slowness = 1 - l2_share + l2_share / self.l2_speed
        return lines * (self.line_ns + cores * self.turn_ns) * slowness / 1000


class Core(Part):
    """One kind of core; buffers that the kind does not have are left out."""

    count: Cores
    clock_hz: Hz
    pipes: tuple[Pipe, ...] = Field(strict=False)  # TOML has lists, not tuples
    ub_bytes: UbBytes | None = None
    ub_reserved_bytes: ReservedBytes | None = None
    """Tail of the unified buffer that the framework keeps for itself."""
    l1_bytes: L1Bytes | None = None
    l1_reserved_bytes: ReservedBytes | None = None
    l0a_bytes: L0Bytes | None = None
    l0b_bytes: L0Bytes | None = None
    l0c_bytes: L0cBytes | None = None
    bt_bytes: BiasTableBytes | None = None
    """Bias table."""
    fb_bytes: FixpipeBytes | None = None
    """Fixpipe buffers, all four together."""
    code: Code
    paths: dict[Annotated[str, AfterValidator(_known_way)], Path]

    def usable_bytes(self, buffer: str) -> int:
        """Bytes of *buffer* that a kernel may use; 0 where the core has no such buffer."""
        size: int = getattr(self, f"{buffer}_bytes", None) or 0
        kept: int = getattr(self, f"{buffer}_reserved_bytes", None) or 0
        return size - kept

    @model_validator(mode="after")
    def _paths_run_on_own_pipes(self) -> Self:
        for name, path in self.paths.items():
            if path.pipe not in self.pipes:
                raise ValueError(
                    f"paths.{name}.pipe must be one of the core's pipes {', '.join(self.pipes)}, "
                    f"not {path.pipe}; add the pipe or move the path"
                )
            for end in name.split("_to_"):
                if end not in ("gm", "l2") and getattr(self, f"{end}_bytes") is None:
                    raise ValueError(
                        f"paths.{name} must end in buffers that the core has, not in {end}; "
                        f"give {end}_bytes or drop the path"
                    )
        return self


class GlobalMemory(Part):
    """Off-chip memory behind the L2."""

    capacity_bytes: GlobalBytes
    bus: Literal["separate", "shared"]
    """Whether writes have their own bandwidth, or share that of reads."""
    read_bytes_per_s: BytesPerSecond
    """The rate of all cores together, like `write_bytes_per_s`."""
    write_bytes_per_s: BytesPerSecond
    """The rate of lines that the L2 writes back alone; they take up a shared bus for so long."""
    read_latency_ns: Nanoseconds
    """From a request to its first byte, beyond the time the bytes themselves take."""
    write_latency_ns: Nanoseconds
    """From the last byte handed over to the acknowledgement."""
    row_ns: Nanoseconds
    """Time from piece to piece of rows, each up to one line, that LoadNd2Nz turns into Nz: a round
    trip, divided by the requests that a core may have under way. Bytes that take longer at the
    core's port hide it."""
    part_row_ns: Nanoseconds
    """The same for rows that are half a line or less each, and alone in it."""
    run_bytes: RunBytes
    """Overhead of each run, in bytes that could have been read in its time."""
    apart_us: Microseconds
    """How far cores that do the same are apart in time, so that some load while others rest. What
    the memory could have read while all rest, simulated in step, it reads later, up to what it
    reads in this time; and so does the L2 with what comes in and what is stored, except for rest
    while cores load the same lines at once."""


class L2Cache(Part):
    """The cache that all cores share."""

    fills: Literal["beside", "between"]
    """Whether lines come in while cores store, or in between, so that each holds the other up
    for as long as it takes alone."""
    capacity_bytes: L2Bytes
    line_bytes: LineBytes
    read_bytes_per_s: BytesPerSecond
    write_bytes_per_s: BytesPerSecond
    read_latency_ns: Nanoseconds
    write_latency_ns: Nanoseconds
    row_ns: Nanoseconds
    """The same for pieces that are in the L2."""
    ways: Ways
    """Lines that a set holds."""
    same_line_ns: Nanoseconds
    """From answer to answer of cores that ask past the L2 for one line at once; 0 if unknown."""
    aliased_bytes: Stride
    """Bursts that lie a multiple of this apart are in few parts of the L2, which slows several
    cores that read them at once; 0 if unknown."""
    aliased_speed: Times
    """How fast such bursts come out of the L2, as a multiple of the speed of others."""


class Transfer(Part):
    """What a copy between global memory and a core costs in addition to its bytes."""

    issue_cycles: Cycles
    """A copy instruction holds its pipe at least this long."""
    burst_cycles: Cycles
    """Each burst (row) of a strided copy holds the pipe at least this long."""
    padded_bytes_per_cycle: BytesPerCycle
    """How fast at most the unified buffer takes or gives bursts that are no whole blocks: they fill
    blocks up there."""
    ragged_block_cycles: Cycles
    """The same for each block of 32 bytes where the fixpipe stores rows that end within sectors."""
    sector_bytes: LineBytes
    """Smallest piece that moves; an aligned burst is charged in whole sectors."""
    store_granule_bytes: CopyBytes
    """Stores to global memory must be a multiple of this."""
    load_granule_bytes: CopyBytes
    """Loads from global memory must be a multiple of this."""


def _known_dtype(name: str) -> str:
    if name not in CUBE_DTYPES:
        raise ValueError(
            f"must be one of {', '.join(CUBE_DTYPES)}, not {visible(name)}; rename or drop it"
        )
    return name


class Cube(Part):
    """The matrix unit: `m` x `n` x `k` multiply-accumulates a cycle."""

    m: CubeEdge
    n: CubeEdge
    k_per_cycle: dict[Annotated[str, AfterValidator(_known_dtype)], CubeDepth]
    """Depth k of the tile of `m` x `n` that is multiplied at once, per dtype."""
    tiles_per_cycle: TilesPerCycle
    """How many such tiles are multiplied in a cycle."""
    startup_cycles: Cycles
    """Cycles of an `mmad` in addition to its tiles when the pipe was idle."""
    back_to_back_cycles: Cycles
    """The same when `mmad` follows `mmad`."""


class VectorClass(Part):
    """Cost of the vector instructions that behave alike."""

    head_cycles: Cycles
    """Cycles before the first repeat, when the pipe was drained."""
    tail_cycles: Cycles
    """Cycles after the last repeat until the result can be read."""
    cycles_per_repeat_16bit: CyclesPerRepeat
    cycles_per_repeat_32bit: CyclesPerRepeat


class Vector(Part):
    """The vector unit: 256 bytes a repeat, eight blocks of 32."""

    repeat_bytes: RepeatBytes
    block_bytes: BlockBytes
    classes: dict[VectorClassName, VectorClass]

    @model_validator(mode="after")
    def _no_class_is_missing(self) -> Self:
        missing = [name for name in get_args(VectorClassName) if name not in self.classes]
        if missing:
            raise ValueError(
                f"classes must be all of {', '.join(get_args(VectorClassName))}, not lack "
                f"{', '.join(missing)}; add them, or take them from a shipped chip with extends"
            )
        return self


class Banks(Part):
    """How the unified buffer is cut into banks.

    Address bits, from the lowest: byte in block, group, row, bank of the group.
    """

    groups: Groups
    banks_per_group: GroupBanks
    bank_bytes: BankBytes


class Scalar(Part):
    """The scalar unit, which also hands every micro-op to its pipe."""

    dispatch_cycles: Cycles
    """To hand a micro-op or a flag to another pipe, with all that has to be worked out before. A
    barrier takes as long as what the scalar unit calculates, if that is less."""
    mte1_queue: Instructions
    """Instructions of mte1 that may wait while others are handed out; 0: any number."""
    load_cycles: Cycles
    global_load_cycles: Cycles
    """Cycles of a load of one element of global memory that is not in the data cache."""
    store_cycles: Cycles
    alu_cycles: Cycles


class Sync(Part):
    """Flags and barriers, inside a core and between cores."""

    set_flag_cycles: Cycles
    wait_flag_cycles: Cycles
    barrier_cycles: Cycles
    event_ids: EventIds
    """Flags for each pair of pipes."""
    reserved_event_ids: ReservedEventIds
    """How many of them, from the top, the framework keeps."""
    cross_core_cycles: Cycles | None = None
    """From a set flag until another core sees it; left out if cores cannot wait for each other."""
