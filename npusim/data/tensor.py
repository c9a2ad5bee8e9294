"""Tensors in global memory: the inputs and outputs of an operator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import INT4, INT32, Array, DType, cast, dtype_named, dtype_of, pack_int4
from npusim.data.errors import shown
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS, NZ, Placement, c0, from_fractals, to_fractals
from npusim.data.layout.html import MAX_SHOWN, table

__all__ = [
    "LAYOUTS",
    "GlobalTensor",
    "Operand",
    "Tensor",
    "TensorSpec",
    "allocate",
    "allocated_bytes",
    "is_transposed",
    "lies_both_ways",
]

LAYOUTS = ("ND", "FRACTAL_NZ")

ALLOCATION_BYTES = 512
"""torch_npu's allocator uses whole blocks of 512 bytes."""
SLACK_BYTES = 32
"""It adds a data block to each request first, so that copies in whole blocks may run past the end.

Both: Ascend/pytorch@9e73e70 torch_npu/csrc/core/npu/NPUCachingAllocator.cpp, round_size.
"""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class TensorSpec:
    """A tensor without values; passed instead of an array, it requests the time only.

    >>> TensorSpec((8192, 8192), "float16").nbytes
    134217728
    """

    shape: tuple[int, ...]
    dtype: str
    layout: str = "ND"
    transposed: bool = False
    """Whether the last two dimensions are swapped in memory: see :attr:`T`."""

    def __post_init__(self) -> None:
        shape = self.shape
        sizes_hold = isinstance(shape, tuple) and all(
            isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 0
            for size in shape
        )
        if not sizes_hold:
            raise ValueError(
                f"TensorSpec: shape must be a tuple of sizes >= 0, not {shown(shape)}; "
                f"write for example (128, 512)"
            )
        if not isinstance(self.layout, str) or self.layout not in LAYOUTS:
            raise ValueError(
                f"TensorSpec: layout must be one of {', '.join(LAYOUTS)}, not "
                f"{shown(self.layout)}; use one of these"
            )
        if not isinstance(self.transposed, bool):
            raise ValueError(
                f"TensorSpec: transposed must be True or False, not {shown(self.transposed)}; "
                f"pass one of them"
            )
        if len(shape) < 2 and (self.layout != "ND" or self.transposed):
            raise ValueError(
                f"TensorSpec: shape must have at least two dimensions for a transposed or "
                f"FRACTAL_NZ tensor, not {shown(shape)}; pass a matrix"
            )
        object.__setattr__(self, "shape", tuple(int(size) for size in shape))
        # One spelling for each type, so that equal specs compare equal.
        object.__setattr__(self, "dtype", dtype_named(self.dtype).name)

    @property
    def element(self) -> DType:
        """The element type called `dtype`."""
        return dtype_named(self.dtype)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def storage_shape(self) -> tuple[int, ...]:
        """The shape in memory: FRACTAL_NZ is `(..., n1, m1, 16, C0)`.

        >>> TensorSpec((100, 40), "int8", "FRACTAL_NZ").storage_shape
        (2, 7, 16, 32)
        """
        shape = (*self.shape[:-2], *self.shape[:-3:-1]) if self.transposed else self.shape
        if self.layout == "ND":
            return shape
        fractal = FRACTAL_ROWS, c0(self.element)
        return (*shape[:-2], *NZ.array_shape(shape[-2], shape[-1], fractal))

    @property
    def nbytes(self) -> int:
        """Bytes in global memory."""
        return self.element.nbytes(prod(self.storage_shape))

    @property
    def T(self) -> TensorSpec:  # noqa: N802 (numpy's and torch's name)
        """The transpose, in the same memory: the last two dimensions are swapped.

        >>> TensorSpec((256, 320), "int8").T
        TensorSpec(shape=(320, 256), dtype='int8', layout='ND', transposed=True)
        """
        shape = (*self.shape[:-2], *self.shape[:-3:-1])
        return TensorSpec(shape, self.dtype, self.layout, not self.transposed)


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor with its layout: the result of `npu_format_cast`, and an operand of operators.

    `np.asarray(tensor)` gives the elements in logical order, whatever the layout.
    """

    spec: TensorSpec
    storage: Array
    """The elements in memory order, of shape `spec.storage_shape`."""

    def __post_init__(self) -> None:
        for name, value, kind in (
            ("spec", self.spec, TensorSpec),
            ("storage", self.storage, np.ndarray),
        ):
            if not isinstance(value, kind):
                raise TypeError(
                    f"Tensor: {name} must be a {kind.__name__}, not {shown(value)}; "
                    f"make it with Tensor.of(array)"
                )
        wanted, element = self.spec.storage_shape, self.spec.element
        if self.storage.shape != wanted or self.storage.dtype != element.numpy:
            raise ValueError(
                f"Tensor: storage must be {element} of shape {wanted} for {self.spec}, not "
                f"{self.storage.dtype} of shape {self.storage.shape}; see npu_format_cast"
            )

    @classmethod
    def of(cls, array: Array, layout: str = "ND", transposed: bool = False) -> Tensor:
        """The elements of *array* in *layout*; FRACTAL_NZ is padded with zeros."""
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"Tensor.of: array must be a numpy array, not {shown(array)}; make it one with "
                f"numpy.asarray"
            )
        spec = TensorSpec(array.shape, array.dtype.name, layout, transposed)
        gm_matrix = array.swapaxes(-1, -2) if transposed else array
        if layout == "ND":
            return cls(spec, np.asarray(gm_matrix, order="C"))
        return cls(spec, to_fractals(gm_matrix, NZ, (FRACTAL_ROWS, c0(spec.element))))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> str:
        return self.spec.dtype

    @property
    def layout(self) -> str:
        return self.spec.layout

    @property
    def T(self) -> Tensor:  # noqa: N802
        """The transpose, in the same storage."""
        return Tensor(self.spec.T, self.storage)

    def numpy(self) -> Array:
        """The elements in an array of :attr:`shape`."""
        whole = self.storage
        if self.spec.layout != "ND":
            gm_matrix = self.spec.T.shape if self.spec.transposed else self.spec.shape
            whole = from_fractals(whole, NZ, (gm_matrix[-2], gm_matrix[-1]))
        return whole.swapaxes(-1, -2) if self.spec.transposed else whole

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        whole = self.numpy()
        return np.array(whole, dtype) if copy or dtype is not None else whole

    def __repr__(self) -> str:
        turned = ", transposed" if self.spec.transposed else ""
        return f"<Tensor {self.dtype} {self.shape} {self.layout}{turned}>"

    def _repr_html_(self) -> str:
        """The corner of the first matrix in memory, coloured by fractal."""
        shape = (self.T if self.spec.transposed else self).shape
        rows, columns = (1, 1, *shape)[-2:]
        caption = f"{self!r}, {self.spec.nbytes} bytes of storage {self.spec.storage_shape}"
        if not self.spec.size:
            return table(caption, ())
        if self.spec.transposed:
            caption += ", shown as it lies"
        place = Placement(rows, columns, self.spec.element, self.layout)
        if self.layout == "ND":
            return place.values_html(self.storage.reshape(-1, rows, columns)[0], caption)
        # Only the fractals around the corner, since converting all of a large tensor is slow.
        first = self.storage.reshape(-1, *self.storage.shape[-4:])[0, :MAX_SHOWN, :MAX_SHOWN]
        shown = place.shown[0][-1] + 1, place.shown[1][-1] + 1
        return place.values_html(from_fractals(first, NZ, shown), caption)


@dataclass(frozen=True, slots=True, eq=False)
class GlobalTensor:
    """A tensor as kernels see it: a name and a range of bytes in global memory."""

    name: str
    nbytes: int
    data: NDArray[np.uint8] | None = None
    """The bytes: those of an input unchanged, those of an output with the allocator's padding.

    None if only the time is requested.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """An argument of an operator: its shape and type, and its values unless only time counts."""

    name: str
    spec: TensorSpec
    array: Array | None = None
    """The elements: in the spec's shape if its layout is ND, else in memory order."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def element(self) -> DType:
        return self.spec.element

    def cast_to(self, dtype: DType) -> Operand:
        """The same values as *dtype*, as aclnn casts an argument before it launches the kernel."""
        if dtype is self.element:
            return self
        array = None if self.array is None else cast(self.array, dtype)
        return Operand(self.name, replace(self.spec, dtype=dtype.name), array)

    def place(self) -> GlobalTensor:
        """Place it in global memory: contiguous, without a copy if it already is."""
        if self.array is None:
            return GlobalTensor(self.name, self.spec.nbytes)
        array = self.array
        if self.spec.transposed and self.spec.layout == "ND":
            array = array.swapaxes(-1, -2)
        flat = np.ascontiguousarray(array).reshape(-1)
        raw = pack_int4(flat) if dtype_of(flat) is INT4 else flat.view(np.uint8)
        return GlobalTensor(self.name, raw.size, raw)


def is_transposed(matrix: Array | Tensor) -> bool:
    """Whether the last two dimensions of *matrix* are swapped in memory, without gaps.

    A single row or column, which fits both orders, counts as not transposed; but int32 may hold
    packed int4, eight along the inner dimension, and there the strides decide which one that is
    (op-plugin, is_transpose_last_two_dims).

    >>> is_transposed(np.zeros((8, 1), np.int32).T), is_transposed(np.zeros((1, 8), np.int32))
    (True, False)
    """
    if isinstance(matrix, Tensor):
        return matrix.spec.transposed and not lies_both_ways(matrix.spec)
    if not matrix.flags.c_contiguous:
        return bool(matrix.swapaxes(-1, -2).flags.c_contiguous)
    rows, columns = matrix.shape[-2:]
    inner_bytes, outer_bytes = matrix.itemsize, rows * matrix.itemsize
    is_clear = matrix.dtype == np.int32 and rows != columns and matrix.size > 0
    return is_clear and matrix.strides[-2:] == (inner_bytes, outer_bytes)


def lies_both_ways(spec: TensorSpec) -> bool:
    """Whether a matrix in ND and its transpose have the same bytes: see :func:`is_transposed`."""
    is_line = 1 in spec.shape[-2:] and (spec.element is not INT32 or spec.shape[-2:] == (1, 1))
    return spec.layout == "ND" and (is_line or 0 in spec.shape)


def allocated_bytes(nbytes: int) -> int:
    """Bytes that the allocator reserves for a tensor of *nbytes*."""
    return align_up((nbytes + SLACK_BYTES), ALLOCATION_BYTES)


def allocate(name: str, spec: TensorSpec, values: bool) -> GlobalTensor:
    """An output tensor; with *values*, its bytes, zero before the kernel runs."""
    data = np.zeros(allocated_bytes(spec.nbytes), np.uint8) if values else None
    return GlobalTensor(name, spec.nbytes, data)
