"""Casts between formats of tensors on the card, as in torch_npu.

The operator npu_format_cast casts to FRACTAL_NZ and back. Between formats that are not private
no kernel runs: the storage gets another format name, and the tensor itself is returned. The other
private formats are those of convolutions, which a card creates with TransData kernels that npusim
does not have: such a cast runs on the host and is counted as not timed. The logical order of
elements is the same in every format, so torch can print them.

The possible casts follow Ascend/pytorch@9e73e70, csrc/aten/common/FormatCastKernelNpu.cpp and
csrc/framework/FormatHelper.cpp; errors start with the same lines.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from npusim.data.errors import callers_level
from npusim.torch import formats
from npusim.torch.backend import Define
from npusim.torch.clock import clock
from npusim.torch.formats import BASE, Format
from npusim.torch.relabel import overwrite, to_host, to_npu
from npusim.torch.schemas import dtype_name

__all__ = ["CASTS", "FUNCTIONS", "by_format", "differentiable", "register"]

CASTS = ("npu_format_cast", "npu_format_cast_")
"""Functions that the operator npu_format_cast declares."""
_DTYPES = "int? customize_dtype=None, int? input_dtype=None"
SCHEMAS = (
    f"npu_format_cast.Tensor(Tensor self, Tensor dst, *, {_DTYPES}) -> Tensor",
    f"npu_format_cast_.Tensor(Tensor(a!) self, Tensor src, *, {_DTYPES}) -> Tensor(a!)",
    "_npu_format_cast(Tensor self, int acl_format) -> Tensor",
    "_npu_format_cast.aclnn(Tensor self, int acl_format, int customize_dtype) -> Tensor",
    "_npu_format_cast.input_dtype(Tensor self, int acl_format, int customize_dtype, "
    "int input_dtype) -> Tensor",
)
_SIZE = "int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
FACTORIES = (
    f"empty_with_format({_SIZE}bool? pin_memory=None, int acl_format=2, "
    "int? base_addr_aligned_kb=None) -> Tensor",
    f"unsafe_empty_with_format({_SIZE}bool? pin_memory=None, int acl_format=2, "
    "bool keep_format=False) -> Tensor",
)
FUNCTIONS = ("_npu_format_cast", "empty_with_format", "unsafe_empty_with_format")
"""Further functions of torch_npu, which have no operator."""

_libraries: list[torch.library.Library] = []
"""Registrations live as long as their library."""


def register(define: Define) -> frozenset[str]:
    """Define the other functions of formats, and return their names."""
    library = torch.library.Library("npu", "FRAGMENT")
    _libraries.append(library)
    for schema in SCHEMAS:
        is_in_place = "(a!)" in schema
        define(
            schema,
            real=_copy if is_in_place else _cast_like if "Tensor dst" in schema else _cast,
            fake=(lambda x, *_, **__: x) if is_in_place else _fake,
        )
        if not is_in_place:
            name, _, overload = schema.partition("(")[0].partition(".")
            op = getattr(getattr(torch.ops.npu, name), overload or "default")
            library.impl(schema.partition("(")[0], differentiable(op), "AutogradPrivateUse1")
    for schema in FACTORIES:
        library.define(schema)
        library.impl(schema.partition("(")[0], empty, "CompositeExplicitAutograd")
    return frozenset(FUNCTIONS)


def _fake(x: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _cast(x: torch.Tensor, acl_format: int, *dtypes: int) -> torch.Tensor:
    found: torch.Tensor = torch.ops.npu.npu_format_cast(x, acl_format, *dtypes)
    return found


def _cast_like(x: torch.Tensor, other: torch.Tensor, **dtypes: int | None) -> torch.Tensor:
    """Cast *x* to the format of *other*."""
    found: torch.Tensor = torch.ops.npu.npu_format_cast(x, formats.number(other), **dtypes)
    return found


def _copy(x: torch.Tensor, source: torch.Tensor, **_: int | None) -> torch.Tensor:
    """Copy the elements of *source* into *x*, in the format of *x*."""
    return x.copy_(source)


# ---- casts ----


def by_format(function: str, transdata: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """The kernel of *function*, one of `CASTS`; *transdata* runs npusim's operator."""
    is_in_place = function.endswith("_")

    def cast(
        x: torch.Tensor,
        acl_format: int,
        customize_dtype: int | None = None,
        input_dtype: int | None = None,
    ) -> torch.Tensor:
        dtypes = _other_dtypes(x, customize_dtype, input_dtype)
        now, wanted = formats.number(x), _wanted(x, acl_format)
        if now == wanted and not any(dtypes):
            return transdata(x, formats.get(x)) if now in (formats.ND, formats.NZ) else x
        if BASE[now] == now and BASE[wanted] == wanted:
            formats.put(x, wanted)
            return x
        _require(x, now, wanted)
        by_kernel = formats.NZ in (now, wanted)
        if by_kernel:
            found = transdata(x, formats.NZ if wanted == formats.NZ else formats.ND, *dtypes)
        else:
            clock.host("npu.npu_format_cast.default")
            found = to_npu(torch.empty_like(to_host(x), memory_format=torch.contiguous_format))
            overwrite(found, x)
        if not by_kernel and is_in_place:
            x.data = found
            found = x
        formats.put(found, _named(wanted, x))
        return found

    return cast


