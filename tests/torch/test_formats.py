"""Formats of tensors: which casts there are, what each is called after, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from simulated_card import torch, torch_npu

from npusim.torch.clock import clock
from npusim.torch.formats import Format

IMAGE, VOLUME, MATRIX = (2, 3, 4, 5), (2, 3, 2, 4, 5), (20, 40)


def numbered(shape: tuple[int, ...]) -> Any:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).half().npu()


@pytest.mark.parametrize(
    ("shape", "formats", "found"),
    [
        # From InferFormat.cpp and FormatCastKernelNpu.cpp: each cast, and what it is after it.
        (IMAGE, (), 0),
        (IMAGE, (2,), 2),
        (IMAGE, (3,), 3),
        (IMAGE, (3, 2), 0),
        (IMAGE, (3, 4), 4),
        (IMAGE, (29, 2), 0),
        (IMAGE, (2, 29, 0), 0),
        (IMAGE, (1,), 1),
        (VOLUME, (), 30),
        (VOLUME, (32,), 32),
        (VOLUME, (33, 30), 30),
        (VOLUME, (32, 2), 2),
        (VOLUME, (27,), 27),
        (MATRIX, (), 2),
        (MATRIX, (0,), 0),
        (MATRIX, (29,), 29),
        (MATRIX, (3,), 3),
        (MATRIX, (4, 0), 0),
        ((7,), (29,), 2),
        ((7,), (0,), 0),
        ((), (29,), 2),
        ((3,), (3,), 3),
    ],
)
def test_a_cast_gives_the_format_that_a_card_gives(
    shape: tuple[int, ...], formats: tuple[int, ...], found: int
) -> None:
    x = numbered(shape)
    before = x.cpu()
    cast = in_place = x
    for wanted in formats:
        cast = torch_npu.npu_format_cast(cast, wanted)
    assert torch_npu.get_npu_format(cast) == found
    assert torch.equal(cast.cpu(), before)
    in_place = numbered(shape)
    for wanted in formats:
        assert torch_npu.npu_format_cast_(in_place, wanted) is in_place
    assert torch_npu.get_npu_format(in_place) == found
    assert torch.equal(in_place.cpu(), before)


def test_a_name_costs_nothing_and_a_cast_without_a_kernel_is_counted() -> None:
    x, launches, untimed = numbered(IMAGE), clock.launches, clock.not_timed.total()
    named = torch_npu.npu_format_cast(x, 2)
    assert (clock.launches, clock.not_timed.total()) == (launches, untimed)
    assert named.data_ptr() == x.data_ptr()
    torch_npu.npu_format_cast(x, Format.NC1HWC0)
    assert (clock.launches, clock.not_timed.total()) == (launches, untimed + 1)
    torch_npu.npu_format_cast(x, Format.FRACTAL_NZ)
    assert (clock.launches, clock.not_timed.total()) == (launches + 1, untimed + 1)


def test_a_tensor_is_cast_as_another_is() -> None:
    x, nz = numbered(MATRIX), torch_npu.npu_format_cast(numbered(MATRIX), 29)
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(x, nz)) == 29
    assert torch_npu.get_npu_format(torch.ops.npu._npu_format_cast(x, 29)) == 29
    source = numbered(MATRIX) * 2
    torch_npu.npu_format_cast_(nz, source)
    assert torch_npu.get_npu_format(nz) == 29
    assert torch.equal(nz.cpu(), source.cpu())


def test_what_lies_in_a_private_format_is_computed_with_by_the_host() -> None:
    x = torch_npu.npu_format_cast(numbered(IMAGE), 3)
    assert torch.equal((x + 1).cpu(), x.cpu() + 1)
    text = (
        "npu_swiglu: NPU function error: call aclnnSwiGlu failed, error code is 161002\n"
        "npu_swiglu: x must be in ND or FRACTAL_NZ, not NC1HWC0; cast it with "
        "npu_format_cast(..., 2) [161002]"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(text)}$"):
        torch_npu.npu_swiglu(torch_npu.npu_format_cast(numbered((4, 32)), 3))


def test_a_gradient_goes_through_a_cast() -> None:
    for wanted in (0, 2, 3, 29):
        x = numbered(MATRIX).float().requires_grad_()
        (torch_npu.npu_format_cast(x, wanted) * 3).sum().backward()
        assert torch.equal(x.grad.cpu(), torch.full(MATRIX, 3.0))


def test_empty_tensors_have_the_format_that_they_are_made_in() -> None:
    made = torch_npu.empty_with_format((4, 32), dtype=torch.int8, device="npu", acl_format=29)
    assert (made.dtype, made.shape, torch_npu.get_npu_format(made)) == (torch.int8, (4, 32), 29)
    assert made.is_npu
    with pytest.warns(UserWarning, match="^Cannot create tensor with NZ format while dim < 2, "):
        row = torch_npu.empty_with_format((4,), acl_format=29)
    assert torch_npu.get_npu_format(row) == 2


@pytest.mark.parametrize(
    ("shape", "formats", "message"),
    [
        (
            MATRIX,
            (5,),
            "unknown format type:5\nnpu_format_cast: acl_format must be one of 0 (NCHW), 1 (NHWC), "
            "2 (ND), 3 (NC1HWC0), 4 (FRACTAL_Z), 27 (NDHWC), 29 (FRACTAL_NZ), 30 (NCDHW), "
            "32 (NDC1HWC0), 33 (FRACTAL_Z_3D) on the chips that are simulated, not 5; pass one of "
            "them",
        ),
        (
            MATRIX,
            (29, 3),
            "unsupported cast from FRACTAL_NZ to NC1HWC0\nnpu_format_cast: x must be in a format "
            "that is not private to be cast to NC1HWC0, not in FRACTAL_NZ; cast it to 2 (ND) first",
        ),
        (
            MATRIX,
            (32,),
            "dim ([20, 40]) cannot convert to NDC1HWC0\nnpu_format_cast: x must have the five "
            "dimensions N, C, D, H, W to be cast to NDC1HWC0, not [20, 40]; view it so",
        ),
        (
            VOLUME,
            (3,),
            "dims of NCHW shape should not be greater than 4, which is 5\nnpu_format_cast: x must "
            "have at most the four dimensions N, C, H, W to be cast to NC1HWC0, not "
            "[2, 3, 2, 4, 5]; view it so",
        ),
    ],
)
def test_a_cast_that_no_card_makes_is_refused(
    shape: tuple[int, ...], formats: tuple[int, ...], message: str
) -> None:
    *first, last = formats
    x = numbered(shape)
    for wanted in first:
        x = torch_npu.npu_format_cast(x, wanted)
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        torch_npu.npu_format_cast(x, last)
