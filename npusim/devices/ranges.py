"""The range and the unit of every number of a device file.

The ranges extend from a tenth to ten times the values of all known chips, which leaves room for
what-ifs, and exclude what a wrong unit makes of a number: MHz for Hz, GB/s for bytes/s, KiB for
bytes. Known are the chips that ship with npusim and, from the platform files of CANN and PyPTO, the
Ascend 310, 310B, 910A and 950. If an instruction fixes a number, the range is that number alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from annotated_types import BaseMetadata, Ge, GroupedMetadata, Le
from pydantic import BeforeValidator

__all__ = [
    "MANY",
    "SOURCED",
    "BankBytes",
    "BiasTableBytes",
    "BlockBytes",
    "BytesPerCycle",
    "BytesPerSecond",
    "Cards",
    "CodeBytes",
    "CodeLineBytes",
    "CopyBytes",
    "Cores",
    "CubeDepth",
    "CubeEdge",
    "Cycles",
    "CyclesPerRepeat",
    "EventIds",
    "FixpipeBytes",
    "GlobalBytes",
    "GroupBanks",
    "Groups",
    "Hz",
    "L0Bytes",
    "L0cBytes",
    "L1Bytes",
    "L2Bytes",
    "LineBytes",
    "Microseconds",
    "Nanoseconds",
    "RepeatBytes",
    "ReservedBytes",
    "ReservedEventIds",
    "RunBytes",
    "SliceBytes",
    "Stages",
    "Stride",
    "Tasks",
    "TilesPerCycle",
    "Times",
    "UbBytes",
    "Ways",
    "Within",
    "written",
]

MISTAKEN: dict[str, dict[str, float]] = {
    "Hz": {"kHz": 1e3, "MHz": 1e6, "GHz": 1e9},
    "bytes": {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40},
    "bytes/s": {"MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12},
    "ns": {"fs": 1e-6, "ps": 1e-3},
    "us": {"ps": 1e-6, "ns": 1e-3},
}
"""Unit -> units that a number may have been written in by mistake, with the factor to the unit."""

MANY = 1e30
"""More than any sensible number in any unit; multiples of the largest integers overflow."""

SOURCED = "sourced"
"""Marks the type of an entry that is not a number but has a source."""


@dataclass(frozen=True)
class Within(GroupedMetadata):
    """The range of a number of a device file, which pydantic enforces."""

    low: float
    high: float
    unit: str
    why: str

    def __iter__(self) -> Iterator[BaseMetadata]:
        yield Ge(self.low)
        yield Le(self.high)

    def __str__(self) -> str:
        return f"[{written(self.low)}, {written(self.high)}] {self.unit} ({self.why})"

    def slip(self, value: float) -> tuple[str, str] | None:
        """The unit in which *value* was probably written, and the number to write instead.

        >>> Within(2e7, 2e10, "Hz", "").slip(1800)
        ('MHz', '1.8e9')
        >>> Within(2e7, 2e10, "Hz", "").slip(0)
        """
        meant = {
            unit: value * factor
            for unit, factor in MISTAKEN.get(self.unit, {}).items()
            if abs(value) < MANY and self.low <= value * factor <= self.high
        }
        if not meant:
            return None
        # If two units fit, data sheets use the larger one: TB/s, not GB/s.
        unit = max(meant, key=lambda unit: meant[unit])
        return unit, written(meant[unit])


def written(value: float) -> str:
    """*value* in the notation of a device file.

    >>> written(196608), written(2e10), written(1.8e9), written(0.25)
    ('196608', '2e10', '1.8e9', '0.25')
    """
    short = f"{value:.3e}"
    if abs(value) >= 1e6 and float(short) == value:
        mantissa, _, power = short.partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{value:.15g}"


def _whole(value: object) -> object:
    """A float with an integral value as an integer: TOML has no other way to write `1.8e9`."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)

# ---- amounts ----

