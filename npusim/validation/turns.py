"""A kernel that alternates with another one on a card, as in the measurement of some rows.

flushed  The other one is the maximum of 96 x 1024 x 1024 elements of fp16, as many bytes as the L2
         of the chip holds, before each measured step of cann-bench (hicann/cann-bench@d59d44c
         src/kernel_eval/eval/perf_eval.py). It leaves a few lines of the kernel's tensors in the
         L2, and the previous stores of the kernel are not all written back.
served   It is a SwiGlu that reads more than the L2 holds and leaves dirty lines there, for the
         other kernels of a model, assumed.
served, last written
         After that SwiGlu comes the kernel that writes the last given tensor, such as a gradient
         that is added to earlier ones.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from npusim.data.arguments import Arguments
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec, ICache
from npusim.run.card import Card, card
from npusim.run.runs import Run

__all__ = ["TURNS", "Turns", "run_in_turns"]

Turns = Literal["flushed", "served", "served, last written"]
TURNS: tuple[Turns, ...] = get_args(Turns)
STEPS = 2
"""From the second turn on, all turns take the same time within 0.1 %."""


class Other(NamedTuple):
    """The other kernel."""

    op: str
    args: tuple[TensorSpec | int, ...]


SWIGLU = Other("npu_swiglu", (TensorSpec((8192, 16384), "bfloat16"),))
OTHERS: dict[Turns, Other] = {
    # Row by row, assumed.
    "flushed": Other("amax", (TensorSpec((96 * 1024, 1024), "float16"), -1)),
    "served": SWIGLU,
    "served, last written": SWIGLU,
}


def run_in_turns(
    turns: Turns,
    device: str | DeviceSpec,
    op: str,
    args: tuple[object, ...],
    options: Arguments,
    icache: ICache | None,
) -> Run:
    """The last run of *op* in such a loop; raises OpError if the operator refuses."""
    on, other = card(device), OTHERS[turns]
    run: Run | None = None
    for _ in range(STEPS):
        # The previous result is dropped first, so that the new one has the same address.
        run = None
        on.run(other.op, *other.args, values=False)
        if turns == "served, last written":
            _write(on, [each for each in args if isinstance(each, TensorSpec)][-1])
        run = on.run(op, *args, values=False, icache=icache, **options)
    assert run is not None
    return run


def _write(on: Card, tensor: TensorSpec) -> None:
    """Run a kernel on *on* that stores *tensor*, which is then at this address."""
    made = on.run("fill", TensorSpec(tensor.storage_shape, tensor.dtype), 0.0, values=False).output
    assert isinstance(made, TensorSpec)
    block = on.give_up(made)
    assert block is not None
    on.lie(tensor, block)
