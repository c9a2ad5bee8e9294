"""The schema of a device file: every number of a chip that values or times depend on.

A device file gives every number as ``{ value = 1, source = "...", confidence = "..." }``.
Loading splits that in two: the plain numbers, checked here, and :attr:`DeviceSpec.sources`,
which says of each number where it comes from. Units stand in the names: ``_bytes``, ``_hz``,
``_cycles`` (of the core that is meant), ``_ns``, ``_us``, ``_bytes_per_cycle``, ``_bytes_per_s``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from npusim.devices.names import Line, Name, visible
from npusim.devices.ranges import (
    BankBytes,
    BiasTableBytes,
    BlockBytes,
    BytesPerCycle,
    BytesPerSecond,
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
    Times,
    UbBytes,
    Ways,
)

__all__ = [
    "CORES_OF_A_GROUP",
    "NUMBER",
    "Banks",
    "Confidence",
    "Core",
    "Cube",
    "DeviceSpec",
    "GlobalMemory",
    "L2Cache",
    "Launch",
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
    "vendor file",  # platform files that ship with the toolkit
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
    """A table of a device file."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


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
    """Rate of one core without contention, in bytes a cycle of its own clock."""
    startup_cycles: Cycles
    """Cycles a transfer holds the pipe before its first byte moves."""


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
    """Whether writes have a bandwidth of their own, or share that of reads."""
    read_bytes_per_s: BytesPerSecond
    """Of all cores together, as `write_bytes_per_s`."""
    write_bytes_per_s: BytesPerSecond
    """Of lines that the L2 writes back, when nothing is read. A shared bus is taken up by them for
    so long."""
    read_latency_ns: Nanoseconds
    """From a request to its first byte, beyond the time the bytes themselves take."""
    write_latency_ns: Nanoseconds
    """From the last byte handed over to the acknowledgement."""
    row_ns: Nanoseconds
    """Time from piece to piece of rows, each up to one line, that LoadNd2Nz turns into Nz: a round
    trip, divided by the requests that a core may have under way. Bytes that take longer at the
    core's port hide it."""
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
    """Whether lines come in beside what cores store, or between it, so that each holds the other up
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
    """From answer to answer where several cores ask past the L2 for the same line at once; 0 if
    unknown."""
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
    """Depth k of the tile that is multiplied in one cycle, per dtype."""
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
    load_cycles: Cycles
    global_load_cycles: Cycles
    """Of one element of global memory that is not in the data cache."""
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


ICache = Literal["cold", "warm"]
"""Whether the instruction caches hold the kernel at launch: not after other kernels, as in a model;
yes after the same, as in a benchmark's loop."""


CORES_OF_A_GROUP = 3
"""A cube core and its two vector cores, where a kernel starts both (Ascend C guide, 2201)."""


class Launch(Part):
    """What a kernel costs before its first and after its last micro-op; host launch excluded."""

    base_us: Microseconds
    per_core_us: Microseconds
    """Added for each core that is started, up to `saturation_cores`."""
    warm_per_core_us: Microseconds
    """The same where the kernel's instructions are in the instruction caches."""
    saturation_cores: Cores
    mix_us: Microseconds
    """Added when cube and vector cores start together."""
    tiling_us: Microseconds
    """Added when the kernel reads its tiling from global memory and sets its queues up by it."""
    tiling_per_core_us: Microseconds
    """Added then for each core too, whatever their number: they read the same bytes in turn."""
    completion_us: Microseconds

    def time_us(
        self,
        cores: int,
        is_mix: bool = False,
        reads_tiling: bool = False,
        icache: ICache = "cold",
    ) -> float:
        """What starting and ending a kernel on *cores* costs around the cores' own time.

        Where it *is_mix*, these are cube cores with two vector cores each.
        """
        per_core_us = self.per_core_us if icache == "cold" else self.warm_per_core_us
        extra_us = self.mix_us if is_mix else 0.0
        if reads_tiling:
            readers = cores * (CORES_OF_A_GROUP if is_mix else 1)
            extra_us += self.tiling_us + readers * self.tiling_per_core_us
        started_us = per_core_us * min(cores, self.saturation_cores)
        return self.base_us + started_us + extra_us + self.completion_us