def _other_dtypes(x: torch.Tensor, *dtypes: int | None) -> list[int | None]:
    """*dtypes* without those equal to that of *x*, which change nothing."""
    own = str(x.dtype).removeprefix("torch.")
    other = [None if dtype_name(dtype) == own else dtype for dtype in dtypes]
    return other if any(dtype is not None for dtype in other) else []


def _wanted(x: torch.Tensor, acl_format: int) -> Format:
    """The format *acl_format* for *x*; with fewer than two dimensions it is never FRACTAL_NZ."""
    if acl_format not in BASE:
        known = ", ".join(f"{each.value} ({each})" for each in BASE)
        raise RuntimeError(
            f"unknown format type:{acl_format}\nnpu_format_cast: acl_format must be one of {known} "
            f"on the chips that are simulated, not {acl_format}; pass one of them"
        )
    is_nz = acl_format == formats.NZ
    return Format.ND if is_nz and x.dim() < 2 else Format(acl_format)


def _named(wanted: Format, x: torch.Tensor) -> Format:
    """The name of format *wanted* for *x*: with four dimensions ND and NCDHW are NCHW."""
    is_image = x.dim() == 4 and wanted in (Format.ND, Format.NCDHW)
    return Format.NCHW if is_image else wanted


def _require(x: torch.Tensor, now: Format, wanted: Format) -> None:
    """Raise an error for casts that no kernel of a card supports."""
    shape = list(x.shape)
    is_private = BASE[wanted] != wanted
    if BASE[now] != now and is_private and BASE[now] != BASE[wanted]:
        raise RuntimeError(
            f"unsupported cast from {now} to {wanted}\nnpu_format_cast: x must be in a format that "
            f"is not private to be cast to {wanted}, not in {now}; cast it to 2 (ND) first"
        )
    if is_private and BASE[wanted] == Format.NCDHW and x.dim() != 5:
        raise RuntimeError(
            f"dim ({shape}) cannot convert to {wanted}\nnpu_format_cast: x must have the five "
            f"dimensions N, C, D, H, W to be cast to {wanted}, not {shape}; view it so"
        )
    if is_private and BASE[wanted] == Format.NCHW and x.dim() > 4:
        raise RuntimeError(
            f"dims of NCHW shape should not be greater than 4, which is {x.dim()}\n"
            f"npu_format_cast: x must have at most the four dimensions N, C, H, W to be cast to "
            f"{wanted}, not {shape}; view it so"
        )


# ---- gradients ----


class _Cast(torch.autograd.Function):
    """A cast does not change values, so the gradient passes through unchanged."""

    @staticmethod
    def forward(
        _: torch.autograd.function.FunctionCtx,
        x: torch.Tensor,
        op: Callable[..., torch.Tensor],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> torch.Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            found = op(x, *args, **kwargs)
        return x.view_as(x) if found is x else found

    @staticmethod
    def backward(
        _: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        return gradients[0], None, None, None


def differentiable(op: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The autograd kernel of a cast."""

    def kernel(x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            found: torch.Tensor = _Cast.apply(x, op, args, kwargs)
            return found
        with torch._C._AutoDispatchBelowAutograd():
            return op(x, *args, **kwargs)

    return kernel


# ---- new tensors ----


def empty(
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    acl_format: int = 2,
    **_: object,
) -> torch.Tensor:
    """An empty tensor in a format. The options for its memory have no effect."""
    found = torch.empty(
        size, dtype=dtype, layout=layout, device=device or "npu", pin_memory=pin_memory
    )
    wanted = _wanted(found, acl_format)
    if wanted != acl_format:
        warnings.warn(
            "Cannot create tensor with NZ format while dim < 2, tensor will be created with ND "
            "format.",
            stacklevel=callers_level(),
        )
    _require(found, Format.ND, wanted)
    formats.put(found, _named(wanted, found))
    return found
