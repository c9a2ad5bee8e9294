"""The state that the micro-ops of one core read and write."""

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
    """The binding of a global memory name in one block: a tensor's bytes from an offset on."""

    data: Bytes
    base_bytes: int = 0
    is_constant: bool = False
    """The tensor is not written in this launch, so a view is as good as a copy."""
    is_late: bool = False
    """The fixpipe writes to the tensor, and its products may be deferred."""
    bases: Sequence[int] = ()
    """The offset for each lane, if blocks run together; *base_bytes* is that of the first.

    A range if they are equally spaced."""
    repeats: tuple[int, int] | None = None
    """Number of calls that are computed together, as an axis after the lanes, and their spacing in
    bytes."""


@dataclass(slots=True)
class State:
    """Everything a core's micro-ops can read and write."""

    buffers: Buffers
    memories: dict[str, Memory]
    overflow: Overflow = "inf_nan"
    cube_order: CubeOrder = "k16"
    panels: Panels = field(default_factory=Panels)
    registers: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Name -> `(1,)`, or `(iterations,)` inside a loop; lanes first, if they differ."""

    cmp_mask: Array | None = None
    """`(16,)` bytes: the compare mask register, as set by the last comparison."""
    late: Late | None = None
    """Deferred products, where they are allowed."""
    trapped: dict[int, str] = field(default_factory=dict)
    """Lane -> why it stopped, for lanes that did. They continue without effect."""

    @property
    def lead(self) -> tuple[int, ...]:
        """Leading axes of arrays: the lanes, or none for a single block."""
        return self.buffers.lead

    def stop(self, lanes: NDArray[np.bool_], reason: str) -> None:
        """Trap the *lanes* given, or all; raises TrapError where a block runs alone."""
        if not self.lead:
            raise TrapError(reason)
        for lane in np.flatnonzero(np.broadcast_to(lanes, self.lead)):
            self.trapped.setdefault(int(lane), reason)

    def read(self, local: Local) -> Array:
        """The elements of *local* in order, int4 unpacked."""
        return self.buffers.read(local)

    def scalar(self, scalar: float | Register, dtype: DType) -> Array:
        """`(1,)`: a constant, or the bits of a register as one; lanes first if they differ."""
        if isinstance(scalar, str):
            bits = self.registers[scalar].astype(f"u{dtype.numpy.itemsize}")
            return bits.view(dtype.numpy)
        return np.array([scalar]).astype(dtype.numpy)

    def write(self, dst: Local, values: Array) -> None:
        """Write *values*, or one value for all, to *dst*; int4 is packed."""
        self.buffers.write(dst, values)
