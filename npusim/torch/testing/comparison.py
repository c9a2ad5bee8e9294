"""When two results count as equal in torch_npu's tests.

With p = *prec*, or *prec16* for float16, and a small m that only avoids a division by zero (1e-9,
for float16 6e-8):

.. code-block:: text

    |y - x| <= p                            near
    |y - x| / (max(|x|, |y|) + m) <= p      in proportion

NaN is near NaN, and in proportion. The results differ if more than a share p of the elements is not
near, and more than a share p is not in proportion. bool must be equal; bfloat16 must be
`torch.allclose` with p = *prec16* for both tolerances. Source: Ascend/pytorch
torch_npu/testing/testcase.py. Assumed here: differences are taken in float64, so that none wraps or
overflows, and equal infinities agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch

from npusim.data.dtypes import Array

__all__ = ["difference"]

LEAST, LEAST_FLOAT16 = 10e-10, 6e-8
"""Added to the divisor."""
AT_ONCE = 1 << 20
"""Elements that are compared at a time, as float64."""


def difference(x: Any, y: Any, prec: float, prec16: float, convert: bool) -> str | None:
    """Describe the difference, or return None; *convert* first casts x to the dtype of y."""
    if isinstance(x, Sequence) and isinstance(y, Sequence):
        parts = (difference(a, b, prec, prec16, convert) for a, b in zip(x, y, strict=False))
        return next((part for part in parts if part is not None), None)
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        if convert:
            x = x.to(y.dtype)
        if x.dtype == y.dtype == torch.bfloat16:
            return _bfloat16(x.cpu(), y.cpu(), prec16)
    found = _array("x", x), _array("y", y)
    if found[0].shape != found[1].shape:
        return f"shape error: x has shape {found[0].shape}, y {found[1].shape}"
    if found[0].dtype != found[1].dtype:
        return f"dtype error: x is {found[0].dtype}, y {found[1].dtype}"
    if found[0].dtype == np.bool_:
        count = int(np.sum(found[0] != found[1]))
        return f"result error: {count} of {found[0].size} elements are not equal" if count else None
    if found[0].dtype == np.float16:
        return _numbers(*found, prec16, LEAST_FLOAT16)
    return _numbers(*found, prec, LEAST)


def _array(name: str, value: object) -> Array:
    if isinstance(value, torch.Tensor):
        return np.asarray(value.detach().cpu().numpy())
    if isinstance(value, np.ndarray | np.generic | Number | list | tuple):
        return np.asarray(value)
    raise TypeError(
        f"assertRtolEqual: {name} must be a tensor, an array, a number or a list, not "
        f"{type(value).__name__}; convert it"
    )


def _bfloat16(x: torch.Tensor, y: torch.Tensor, prec16: float) -> str | None:
    if x.shape != y.shape:
        return f"shape error: x has shape {tuple(x.shape)}, y {tuple(y.shape)}"
    if torch.allclose(x, y, rtol=prec16, atol=prec16):
        return None
    return f"result error: not all elements agree within {prec16}"


def _numbers(x: Array, y: Array, prec: float, least: float) -> str | None:
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    far = unlike = 0
    for a, b in np.nditer(
        (x, y),
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_dtypes=[wide, wide],
        casting="unsafe",
        buffersize=AT_ONCE,
    ):
        with np.errstate(invalid="ignore"):
            away = np.abs(b - a)
            share = away / (np.maximum(np.abs(a), np.abs(b)) + least)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        far += int(np.sum(~(same | (away <= prec))))
        unlike += int(np.sum(~(same | (share <= prec))))
    if min(far, unlike) <= x.size * prec:
        return None
    return (
        f"result error: at most {x.size * prec:g} of {x.size} elements may be off by more than "
        f"{prec:g} or by a share of more than {prec:g}, not {far} and {unlike}"
    )
