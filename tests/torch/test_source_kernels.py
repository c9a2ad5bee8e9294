"""Kernels of Ascend C on npu tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_card import recorded, torch

import npusim.ascendc
import npusim.torch
from npusim.ascendc import AscendCError

KERNELS = npusim.ascendc.load(Path(__file__).parents[1] / "ascendc" / "kernels" / "add.cpp")


def test_a_kernel_writes_to_npu_tensors_and_takes_time() -> None:
    x = torch.arange(4096, dtype=torch.float16).npu()
    z = torch.zeros(4096, dtype=torch.float16).npu()
    _, kernels = recorded(lambda: npusim.torch.launch(KERNELS.add_custom[2], x, x, z, x.numel()))
    assert kernels == ["add_custom"]
    assert torch.equal(z.cpu(), 2 * torch.arange(4096, dtype=torch.float16))


def test_what_a_launch_must_be_given() -> None:
    x = torch.zeros(4096, dtype=torch.float16)
    with pytest.raises(AscendCError) as caught:
        npusim.torch.launch(KERNELS.add_custom[2], x, x, x, 4096)
    assert str(caught.value) == (
        "add_custom: x must lie on the npu, not on the cpu; move it with .npu()"
    )
    with pytest.raises(AscendCError) as caught:
        npusim.torch.launch(KERNELS.add_custom[2], x.npu())
    assert str(caught.value) == (
        "add_custom: a launch must have the arguments x, y, z, totalLength, not 1 of them; pass "
        "each"
    )


def test_lists_of_tensors_and_a_tiling_by_name() -> None:
    tiled = npusim.ascendc.load(KERNELS.file.with_name("tiled.cpp"))
    xs = [torch.arange(count, dtype=torch.float32).npu() for count in (16, 8)]
    ys = [torch.zeros_like(x) for x in xs]
    npusim.torch.launch(tiled.each_twice[1], xs, ys)
    assert [y.cpu().tolist() for y in ys] == [[2.0 * i for i in range(n)] for n in (16, 8)]
    z = torch.zeros_like(xs[0])
    npusim.torch.launch(tiled.by_pointer[1], -xs[0], z, None, {"length": 16, "tile": 8})
    assert torch.equal(z.cpu(), xs[0].cpu())
