"""The format of a storage: ND unless set otherwise.

The format belongs to the storage, so views, `.data =` and parameters keep it and copies are ND.
The memory itself stays row-major for the host; operators of the card are given it in its format.
"""

from __future__ import annotations

import weakref
from enum import IntEnum

import torch

__all__ = ["ND", "NZ", "Format", "get", "put"]


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
    return _formats.get(tensor.untyped_storage()._cdata, ND)


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
