"""Views of global memory, and stages of kernels that are written once for all their places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, DType
from npusim.devices.schema import DeviceSpec
from npusim.isa import Global, Load, Local, Store
from npusim.kernel.builder import Builder
from npusim.kernel.launch import share
from npusim.kernel.matrices import GmMatrix, GmTile
from npusim.kernel.program import Binding, Call
from npusim.kernel.views import GmView, bindings, fill, load, repeat, store


@pytest.fixture
def builder(tiny: DeviceSpec) -> Builder:
    return Builder("kernel", tiny.cores["aiv"], tiny.sync)


@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 9),
    cuts=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=2, max_size=2),
)
def test_views_are_slices_of_numpy(rows: int, columns: int, cuts: list[tuple[int, int]]) -> None:
    numbers = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    where = slice(*cuts[0]), slice(*cuts[1])
    view = GmView.of("x", FLOAT32, rows, columns)[where]
    expected = numbers[where]

    assert (view.rows, view.columns) == expected.shape
    if expected.size:
        operand = view.operand
        starts = [operand.offset_bytes + i * operand.stride_bytes for i in range(operand.bursts)]
        count = operand.burst_bytes // 4
        found = [numbers.reshape(-1)[x // 4 : x // 4 + count].tolist() for x in starts]
        assert found == expected.tolist()


def test_the_bytes_of_a_view_leave_out_what_lies_between_its_rows() -> None:
    assert GmView.of("x", FLOAT16, 8, 100)[2:5, 10:20].nbytes == 3 * 20


def test_a_view_of_a_view_counts_from_the_tensor() -> None:
    x = GmView.of("x", FLOAT16, 8, 100)
    assert x[2:, 10:][1:3, 5:25].operand == Global("x", 2 * (3 * 100 + 15), 40, 2, 200)


def test_a_row_can_be_taken_as_a_vector() -> None:
    x = GmView.of("x", FLOAT16, 8, 100)
    assert x[3:4, 10:].operand == Global("x", 2 * 310, 180, 1, 200)
    assert x.row(3)[:, 10:].operand == Global("x", 2 * 310, 180, 1, 0)


@pytest.mark.parametrize(("dtype", "nbytes"), [(FLOAT16, 30), (FLOAT32, 60), (INT4, 8)])
def test_a_row_of_a_vector_is_one_burst(dtype: DType, nbytes: int) -> None:
    assert GmView.vector("x", dtype, 15).operand == Global("x", 0, nbytes, 1, 0)


def test_blocks_are_bound_to_where_their_views_begin() -> None:
    x, scale = GmView.of("x", FLOAT16, 8, 100), GmView.vector("scale", FLOAT32, 100)
    assert bindings(x[2:, 10:], scale[:, 10:]) == {
        "x": Binding("x", 420),
        "scale": Binding("scale", 40),
    }


def calls(builder: Builder) -> list[Call]:
    return [part for part in builder.build().parts if isinstance(part, Call)]


def test_a_stage_is_written_once_for_all_offsets(builder: Builder) -> None:
    written = []

    def stage(x: GmView, y: GmView, size: int) -> None:
        written.append((x.operand, y.operand, size))
        builder.barrier("vector")

    x, y = GmView.of("x", FLOAT32, 4, 8), GmView.of("y", FLOAT16, 4, 8)
    for row in range(4):
        repeat(builder, stage, x[row : row + 1, :], y[row : row + 1, :], 3)

    assert written == [(Global("x", 0, 32, 1, 32), Global("y", 0, 16, 1, 16), 3)]
    found = calls(builder)
    assert [call.shifts for call in found[:4]] == [{"x": 32 * i, "y": 16 * i} for i in range(4)]
    assert len({call.body for call in found[:4]}) == 1


def test_another_size_is_another_body(builder: Builder) -> None:
    def stage(x: GmView, size: int) -> None:
        builder.emit(*[Load(Local("ub", 0, FLOAT32, 8), x.operand)] * size)

    x = GmView.of("x", FLOAT32, 4, 8)
    for view, size in ((x[:1, :], 1), (x[1:2, :], 2), (x[:1, :4], 1)):
        repeat(builder, stage, view, size)

    assert [[str(op) for op in call.ops] for call in calls(builder)[:3]] == [
        ["load ub[0:32] float32 <- x+0 32 B"],
        ["load ub[0:32] float32 <- x+0 32 B"] * 2,
        ["load ub[0:32] float32 <- x+0 16 B"],
    ]


def test_views_of_one_tensor_move_together_and_keep_their_distance(builder: Builder) -> None:
    seen = []

    def stage(first: GmView, second: GmView) -> None:
        seen.append((first.offset_bytes, second.offset_bytes))
        builder.barrier("vector")

    x = GmView.of("x", FLOAT32, 8, 8)
    repeat(builder, stage, x[1:2, :], x[3:4, :])
    repeat(builder, stage, x[4:5, :], x[6:7, :])
    repeat(builder, stage, x[4:5, :], x[7:8, :])

    assert seen == [(0, 64), (0, 96)]
    assert [call.shifts for call in calls(builder)[:3]] == [{"x": 32}, {"x": 128}, {"x": 128}]


def test_a_tile_of_an_operand_begins_where_its_rows_and_its_k_begin() -> None:
    left = GmMatrix("a", FLOAT16, 64, 128, k_is_first=False)
    right = GmMatrix("b", FLOAT16, 128, 256, k_is_first=True)
    fractals = GmMatrix("b", FLOAT16, 128, 256, k_is_first=True, layout="FRACTAL_NZ")

    assert left.tile(16, 32, 48, 64) == GmTile("a", 2 * (16 * 128 + 48), 32, 64)
    assert right.tile(16, 32, 48) == GmTile("b", 2 * (48 * 256 + 16), 32, 80)
    # One column of fractals is 128 rows of 32 bytes.
    assert fractals.tile(16, 32, 48) == GmTile("b", 32 * (128 + 48), 32, 80)


def test_load_and_store_own_the_queue(builder: Builder) -> None:
    x, y = GmView.of("x", FLOAT32, 2, 5), GmView.of("y", FLOAT32, 2, 5)
    come = builder.queue("ub", 64, "mte2", "vector")
    go = builder.queue("ub", 64, "vector", "mte3")
    come.free(load(builder, come, x))
    store(builder, go, go.alloc(), y)

    assert str(builder.build()).splitlines() == [
        "mte2     load ub[0:52] float32 <- x+0 2x20 B stride 20",
        "mte2     set_flag mte2->vector 0",
        "vector   wait_flag mte2->vector 0",
        "vector   set_flag vector->mte2 0",
        "vector   set_flag vector->mte3 0",
        "mte3     wait_flag vector->mte3 0",
        "mte3     store y+0 2x20 B stride 20 <- ub[64:116] float32",
        "mte3     set_flag mte3->vector 0",
        "mte2     wait_flag vector->mte2 0",
        "vector   wait_flag mte3->vector 0",
    ]


def test_a_copy_can_name_the_gap_behind_the_last_row_too(builder: Builder) -> None:
    x, y = GmView.of("x", FLOAT32, 4, 5), GmView.of("y", FLOAT32, 2, 5)
    come = builder.queue("ub", 4 * 64, "mte2", "vector")
    go = builder.queue("ub", 2 * 64, "vector", "mte3")
    slot = come.alloc()
    fill(builder, slot, x[:2, :], x[3:, :], pitch=16, with_gaps=True)
    come.enque(slot)
    come.free(come.deque())
    store(builder, go, go.alloc(), y, 16, with_gaps=True)

    found = [op for op in builder.build().ops if isinstance(op, Load | Store)]
    assert [str(op) for op in found] == [
        "load ub[0:128] float32 <- x+0 2x20 B stride 20",
        "load ub[128:192] float32 <- x+60 20 B",
        "store y+0 2x20 B stride 20 <- ub[256:384] float32",
    ]
    assert [op.pitch_bytes for op in found] == [64, 0, 64]


@given(st.integers(0, 40), st.integers(1, 9))
def test_shares_are_runs_that_differ_by_one_at_most(count: int, parts: int) -> None:
    runs = [share(count, parts, index) for index in range(parts)]
    assert [x for run in runs for x in run] == list(range(count))
    assert max(map(len, runs)) - min(map(len, runs)) <= 1
