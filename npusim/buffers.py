"""The memories of one core as bounded bytes."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from npusim.dtypes import INT4, Array
from npusim.isa import BLOCK_BYTES, Local
from npusim.spec import Core

__all__ = ["Buffers", "OutOfBufferError"]

BUFFERS = ("ub", "l1", "l0a", "l0b", "l0c", "bt", "fb")


UNWRITTEN = 0xA5
"""A pattern that is no small number in any type, so that reading it shows."""


class OutOfBufferError(ValueError):
    """A micro-op reaches beyond a buffer of its core."""


class Buffers:
    """The bytes of a core's buffers; what nobody has written yet is UNWRITTEN throughout."""

    def __init__(self, core: Core) -> None:
        self._bytes: dict[str, NDArray[np.uint8]] = {}
        for name in BUFFERS:
            size = getattr(core, f"{name}_bytes")
            if size is not None:
                self._bytes[name] = np.full(size, UNWRITTEN, np.uint8)
        self._views: dict[Local, Array] = {}

    def reset(self) -> None:
        """Forget everything that was written."""
        for raw in self._bytes.values():
            raw.fill(UNWRITTEN)

    def raw(self, buffer: str) -> NDArray[np.uint8]:
        """All bytes of *buffer*; raises OutOfBufferError when the core has no such buffer."""
        if buffer not in self._bytes:
            raise OutOfBufferError(
                f"buffers: {buffer!r} must be a buffer of the core, one of {', '.join(self._bytes)}"
            )
        return self._bytes[buffer]

    def view(self, local: Local) -> Array:
        """The elements of *local*: a writable view, `(count,)`, or `(repeats, blocks, elements)`.

        Packed int4 is seen as its bytes. Raises OutOfBufferError beyond the end of the buffer.
        """
        view = self._views.get(local)
        if view is None:
            view = self._views[local] = self._cut(local)
        return view

    def _cut(self, local: Local) -> Array:
        raw = self.raw(local.buffer)
        if local.offset_bytes < 0 or local.end_bytes > raw.size:
            raise OutOfBufferError(
                f"buffers: {local} must lie within {raw.size} bytes of {local.buffer}; "
                f"claim it with the builder"
            )
        dtype = np.dtype(np.uint8) if local.dtype is INT4 else local.dtype.numpy
        if not local.is_strided:
            return raw[local.offset_bytes : local.end_bytes].view(dtype)
        # (repeats, blocks, elements of a block)
        blocks = local.nbytes // BLOCK_BYTES
        shape = (-(-blocks // 8), min(blocks, 8), BLOCK_BYTES // dtype.itemsize)
        steps = (local.repeat_stride * BLOCK_BYTES, local.block_stride * BLOCK_BYTES)
        window = raw[local.offset_bytes : local.end_bytes].view(dtype)
        return as_strided(window, shape, (*steps, dtype.itemsize))
