"""What operators share when they check their arguments, and say what is wrong with them.

Messages have the form *operator: what must hold, not what came; what to do*, and carry the code
that CANN returns (op-plugin and ops-nn: 161001 for a missing tensor, 161002 for a wrong one).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn
from warnings import warn

import numpy as np

from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT32,
    INT64,
    UINT64,
    Array,
    DType,
    dtype_of,
)
from npusim.data.errors import Code, DocumentWarning, OpError, callers_level, shown
from npusim.data.integers import ceil_div
from npusim.data.tensor import Operand, Tensor, TensorSpec, is_transposed, lies_both_ways
from npusim.devices.schema import DeviceSpec

__all__ = ["MAX_RANK", "Contract", "listed", "same_shape_remedy"]

MAX_RANK = 8
"""aclnn takes tensors of up to eight dimensions (ops-nn, aclnn parameter checks)."""

MAX_TENSORS = 128
"""Of a list (aclnn_grouped_matmul.cpp)."""


PRODUCTS = ("npu_quant_matmul", "npu_weight_quant_batchmatmul", "npu_grouped_matmul")
PACKABLE = ("scale", "antiquant_scale")
"""Their parameters that may be packed words, which no conversion turns back into numbers."""
MATRICES = ("x1", "x2", "weight")
"""Factors of products: floats among them are not quantised yet, which no conversion does."""
PACKING = "npu_convert_weight_to_int4pack"
"""The operator that packs eight int4 into an int32."""
CASTABLE = (FLOAT32, FLOAT16, BFLOAT16, INT8, INT32)
"""What npu_format_cast takes, on some product line, of up to so many dimensions."""
MAX_CAST_RANK = 6


def listed(names: tuple[str, ...], last: str = "or") -> str:
    """Names as a sentence lists them.

    >>> listed(("float32", "float16", "bfloat16"))
    'float32, float16 or bfloat16'
    """
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


@dataclass(frozen=True, slots=True)
class Contract:
    """The checks of one operator on one device; each raises OpError unless its condition holds."""

    op: str
    spec: DeviceSpec
    names: Mapping[str, str] = field(default_factory=dict)
    """Parameter, as refusals call it -> the operator's name of it, where that is another one."""

    def fail(self, text: str, code: Code = Code.INVALID_PARAMETER) -> NoReturn:
        """Refuse: *text* says what must hold, what came, and what to do."""
        for name, own in self.names.items():
            text = re.sub(rf"\b{name}\b", own, text)
        raise OpError(code, f"{self.op}: {text}")

    def require(self, holds: bool, text: str, code: Code = Code.INVALID_PARAMETER) -> None:
        """Refuse with *text* unless *holds*."""
        if not holds:
            self.fail(text, code)

    def warn(self, text: str) -> None:
        """Say that the document excludes what is taken: *text*, at the line that called npusim."""
        warn(f"{self.op}: {text}", DocumentWarning, stacklevel=callers_level())

    def operand(self, name: str, value: Any, dtypes: tuple[DType, ...], when: str = "") -> Operand:
        """A required tensor of one of *dtypes* with at most eight dimensions, row after row.

        A view is made contiguous first, as torch_npu does before it calls aclnn. *when* says what
        else asks for these types; without it that is the product line.
        """
        found = self._tensor(name, value, dtypes, when)
        self._require_layout(found, ("ND",))
        return Operand(name, replace(found.spec, transposed=False), found.array)

    def matrix(
        self,
        name: str,
        value: Any,
        dtypes: tuple[DType, ...],
        when: str = "",
        layouts: tuple[str, ...] = ("ND",),
    ) -> Operand:
        """A required tensor of one of *dtypes* with at least two dimensions, in one of *layouts*.

        An array whose last two dimensions lie in memory the other way round is taken as a
        transposed one, see :func:`npusim.data.tensor.is_transposed`; a TensorSpec that is only a
        row or a column is what its array would be. The array of an operand in FRACTAL_NZ is its
        storage.
        """
        found = self._tensor(name, value, dtypes, when)
        self.require(
            len(found.shape) >= 2,
            f"{name} must have at least two dimensions, not {len(found.shape)}; reshape it",
        )
        self._require_layout(found, layouts)
        if isinstance(value, np.ndarray):
            return replace(found, spec=replace(found.spec, transposed=is_transposed(value)))
        if lies_both_ways(found.spec):
            return replace(found, spec=replace(found.spec, transposed=False))
        return found

    def _tensor(self, name: str, value: Any, dtypes: tuple[DType, ...], when: str) -> Operand:
        """*value* in whichever layout: an array, a Tensor or a TensorSpec of one of *dtypes*."""
        self.require(
            value is not None,
            f"{name} must be given, not None; pass a tensor",
            Code.NULL_POINTER,
        )
        known = listed(tuple(dtype.name for dtype in dtypes))
        known += when or f" on {self.spec.series}"
        array: Array | None = None
        if isinstance(value, TensorSpec):
            spec = value
        elif isinstance(value, Tensor):
            spec, array = value.spec, value.numpy() if value.layout == "ND" else value.storage
        elif isinstance(value, np.ma.MaskedArray):
            self.fail(f"{name} must be an array without a mask, not a MaskedArray; fill it first")
        elif isinstance(value, np.ndarray):
            dtype = dtype_of(value)
            self.require(
                dtype in dtypes,
                f"{name} must be {known}, not {value.dtype}; "
                f"{self._dtype_remedy(name, value.dtype.name, value.shape, dtypes)}",
            )
            assert dtype is not None
            spec, array = TensorSpec(value.shape, dtype.name), value
        else:
            self.fail(
                f"{name} must be a numpy array or a TensorSpec, not {type(value).__name__}; "
                f"make it one of them"
            )
        self.require(
            spec.element in dtypes,
            f"{name} must be {known}, not {spec.dtype}; "
            f"{self._dtype_remedy(name, spec.dtype, spec.shape, dtypes, spec.transposed)}",
        )
        self.require(
            len(spec.shape) <= MAX_RANK,
            f"{name} must have at most {MAX_RANK} dimensions, not {len(spec.shape)}; reshape it",
        )
        return Operand(name, spec, array)

    def _dtype_remedy(
        self,
        name: str,
        came: str,
        shape: tuple[int, ...],
        wanted: tuple[DType, ...],
        transposed: bool = False,
    ) -> str:
        """How a tensor of type *came* becomes one of *wanted*; converting is not always right."""
        if came == INT4.name and INT32 in wanted and shape and self.op != PACKING:
            inner = len(shape) - (2 if transposed else 1)
            packed = (*shape[:inner], ceil_div(shape[inner], 8), *shape[inner + 1 :])
            return f"pass them packed, eight to an int32, as {packed}: see {PACKING}"
        if came == INT32.name and wanted == (INT8,):
            return "pass its numbers, which int32 holds packed, as int8"
        if (
            name in PACKABLE
            and self.op in PRODUCTS
            and came in (INT64.name, UINT64.name)
            and INT64 not in wanted
        ):
            return "pass the numbers that npu_trans_quant_param packed"
        if name in MATRICES and "float" in came and not wanted[0].is_float and self.op != PACKING:
            return "quantise it"
        return "convert it"

    def _require_layout(self, operand: Operand, layouts: tuple[str, ...]) -> None:
        layout = operand.spec.layout
        can_cast = operand.element in CASTABLE and len(operand.shape) <= MAX_CAST_RANK
        remedy = "pass it through npu_format_cast(..., 2)" if can_cast else "make it in ND"
        self.require(
            layout in layouts,
            f"{operand.name} must have layout {listed(layouts)}, not {layout}; {remedy}",
        )

    def optional(
        self, name: str, value: Any, dtypes: tuple[DType, ...], when: str = ""
    ) -> Operand | None:
        """A tensor that may be None."""
        return None if value is None else self.operand(name, value, dtypes, when)

    def tensors(self, name: str, value: Any, most: int = MAX_TENSORS) -> list[tuple[str, Any]]:
        """A list of one to *most* tensors, each with a name of its own; one tensor is a list of it.

        A list of several names each by its place, as in `x[1]`.
        """
        self.require(
            value is not None,
            f"{name} must be given, not None; pass a list of tensors",
            Code.NULL_POINTER,
        )
        if not isinstance(value, list | tuple):
            return [(name, value)]
        self.require(
            0 < len(value) <= most,
            f"{name} must be a list of 1 to {most} tensors, not of {len(value)}; "
            f"{'pass a tensor' if not value else 'split the call'}",
        )
        if len(value) == 1:
            return [(name, value[0])]
        return [(f"{name}[{place}]", one) for place, one in enumerate(value)]

    def integer(self, name: str, value: Any) -> int:
        """An attribute that is a whole number."""
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            self.fail(
                f"{name} must be an integer, not {shown(value)}; pass one without quotes or a point"
            )
        self.require(
            -(2**63) <= int(value) < 2**63,
            f"{name} must fit into 64 bits, not be {shown(value)}; pass a smaller one",
        )
        return int(value)

    def boolean(self, name: str, value: Any) -> bool:
        """An attribute that is true or false."""
        if not isinstance(value, bool | np.bool_):
            self.fail(f"{name} must be True or False, not {shown(value)}; pass one of them")
        return bool(value)

    def choice(self, name: str, value: Any, choices: tuple[str, ...], when: str = "") -> str:
        """An attribute that is one of a few names."""
        if not isinstance(value, str) or value not in choices:
            remedy = "choose one of these" if len(choices) > 1 else f"pass {choices[0]!r}"
            self.fail(f"{name} must be {listed(choices)}{when}, not {shown(value)}; {remedy}")
        return value


def same_shape_remedy(operand: Operand, like: Operand) -> str:
    """How *operand*, of another shape, gets that of *like*."""
    if operand.spec.size == like.spec.size:
        return "reshape it"
    return f"pass as many numbers as {like.name} has"
