"""Tensors in global memory: what an operator is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from npusim.dtypes import Array, DType, dtype_named

__all__ = ["GlobalTensor", "TensorSpec", "allocate", "place"]

LAYOUTS = ("ND",)

ALLOCATION_BYTES = 512
"""torch_npu's allocator hands out whole blocks of 512 bytes (Ascend/pytorch, kMinBlockSize)."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its values: in place of an array it asks for time only.

    >>> TensorSpec((8192, 8192), "float16").nbytes
    134217728
    """

    shape: tuple[int, ...]
    dtype: str
    layout: str = "ND"

    def __post_init__(self) -> None:
        shape = self.shape
        sizes_hold = isinstance(shape, tuple) and all(
            isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape
        )
        if not sizes_hold:
            raise ValueError(
                f"TensorSpec: shape must be a tuple of sizes >= 0, not {shape!r}; "
                f"write for example (128, 512)"
            )
        if self.layout not in LAYOUTS:
            raise ValueError(
                f"TensorSpec: layout must be one of {', '.join(LAYOUTS)}, not {self.layout!r}; "
                f"use one of these"
            )
        # One spelling for each type, so that equal specs compare equal.
        object.__setattr__(self, "dtype", dtype_named(self.dtype).name)

    @property
    def element(self) -> DType:
        """The element type behind the name."""
        return dtype_named(self.dtype)

    @property
    def size(self) -> int:
        """How many elements there are."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes they take in global memory."""
        return self.element.nbytes(self.size)


@dataclass(frozen=True, slots=True, eq=False)
class GlobalTensor:
    """A tensor as kernels see it: a name and a run of bytes in global memory."""

    name: str
    nbytes: int
    data: NDArray[np.uint8] | None = None
    """The bytes, allocation padding included; None when only time is asked for."""
    is_input: bool = True


def allocated_bytes(nbytes: int) -> int:
    """What the allocator sets aside for *nbytes*: whole blocks, and never none."""
    return max(1, -(-nbytes // ALLOCATION_BYTES)) * ALLOCATION_BYTES


def place(name: str, array: Array) -> GlobalTensor:
    """Put *array* into global memory: contiguous, without a copy where its size fits the blocks."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if flat.size != allocated_bytes(flat.size):
        padded = np.zeros(allocated_bytes(flat.size), np.uint8)
        padded[: flat.size] = flat
        return GlobalTensor(name, flat.size, padded)
    return GlobalTensor(name, flat.size, flat)


def allocate(name: str, nbytes: int) -> GlobalTensor:
    """An output tensor of *nbytes*, zero before the kernel runs."""
    return GlobalTensor(name, nbytes, np.zeros(allocated_bytes(nbytes), np.uint8), is_input=False)
