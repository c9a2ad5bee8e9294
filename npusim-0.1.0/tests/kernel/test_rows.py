"""Rows between global memory and the unified buffer, one by one as ascend_quant_v2 moves them."""

from __future__ import annotations

import pytest
from tiny import builder, play, tiny_spec

from npusim.data.dtypes import FLOAT32, UINT8
from npusim.isa import Barrier, Duplicate, Load, MicroOp, Store
from npusim.kernel.rectangles import RowPieces
from npusim.kernel.rows import Writer, load
from npusim.kernel.views import GmView
from npusim.trace import Span


def moved(rows: int, columns: int, *, one_by_one: bool) -> list[Span]:
    """Load and store that many bytes on a tiny 310P; the spans, in the order of the program."""
    spec = tiny_spec("2002")
    write = builder(spec)
    loads = write.queue("ub", 256, "mte2", "vector")
    stores = write.queue("ub", 256, "vector", "mte3")
    writer = Writer(write, spec, one_by_one=one_by_one)
    x, y = (GmView.of(name, UINT8, rows, columns) for name in "xy")
    loads.free(load(write, spec, loads, x, one_by_one=one_by_one))
    slot = stores.alloc()
    write.emit(Duplicate(slot.of(FLOAT32, 64), 0.0))
    writer.store(stores, slot, y)
    return list(play(spec, write.build()).spans())


def of(spans: list[Span], kind: type[MicroOp]) -> list[Span]:
    return [span for span in spans if isinstance(span.op, kind)]


def test_rows_one_by_one_are_separate_copies_and_leave_in_turn() -> None:
    together, apart = (moved(3, 64, one_by_one=alone) for alone in (False, True))
    for kind in (Load, Store):
        assert [len(of(spans, kind)) for spans in (together, apart)] == [1, 3]
    # 192 bytes at 32 a cycle and 4 cycles until they are there; or 64 bytes three times.
    first = of(together, Store)[0]
    assert first.end - first.start == 6 + 4
    stores = of(apart, Store)
    assert [store.end - stores[0].start for store in stores] == [2 + 4, 12, 18]


@pytest.mark.parametrize(("one_by_one", "barriers"), [(False, []), (True, [None, None, "mte3"])])
def test_pipes_stop_around_a_tail(one_by_one: bool, barriers: list[str | None]) -> None:
    spans = moved(2, 40, one_by_one=one_by_one)
    assert len(of(spans, Store)) == 4
    assert [span.op.on for span in of(spans, Barrier) if isinstance(span.op, Barrier)] == (
        2 * barriers
    )


def test_each_core_takes_its_run_of_rows_in_pieces() -> None:
    pieces = RowPieces.of([5, 0, 3], 2)
    assert pieces.core.tolist() == [0, 0, 0, 2, 2]
    assert pieces.first.tolist() == [0, 2, 4, 5, 7]
    assert pieces.count.tolist() == [2, 2, 1, 2, 1]
    assert pieces.is_first.tolist() == [True, False, False, True, False]
    x, scale = GmView.of("x", FLOAT32, 8, 10), GmView.vector("scale", FLOAT32, 8)
    assert pieces.views(x)[3] == x[5:7, :]
    assert pieces.views(scale)[3] == scale[:, 5:7]
    assert x[5:7, :].flat == GmView("x", FLOAT32, 1, 20, 0, 200)


def test_a_piece_is_loaded_while_the_one_before_is_worked_on() -> None:
    loading, working = RowPieces.of([3], 1).ahead
    names = [*(f"load {n}" for n in range(3)), *(f"work {n}" for n in range(3))]
    order = sorted(zip([*loading, *working], names, strict=True))
    assert [name for _, name in order] == [
        *("load 0", "load 1", "work 0", "load 2", "work 1", "work 2")
    ]
