"""Kernels as a profiler lists them: what ran, on what, when and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import DTYPES
from npusim.data.tensor import TensorSpec
from npusim.validation.timed import NotModelledError

__all__ = ["Kernel", "Operand", "ProfileError", "operands", "spec_of"]

SPELLED = {
    "FLOAT": "float32",
    "BF16": "bfloat16",
    "BOOL": "uint8",
    "UINT64": "int64",
    "FLOAT32": "float32",
    "BFLOAT16": "bfloat16",
}
"""What profilers call types whose name is not their own in capitals; flags are bytes, and 64 bits
are 64 bits."""
FRACTAL = "FRACTAL_NZ"
FRACTAL_RANK = 4
KNOWN = frozenset(dtype.name for dtype in DTYPES)
NOTHING = ("", "N/A", "NULL", "NA")
"""What stands in a cell without a value."""


class ProfileError(ValueError):
    """A folder does not hold a profile that can be read."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An input or output as it lies in memory."""

    shape: tuple[int, ...] | None
    """None where the operator was given nothing; `()` is a scalar, whose cell is empty as well."""
    dtype: str
    layout: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch."""

    name: str
    type: str
    cores: str
    """What it ran on, in CANN's words: AI_CORE, AI_VECTOR_CORE, MIX_AIC, AI_CPU, COMMUNICATION."""
    start_us: float
    """From the first kernel of the profile on."""
    time_us: float
    wait_us: float | None
    blocks: int | None
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    busy_us: float | None = None
    """How long the slowest kind of its cores was busy, where the profiler counted."""

    @property
    def end_us(self) -> float:
        """When it ended."""
        return self.start_us + self.time_us

    @property
    def is_communication(self) -> bool:
        """Whether it moves data between cards."""
        words = f"{self.type} {self.cores}".lower()
        return any(word in words for word in ("hcom", "hccl", "communication", "allreduce"))

    @property
    def kind(self) -> tuple[object, ...]:
        """What launches of the same work have in common."""
        return self.type, self.cores, self.blocks, self.inputs, self.outputs


def operands(shapes: str, dtypes: str, formats: str) -> tuple[Operand, ...]:
    """The operands of three cells; raises ValueError where they do not belong together."""
    if shapes in NOTHING and dtypes in NOTHING:
        return ()
    columns = [cell.strip().strip('"').split(";") for cell in (shapes, dtypes, formats)]
    if len({len(column) for column in columns}) != 1:
        raise ValueError
    return tuple(_operand(*cells) for cells in zip(*columns, strict=True))


def _operand(shape: str, dtype: str, layout: str) -> Operand:
    name = dtype.strip().removeprefix("DT_")
    layout = layout.strip().removeprefix("FORMAT_").partition(":")[0]
    if name in ("", "UNDEFINED", *NOTHING):
        return Operand(None, "", layout)
    extents = tuple(int(extent) for extent in shape.split(",")) if shape.strip() else ()
    if any(extent < 0 for extent in extents):
        raise ValueError
    return Operand(extents, SPELLED.get(name, name.lower()), layout)


def spec_of(operand: Operand) -> TensorSpec:
    """The tensor that lies in memory as *operand* does; fractals as the whole matrix.

    Raises NotModelledError for one that is not there, and for a type that npusim has not.
    """
    shape = operand.shape
    if shape is None:
        raise NotModelledError("an operand that it needs is missing")
    if operand.dtype not in KNOWN:
        raise NotModelledError(f"npusim has no type {operand.dtype.upper()}")
    if operand.layout != FRACTAL:
        return TensorSpec(shape, operand.dtype)
    if len(shape) < FRACTAL_RANK:
        raise NotModelledError(f"{FRACTAL} must have {FRACTAL_RANK} dimensions, not {len(shape)}")
    *batches, columns, rows, height, width = shape
    return TensorSpec((*batches, rows * height, columns * width), operand.dtype, FRACTAL)
