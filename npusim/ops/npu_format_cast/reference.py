"""npu_format_cast on whole arrays, in plain numpy."""

from __future__ import annotations

from npusim.data.dtypes import Array
from npusim.data.tensor import Tensor
from npusim.ops.npu_format_cast.contract import FORMATS

__all__ = ["reference"]


def reference(x: Array | Tensor, acl_format: int | str) -> Array | Tensor:
    """*x* of shape `(..., m, n)` in the layout that *acl_format* names, its edges zero."""
    layout = FORMATS[acl_format]
    is_now = x.layout if isinstance(x, Tensor) else "ND"
    if is_now == layout:
        return x
    whole = x.numpy() if isinstance(x, Tensor) else x
    return whole if layout == "ND" else Tensor.of(whole, layout)
