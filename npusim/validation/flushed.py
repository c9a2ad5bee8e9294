"""A kernel in the loop of cann-bench, which runs another one before each measured step.

That one is the maximum of 96 x 1024 x 1024 elements of fp16, as many bytes as the L2 of its chip
holds (hicann/cann-bench@d59d44c src/kernel_eval/eval/perf_eval.py). It leaves a few lines of the
kernel's tensors where they are, and what the kernel stored the time before is not all written back.
"""

from __future__ import annotations

from typing import Literal

from npusim.data.arguments import Arguments
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import ICache
from npusim.run.card import card

__all__ = ["Flushed", "time_after_flush_us"]

Flushed = Literal["flushed"]

READ = TensorSpec((96 * 1024, 1024), "float16")
"""What is read before each step: row by row, assumed."""
STEPS = 2
"""From the second on all of them take the same, within 0.1 %."""


def time_after_flush_us(
    device: str, op: str, args: tuple[object, ...], options: Arguments, icache: ICache
) -> float:
    """Task Duration of *op* in that loop; raises OpError if the operator refuses."""
    on = card(device)
    time_us: float | None = None
    for _ in range(STEPS):
        on.run("amax", READ, -1, values=False)
        # What comes out is dropped at once, so that it lies where the next one does.
        time_us = on.run(op, *args, values=False, icache=icache, **options).time_us
    assert time_us is not None
    return time_us