CORE_KINDS = {"2002": ("ai_core", "vector_core"), "2201": ("aic", "aiv")}
"""Coupled cores beside stand-alone vector cores (2002), or cube cores beside vector cores (2201).

Ascend C guide, NPU architecture 2002 and 2201.
"""

SERIES = {"2002": ("Atlas inference",), "2201": ("Atlas A2", "Atlas A3")}
"""The products of each architecture; the same guide."""


class Units(NamedTuple):
    """What every core of a kind has, whatever the chip."""

    pipes: tuple[Pipe, ...]
    buffers: tuple[str, ...]


_VECTOR = Units(("scalar", "vector", "mte2", "mte3"), ("ub",))
CORES = {
    "ai_core": Units(
        ("scalar", "vector", "cube", "mte1", "mte2", "mte3"), ("ub", "l1", "l0a", "l0b", "l0c")
    ),
    "vector_core": _VECTOR,
    "aic": Units(
        ("scalar", "cube", "mte1", "mte2", "mte3", "fixpipe"), ("l1", "l0a", "l0b", "l0c")
    ),
    "aiv": _VECTOR,
}
"""The pipes and buffers of each kind of core; Ascend C guide, abstract hardware architecture."""


def _known_kind(kind: str) -> str:
    known = [known for kinds in CORE_KINDS.values() for known in kinds]
    if kind not in known:
        raise ValueError(
            f"must be one of {', '.join(known)}, not {visible(kind)}; rename the table"
        )
    return kind


def _together(aliases: Any) -> Any:
    """The names of a file's groups of aliases, each of which has a source, in one row."""
    if not isinstance(aliases, dict):
        return aliases
    for group, names in aliases.items():
        if not isinstance(names, list):
            raise ValueError(f"{group} must be a list of names; put it in square brackets")
    return [name for names in aliases.values() for name in names]


