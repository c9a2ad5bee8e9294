"""Launches from columns: what each core runs, and what is written once for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from npusim import isa
from npusim.data.dtypes import FLOAT32, INT4
from npusim.devices.schema import DeviceSpec
from npusim.isa import moved
from npusim.kernel.builder import Builder, watched
from npusim.kernel.launch import CoreSteps, launch, launch_mixed
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.queues import ProgramError, Queue
from npusim.kernel.steps import Choices, GmViews, StageCall, Step, column, column_of, tiles
from npusim.kernel.views import GmView, load, repeat, store

X, Y = (GmView.of(name, FLOAT32, 6, 20) for name in "xy")


class Doubled:
    """A kernel of one stage, whose queues are *depth* deep."""

    def __init__(self, spec: DeviceSpec, depth: int = 2) -> None:
        self.written: list[tuple[Any, ...]] = []
        self.builder = Builder("doubled", spec.cores["aiv"], spec.sync)
        queue = self.builder.queue
        self.loaded: Queue = queue("ub", 1024, "mte2", "vector", depth)
        self.computed: Queue = queue("ub", 1024, "vector", "mte3", depth)
        self.ones = self.builder.claim("ub", isa.BLOCK_BYTES)

    def begin(self) -> None:
        self.builder.emit(isa.Duplicate(self.ones.of(FLOAT32, 8), 1.0))

    def tile(self, x: GmView, y: GmView, factor: float = 2.0) -> None:
        self.written.append((x, y, factor))
        slot, out = load(self.builder, self.loaded, x), self.computed.alloc()
        count = x.rows * 24
        source, target = slot.of(FLOAT32, count), out.of(FLOAT32, count)
        self.builder.emit(isa.BinaryScalar("mul", target, source, factor))
        self.loaded.free(slot)
        store(self.builder, self.computed, out, y)

    def each_row(self, x: GmView, y: GmView) -> None:
        for row in range(x.rows):
            repeat(self.builder, self.tile, x[row : row + 1, :], y[row : row + 1, :])

    def load_ahead(self, x: GmView) -> None:
        slot = self.loaded.alloc()
        self.builder.data_copy(slot.of(FLOAT32, x.columns), x.operand)
        self.loaded.enque(slot)

    def stored(self, y: GmView) -> None:
        slot, out = self.loaded.deque(), self.computed.alloc()
        source, target = slot.of(FLOAT32, y.columns), out.of(FLOAT32, y.columns)
        self.builder.emit(isa.Binary("add", target, source, source))
        self.loaded.free(slot)
        store(self.builder, self.computed, out, y)


def by_repeat(kernel: Doubled, core_tiles: list[list[tuple[GmView, GmView]]]) -> list[Program]:
    """The programs that a loop over the tiles of each core writes."""
    programs = []
    for own in core_tiles:
        kernel.begin()
        for x, y in own:
            repeat(kernel.builder, kernel.tile, x, y)
        programs.append(kernel.builder.build())
    return programs


def written(program: Program, bound: dict[str, Binding]) -> list[str]:
    """The micro-ops of *program* with their places in the tensors."""
    at = {name: binding.base_bytes for name, binding in bound.items()}
    return str(Program("", tuple(_at(op, at) for op in program.ops))).splitlines()


def _at(op: isa.MicroOp, at: dict[str, int]) -> isa.MicroOp:
    place = isa.global_operand(op)
    return op if place is None else moved(op, at.get(place.name, 0))


def absolute(blocks: tuple[Block, ...]) -> list[list[str]]:
    return [written(block.program, block.bindings) for block in blocks]


def test_a_launch_is_what_loops_over_the_tiles_of_each_core_write(tiny: DeviceSpec) -> None:
    kernel = Doubled(tiny)
    a, b = tiles(X, 2, 8), tiles(Y, 2, 8)
    number = np.arange(9)
    step = Step(kernel.tile, (a, b), number % 2, number)
    blocks = launch(kernel.builder, "aiv", step, begin=kernel.begin)
    assert [(block.core, block.kind, block.group) for block in blocks] == [
        (0, "aiv", 0),
        (1, "aiv", 0),
    ]
    cut = [
        (X[r : r + 2, c : c + 8], Y[r : r + 2, c : c + 8]) for r in (0, 2, 4) for c in (0, 8, 16)
    ]
    programs = by_repeat(Doubled(tiny), [cut[::2], cut[1::2]])
    assert absolute(blocks) == [written(program, {}) for program in programs]
    # Names begin where the first tile of a core does.
    assert [{n: x.base_bytes for n, x in block.bindings.items()} for block in blocks] == [
        {"x": 0, "y": 0},
        {"x": 32, "y": 32},
    ]
    assert blocks[0].program.claimed_bytes == programs[0].claimed_bytes
    assert [x.events for x in blocks[0].program.queues] == [x.events for x in programs[0].queues]


def test_a_stage_is_written_once_for_each_shape_and_state_of_the_queues(tiny: DeviceSpec) -> None:
    kernel = Doubled(tiny)
    many, out = (GmView.of(name, FLOAT32, 1000, 20) for name in "xy")
    a, b = tiles(many, 2, 8), tiles(out, 2, 8)
    blocks = launch(kernel.builder, "aiv", Step(kernel.tile, (a, b), np.arange(len(a)) % 3))
    # Tiles are 8 and 4 wide; of two slots one is new at first, then both have been used.
    assert {(x.columns, x.offset_bytes) for x, _, _ in kernel.written} == {(8, 0), (4, 0)}
    assert len(kernel.written) <= 10
    assert sum(len(block.program) for block in blocks) > 1500 * 8


def test_cores_whose_tiles_lie_alike_share_their_program(tiny: DeviceSpec) -> None:
    kernel = Doubled(tiny)
    rows = np.arange(6)
    a, b = (GmViews.of(view, rows, 0, 1, 20) for view in (X, Y))
    blocks = launch(kernel.builder, "aiv", Step(kernel.tile, (a, b), rows // 2))
    assert len({block.program for block in blocks}) == 1
    assert [block.bindings["x"].base_bytes for block in blocks] == [0, 160, 320]
    bound = {"x": Binding("x"), "y": Binding("y", is_cached=False)}
    blocks = launch(
        *(kernel.builder, "aiv", Step(kernel.tile, (a, b), rows // 2)), bound=lambda _: bound
    )
    assert len({block.program for block in blocks}) == 3
    assert all(block.bindings is bound for block in blocks)


def test_tiles_lie_in_the_names_that_the_caller_binds(tiny: DeviceSpec) -> None:
    kernel, row = Doubled(tiny), np.arange(6)
    a, b = (GmViews.of(view, row % 3, 0, 1, 20) for view in (X, Y))
    bound = [{n: Binding("ws", base) for n in "xy"} for base in (64, 640)]
    step = Step(kernel.tile, (a, b), row // 3)
    blocks = launch(kernel.builder, "aiv", step, bound=bound.__getitem__)
    assert [block.bindings for block in blocks] == bound
    assert blocks[0].program is blocks[1].program
    calls = blocks[0].program.calls[:-1]
    assert [call.shifts for call in calls] == [{"x": 80 * x, "y": 80 * x} for x in range(3)]


def test_the_l2_keeps_what_the_caller_says(tiny: DeviceSpec) -> None:
    kernel = Doubled(tiny)
    step = Step(kernel.tile, (tiles(X, 2, 20), tiles(Y, 2, 20)), np.zeros(3, np.int64))
    (block,) = launch(kernel.builder, "aiv", step, cached=lambda name: name == "x")
    assert block.bindings == {"x": Binding("x"), "y": Binding("y", is_cached=False)}


def test_a_stage_may_repeat_others(tiny: DeviceSpec) -> None:
    kernel = Doubled(tiny)
    a, b = tiles(X, 3, 20), tiles(Y, 3, 20)
    blocks = launch(kernel.builder, "aiv", Step(kernel.each_row, (a, b), np.arange(2)))
    rows = [[(X[r : r + 1, :], Y[r : r + 1, :]) for r in own] for own in (range(3), range(3, 6))]
    programs = by_repeat(Doubled(tiny), rows)
    assert absolute(blocks) == [written(program, {})[1:] for program in programs]
    assert any(body.calls for block in blocks for body in block.program.bodies)


def test_steps_of_equal_order_follow_each_other_as_given(tiny: DeviceSpec) -> None:
    kernel = Doubled(tiny, depth=1)
    order = np.array([5, 1, 3])
    a, b = (GmViews.of(view, order, 0, 1, 20) for view in (X, Y))
    core = np.zeros(3, np.int64)
    steps = (
        Step(kernel.load_ahead, (a,), core, order, keeps_slots=True),
        Step(kernel.stored, (b,), core, order, keeps_slots=True),
    )
    (block,) = launch(kernel.builder, "aiv", *steps)
    moved = [line for line in absolute((block,))[0] if " x+" in line or " y+" in line]
    assert [line.split("+")[1].split()[0] for line in moved] == [
        *("80", "80", "240", "240", "400", "400")
    ]


def test_a_stage_that_keeps_slots_must_say_so(tiny: DeviceSpec) -> None:
    kernel = Doubled(tiny)
    step = Step(kernel.load_ahead, (tiles(X, 1, 20),), np.zeros(6, np.int64))
    with pytest.raises(ProgramError, match=r"^doubled: a call must free the slots"):
        launch(kernel.builder, "aiv", step)


def test_arguments_are_columns_arrays_lists_or_the_same_for_all(tiny: DeviceSpec) -> None:
    kernel = Doubled(tiny)
    rows = np.arange(6)
    a = [X[row : row + 1, :] for row in rows]
    b = GmViews.row(Y, rows)
    for factor in (np.array([1.0, 2.0] * 3), [1.0, 2.0] * 3, Choices((1.0, 2.0), rows % 2)):
        kernel.written.clear()
        launch(Doubled(tiny).builder, "aiv", Step(kernel.tile, (X, Y, 3.0), np.zeros(0, np.int64)))
        step = Step(kernel.tile, (a, b, factor), np.zeros(6, np.int64))
        assert step.shape.tolist() == [0, 1] * 3
        assert step.plain(1) == [X[:1, :], Y.row(0), 2.0]
        assert type(step.plain(1)[2]) is float
    # One view for all tiles moves with its name, as it does in a call.
    step = Step(kernel.tile, (X[2:3, :], b), np.zeros(6, np.int64))
    assert step.plain(0) == [X[:1, :], Y.row(0)]
    assert step.offsets["x"].tolist() == [160] * 6


def test_several_views_of_a_tensor_are_moved_by_the_first(tiny: DeviceSpec) -> None:
    kernel = Doubled(tiny)
    left, right = tiles(X[:, :10], 2, 10), tiles(X[:, 10:], 2, 10)
    step = Step(kernel.tile, (left, right), np.zeros(3, np.int64))
    assert (step.shape.tolist(), step.plain(0)) == ([0, 0, 0], [X[:2, :10], X[:2, 10:]])
    skew = Step(kernel.tile, (left, right.select(np.array([0, 2, 1]))), np.zeros(3, np.int64))
    assert skew.shape.tolist() == [1, 2, 0]


def test_a_name_without_a_column_lies_where_the_stage_says(tiny: DeviceSpec) -> None:
    kernel = Doubled(tiny)
    gamma = GmView.vector("gamma", FLOAT32, 8)

    def begin() -> None:
        slot = load(kernel.builder, kernel.loaded, gamma)
        kernel.loaded.free(slot)
        slot = load(kernel.builder, kernel.loaded, X[1:2, :])
        kernel.loaded.free(slot)

    a, b = tiles(X, 2, 20), tiles(Y, 2, 20)
    step = Step(kernel.tile, (a, b), np.array([1, 0, 1]))
    blocks = launch(kernel.builder, "aiv", step, begin=begin)
    assert [block.bindings["gamma"] for block in blocks] == [Binding("gamma")] * 2
    for lines in absolute(blocks):
        assert any("gamma+0 " in line for line in lines)
        assert any("x+80 " in line for line in lines)
    assert [block.bindings["x"].base_bytes for block in blocks] == [160, 0]


def test_cores_without_a_tile_run_the_beginning_and_the_end(tiny: DeviceSpec) -> None:
    kernel = Doubled(tiny)
    step = Step(kernel.tile, (tiles(X, 6, 20), tiles(Y, 6, 20)), np.array([1]))
    blocks = launch(kernel.builder, "aiv", step, begin=kernel.begin, block_dim=3)
    assert [(block.core, len(block.program) > 1) for block in blocks] == [
        (0, False),
        (1, True),
        (2, False),
    ]
    assert blocks[0].program is blocks[2].program
    assert blocks[0].program.ops == (isa.Duplicate(kernel.ones.of(FLOAT32, 8), 1.0),)


def test_a_builder_that_has_launched_begins_anew(tiny: DeviceSpec) -> None:
    kernel = Doubled(tiny)
    step = Step(kernel.tile, (tiles(X, 2, 20), tiles(Y, 2, 20)), np.zeros(3, np.int64))
    first, second = (launch(kernel.builder, "aiv", step)[0].program for _ in range(2))
    assert first.ops == second.ops
    repeat(kernel.builder, kernel.tile, X[:2, :], Y[:2, :])
    assert kernel.builder.build().ops[: len(first.ops) // 4] == first.ops[: len(first.ops) // 4]


def test_whoever_watches_hears_of_each_program(tiny: DeviceSpec) -> None:
    kernel, heard = Doubled(tiny), list[int]()
    step = Step(kernel.tile, (tiles(X, 2, 20), tiles(Y, 2, 20)), np.array([0, 1, 1]))
    with watched(lambda: heard.append(1)):
        launch(kernel.builder, "aiv", step)
    assert len(heard) == 2


@pytest.mark.parametrize(
    ("arguments", "order", "says"),
    [
        ((tiles(X, 2, 20), 1), None, "argument 0 must have an entry for each of 2 tiles, not 3; "),
        ((1, np.zeros(1)), None, "argument 1 must have an entry for each of 2 tiles, not 1; "),
        ((1, [1, 2, 3]), None, "argument 1 must have an entry for each of 2 tiles, not 3; "),
        ((1,), np.zeros(3), "the order must have an entry for each of 2 tiles, not 3; "),
    ],
)
def test_wrong_columns_are_refused(arguments: tuple[Any, ...], order: Any, says: str) -> None:
    with pytest.raises(ProgramError, match=f"^Step: {says}"):
        Step(print, arguments, np.zeros(2, np.int64), order)


def test_a_column_gives_its_items_back() -> None:
    found = column([X[:1, :], X[2:3, :], X[:2, :]])
    assert [found[tile] for tile in range(3)] == [X[:1, :], X[2:3, :], X[:2, :]]
    assert [key.tolist() for key in found.keys] == [[0, 0, 1]]
    assert [column(["a", None, "a"])[tile] for tile in range(3)] == ["a", None, "a"]
    nested = [(X[1:2, :], (Y[3:4, :], 1)), (), (X[:1, :], (Y[:1, :], 1)), (Y[:1, :], X[:2, :])]
    found = column(nested, np.array([3, 0, 1, 2]))
    assert [found[tile] for tile in range(4)] == [nested[x] for x in (3, 0, 1, 2)]
    assert [key.tolist() for key in found.keys] == [[2, 0, 1, 0]]
    halves = column_of([(x // 2, 1) for x in range(6)], lambda x, rows: X[x : x + rows, :])
    assert [halves[tile] for tile in range(6)] == [X[x : x + 1, :] for x in (0, 0, 1, 1, 2, 2)]


def test_views_that_some_tiles_lack_move_those_that_have_them(tiny: DeviceSpec) -> None:
    kernel = Doubled(tiny)
    first = [X[4:5, :], None, (X[2:3, :],)]
    step = Step(kernel.tile, (first, tiles(X, 2, 20)), np.zeros(3, np.int64))
    assert step.offsets["x"].tolist() == [320, 160, 160]
    plain = [step.plain(int(shape)) for shape in step.shape]
    assert plain[1] == [None, X[:2, :]]
    assert plain[2] == [(X[:1, :],), X[2:4, :]]


def test_tiles_are_the_slices_of_a_view() -> None:
    view = GmView.of("x", FLOAT32, 7, 50)[1:6, 3:40]
    found = tiles(view, 2, 16)
    cut = [view[r : r + 2, c : c + 16] for r in (0, 2, 4) for c in (0, 16, 32)]
    assert [found[tile] for tile in range(len(found))] == cut
    half = GmView.of("w", INT4, 4, 9)
    assert [tiles(half, 1, 9)[tile] for tile in range(4)] == [half[r : r + 1, :] for r in range(4)]
    far = GmViews.of(view, np.array([0, 4, 9]), 30, 3, np.array([1, 90, 90]))
    cut = [view[0:3, 30:31], view[4:7, 30:120], view[9:12, 30:120]]
    assert [far[tile] for tile in range(3)] == cut
    assert [GmViews.row(view, np.array([3]))[0]] == [view.row(3)]


# ---- cube cores with vector cores ----


class Handed:
    """Cube cores write tiles to a workspace of two places, from where vector cores take halves."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.cube = Builder("handed", spec.cores["aic"], spec.sync)
        self.vector = Builder("handed", spec.cores["aiv"], spec.sync)
        self.part = self.cube.claim("l0c", 1024)
        self.taken = self.vector.queue("ub", 1024, "mte2", "mte3", 2)

    def fill(self, place: GmView, is_again: bool) -> None:
        if is_again:
            self.cube.cross_core_wait_flag("group", "fixpipe", 1)
        self.cube.emit(isa.Fixpipe(place.operand, self.part.of(FLOAT32, 256), 16, 16, 16, FLOAT32))
        self.cube.cross_core_set_flag("group", "fixpipe", 0)

    def take(self, place: GmView, y: GmView, is_read: bool) -> None:
        self.vector.cross_core_wait_flag("group", "mte2", 0)
        slot = load(self.vector, self.taken, place)
        self.vector.data_copy(y.operand, slot.of(FLOAT32, 128))
        self.taken.free(slot)
        if is_read:
            self.vector.cross_core_set_flag("group", "mte2", 1)


