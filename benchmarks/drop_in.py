"""How fast torch_npu scripts run on a simulated card, as ratios of two things measured in one run.

(i) an elementwise operation of plain torch on a small npu tensor, against the same on the CPU;
(j) an operator through torch_npu, against npusim.run on the same data.

It needs the extra `npusim[torch]`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import npusim
import npusim.torch

npusim.torch.install(device="ascend910b2")

import torch  # noqa: E402
import torch_npu  # noqa: E402

REPEATS, ROUNDS = 2000, 7
SHAPES = ((16, 64), (1024, 1024))


def fastest(repeats: int, *works: Callable[[], Any]) -> list[float]:
    """Seconds a run of each work, in the fastest of a few rounds taken in turn."""
    best = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for index, work in enumerate(works):
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            best[index] = min(best[index], (time.perf_counter() - start) / repeats)
    return best


def elementwise() -> None:
    """(i)"""
    on_cpu = torch.rand(16, 16)
    on_npu = on_cpu.npu()
    ours, theirs = fastest(REPEATS, lambda: on_npu * on_npu, lambda: on_cpu * on_cpu)
    print(
        f"(i) x * x of 16 x 16 on npu:0           {ours / theirs:.1f} x the same on the CPU  "
        f"({ours * 1e6:.1f} us : {theirs * 1e6:.1f} us)"
    )


def operator(shape: tuple[int, int]) -> None:
    """(j)"""
    x, scales = torch.randn(shape).half(), torch.rand(shape[1]).half()
    on_npu = x.npu(), scales.npu(), None, torch.qint8, -1, False
    plain = x.numpy(), scales.numpy(), None, "qint8", -1, False
    ours, theirs = fastest(
        20 if shape == SHAPES[0] else 3,
        lambda: torch_npu.npu_quantize(*on_npu),
        lambda: npusim.run("npu_quantize", *plain, device="ascend910b2"),
    )
    size = " x ".join(map(str, shape))
    print(
        f"(j) npu_quantize fp16 {size:<17} {ours / theirs:.2f} x npusim.run  "
        f"({ours * 1e3:.1f} ms : {theirs * 1e3:.1f} ms)"
    )


def main() -> None:
    elementwise()
    for shape in SHAPES:
        operator(shape)


if __name__ == "__main__":
    main()
