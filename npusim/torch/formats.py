"""The format of a storage: as its dimensions are, unless set otherwise.

A format that is not private (ND, NCHW, NHWC, NCDHW) is a name for the order in which the dimensions
stand, and elements lie in that order: of four dimensions it is NCHW, of five NCDHW, else ND. In the
private ones they lie otherwise.

The format belongs to the storage, so views, `.data =` and parameters keep it. So do copies by
`copy.deepcopy`, what `torch.save` and `torch.load` bring back to the card, and of FRACTAL_NZ clones
and casts; on the host everything is ND. The memory itself stays row-major for the host; operators
of the card are given it in its format.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from enum import IntEnum
from functools import wraps

import torch

__all__ = [
    "BASE",
    "ND",
    "NZ",
    "Format",
    "are_all_plain",
    "as_cast",
    "get",
    "number",
    "patch",
    "put",
]


class Format(IntEnum):
    """What torch_npu calls formats, by the numbers of acl_base.h, aclFormat."""

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
    NC = 35
    NCL = 47
    FRACTAL_NZ_C0_16 = 50
    FRACTAL_NZ_C0_32 = 51
    FRACTAL_NZ_C0_2 = 52
    FRACTAL_NZ_C0_4 = 53
    FRACTAL_NZ_C0_8 = 54

    def __str__(self) -> str:
        return self.name


BASE = {
    Format.NCHW: Format.NCHW,
    Format.NHWC: Format.NHWC,
    Format.ND: Format.ND,
    Format.NC1HWC0: Format.NCHW,
    Format.FRACTAL_Z: Format.NCHW,
    Format.NDHWC: Format.NCDHW,
    Format.FRACTAL_NZ: Format.ND,
    Format.NCDHW: Format.NCDHW,
    Format.NDC1HWC0: Format.NCDHW,
    Format.FRACTAL_Z_3D: Format.NCDHW,
}
"""Format that tensors of these chips have -> the one that is not private in which they lie before
and after (Ascend/pytorch@9e73e70, csrc/framework/FormatHelper.cpp)."""
_BY_RANK = {4: Format.NCHW, 5: Format.NCDHW}
"""Dimensions -> format of what has been given none (the same, InferFormat.cpp, GuessBaseFormat)."""


ND, NZ = 2, 29
"""The numbers that torch_npu calls ACL_FORMAT_ND and ACL_FORMAT_FRACTAL_NZ."""

_formats: dict[int, int] = {}
"""Storage -> its format, if that is not what the dimensions of its tensor say."""
_shapes: dict[int, torch.Size] = {}
"""The same storage -> the shape of its tensor when it was given that format."""


def get(tensor: torch.Tensor) -> int:
    """How the storage of *tensor* lies: ND for every format that is not private."""
    if not _formats:
        return ND
    found = _formats.get(tensor.untyped_storage()._cdata, ND)
    return ND if BASE.get(Format(found)) == found else found


def are_all_plain() -> bool:
    """Whether every storage lies as the dimensions of its tensor say."""
    return not _formats


def number(tensor: torch.Tensor) -> Format:
    """The format of the storage of *tensor*, by its name."""
    found = _formats.get(tensor.untyped_storage()._cdata)
    return _of_rank(tensor) if found is None else Format(found)


def _of_rank(tensor: torch.Tensor) -> Format:
    return _BY_RANK.get(tensor.dim(), Format.ND)


def put(tensor: torch.Tensor, number: int) -> None:
    """Set the format of the storage of *tensor* to *number*."""
    storage = tensor.untyped_storage()
    key = storage._cdata
    if number == _of_rank(tensor):
        _formats.pop(key, None)
        return
    if key not in _formats:
        for table in (_formats, _shapes):
            weakref.finalize(storage, table.pop, key, None)
    _formats[key], _shapes[key] = int(number), tensor.shape


def as_cast(tensor: torch.Tensor) -> torch.Tensor:
    """*tensor* in the shape in which it became FRACTAL_NZ, if it is a view that names its fractals:
    `(..., n / c0, m / 16, 16, c0)` of `(..., m, n)`."""
    if get(tensor) != NZ:
        return tensor
    shape = _shapes[tensor.untyped_storage()._cdata]
    is_of_fractals = tensor.dim() == len(shape) + 2 and tensor.numel() == shape.numel()
    return tensor.view(shape) if is_of_fractals else tensor


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
