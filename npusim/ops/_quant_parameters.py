"""Scales, offsets and biases of quantising kernels, in the unified buffer as float32."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.data.tensor import Operand
from npusim.devices.schema import Pipe
from npusim.isa import Local, Register
from npusim.kernel import GmView, VectorCore


class QuantParameter:
    """A scale, an offset or a bias; up to *count* elements are loaded and widened at a time.

    ====================  ====================================================================
    ``v.take(view)``      loads the elements of *view* and widens them: float32 `(columns,)`
    ``v.drop()``          they have been used; the buffer may be loaded again
    ====================  ====================================================================

    `take` is `load`, then `widen`, for kernels that do something in between. *reader* is the pipe
    that reads what was loaded: the vector pipe, or the scalar unit for float32 that is read into
    registers. *by_rows* loads like `load_rows`, on A2 and A3.
    """

    def __init__(
        self,
        core: VectorCore,
        operand: Operand,
        count: int,
        *,
        reader: Pipe = "vector",
        by_rows: bool = False,
    ) -> None:
        self.core, self.reader, self.name = core, reader, operand.name
        self._load = core.load_rows if by_rows else core.load
        self.view = GmView.vector(operand.name, operand.element, operand.spec.size)
        """The whole vector in global memory."""
        self.loaded = core.tiles(operand.element, count, "mte2", reader)
        self.is_wide = operand.element is FLOAT32
        self.wide = self.loaded.only if self.is_wide else core.tile(FLOAT32, count)
        """Buffer of its elements as float32."""

    def take(self, view: GmView) -> Local:
        """Load *view* `(columns,)` and widen it to float32; free it with `drop`."""
        self.load(view)
        return self.widen(view.columns)

    def load(self, view: GmView) -> None:
        """Load *view* `(columns,)`, and wait for it on the pipe that widens or reads it."""
        self._load(self.loaded, view)

    def widen(self, count: int) -> Local:
        """Widen what was loaded, to float32 `(count,)`."""
        if not self.is_wide:
            self.core.widen(self.wide[:count], self.loaded.only[:count])
        return self.wide[:count]

    def take_number(self, register: Register) -> None:
        """Load its only element into *register*, as float32; free it with `drop`."""
        number = self.take(self.view)
        if self.reader == "vector":
            self.core.sync("vector", "scalar")
        self.core.get_value(register, number)

    def drop(self) -> None:
        """Release what was loaded, if anything."""
        for tile in self.loaded.in_use:
            self.loaded.free(tile)
