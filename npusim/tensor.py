"""Tensors in global memory: what an operator is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from npusim.dtypes import Array, DType, cast, dtype_named

__all__ = ["GlobalTensor", "Operand", "TensorSpec", "allocate", "allocated_bytes"]

LAYOUTS = ("ND",)

ALLOCATION_BYTES = 512
"""torch_npu's allocator hands out whole blocks of 512 bytes."""
SLACK_BYTES = 32
"""It adds a data block to each request first, so that copies in whole blocks may run over the end.

Both: Ascend/pytorch@9e73e70 torch_npu/csrc/core/npu/NPUCachingAllocator.cpp, round_size.
"""


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
    """The bytes: those of an input as they are, those of an output with the allocator's padding.

    None when only time is asked for.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """An argument of an operator: its shape and type, and its values unless only time counts."""

    name: str
    spec: TensorSpec
    array: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def element(self) -> DType:
        return self.spec.element

    def cast_to(self, dtype: DType) -> Operand:
        """The same numbers as *dtype*, as aclnn casts an argument before it launches the kernel."""
        if dtype is self.element:
            return self
        array = None if self.array is None else cast(self.array, dtype)
        return Operand(self.name, TensorSpec(self.shape, dtype.name, self.spec.layout), array)

    def place(self) -> GlobalTensor:
        """Put it into global memory: contiguous, without a copy where it is that already."""
        if self.array is None:
            return GlobalTensor(self.name, self.spec.nbytes)
        flat = np.ascontiguousarray(self.array).reshape(-1).view(np.uint8)
        return GlobalTensor(self.name, flat.size, flat)


def allocated_bytes(nbytes: int) -> int:
    """What the allocator sets aside for a tensor of *nbytes*."""
    return -(-(nbytes + SLACK_BYTES) // ALLOCATION_BYTES) * ALLOCATION_BYTES


def allocate(name: str, spec: TensorSpec, values: bool) -> GlobalTensor:
    """An output tensor; with *values*, its bytes, zero before the kernel runs."""
    data = np.zeros(allocated_bytes(spec.nbytes), np.uint8) if values else None
    return GlobalTensor(name, spec.nbytes, data)
