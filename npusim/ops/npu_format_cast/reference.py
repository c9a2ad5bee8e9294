"""npu_format_cast on whole arrays, in plain numpy."""

from __future__ import annotations

from npusim.data.dtypes import Array
from npusim.data.tensor import Tensor
from npusim.ops._oracle import Given
from npusim.ops.npu_format_cast.contract import FORMATS

__all__ = ["oracle"]


def oracle(given: Given) -> Array | Tensor:
    """x of shape `(..., m, n)` in the layout that acl_format names, its edges zero."""
    x: Array | Tensor = given.x
    layout = FORMATS[given.acl_format]
    is_now = x.layout if isinstance(x, Tensor) else "ND"
    if is_now == layout:
        return x
    whole = x.numpy() if isinstance(x, Tensor) else x
    return whole if layout == "ND" else Tensor.of(whole, layout)