Cores = Annotated[int, Within(1, 1024, "cores", "chips have 1 to 64 of a kind"), WHOLE]
Stride = Annotated[int, Within(0, 1 << 24, "bytes", "strides of 32768 bytes are known"), WHOLE]
Ways = Annotated[
    int,
    Within(1, 2048, "ways", "caches have 1 to 64, and more stand for sets that are evenly full"),
    WHOLE,
]
Times = Annotated[float, Within(0.01, 100, "times", "three quarters are known")]
Groups = Annotated[int, Within(1, 1024, "groups", "unified buffers have 8 to 16"), WHOLE]
GroupBanks = Annotated[int, Within(1, 1024, "banks", "groups have 2 to 4"), WHOLE]
Cards = Annotated[int, Within(1, 1 << 20, "cards", "servers have 4 to 16, clusters 768"), WHOLE]
Stages = Annotated[int, Within(1, 1024, "stages", "1 and 2 are known"), WHOLE]
Tasks = Annotated[int, Within(0, 1024, "tasks", "phases have up to 2 more than cards"), WHOLE]
Instructions = Annotated[int, Within(0, 1 << 16, "instructions", "queues hold up to 32"), WHOLE]
EventIds = Annotated[int, Within(1, 1024, "flags", "chips have 4 to 8 for a pair of pipes"), WHOLE]
ReservedEventIds = Annotated[int, Within(0, 1023, "flags", "chips have 4 to 8 in all"), WHOLE]
CubeEdge = Annotated[int, Within(1, 256, "elements", "cubes are 16 wide"), WHOLE]
CubeDepth = Annotated[int, Within(1, 1024, "elements", "cubes are 1 to 64 deep"), WHOLE]
TilesPerCycle = Annotated[float, Within(0.01, 100, "tiles/cycle", "cubes multiply one a cycle")]

# ---- bytes ----

UbBytes = Annotated[
    int, Within(16 << 10, 4 << 20, "bytes", "unified buffers are 192 to 256 KiB"), WHOLE
]
L1Bytes = Annotated[int, Within(32 << 10, 16 << 20, "bytes", "L1s are 512 KiB to 1 MiB"), WHOLE]
L0Bytes = Annotated[int, Within(4 << 10, 1 << 20, "bytes", "L0As and L0Bs are 64 KiB"), WHOLE]
L0cBytes = Annotated[int, Within(8 << 10, 4 << 20, "bytes", "L0Cs are 128 to 256 KiB"), WHOLE]
BiasTableBytes = Annotated[int, Within(64, 64 << 10, "bytes", "bias tables are 1 to 4 KiB"), WHOLE]
FixpipeBytes = Annotated[int, Within(512, 128 << 10, "bytes", "fixpipes have 6 to 7 KiB"), WHOLE]
ReservedBytes = Annotated[int, Within(0, 64 << 10, "bytes", "frameworks keep 0 to 8 KiB"), WHOLE]
BankBytes = Annotated[int, Within(32, 1 << 20, "bytes", "banks are 4 to 16 KiB"), WHOLE]
L2Bytes = Annotated[int, Within(256 << 10, 8 << 30, "bytes", "L2s are 4 to 192 MiB"), WHOLE]
LineBytes = Annotated[
    int, Within(8, 8192, "bytes", "lines and sectors are 128 to 512 bytes"), WHOLE
]
GlobalBytes = Annotated[int, Within(1e9, 4e12, "bytes", "chips have 24 to 155 GB"), WHOLE]
CopyBytes = Annotated[int, Within(1, 32, "bytes", "copies move bytes, or blocks of 32"), WHOLE]
RunBytes = Annotated[int, Within(0, 65536, "bytes", "runs cost up to 66 bytes"), WHOLE]
SliceBytes = Annotated[
    int, Within(0, 1 << 40, "bytes", "slices of 32 KiB to 1 MiB move directly"), WHOLE
]
CodeBytes = Annotated[
    int, Within(0, 1 << 20, "bytes", "instruction caches are 16 to 32 KiB"), WHOLE
]
CodeLineBytes = Annotated[int, Within(4, 8192, "bytes", "lines of code are 64 bytes"), WHOLE]
RepeatBytes = Annotated[int, Within(32, 4096, "bytes", "repeats are 256 bytes"), WHOLE]
BlockBytes = Annotated[
    int, Within(32, 32, "bytes", "the block of every vector and copy instruction"), WHOLE
]

# ---- rates ----

Hz = Annotated[int, Within(2e7, 2e10, "Hz", "cores run at 0.5 to 1.85 GHz"), WHOLE]
BytesPerSecond = Annotated[float, Within(1e8, 1e14, "bytes/s", "memories move 4 GB/s to 7 TB/s")]
BytesPerCycle = Annotated[
    float, Within(0.5, 8192, "bytes/cycle", "ports of a core move 8 to 512 bytes a cycle")
]

# ---- times ----

Cycles = Annotated[int, Within(0, 100_000, "cycles", "a step takes up to 7500 cycles"), WHOLE]
CyclesPerRepeat = Annotated[
    float, Within(0.01, 1000, "cycles/repeat", "repeats take 1 to 26 cycles")
]
Nanoseconds = Annotated[float, Within(0, 100_000, "ns", "memories answer within 0.3 us")]
Microseconds = Annotated[
    float, Within(0, 10_000, "us", "parts of a launch take up to 5 us, of a collective 110")
]
