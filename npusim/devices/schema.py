"""The schema of a device file: every number of a chip that values or times depend on.

A device file gives every number as ``{ value = 1, source = "...", confidence = "..." }``.
Loading splits that in two: the plain numbers, checked here, and :attr:`DeviceSpec.sources`,
which says of each number where it comes from. Units stand in the names: ``_bytes``, ``_hz``,
``_cycles`` (of the core that is meant), ``_ns``, ``_us``, ``_bytes_per_cycle``, ``_bytes_per_s``.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

__all__ = [
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
]
Memory = Literal["gm", "l2", "l1", "l0a", "l0b", "l0c", "ub", "bt", "fb"]
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
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]


class Source(NamedTuple):
    """Where one number of a device file comes from."""

    text: str
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


class Path(Part):
    """A way between two memories, named ``<from>_to_<to>``."""

    pipe: Pipe
    """The pipe that moves the bytes."""
    bytes_per_cycle: PositiveFloat
    """Rate of one core without contention, in bytes a cycle of its own clock."""
    startup_cycles: NonNegativeInt
    """Cycles a transfer holds the pipe before its first byte moves."""


class Core(Part):
    """One kind of core; buffers that the kind does not have are left out."""

    count: PositiveInt
    clock_hz: PositiveInt
    pipes: tuple[Pipe, ...] = Field(strict=False)  # TOML has lists, not tuples
    ub_bytes: PositiveInt | None = None
    ub_reserved_bytes: NonNegativeInt | None = None
    """Tail of the unified buffer that the framework keeps for itself."""
    l1_bytes: PositiveInt | None = None
    l1_reserved_bytes: NonNegativeInt | None = None
    l0a_bytes: PositiveInt | None = None
    l0b_bytes: PositiveInt | None = None
    l0c_bytes: PositiveInt | None = None
    bt_bytes: PositiveInt | None = None
    """Bias table."""
    fb_bytes: PositiveInt | None = None
    """Fixpipe buffers, all four together."""
    paths: dict[str, Path]

    def usable_bytes(self, buffer: str) -> int:
        """Bytes of *buffer* that a kernel may use; 0 where the core has no such buffer."""
        size: int = getattr(self, f"{buffer}_bytes", None) or 0
        kept: int = getattr(self, f"{buffer}_reserved_bytes", None) or 0
        return size - kept

    @model_validator(mode="after")
    def _paths_run_on_own_pipes(self) -> Self:
        for name, path in self.paths.items():
            ends = name.split("_to_")
            known = Memory.__args__  # type: ignore[attr-defined]
            if len(ends) != 2 or not set(ends) <= set(known):
                raise ValueError(
                    f"paths.{name} must be named <from>_to_<to> with memories out of "
                    f"{', '.join(known)}; rename it"
                )
            if path.pipe not in self.pipes:
                raise ValueError(
                    f"paths.{name}.pipe must be one of the core's pipes {', '.join(self.pipes)}, "
                    f"not {path.pipe}; add the pipe or move the path"
                )
            for end in ends:
                if end not in ("gm", "l2") and getattr(self, f"{end}_bytes") is None:
                    raise ValueError(
                        f"paths.{name} must end in buffers that the core has, not in {end}; "
                        f"give {end}_bytes or drop the path"
                    )
        return self


class GlobalMemory(Part):
    """Off-chip memory behind the L2."""

    capacity_bytes: PositiveInt
    bus: Literal["separate", "shared"]
    """Whether writes have a bandwidth of their own, or share that of reads."""
    read_bytes_per_s: PositiveFloat
    """Of all cores together, as `write_bytes_per_s`."""
    write_bytes_per_s: PositiveFloat
    read_latency_ns: NonNegativeFloat
    """From a request to its first byte, beyond the time the bytes themselves take."""
    write_latency_ns: NonNegativeFloat
    """From the last byte handed over to the acknowledgement."""
    row_ns: NonNegativeFloat
    """Time of each piece of a row, up to one line, that LoadNd2Nz turns into Nz."""
    run_bytes: NonNegativeInt
    """Overhead of each run, in bytes that could have been read in its time."""


class L2Cache(Part):
    """The cache that all cores share."""

    capacity_bytes: PositiveInt
    line_bytes: PositiveInt
    read_bytes_per_s: PositiveFloat
    write_bytes_per_s: PositiveFloat
    read_latency_ns: NonNegativeFloat
    write_latency_ns: NonNegativeFloat
    row_ns: NonNegativeFloat
    """The same for pieces that are in the L2."""
    slices: PositiveInt
    """Parts that work in parallel; the same bytes always come from the same part."""
    outstanding: PositiveInt
    """How many lines a core can have requested and not received yet."""


class Transfer(Part):
    """What a copy between global memory and a core costs in addition to its bytes."""

    issue_cycles: NonNegativeInt
    """A copy instruction holds its pipe at least this long."""
    burst_cycles: NonNegativeInt
    """Each burst (row) of a strided copy holds the pipe at least this long."""
    sector_bytes: PositiveInt
    """Smallest piece that moves; an aligned burst is charged in whole sectors."""
    store_granule_bytes: PositiveInt
    """Stores to global memory must be a multiple of this."""
    load_granule_bytes: PositiveInt
    """Loads from global memory must be a multiple of this."""


class Cube(Part):
    """The matrix unit: `m` x `n` x `k` multiply-accumulates a cycle."""

    m: PositiveInt
    n: PositiveInt
    k_per_cycle: dict[str, PositiveInt]
    """Depth k of the tile that is multiplied in one cycle, per dtype."""
    startup_cycles: NonNegativeInt
    """Cycles of an `mmad` in addition to its tiles when the pipe was idle."""
    back_to_back_cycles: NonNegativeInt
    """The same when `mmad` follows `mmad`."""


class VectorClass(Part):
    """Cost of the vector instructions that behave alike."""

    head_cycles: NonNegativeInt
    """Cycles before the first repeat, when the pipe was drained."""
    tail_cycles: NonNegativeInt
    """Cycles after the last repeat until the result can be read."""
    cycles_per_repeat_16bit: PositiveFloat
    cycles_per_repeat_32bit: PositiveFloat


class Vector(Part):
    """The vector unit: 256 bytes a repeat, eight blocks of 32."""

    repeat_bytes: PositiveInt
    block_bytes: PositiveInt
    classes: dict[VectorClassName, VectorClass]


class Banks(Part):
    """How the unified buffer is cut into banks.

    Address bits, from the lowest: byte in block, group, row, bank of the group.
    """

    groups: PositiveInt
    banks_per_group: PositiveInt
    bank_bytes: PositiveInt


class Scalar(Part):
    """The scalar unit, which also hands every micro-op to its pipe."""

    dispatch_cycles: NonNegativeInt
    """Between two micro-ops handed to other pipes."""
    load_cycles: NonNegativeInt
    store_cycles: NonNegativeInt
    alu_cycles: NonNegativeInt


class Sync(Part):
    """Flags and barriers, inside a core and between cores."""

    set_flag_cycles: NonNegativeInt
    wait_flag_cycles: NonNegativeInt
    barrier_cycles: NonNegativeInt
    event_ids: PositiveInt
    """Flags for each pair of pipes."""
    reserved_event_ids: NonNegativeInt
    """How many of them, from the top, the framework keeps."""
    cross_core_cycles: NonNegativeInt | None = None
    """From a set flag until another core sees it; left out if cores cannot wait for each other."""


class Launch(Part):
    """What a kernel costs before its first and after its last micro-op; host launch excluded."""

    base_us: NonNegativeFloat
    per_core_us: NonNegativeFloat
    """Added for each core that is started, up to `saturation_cores`."""
    saturation_cores: PositiveInt
    mix_us: NonNegativeFloat
    """Added when cube and vector cores start together."""
    tiling_us: NonNegativeFloat
    """Added when the kernel reads its tiling from global memory and sets its queues up by it."""
    completion_us: NonNegativeFloat

    def time_us(self, cores: int, is_mix: bool = False, reads_tiling: bool = False) -> float:
        """What starting and ending a kernel on *cores* costs around the cores' own time."""
        started = min(cores, self.saturation_cores)
        extra_us = (self.mix_us if is_mix else 0.0) + (self.tiling_us if reads_tiling else 0.0)
        return self.base_us + self.per_core_us * started + extra_us + self.completion_us


