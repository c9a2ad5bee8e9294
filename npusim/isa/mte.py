"""Micro-ops of mte2 and mte3: copies between global memory and the core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from npusim.data.dtypes import UINT8, DType
from npusim.data.integers import align_up
from npusim.devices.schema import Pipe
from npusim.isa.fields import BYTES, Range
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.operands import BLOCK_BYTES, Global, Local
from npusim.isa.work import Transfer, Work

__all__ = ["AtomicOp", "Load", "Padding", "Store", "combination"]

AtomicOp = Literal["add", "max", "min"]
"""How a copy to global memory combines with its contents."""


def combination(op: AtomicOp, dtype: DType) -> str:
    """The name of *op* in *dtype*; additions are named by their type alone."""
    return dtype.name if op == "add" else f"{op} {dtype.name}"


@dataclass(frozen=True, slots=True)
class Padding:
    """Padding around each burst of a Load (DataCopyPadExtParams), in elements of its *dst*.

    *left* elements precede the burst, and *right* ones follow it, plus as many as fill the last
    block. All are *value*, or undefined if it is None. If there are none to the left or right, the
    last block is filled with the first element of the burst.
    """

    left: Annotated[int, Range(0, BLOCK_BYTES)] = 0
    right: Annotated[int, Range(0, BLOCK_BYTES)] = 0
    value: float | None = None

    @property
    def is_first_element(self) -> bool:
        """Whether it repeats the first element of a burst."""
        return not self.left and not self.right

    @property
    def is_unknown(self) -> bool:
        return self.value is None and not self.is_first_element

    def __str__(self) -> str:
        if self.is_first_element:
            return "padded with the first"
        value = "anything" if self.value is None else self.value
        return f"padded with {self.left} and {self.right} of {value}"


@dataclass(frozen=True, slots=True)
class Load(MicroOp):
    """Copy bursts from global memory, *pitch_bytes* from start to start in the buffer (DataCopy).

    A burst that is no multiple of 32 bytes is padded with zeros to the next one, or as *padding*
    says (DataCopyPad). *dst* covers everything written except what fills the last block.
    """

    dst: Local
    src: Global
    pitch_bytes: Annotated[int, BYTES] = 0
    padding: Padding | None = None
    pipe: ClassVar[Pipe] = "mte2"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read", "global"),
        Role("dst", "written", touched="footprint"),
    )

    @property
    def work(self) -> Work:
        return Transfer(self.src.nbytes)

    @property
    def left_bytes(self) -> int:
        """Bytes of padding before each burst."""
        return self.dst.dtype.nbytes(self.padding.left) if self.padding else 0

    @property
    def row_bytes(self) -> int:
        """Bytes written for a burst, padding included."""
        right = self.dst.dtype.nbytes(self.padding.right) if self.padding else 0
        return align_up(self.left_bytes + self.src.burst_bytes + right, BLOCK_BYTES)

    @property
    def footprint(self) -> Local:
        """All bytes written, padding included, as one range."""
        nbytes = (self.src.bursts - 1) * self.pitch_bytes + self.row_bytes
        return Local(self.dst.buffer, self.dst.offset_bytes, UINT8, nbytes)

    def __str__(self) -> str:
        padding = f" {self.padding}" if self.padding else ""
        return f"load {self.dst} <- {self.src}{padding}"


@dataclass(frozen=True, slots=True)
class Store(MicroOp):
    """Copy bursts to global memory, the reverse of :class:`Load`. *src* covers all of them.

    With *atomic* the elements are combined with the contents of global memory in that type: added
    (SetAtomicAdd), or the maximum or minimum taken, as *atomic_op* says (SetAtomicMax,
    SetAtomicMin).
    """

    dst: Global
    src: Local
    pitch_bytes: Annotated[int, BYTES] = 0
    atomic: DType | None = None
    atomic_op: AtomicOp = "add"
    pipe: ClassVar[Pipe] = "mte3"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read", touched="footprint"),
        Role("dst", "written", "global", combined="combined"),
    )

    @property
    def work(self) -> Work:
        return Transfer(self.dst.nbytes)

    @property
    def combined(self) -> str | None:
        """How it combines with the contents of global memory, or None."""
        return None if self.atomic is None else combination(self.atomic_op, self.atomic)

    @property
    def footprint(self) -> Local:
        """All bytes read, as one range."""
        nbytes = (self.dst.bursts - 1) * self.pitch_bytes + self.dst.burst_bytes
        return Local(self.src.buffer, self.src.offset_bytes, UINT8, nbytes)

    def __str__(self) -> str:
        name = "" if self.atomic is None else self.atomic.name
        sign = {"add": "+=", "max": "max=", "min": "min="}[self.atomic_op]
        return f"store {self.dst} {f'{name} {sign}' if name else '<-'} {self.src}"