def bound_of(group: int) -> dict[str, Binding]:
    return {"ws": Binding("ws", group * 2048), "y": Binding("y")}


WS, OUT = GmView.of("ws", FLOAT32, 2, 256), GmView.of("y", FLOAT32, 8, 256)


def test_a_mixed_launch_is_the_programs_of_each_core(tiny: DeviceSpec) -> None:
    kernel, number = Handed(tiny), np.arange(8)
    group, turn = number % 2, number // 2
    fill = Step(kernel.fill, (GmViews.of(WS, turn % 2, 0, 1, 256), turn >= 2), group)
    takes = []
    for half in range(2):
        views = (GmViews.of(v, r, 128 * half, 1, 128) for v, r in ((WS, turn % 2), (OUT, number)))
        takes.append(Step(kernel.take, (*views, turn < 2), 2 * group + half, number))
    cube, vector = CoreSteps(kernel.cube, (fill,)), CoreSteps(kernel.vector, tuple(takes))
    blocks = launch_mixed(2, cube, vector, bound_of)
    other = Handed(tiny)

    def of_cube(_: int) -> Program:
        for turn in range(4):
            repeat(other.cube, other.fill, WS[turn % 2 : turn % 2 + 1, :], turn >= 2)
        return other.cube.build()

    def of_vector(group: int, half: int) -> Program:
        here = slice(128 * half, 128 * half + 128)
        for turn in range(4):
            place, row = turn % 2, 2 * turn + group
            views = WS[place : place + 1, here], OUT[row : row + 1, here]
            repeat(other.vector, other.take, *views, turn < 2)
        return other.vector.build()

    plain = [
        block
        for group in range(2)
        for block in (
            Block(3 * group, "aic", of_cube(group), bound_of(group), group),
            Block(3 * group + 1, "aiv", of_vector(group, 0), bound_of(group), group),
            Block(3 * group + 2, "aiv", of_vector(group, 1), bound_of(group), group),
        )
    ]
    calls = of_calls(tiny)
    assert [x.program.ops for x in calls] == [x.program.ops for x in plain]
    for block, like in zip(blocks, plain, strict=True):
        assert (block.core, block.kind, block.group) == (like.core, like.kind, like.group)
        assert block.bindings == like.bindings
        assert block.program.ops == like.program.ops
    assert blocks[0].program is blocks[3].program