CORE_KINDS = {"2002": ("ai_core", "vector_core"), "2201": ("aic", "aiv")}
"""Coupled cores beside stand-alone vector cores (2002), or cube cores beside vector cores (2201).

Ascend C guide, NPU architecture 2002 and 2201.
"""


def _known_kind(kind: str) -> str:
    known = [known for kinds in CORE_KINDS.values() for known in kinds]
    if kind not in known:
        raise ValueError(f"must be one of {', '.join(known)}, not {kind}; rename the table")
    return kind


class DeviceSpec(Part):
    """A chip (for Atlas A3: one die): its clock, cores, memories and costs, with their sources."""

    name: str
    series: Literal["Atlas inference", "Atlas A2", "Atlas A3"]
    arch: Literal["2002", "2201"]
    """NpuArch, which decides about micro-ops and data paths."""
    aliases: tuple[str, ...] = Field(default=(), strict=False)
    """Product names of this chip."""
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
    """Dotted key of each number -> where it comes from."""

    @property
    def vector_kinds(self) -> tuple[str, ...]:
        """The kinds of core that run a kernel of vector micro-ops, in launch order."""
        return tuple(kind for kind in CORE_KINDS[self.arch] if "vector" in self.cores[kind].pipes)

    @property
    def vector_cores(self) -> tuple[str, ...]:
        """The kind of every core that runs vector micro-ops, in launch order."""
        return tuple(kind for kind in self.vector_kinds for _ in range(self.cores[kind].count))

    @property
    def clock_hz(self) -> int:
        """The clock that `cycles` of a run count: that of the first kind of core."""
        return self.cores[CORE_KINDS[self.arch][0]].clock_hz

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        kinds = CORE_KINDS[self.arch]
        if set(self.cores) != set(kinds):
            raise ValueError(
                f"cores must be {' and '.join(kinds)} on arch {self.arch}, "
                f"not {' and '.join(sorted(self.cores)) or 'none'}; rename the tables"
            )
        banks = self.banks
        for kind, core in self.cores.items():
            cut = banks.groups * banks.banks_per_group * banks.bank_bytes
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
        if self.sync.reserved_event_ids >= self.sync.event_ids:
            raise ValueError(
                f"sync.reserved_event_ids must be less than sync.event_ids = "
                f"{self.sync.event_ids}, not {self.sync.reserved_event_ids}; make it smaller"
            )
        return self
