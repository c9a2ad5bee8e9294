"""The schema of a device file: every number of a chip that values or times depend on.

A device file gives every number as ``{ value = 1, source = "...", confidence = "..." }``.
Loading separates the plain numbers, which are checked here, from :attr:`DeviceSpec.sources`, the
source of each number. Units are in the names: ``_bytes``, ``_hz``, ``_cycles`` (of the core in
question), ``_ns``, ``_us``, ``_bytes_per_cycle``, ``_bytes_per_s``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from npusim.devices.launch import CORES_OF_A_GROUP, CodeRun, FoundCode, ICache, Launch
from npusim.devices.links import Links
from npusim.devices.names import Name, visible
from npusim.devices.parts import (
    NUMBER,
    Banks,
    Code,
    Confidence,
    Core,
    Cube,
    GlobalMemory,
    L2Cache,
    Part,
    Path,
    Pipe,
    Scalar,
    Source,
    Sync,
    Transfer,
    Vector,
    VectorClass,
    VectorClassName,
)

__all__ = [
    "CORES_OF_A_GROUP",
    "NUMBER",
    "Banks",
    "Code",
    "CodeRun",
    "Confidence",
    "Core",
    "Cube",
    "DeviceSpec",
    "FoundCode",
    "GlobalMemory",
    "ICache",
    "L2Cache",
    "Launch",
    "Links",
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

CORE_KINDS = {"2002": ("ai_core", "vector_core"), "2201": ("aic", "aiv")}
"""Coupled cores and stand-alone vector cores (2002), or cube cores and vector cores (2201).

Ascend C guide, NPU architecture 2002 and 2201.
"""

SERIES = {"2002": ("Atlas inference",), "2201": ("Atlas A2", "Atlas A3")}
"""The products of each architecture; the same guide."""


class Units(NamedTuple):
    """The pipes and buffers that every core of a kind has, on any chip."""

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


def _together(aliases: object) -> Any:
    """The names of a file's groups of aliases, each with its own source, in one tuple."""
    if not isinstance(aliases, dict):
        return aliases
    for group, names in aliases.items():
        if not isinstance(names, list):
            raise ValueError(f"{group} must be a list of names; put it in square brackets")
    return [name for names in aliases.values() for name in names]


Some = TypeVar("Some", bound=Part)


def _without(part: Some, *names: str) -> Some:
    """*part* without the fields *names*."""
    found = part.model_copy()
    for name in names:
        del vars(found)[name]
    return found


class DeviceSpec(Part):
    """A chip (on Atlas A3: one die): its clock, cores, memories and costs, with their sources."""

    name: Name
    series: Literal["Atlas inference", "Atlas A2", "Atlas A3"]
    arch: Literal["2002", "2201"]
    """NpuArch, which determines the micro-ops and data paths."""
    aliases: Annotated[tuple[Name, ...], BeforeValidator(_together)] = Field(
        default=(), strict=False
    )
    """Other names of the chip: its name in the toolkit first, then product names."""
    half_overflow: Literal["inf_nan", "saturate"]
    """How fp16 and bf16 results overflow, which torch_npu configures at start-up."""
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
    links: Links
    sources: dict[str, Source] = Field(default_factory=dict, repr=False)
    """Dotted key of each number, or `aliases.` and an alias -> its source."""

    def __hash__(self) -> int:
        # Equal chips have equal names, and the other fields are not all hashable.
        return hash(self.name)

    def __repr__(self) -> str:
        cores = " and ".join(f"{core.count} {kind}" for kind, core in self.cores.items())
        clock = f"{self.clock_hz / 1e9:g} GHz"
        return f"<DeviceSpec {self.name}: {self.series}, {cores} at {clock}>"

    __str__ = __repr__

    @property
    def for_programs(self) -> DeviceSpec:
        """The chip as programs are written and checked for, without figures that affect only times.

        Reading a figure that is left out raises AttributeError. Chips that have the rest in common
        run the same programs, as those of Atlas A2 and A3 do.
        """
        cores = {kind: _without(core, "clock_hz") for kind, core in self.cores.items()}
        l2 = _without(self.l2, "read_bytes_per_s", "write_bytes_per_s")
        return _without(
            self.model_copy(update={"cores": cores, "l2": l2}), "series", "aliases", "links"
        )

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

    def code_bytes(self, runs: Mapping[str, CodeRun], reads_tiling: int) -> dict[str, int]:
        """Code bytes that cores of each kind run through, for a kernel that runs *runs* there."""
        return {
            kind: self.cores[kind].code.nbytes(run.micro_ops, reads_tiling)
            for kind, run in runs.items()
        }

    def found_code(self, icache: ICache, code_bytes: Mapping[str, int]) -> FoundCode:
        """Where the code of a kernel is that did, or did not, run just before, as *icache* says.

        If an instruction cache cannot hold the whole code, nothing useful remains in it at the next
        start, since the last lines replace the first ones.
        """
        if icache == "cold":
            return FoundCode()
        sizes = code_bytes.items()
        held = frozenset(x for x, size in sizes if size <= self.cores[x].code.cache_bytes)
        return FoundCode(held, l2_share=1.0)

    def launch_us(
        self,
        split: tuple[int, bool, int],
        runs: Mapping[str, CodeRun],
        icache: ICache | FoundCode = "cold",
    ) -> float:
        """The time to start and end a kernel, including fetching its code.

        *split* are the arguments of :meth:`Launch.time_us`. The kinds of core fetch code at the
        same time.
        """
        block_dim, _, reads_tiling = split
        code_bytes = self.code_bytes(runs, reads_tiling)
        found = icache
        if not isinstance(found, FoundCode):
            found = self.found_code(found, code_bytes)
        fetch_us = [
            self.cores[kind].code.fetch_us(size, max(block_dim, runs[kind].cores), found.l2_share)
            for kind, size in code_bytes.items()
            if kind not in found.held
        ]
        return self.launch.time_us(*split) + max(fetch_us, default=0.0)

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
