"""What operators share when they check their arguments, and say what is wrong with them.

Messages have the form *operator: what must hold, not what came; what to do*, and carry the code
that CANN returns (op-plugin and ops-nn: 161001 for a missing tensor, 161002 for a wrong one).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from npusim.data.dtypes import DType, dtype_of
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
        """A required tensor of one of *dtypes* with at most eight dimensions.

        *when* says what else asks for these types; without it that is the product line.
        """
        self.require(
            value is not None,
            f"{name} must be given, not None; pass a tensor",
            Code.NULL_POINTER,
        )
        known = listed(tuple(dtype.name for dtype in dtypes))
        known += when or f" on {self.spec.series}"
        if isinstance(value, TensorSpec):
            spec, array = value, None
        elif isinstance(value, Tensor):
            self.fail(
                f"{name} must be an array or a TensorSpec, not a Tensor; pass np.asarray of it"
            )
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

    def matrix(self, name: str, value: Any, dtypes: tuple[DType, ...], when: str = "") -> Operand:
        """A required tensor of one of *dtypes* with at least two dimensions, in any layout.

        An array whose last two dimensions lie in memory the other way round is taken as a
        transposed one, told by its strides as torch does (op-plugin, is_transpose_last_two_dims).
        The array of an operand in FRACTAL_NZ is its storage.
        """
        given = value
        if isinstance(value, Tensor):
            value = value.spec
        found = self.operand(name, value, dtypes, when)
        self.require(
            len(found.shape) >= 2,
            f"{name} must have at least two dimensions, not {len(found.shape)}; reshape it",
        )
        if isinstance(given, Tensor):
            is_plain = given.layout == "ND"
            return Operand(name, found.spec, given.numpy() if is_plain else given.storage)
        if isinstance(given, np.ndarray) and _is_transposed(given):
            return Operand(name, replace(found.spec, transposed=True), given)
        return found

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
