"""A kernel that takes turns with another one on a card, as rows were measured.

flushed  The other one is the maximum of 96 x 1024 x 1024 elements of fp16, as many bytes as the L2
         of the chip holds, before each measured step of cann-bench (hicann/cann-bench@d59d44c
         src/kernel_eval/eval/perf_eval.py). It leaves a few lines of the kernel's tensors where
         they are, and what the kernel stored the time before is not all written back.
served   It is a SwiGlu that reads more than the L2 holds and leaves dirty lines there, for the
         other kernels of a served model, assumed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from npusim.data.arguments import Arguments
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec, ICache
from npusim.run.card import card

__all__ = ["TURNS", "Turns", "time_in_turns_us"]

Turns = Literal["flushed", "served"]
TURNS: tuple[Turns, ...] = get_args(Turns)
STEPS = 2
"""From the second on all of them take the same, within 0.1 %."""


class Other(NamedTuple):
    """The other kernel."""

    op: str
    args: tuple[TensorSpec | int, ...]


OTHERS: dict[Turns, Other] = {
    # Row by row, assumed.
    "flushed": Other("amax", (TensorSpec((96 * 1024, 1024), "float16"), -1)),
    "served": Other("npu_swiglu", (TensorSpec((8192, 16384), "bfloat16"),)),
}


def time_in_turns_us(
    turns: Turns,
    device: str | DeviceSpec,
    op: str,
    args: tuple[object, ...],
    options: Arguments,
    icache: ICache | None,
) -> float:
    """Task Duration of *op* in such a loop; raises OpError if the operator refuses."""
    on, other = card(device), OTHERS[turns]
    time_us: float | None = None
    for _ in range(STEPS):
        on.run(other.op, *other.args, values=False)
        # What comes out is dropped at once, so that it lies where the next one does.
        time_us = on.run(op, *args, values=False, icache=icache, **options).time_us
    assert time_us is not None
    return time_us