class DeviceSpec(Part):
    """A chip (for Atlas A3: one die): its clock, cores, memories and costs, with their sources."""

    name: Name
    series: Literal["Atlas inference", "Atlas A2", "Atlas A3"]
    arch: Literal["2002", "2201"]
    """NpuArch, which decides about micro-ops and data paths."""
    aliases: Annotated[tuple[Name, ...], BeforeValidator(_together)] = Field(
        default=(), strict=False
    )
    """What the chip is also called, its name in the toolkit first, and product names."""
    half_overflow: Literal["inf_nan", "saturate"]
    """What fp16 and bf16 results do beyond their range: torch_npu sets it when it starts."""
    cores: dict[Annotated[str, AfterValidator(_known_kind)], Core]
    gm: GlobalMemory
    l2: L2Cache
    transfer: Transfer
    cube: Cube
    vector: Vector
    banks: Banks
    scalar: Scalar
    sync: Sync
    launch: Launch
    sources: dict[str, Source] = Field(default_factory=dict, repr=False)
    """Dotted key of each number, `aliases.` and each alias -> where it comes from."""

    def __repr__(self) -> str:
        cores = " and ".join(f"{core.count} {kind}" for kind, core in self.cores.items())
        clock = f"{self.clock_hz / 1e9:g} GHz"
        return f"<DeviceSpec {self.name}: {self.series}, {cores} at {clock}>"

    __str__ = __repr__

    @property
    def vector_kinds(self) -> tuple[str, ...]:
        """The kinds of core that run a kernel of vector micro-ops, in launch order."""
        return tuple(kind for kind in CORE_KINDS[self.arch] if "vector" in self.cores[kind].pipes)

    @property
    def cube_kind(self) -> str:
        """The kind of core that multiplies matrices."""
        return next(kind for kind in CORE_KINDS[self.arch] if "cube" in self.cores[kind].pipes)

    @property
    def vector_cores(self) -> tuple[str, ...]:
        """The kind of every core that runs vector micro-ops, in launch order."""
        return tuple(kind for kind in self.vector_kinds for _ in range(self.cores[kind].count))

    @property
    def clock_hz(self) -> int:
        """The clock that `cycles` of a run count: that of the first kind of core."""
        return self.cores[CORE_KINDS[self.arch][0]].clock_hz

    @model_validator(mode="after")
    def _cores_are_those_of_the_arch(self) -> Self:
        kinds, series = CORE_KINDS[self.arch], SERIES[self.arch]
        if set(self.cores) != set(kinds):
            raise ValueError(
                f"cores must be {' and '.join(kinds)} on arch {self.arch}, "
                f"not {' and '.join(sorted(self.cores)) or 'none'}; rename the tables"
            )
        if self.series not in series:
            raise ValueError(
                f"series must be {' or '.join(series)} on arch {self.arch}, not {self.series}; "
                f"change one of them"
            )
        for kind, core in self.cores.items():
            pipes, buffers = CORES[kind]
            if sorted(core.pipes) != sorted(pipes):
                raise ValueError(
                    f"cores.{kind}.pipes must be {', '.join(pipes)}, "
                    f"not {', '.join(core.pipes) or 'none'}; write these"
                )
            for buffer in buffers:
                if getattr(core, f"{buffer}_bytes") is None:
                    raise ValueError(
                        f"cores.{kind}.{buffer}_bytes must be given, not left out; write {NUMBER}"
                    )
        return self

    @model_validator(mode="after")
    def _buffers_fit_their_parts(self) -> Self:
        banks = self.banks
        cut = banks.groups * banks.banks_per_group * banks.bank_bytes
        if banks.bank_bytes % self.vector.block_bytes:
            raise ValueError(
                f"banks.bank_bytes must be a multiple of vector.block_bytes = "
                f"{self.vector.block_bytes}, not {banks.bank_bytes}; change it"
            )
        for kind, core in self.cores.items():
            if core.ub_bytes is not None and core.ub_bytes != cut:
                raise ValueError(
                    f"cores.{kind}.ub_bytes must be groups x banks_per_group x bank_bytes = {cut}, "
                    f"not {core.ub_bytes}; make banks and buffer agree"
                )
            for buffer in ("ub", "l1"):
                size, kept = getattr(core, f"{buffer}_bytes"), f"{buffer}_reserved_bytes"
                if size is not None and core.usable_bytes(buffer) <= 0:
                    raise ValueError(
                        f"cores.{kind}.{kept} must be less than {buffer}_bytes = {size}, "
                        f"not {getattr(core, kept)}; make it smaller"
                    )
        return self

    @model_validator(mode="after")
    def _units_fit_each_other(self) -> Self:
        if self.l2.line_bytes % self.transfer.sector_bytes:
            raise ValueError(
                f"l2.line_bytes must be a multiple of transfer.sector_bytes = "
                f"{self.transfer.sector_bytes}, not {self.l2.line_bytes}; change one of them"
            )
        if self.vector.repeat_bytes % self.vector.block_bytes:
            raise ValueError(
                f"vector.repeat_bytes must be a multiple of vector.block_bytes = "
                f"{self.vector.block_bytes}, not {self.vector.repeat_bytes}; change one of them"
            )
        for way in ("store", "load"):
            unit = getattr(self.transfer, f"{way}_granule_bytes")
            if self.arch == "2201" and unit != 1:
                raise ValueError(
                    f"transfer.{way}_granule_bytes must be 1 on arch 2201, whose copies move "
                    f"bytes, not {unit}; write 1"
                )
            if self.vector.block_bytes % unit:
                raise ValueError(
                    f"transfer.{way}_granule_bytes must divide vector.block_bytes = "
                    f"{self.vector.block_bytes}, not be {unit}; take a power of two"
                )
        if self.sync.reserved_event_ids >= self.sync.event_ids:
            raise ValueError(
                f"sync.reserved_event_ids must be less than sync.event_ids = "
                f"{self.sync.event_ids}, not {self.sync.reserved_event_ids}; make it smaller"
            )
        return self
