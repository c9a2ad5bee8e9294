"""What operators share when they check their arguments, and say what is wrong with them.

Messages have the form *operator: what must hold, not what came; what to do*, and carry the code
that CANN returns (op-plugin and ops-nn: 161001 for a missing tensor, 161002 for a wrong one).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from npusim.data.dtypes import Array, DType, dtype_of
from npusim.data.errors import Code, OpError
from npusim.data.tensor import Operand, Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec

__all__ = ["MAX_RANK", "Contract", "listed"]

MAX_RANK = 8
"""aclnn takes tensors of up to eight dimensions (ops-nn, aclnn parameter checks)."""


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

    def fail(self, text: str, code: Code = Code.INVALID_PARAMETER) -> NoReturn:
        """Refuse: *text* says what must hold, what came, and what to do."""
        raise OpError(code, f"{self.op}: {text}")

    def require(self, holds: bool, text: str, code: Code = Code.INVALID_PARAMETER) -> None:
        """Refuse with *text* unless *holds*."""
        if not holds:
            self.fail(text, code)

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
        transposed one, which its strides say, as in torch (op-plugin, is_transpose_last_two_dims).
        The array of an operand in FRACTAL_NZ is its storage.
        """
        found = self._tensor(name, value, dtypes, when)
        self.require(
            len(found.shape) >= 2,
            f"{name} must have at least two dimensions, not {len(found.shape)}; reshape it",
        )
        self._require_layout(found, layouts)
        if isinstance(value, np.ndarray) and _is_transposed(value):
            return Operand(name, replace(found.spec, transposed=True), value)
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
                f"{name} must be {known}, not {value.dtype}; convert it",
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
            f"{name} must be {known}, not {spec.dtype}; convert it",
        )
        self.require(
            len(spec.shape) <= MAX_RANK,
            f"{name} must have at most {MAX_RANK} dimensions, not {len(spec.shape)}; reshape it",
        )
        return Operand(name, spec, array)

    def _require_layout(self, operand: Operand, layouts: tuple[str, ...]) -> None:
        layout = operand.spec.layout
        self.require(
            layout in layouts,
            f"{operand.name} must have layout {listed(layouts)}, not {layout}; "
            f"pass it through npu_format_cast(..., 2)",
        )

    def optional(
        self, name: str, value: Any, dtypes: tuple[DType, ...], when: str = ""
    ) -> Operand | None:
        """A tensor that may be None."""
        return None if value is None else self.operand(name, value, dtypes, when)

    def integer(self, name: str, value: Any) -> int:
        """An attribute that is a whole number."""
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            self.fail(
                f"{name} must be an integer, not {value!r}; pass one without quotes or a point"
            )
        return int(value)

    def boolean(self, name: str, value: Any) -> bool:
        """An attribute that is true or false."""
        if not isinstance(value, bool | np.bool_):
            self.fail(f"{name} must be True or False, not {value!r}; pass one of them")
        return bool(value)

    def choice(self, name: str, value: Any, choices: tuple[str, ...], when: str = "") -> str:
        """An attribute that is one of a few names."""
        if not isinstance(value, str) or value not in choices:
            remedy = "choose one of these" if len(choices) > 1 else f"pass {choices[0]!r}"
            self.fail(f"{name} must be {listed(choices)}{when}, not {value!r}; {remedy}")
        return value


def _is_transposed(array: np.ndarray[Any, Any]) -> bool:
    """Whether the last two dimensions lie in memory the other way round, without gaps."""
    return not array.flags.c_contiguous and array.swapaxes(-1, -2).flags.c_contiguous
