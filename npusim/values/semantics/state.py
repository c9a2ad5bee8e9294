"""What the micro-ops of one core can read and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import Array, DType, Overflow
from npusim.data.errors import TrapError
from npusim.data.product import CubeOrder
from npusim.isa import Local, Register
from npusim.values.buffers import Buffers
from npusim.values.late import Late
from npusim.values.matrices import Panels

__all__ = ["Bytes", "Memory", "State"]

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a name of global memory means to one block: a tensor's bytes from an offset on."""

    data: Bytes
    base_bytes: int = 0
    is_constant: bool = False
    """Nobody writes the tensor in this launch, so a view of it is as good as a copy."""
    is_late: bool = False
    """The fixpipe writes to the tensor, and may do so later."""
    bases: Sequence[int] = ()
    """The offset of each lane, where blocks run side by side; *base_bytes* is that of the first.

    A range where they lie equally far apart."""
    repeats: tuple[int, int] | None = None
    """How many calls are computed together, as an axis behind the lanes, and bytes between two."""


@dataclass(slots=True)
class State:
    """Everything a core's micro-ops can read and write."""

    buffers: Buffers
    memories: dict[str, Memory]
    overflow: Overflow = "inf_nan"
    cube_order: CubeOrder = "k16"
    panels: Panels = field(default_factory=Panels)
    registers: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Name -> `(1,)`, or `(rounds,)` inside a loop; lanes first, if they differ."""

    cmp_mask: Array | None = None
    """`(16,)` bytes: the bits that the last comparison left in the register for them."""
    late: Late | None = None
    """Products that wait, where some may."""
    trapped: dict[int, str] = field(default_factory=dict)
    """Lane -> why it stopped, for lanes that did. They go on without effect."""

    @property
    def lead(self) -> tuple[int, ...]:
        """What shapes begin with: the lanes, or nothing for a block alone."""
        return self.buffers.lead

    def stop(self, lanes: NDArray[np.bool_], reason: str) -> None:
        """A trap of those *lanes*, or of all; raises TrapError where a block runs alone."""
        if not self.lead:
            raise TrapError(reason)
        for lane in np.flatnonzero(np.broadcast_to(lanes, self.lead)):
            self.trapped.setdefault(int(lane), reason)

    def read(self, local: Local) -> Array:
        """The elements of *local* in order, int4 unpacked."""
        return self.buffers.read(local)

    def scalar(self, scalar: float | Register, dtype: DType) -> Array:
        """`(1,)`: a number, or the bits of a register as one; lanes first if they differ."""
        if isinstance(scalar, str):
            bits = self.registers[scalar].astype(f"u{dtype.numpy.itemsize}")
            return bits.view(dtype.numpy)
        return np.array([scalar]).astype(dtype.numpy)

    def write(self, dst: Local, values: Array) -> None:
        """Put *values*, or one for all, where *dst* says; int4 comes packed."""
        self.buffers.write(dst, values)
