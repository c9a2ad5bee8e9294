"""The tables of a device file: cores, memories, units, and costs of launches.

Units are in the names: ``_bytes``, ``_hz``, ``_cycles`` (of the core in question), ``_ns``,
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
"""The notation of a number."""
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
"""Types that `mmad` multiplies: asc-devkit, docs/zh/api, Cube指令理论性能汇总.md."""
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
    """The source of one number of a device file."""

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
    """A path between two memories, named ``<from>_to_<to>``."""

    pipe: Pipe
    """The pipe that moves the bytes."""
    bytes_per_cycle: BytesPerCycle
    """Rate of one core without contention, in bytes a cycle of the core's clock."""
    startup_cycles: Cycles
    """Cycles for which a transfer holds the pipe before its first byte moves."""


class Code(Part):
    """How a core fetches code of a kernel: from its instruction cache, the L2 or global memory."""

    cache_bytes: CodeBytes
    line_bytes: CodeLineBytes
    """Bytes of one fetch."""
    kernel_bytes: CodeBytes
    """Code that every kernel runs, whatever it does."""
    tiling_bytes: CodeBytes
    """The same for kernels that read their tiling from global memory and set up queues from it."""
    micro_op_bytes: CodeBytes
    """For each place in a kernel that issues a micro-op or a flag to a pipe."""
    line_ns: Nanoseconds
    """To fetch a line from global memory, without what later lines hide."""
    turn_ns: Nanoseconds
    """Added for each core: all request the same lines, and are served in turn."""
    l2_speed: Times
    """Speed of lines from the L2, as a multiple of the speed from global memory."""

    def nbytes(self, micro_ops: int, reads_tiling: int) -> int:
        """The code of a kernel with *micro_ops* places that write one."""
        tiling_bytes = self.tiling_bytes if reads_tiling else 0
        return self.kernel_bytes + tiling_bytes + micro_ops * self.micro_op_bytes

    def fetch_us(self, nbytes: int, cores: int, l2_share: float) -> float:
        """Time in which *cores* fetch *nbytes*, with *l2_share* of them in the L2."""
        lines = nbytes / self.line_bytes
        slowness = 1 - l2_share + l2_share / self.l2_speed
        return lines * (self.line_ns + cores * self.turn_ns) * slowness / 1000


class Core(Part):
    """One kind of core; buffers that it does not have are absent."""

    count: Cores
    clock_hz: Hz
    pipes: tuple[Pipe, ...] = Field(strict=False)  # TOML has lists, not tuples
    ub_bytes: UbBytes | None = None
    ub_reserved_bytes: ReservedBytes | None = None
    """Tail of the unified buffer that the framework reserves."""
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
        """Bytes of *buffer* that a kernel may use; 0 if the core has no such buffer."""
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
    """The rate for all cores together, as is `write_bytes_per_s`."""
    write_bytes_per_s: BytesPerSecond
    """The rate of lines that the L2 writes back alone; a shared bus is occupied for that time."""
    read_latency_ns: Nanoseconds
    """From a request to its first byte, beyond the time the bytes themselves take."""
    write_latency_ns: Nanoseconds
    """From the last byte sent to the acknowledgement."""
    row_ns: Nanoseconds
    """Time from piece to piece of rows, each up to one line, that LoadNd2Nz converts to Nz: a round
    trip, divided by the requests that a core may have in flight. It is hidden if the bytes take
    longer at the core's port."""
    part_row_ns: Nanoseconds
    """The same for rows of at most half a line each, and alone in it."""
    run_bytes: RunBytes
    """Overhead of each run of lines, in bytes that could have been read in its time."""
    apart_us: Microseconds
    """How far identical cores are apart in time, so that some load while others are idle. What the
    memory could have read while all of them, simulated in step, are idle, it reads later, up to
    what it reads in this time; so does the L2 with what is fetched and stored, except for idle time
    while cores load the same lines at once."""


class L2Cache(Part):
    """The cache that all cores share."""

    fills: Literal["beside", "between"]
    """Whether lines are filled in parallel to stores, or in between, so that each delays the other
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
    """Lines in a set."""
    same_line_ns: Nanoseconds
    """From answer to answer for cores that request one line past the L2 at once; 0 if unknown."""
    aliased_bytes: Stride
    """Bursts that are a multiple of this apart map to few parts of the L2, which slows several
    cores that read them at once; 0 if unknown."""
    aliased_speed: Times
    """Speed of such bursts from the L2, as a multiple of the speed of others."""


class Transfer(Part):
    """The cost of a copy between global memory and a core in addition to its bytes."""

    issue_cycles: Cycles
    """Least time for which a copy instruction holds its pipe."""
    burst_cycles: Cycles
    """Least time for which each burst (row) of a strided copy holds the pipe."""
    padded_bytes_per_cycle: BytesPerCycle
    """Highest rate at which the unified buffer reads or writes bursts that are no whole blocks and
    are padded to blocks there."""
    ragged_block_cycles: Cycles
    """The same for each block of 32 bytes if the fixpipe stores rows that end within sectors."""
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
    """Depth k of the `m` x `n` tile that is multiplied at once, by type."""
    tiles_per_cycle: TilesPerCycle
    """Number of such tiles multiplied per cycle."""
    startup_cycles: Cycles
    """Cycles of an `mmad` in addition to its tiles, if the pipe was idle."""
    back_to_back_cycles: Cycles
    """The same if `mmad` follows `mmad`."""


class VectorClass(Part):
    """Cost of a class of vector instructions with equal timing."""

    head_cycles: Cycles
    """Cycles before the first repeat, if the pipe was drained."""
    tail_cycles: Cycles
    """Cycles from the last repeat until the result can be read."""
    cycles_per_repeat_16bit: CyclesPerRepeat
    cycles_per_repeat_32bit: CyclesPerRepeat


class Vector(Part):
    """The vector unit: 256 bytes per repeat, eight blocks of 32."""

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
    """How the unified buffer is divided into banks.

    Address bits, from the lowest: byte in block, group, row, bank of the group.
    """

    groups: Groups
    banks_per_group: GroupBanks
    bank_bytes: BankBytes


class Scalar(Part):
    """The scalar unit, which also issues every micro-op to its pipe."""

    dispatch_cycles: Cycles
    """To issue a micro-op or a flag to another pipe, including the computation of its operands. A
    barrier takes as long as an instruction of the scalar unit itself, if that is less."""
    mte1_queue: Instructions
    """Instructions of mte1 that may be queued while others are issued; 0: any number."""
    load_cycles: Cycles
    global_load_cycles: Cycles
    """Cycles to load an element of global memory that is not in the data cache."""
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
    """How many of them, from the top, the framework reserves."""
    cross_core_cycles: Cycles | None = None
    """From the set of a flag until another core sees it; absent if cores cannot synchronise."""
