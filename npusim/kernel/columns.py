"""Vectors along n in the unified buffer: an element for each column, as float32."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32, DType
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import BLOCK_BYTES, Cast, Local, Register, ScalarLoad
from npusim.kernel import rows
from npusim.kernel.builder import Builder, step
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.views import GmView, load

__all__ = ["ColumnVector"]

__kernel_vocabulary__ = True


class ColumnVector:
    """A part of a vector along n, loaded and widened to float32.

    ==================  =======================================================================
    ``v.take(view)``    loads the elements of *view* and widens them: float32 `(columns,)`
    ``v.drop()``        they have been used; the buffer may be loaded again
    ==================  =======================================================================

    `take` is `load`, then `widen`, for kernels that do something between the two.
    """

    def __init__(
        self,
        builder: Builder,
        loaded: Queue,
        widened: Slot | None,
        *,
        reader: Pipe = "vector",
        spec: DeviceSpec | None = None,
    ) -> None:
        """Elements are loaded into *loaded* and widened into *widened*, unless they are float32.

        *reader* is the pipe that reads *loaded*: the vector pipe, or the scalar unit for float32
        that is read into registers. With *spec* only copies that its chip can make are used, see
        :mod:`~npusim.kernel.rows`.
        """
        self._builder, self._loaded, self._widened = builder, loaded, widened
        self._reader, self._spec = reader, spec
        self._slot: Slot | None = None
        self._view: GmView | None = None

    @staticmethod
    def claim(
        builder: Builder,
        dtype: DType,
        max_columns: int,
        *,
        reader: Pipe = "vector",
        spec: DeviceSpec | None = None,
    ) -> ColumnVector:
        """Claim room for up to *max_columns* elements of *dtype*; raises ProgramError."""
        loaded = builder.queue("ub", dtype.nbytes(max_columns), "mte2", reader)
        widened = None if dtype is FLOAT32 else builder.claim("ub", FLOAT32.nbytes(max_columns))
        return ColumnVector(builder, loaded, widened, reader=reader, spec=spec)

    def take(self, view: GmView) -> Local:
        """Load *view* `(columns,)` and widen it to float32; free it with `drop`."""
        self.load(view)
        return self.widen()

    def load(self, view: GmView) -> None:
        """Load *view* `(columns,)`, and enqueue it for the pipe that widens or reads it."""
        self._view = view
        if self._spec is None:
            self._slot = load(self._builder, self._loaded, view)
        else:
            self._slot = rows.load(self._builder, self._spec, self._loaded, view)

    def widen(self) -> Local:
        """What was loaded, as float32 `(columns,)`."""
        assert self._slot is not None
        assert self._view is not None
        numbers = self._slot.of(self._view.dtype, self._view.columns)
        if self._widened is None:
            return numbers
        widened = self._widened.of(FLOAT32, self._view.columns)
        _to_float32(self._builder, widened, numbers)
        return widened

    def take_number(self, view: GmView, register: Register) -> None:
        """Load the one number of *view* into *register*, as float32; free it with `drop`."""
        number = self.take(view)
        if self._reader == "vector":
            self._builder.sync("vector", "scalar")
        self._builder.emit(ScalarLoad(register, number.at(0, 1)))

    def drop(self) -> None:
        """What was loaded has been used, if there was anything."""
        if self._slot is not None:
            self._loaded.free(self._slot)
            self._slot = None


def _to_float32(builder: Builder, dst: Local, src: Local) -> None:
    """Widen *src* to float32; int8, uint8 and int4 go by way of float16."""
    if src.dtype.bits <= 8:
        # In the upper half of dst, so that no result overtakes what is still to be read.
        upper = (
            dst.offset_bytes
            + align_up(dst.nbytes, BLOCK_BYTES)
            - align_up(FLOAT16.nbytes(dst.count), BLOCK_BYTES)
        )
        half = Local(dst.buffer, upper, FLOAT16, dst.count)
        step(builder, Cast(half, src, "none"))
        src = half
    step(builder, Cast(dst, src, "none"))