def of_calls(spec: DeviceSpec) -> tuple[Block, ...]:
    """The launch of the test above, core by core in loops."""
    kernel = Handed(spec)

    def of_cube(_: int) -> Iterator[StageCall]:
        for turn in range(4):
            yield kernel.fill, WS[turn % 2 : turn % 2 + 1, :], turn >= 2

    def of_vector(index: int) -> Iterator[StageCall]:
        group, half = divmod(index, 2)
        here = slice(128 * half, 128 * half + 128)
        for turn in range(4):
            place, row = turn % 2, 2 * turn + group
            yield kernel.take, WS[place : place + 1, here], OUT[row : row + 1, here], turn < 2

    cube, vector = (
        CoreSteps.of_calls(core, cores, calls)
        for core, cores, calls in ((kernel.cube, 2, of_cube), (kernel.vector, 4, of_vector))
    )
    return launch_mixed(2, cube, vector, bound_of)


def test_a_group_without_tiles_starts_all_the_same(tiny: DeviceSpec) -> None:
    kernel, none = Handed(tiny), np.zeros(0, np.int64)
    cube = CoreSteps(kernel.cube, (Step(kernel.fill, (WS, False), none),))
    begin = partial(kernel.vector.barrier)
    vector = CoreSteps(kernel.vector, (Step(kernel.take, (WS, OUT, False), none),), begin)
    blocks = launch_mixed(2, cube, vector, vector_cores=1)
    assert [(x.core, x.kind, x.group, len(x.program)) for x in blocks] == [
        *((0, "aic", 0, 0), (1, "aiv", 0, 1)),
        *((3, "aic", 1, 0), (4, "aiv", 1, 1)),
    ]
