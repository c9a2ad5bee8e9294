"""Rows of contract tables for products: what is refused, and what `check` and `reference` agree on.

They hold an operator's `check` alone, so that a row needs no kernel.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from op_calls import LINES, Row

from npusim import OpError, TensorSpec, devices, ops
from npusim.data.tensor import Tensor


def assert_check_refuses(op: str, call: dict[str, Any], row: Row, series: str) -> None:
    """*call* raises OpError with the row's message, whole, and its code."""
    message = f"{op}: {row.message.format(series=series)} [{row.code.value}]"
    with pytest.raises(OpError, match="^" + re.escape(message) + "$") as caught:
        ops.load(op).check(devices.load(LINES[series]), **call)
    assert caught.value.code is row.code


def assert_check_accepts(op: str, call: dict[str, Any], series: str) -> None:
    """The problem's output has the shape and type of what the reference computes."""
    spec = devices.load(LINES[series])
    output = ops.load(op).check(spec, **call).output
    if any(isinstance(value, TensorSpec) for value in call.values()):
        return
    values = ops.load(op).reference(**call, spec=spec)
    assert output == TensorSpec(values.shape, values.dtype.name)
    # The same call with shapes alone is held against the same contract.
    shapes = {name: described(value) for name, value in call.items()}
    assert ops.load(op).check(spec, **shapes).output == output


def described(value: Any) -> Any:
    """The TensorSpec of an array or Tensor; anything else as it is."""
    if isinstance(value, Tensor):
        return value.spec
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim > 1 and not value.flags.c_contiguous:
        return TensorSpec(value.swapaxes(-1, -2).shape, value.dtype.name).T
    return TensorSpec(value.shape, value.dtype.name)
