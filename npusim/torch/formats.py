"""The format of a storage: derived from the number of dimensions, unless it was set.

A format that is not private (ND, NCHW, NHWC, NCDHW) names the order of the dimensions, and elements
are stored in that order: the default is NCHW for four dimensions, NCDHW for five, else ND. In a
private format the order in memory differs.

The format belongs to the storage, so views, `.data =` and parameters share it. It is preserved by
`copy.deepcopy`, by `torch.save` and `torch.load` to the card, and for FRACTAL_NZ by clones and
casts; on the host everything is ND. The host memory itself stays row-major; operators of the card
receive it in its format.
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
    """Names of formats in torch_npu, with the numbers of acl_base.h, aclFormat."""

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
"""Format on these chips -> the format, not private, from and to which it is cast
(Ascend/pytorch@9e73e70, csrc/framework/FormatHelper.cpp)."""
_BY_RANK = {4: Format.NCHW, 5: Format.NCDHW}
"""Number of dimensions -> the default format (the same, InferFormat.cpp, GuessBaseFormat)."""


ND, NZ = 2, 29
"""ACL_FORMAT_ND and ACL_FORMAT_FRACTAL_NZ."""

_formats: dict[int, int] = {}
"""Storage -> its format, if that is not the default for its number of dimensions."""
_casts: dict[int, tuple[torch.Size, int]] = {}
"""The same storage -> the shape of its tensor when that format was set, and the bytes of an
element."""


def get(tensor: torch.Tensor) -> int:
    """The memory layout of *tensor*: ND for every format that is not private."""
    if not _formats:
        return ND
    found = _formats.get(tensor.untyped_storage()._cdata, ND)
    return ND if BASE.get(Format(found)) == found else found


def are_all_plain() -> bool:
    """Whether every storage has its default format."""
    return not _formats


def number(tensor: torch.Tensor) -> Format:
    """The format of the storage of *tensor*, as a name."""
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
        for table in (_formats, _casts):
            weakref.finalize(storage, table.pop, key, None)
    _formats[key], _casts[key] = int(number), (tensor.shape, tensor.itemsize)


def as_cast(tensor: torch.Tensor) -> torch.Tensor:
    """*tensor* in the shape `(..., m, n)` in which it became FRACTAL_NZ, if it is a view with the
    shape of its fractals, `(..., n / c0, m / 16, 16, c0)`.

    The view may have wider elements, such as int32 for eight int4, and n is then counted in them.
    """
    if get(tensor) != NZ:
        return tensor
    shape, size_bytes = _casts[tensor.untyped_storage()._cdata]
    is_of_fractals = tensor.dim() == len(shape) + 2 and tensor.nbytes == shape.numel() * size_bytes
    if not is_of_fractals:
        return tensor
    return tensor.view(*shape[:-1], shape[-1] * size_bytes // tensor.itemsize)


def patch() -> None:
    """Make copies and files of tensors preserve the format, as in torch_npu."""
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
    """The tensor that *rebuild* makes of *args*, with format *number* if it is on the card."""
    found = rebuild(*args)
    if found.is_npu:
        put(found, number)
    return found
