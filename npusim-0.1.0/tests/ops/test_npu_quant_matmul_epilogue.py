"""npu_quant_matmul on vector cores: what they go through, when they start, and who waits for whom.

The tiny chip, its unified buffer without bank conflicts: a vector micro-op takes 2 cycles of head,
1 a repeat of 64 numbers, and its result is there 3 later, which the next one awaits.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tiny import fewer_cores, tiny_spec

from npusim import Run, TensorSpec, run
from npusim.isa import CrossCoreWaitFlag, global_operand
from npusim.kernel.tiles import Piece, Pieces
from npusim.ops.npu_quant_matmul.messages import places
from npusim.trace import ORDERING, Span

TINY = tiny_spec(banks__groups=256, banks__bank_bytes=32)
A2 = fewer_cores("ascend910b2", aic=1, aiv=2)


def traced(device: Any, m: int, k: int, n: int, template: str, **call: Any) -> Run:
    """A product with a scale a column, in bfloat16."""
    args = TensorSpec((m, k), "int8"), TensorSpec((k, n), "int8"), TensorSpec((n,), "float32")
    call = {"output_dtype": "bfloat16", "template": template, "device": device} | call
    return run("npu_quant_matmul", *args, **call)


def spans(result: Run, core: int, pipe: str) -> list[Span]:
    assert result.trace is not None
    found = result.trace.spans(core)
    return [span for span in found if span.pipe == pipe and not isinstance(span.op, ORDERING)]


def passes(result: Run, core: int) -> list[tuple[str, int]]:
    """Name and cycles of each vector micro-op of *core*."""
    return [
        (str(span.op).split()[0], span.free - span.start) for span in spans(result, core, "vector")
    ]


TOKEN = TensorSpec((4,), "float32")
BIAS = TensorSpec((64,), "bfloat16")
# A core has two rows of 64 numbers: 2 + 2 for both, 2 + 1 for a row of columns. The second Add of a
# row follows the first without head.
LOADED = [("cast.none", 3), ("muls", 3)]
SCALED = [("cast.none", 4), ("mul", 4)]
PASSES: dict[str, tuple[dict[str, Any], list[tuple[str, int]]]] = {
    "scales of columns": ({}, [*LOADED[1:], *SCALED, ("cast.rint", 4)]),
    "a bias": (
        {"bias": BIAS},
        [*LOADED, *SCALED, ("muls", 4), ("add", 3), ("add", 1), ("cast.rint", 4)],
    ),
    "scales of rows": (
        {"pertoken_scale": TOKEN},
        [*LOADED[1:], *SCALED, ("muls", 4), ("broadcast", 3), ("copy", 4), ("mul", 4),
         ("cast.rint", 4)],
    ),
    "scales of rows and a bias": (
        {"pertoken_scale": TOKEN, "bias": BIAS},
        [*LOADED, *SCALED, ("muls", 4), ("broadcast", 3), ("copy", 4), ("mul", 4), ("add", 3),
         ("add", 1), ("cast.rint", 4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PASSES)
def test_the_passes_over_the_sums(what: str) -> None:
    call, expected = PASSES[what]
    for core in (1, 2):
        assert passes(traced(TINY, 4, 32, 64, "basic", **call), core) == expected


def test_scales_and_bias_are_loaded_again_for_every_piece() -> None:
    call = {"pertoken_scale": TensorSpec((128,), "float32"), "bias": TensorSpec((128,), "bfloat16")}
    result = traced(TINY, 128, 32, 128, "basic", **call)
    places = [global_operand(span.op) for span in spans(result, 1, "mte2")]
    names = [place.name for place in places if place is not None]
    # Of 16 KiB: two rows of 128 sums and two of results, three planes of float32 a row.
    count = names.count("workspace")
    assert count > 1
    assert names == ["workspace", "bias", "scale", "pertoken_scale"] * count


def test_opt_spreads_scales_before_the_sums() -> None:
    result = traced(TINY, 4, 32, 64, "tbe_opt", pertoken_scale=TOKEN)
    first = next(span for span in spans(result, 0, "fixpipe"))
    early = [span for span in spans(result, 1, "vector") if span.end < first.start]
    # Four rows: their scales as blocks and as a plane, those of columns, and a pass over each row
    # of the plane, of which only the first has a head; then four passes, in the first of which one
    # row lies in the banks of the scales of columns.
    prepared = [("broadcast", 3), ("copy", 6), ("muls", 3), ("muls", 3), *[("muls", 1)] * 3]
    after = [("cast.none", 6), ("mul", 7), ("mul", 6), ("cast.rint", 6)]
    assert passes(result, 1) == [*prepared, *after]
    assert len(early) == len(prepared)
    # Vector core 1 has nothing to do.
    assert not spans(result, 2, "vector")


# ---- tbe: messages ----


def test_a_message_starts_the_cube_core() -> None:
    result = traced(TINY, 4, 32, 64, "tbe")
    (filled,), (sent, *_) = spans(result, 1, "vector")[:1], spans(result, 1, "mte3")
    received, first, *_ = spans(result, 0, "mte2")
    # A block of 64 bytes is filled at 6, stored in 2 cycles, and there 4 later; the flag takes 20;
    # the message is in the L2: 1 cycle, and 2.
    assert (filled.end, sent.start, sent.end) == (6, 6, 12)
    assert (received.start, received.end) == (32, 35)
    assert first.start == 35
    # Vector core 1 writes none.
    assert len(spans(result, 2, "mte3")) == 1
    waits = [
        span for span in result.trace.spans(0) if isinstance(span.op, CrossCoreWaitFlag)
    ]  # fmt: skip
    assert [(wait.pipe, wait.free) for wait in waits] == [("scalar", 32)]


def test_a_row_of_blocks_awaits_the_one_before() -> None:
    # One cube core, and two rows of blocks for it.
    result = traced(A2, 600, 64, 200, "tbe")
    loads = [
        span for span in spans(result, 0, "mte2") if global_operand(span.op).name == "messages"
    ]
    assert len(loads) > 1
    for core in (1, 2):
        stores = [
            span for span in spans(result, core, "mte3") if global_operand(span.op).name == "output"
        ]
        done = [max(s.end for s in stores if s.start < load.start) for load in loads[1:]]
        assert all(end <= load.start for end, load in zip(done, loads[1:], strict=True))


def test_a_rectangle_is_a_part_of_a_row_of_blocks() -> None:
    def piece(matrix: int, row: int, column: int) -> Piece:
        return Piece(matrix, 16 * row, 16 * column, 16, 16)

    pieces = [piece(0, row, column) for row in range(2) for column in range(3)]
    dealt = Pieces.dealt([[*pieces, piece(1, 1, 0)], pieces[:1]])
    plan = Mock(is_driven=True, workspace_blocks=2)
    place, begins = places(plan, dealt)
    assert place.tolist() == [0, 1, 0, 0, 1, 0, 0, 0]
    assert np.diff(np.flatnonzero(begins), append=8).tolist() == [2, 1, 2, 1, 1, 1]
    place, begins = places(Mock(is_driven=False, workspace_blocks=2), dealt)
    assert place.tolist() == [0, 1, 0, 1, 0, 1, 0, 0]
    assert np.flatnonzero(begins).tolist() == [0, 7]
