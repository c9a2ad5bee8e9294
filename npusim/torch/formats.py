"""The format of a storage: ND unless set otherwise.

The format belongs to the storage, so views, `.data =` and parameters keep it. So do clones and
casts, copies by `copy.deepcopy`, and what `torch.save` and `torch.load` bring back to the card; on
the host everything is ND. The memory itself stays row-major for the host; operators of the card are
given it in its format.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from enum import IntEnum
from functools import wraps

import torch

__all__ = ["ND", "NZ", "Format", "get", "patch", "put"]


class Format(IntEnum):
    """What torch_npu calls formats, by the numbers of acl_base.h, aclFormat.

    Operators take ND and FRACTAL_NZ, and refuse the others by name.
    """

    UNDEFINED = -1
    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    NC1HWC0_C04 = 12
    HWCN = 16
    NDHWC = 27
    FRACTAL_NZ = 29
    NCDHW = 30
    NDC1HWC0 = 32
    FRACTAL_Z_3D = 33


ND, NZ = 2, 29
"""The numbers that torch_npu calls ACL_FORMAT_ND and ACL_FORMAT_FRACTAL_NZ."""

_formats: dict[int, int] = {}
"""Storage -> its format, if that is not ND."""


def get(tensor: torch.Tensor) -> int:
    """The format of the storage of *tensor*."""
    return _formats.get(tensor.untyped_storage()._cdata, ND) if _formats else ND


def put(tensor: torch.Tensor, number: int) -> None:
    """Set the format of the storage of *tensor* to *number*."""
    storage = tensor.untyped_storage()
    key = storage._cdata
    if number == ND:
        _formats.pop(key, None)
        return
    if key not in _formats:
        weakref.finalize(storage, _formats.pop, key, None)
    _formats[key] = number


def patch() -> None:
    """Let copies and files of tensors carry the format along, as torch_npu's do."""
    deepcopy, reduce = torch.Tensor.__deepcopy__, torch.Tensor.__reduce_ex__

    @wraps(deepcopy)
    def copied(tensor: torch.Tensor, memo: dict[int, object]) -> torch.Tensor:
        found = deepcopy(tensor, memo)
        if tensor.is_npu and get(tensor) != ND:
            put(found, get(tensor))
        return found

    @wraps(reduce)
    def reduced(tensor: torch.Tensor, protocol: object) -> object:
        how = reduce(tensor, protocol)
        if not tensor.is_npu or get(tensor) == ND:
            return how
        rebuild, args = how[:2]
        return _with_format, (get(tensor), rebuild, args), *how[2:]

    torch.Tensor.__deepcopy__ = copied
    torch.Tensor.__reduce_ex__ = reduced
    torch.serialization.add_safe_globals([_with_format])


def _with_format(
    number: int, rebuild: Callable[..., torch.Tensor], args: tuple[object, ...]
) -> torch.Tensor:
    """What *rebuild* makes of *args*, in the format of that number where it lies on the card."""
    found = rebuild(*args)
    if found.is_npu:
        put(found, number)
    return found
