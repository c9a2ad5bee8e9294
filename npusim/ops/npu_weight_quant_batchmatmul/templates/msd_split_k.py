"""The msd template with a scale for each column, form split_k: k in blocks that are scaled apart.

.. code-block:: text

    vector cores  rows of a block of x: largest magnitudes, sums, two or three digits
    cube cores    meanwhile load some of the weight, so that it lies in the L2
                  then, round by round of columns: digits of each block @ weight, int32 sums
    vector cores  sums of all digits and blocks together, scaled, y, while the next round is made

The sums go through a ring of places in global memory. All cube cores wait for each other after a
round; the ring has two halves of `half_rounds` places, and after each half all vector cores wait
for each other before it is written again (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2,
op_kernel/*_msd_split_k.h, op_host/op_tiling/*_msd_tiling.cpp). Assumed: a cube core's columns are
multiples of 32; its tasks go through all blocks of its columns first; its base tile is that of
multicore, the digits staying in L1 only where they serve several tiles of columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Global
from npusim.kernel.builder import Builder
from npusim.kernel.cube import BaseTile
from npusim.kernel.plane import REPEAT
from npusim.kernel.program import Binding, Block, Program
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits import (
    EIGHT_BITS,
    FOUR_BITS,
    DigitStage,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_cube import (
    DigitCube,
    core_columns,
    digits_of,
    digits_tile,
    terms_of,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_split_k_end import Finish
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits

__all__ = ["SplitKPlan", "build", "tile"]

OP = "npu_weight_quant_batchmatmul"
SPLIT, READY, MULTIPLIED, FILLED, FINISHED, READ = range(6)
"""Flags between cores: a vector core, all vector cores have their digits; a cube core, all cube
cores are through a round; a vector core, all vector cores are through a half of the ring."""
BLOCK_K = 12288
MOST_BLOCKS = 6
ROUND_BYTES = 16 * 2**20
RING_ELEMENTS = 16 * 1024 * 256
MOST_HALF_ROUNDS = 8
MOST_FLAGS = 15
"""What a flag between cores counts to."""
STRIP = 128
FINISH_ROWS = 64
PRELOADS = 10


@dataclass(frozen=True, slots=True)
class SplitKPlan(Plan):
    """Blocks of k, rounds of columns, and a grid of vector cores over a round."""

    block_k: int
    k_blocks: int
    split_rows: int
    """Rows of x that a vector core splits at a time."""
    round_n: int
    """Columns of a round."""
    half_rounds: int
    """Rounds that half of the ring holds."""
    task_n: int
    """Columns that a cube core makes of a block at a time."""
    cube: BaseTile
    preloads: int
    """Pieces of the weight that a cube core loads while it waits, at most."""
    finish_cores_m: int
    """Vector cores that share the rows of a strip of 128 columns."""

    @property
    def place_bytes(self) -> int:
        """Bytes of a round in the ring."""
        return self.workspaces["products"] // (2 * self.half_rounds)


def tile(spec: DeviceSpec, p: Problem) -> SplitKPlan:
    """Split as the vendor does."""
    f = p.traits
    depth, terms = _block_k(f), terms_of(f)
    blocks = ceil_div(f.k, depth)
    core_n = core_columns(f, spec.cores["aic"].count)
    groups = ceil_div(f.n, core_n)
    sums = blocks * terms * f.m
    most = max(256, ROUND_BYTES // (4 * sums) // 256 * 256)
    round_n = min(most, STRIP * 2 * groups, f.n)
    half_rounds = max(1, min(RING_ELEMENTS // (sums * round_n), MOST_HALF_ROUNDS))
    if ceil_div(f.n, round_n) > MOST_FLAGS:
        half_rounds = min(half_rounds, MOST_FLAGS // 2)
    task_n = align_up(ceil_div(round_n, groups), 32) if f.trans_weight else core_n
    task_n = min(task_n, round_n)
    first = digits_tile(spec, p, depth, task_n, keeps=False)
    keeps = task_n > first.n
    workspaces = {
        "digits": digits_of(f).dtype.nbytes(terms * f.m * f.k),
        "most": FLOAT32.nbytes(blocks * f.m),
        "sums": FLOAT32.nbytes(blocks * f.m),
        "products": 2 * half_rounds * INT32.nbytes(sums * round_n),
    }
    return SplitKPlan(
        template=p.choice.template,
        form=p.choice.form,
        reason=p.choice.reason,
        block_dim=groups,
        is_mix=True,
        workspaces=workspaces,
        block_k=depth,
        k_blocks=blocks,
        split_rows=min(8, BLOCK_K // depth),
        round_n=round_n,
        half_rounds=half_rounds,
        task_n=task_n,
        cube=digits_tile(spec, p, depth, task_n, keeps) if keeps else first,
        preloads=PRELOADS,
        finish_cores_m=2 * groups // ceil_div(round_n, STRIP),
    )


def _block_k(f: CallTraits) -> int:
    """How much of k is scaled by one largest magnitude."""
    unit = 64 if not f.trans_weight else 512 if f.weight == "int8" else 1024
    first = 4 if f.k // f.n >= 30 and not f.trans_weight else 1
    depths = [align_up(ceil_div(f.k, blocks), unit) for blocks in range(first, MOST_BLOCKS + 1)]
    return next((depth for depth in depths if depth <= BLOCK_K), depths[-1])


def build(spec: DeviceSpec, p: Problem, plan: SplitKPlan) -> tuple[Block, ...]:
    """A cube core and its two vector cores for each group that is launched."""
    names = [operand.name for operand in p.inputs] + ["output", *plan.workspaces]
    bindings = {name: Binding(name) for name in names}
    cube, vector = _Cube(spec, p, plan), _Vector(spec, p, plan)
    blocks = []
    for group in range(plan.block_dim):
        first = 3 * group
        blocks.append(Block(first, "aic", cube.program(group), bindings, group))
        for core in (2 * group, 2 * group + 1):
            number = first + 1 + core % 2
            blocks.append(Block(number, "aiv", vector.program(core), bindings, group))
    return tuple(blocks)


def _share(tasks: int, cores: int, core: int) -> range:
    """The run of *tasks* that *core* gets."""
    each, more = divmod(tasks, cores)
    start = core * each + min(core, more)
    return range(start, start + each + (core < more))


class _Rounds:
    """What cube and vector cores agree on: the rounds, and the places of the ring."""

    def __init__(self, f: CallTraits, plan: SplitKPlan) -> None:
        self.f, self.plan = f, plan
        self.count = ceil_div(f.n, plan.round_n)

    def columns(self, index: int) -> tuple[int, int]:
        """First column and number of columns of a round."""
        start = index * self.plan.round_n
        return start, min(self.plan.round_n, self.f.n - start)

    def place_bytes(self, index: int) -> int:
        return index % (2 * self.plan.half_rounds) * self.plan.place_bytes

    def needs_half(self, index: int) -> bool:
        """Whether round *index* is the first in a half of the ring that was filled before."""
        half = self.plan.half_rounds
        return index % half == 0 and index >= 2 * half

    def gives_half(self, index: int) -> bool:
        """Whether round *index* is the last in a half of the ring that is filled again."""
        following = index + 1 + self.plan.half_rounds
        return self.needs_half(following) and following < self.count


class _Cube:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: SplitKPlan) -> None:
        self.f, self.plan = p.traits, plan
        self.rounds = _Rounds(p.traits, plan)
        self.builder = Builder(OP, spec.cores["aic"], spec.sync)
        longest = min(plan.block_k, p.traits.k)
        self.digits = DigitCube(self.builder, p, plan.cube, longest)

    def program(self, group: int) -> Program:
        builder, rounds = self.builder, self.rounds
        for task in self._tasks(0, group)[:1]:
            self.digits.prefetch_l2(*task, self.plan.preloads)
        builder.cross_core_wait_flag("group", "mte2", READY)
        for index in range(rounds.count):
            if rounds.needs_half(index):
                builder.cross_core_wait_flag("group", "fixpipe", READ)
            for task in self._tasks(index, group):
                self._multiply(index, *task)
            builder.cross_core_set_flag("all", "fixpipe", MULTIPLIED)
            builder.cross_core_wait_flag("all", "fixpipe", MULTIPLIED)
            builder.cross_core_set_flag("group", "fixpipe", FILLED)
        return builder.build()

    def _tasks(self, index: int, group: int) -> list[tuple[int, int, int, int]]:
        """The tasks of a core in a round: first k, its count, first column, their count."""
        plan, (left, width) = self.plan, self.rounds.columns(index)
        tasks = []
        for task in _share(ceil_div(width, plan.task_n) * plan.k_blocks, plan.block_dim, group):
            strip, block = divmod(task, plan.k_blocks)
            start, column = block * plan.block_k, strip * plan.task_n
            depth = min(plan.block_k, self.f.k - start)
            tasks.append((start, depth, left + column, min(plan.task_n, width - column)))
        return tasks

    def _multiply(self, index: int, start: int, depth: int, column: int, columns: int) -> None:
        plan, pitch = self.plan, INT32.nbytes(self.plan.round_n)
        rows = start // plan.block_k * terms_of(self.f) * self.f.m
        inside = INT32.nbytes(column - self.rounds.columns(index)[0])
        place = self.rounds.place_bytes(index) + rows * pitch + inside
        self.digits.multiply(start, depth, column, columns, place, pitch)


class _Vector:
    """The kernel of a vector core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: SplitKPlan) -> None:
        self.p, self.plan, self.f = p, plan, p.traits
        self.rounds = _Rounds(p.traits, plan)
        self.builder = Builder(OP, spec.cores["aiv"], spec.sync)
        self.scheme = EIGHT_BITS if p.traits.weight == "int8" else FOUR_BITS
        self.split = DigitStage(
            self.builder, p.x.element, self.scheme.dtype, plan.split_rows, plan.block_k
        )
        self.builder.reset_buffers()
        self.share_m = ceil_div(self.f.m, plan.finish_cores_m)
        rows = min(self.share_m, FINISH_ROWS)
        columns = min(STRIP, align_up(plan.round_n, REPEAT))
        shape = terms_of(self.f), plan.k_blocks, rows, columns
        self.finish = Finish(self.builder, p, self.scheme, shape, plan.round_n)

    def program(self, core: int) -> Program:
        builder, plan, rounds = self.builder, self.plan, self.rounds
        pieces = ceil_div(self.f.m, plan.split_rows)
        for task in _share(plan.k_blocks * pieces, 2 * plan.block_dim, core):
            self._split(*divmod(task, pieces))
        builder.cross_core_set_flag("all", "mte3", SPLIT)
        builder.cross_core_wait_flag("all", "mte2", SPLIT)
        builder.cross_core_set_flag("group", "mte2", READY)
        builder.end_stage()
        strip, part = divmod(core, plan.finish_cores_m)
        row = part * self.share_m
        rows = min(self.share_m, self.f.m - row)
        for index in range(rounds.count):
            builder.cross_core_wait_flag("group", "mte2", FILLED)
            left, width = rounds.columns(index)
            column = strip * STRIP
            columns = min(STRIP, width - column)
            if rows > 0 and columns > 0:
                place = rounds.place_bytes(index) + INT32.nbytes(column)
                self.finish.strip(place, row, rows, left + column, columns)
            if rounds.gives_half(index):
                builder.cross_core_set_flag("all", "mte2", FINISHED)
                builder.cross_core_wait_flag("all", "mte2", FINISHED)
                builder.cross_core_set_flag("group", "mte2", READ)
        return builder.build()

    def _split(self, block: int, piece: int) -> None:
        """Split some rows of a block of k."""
        f, plan = self.f, self.plan
        start, row = block * plan.block_k, piece * plan.split_rows
        rows, count = min(plan.split_rows, f.m - row), min(plan.block_k, f.k - start)
        number = FLOAT32.nbytes(block * f.m + row)
        shifts = {
            "x": self.p.x.element.nbytes(row * f.k + start),
            "digits": self.scheme.dtype.nbytes(row * f.k + start),
            "most": number,
            "sums": number,
        }
        self.builder.call((rows, count), shifts, lambda: self._split_rows(rows, count))

    def _split_rows(self, rows: int, count: int) -> None:
        f, stage, element, digit = self.f, self.split, self.p.x.element, self.scheme.dtype
        place = Global("x", 0, element.nbytes(count), rows, element.nbytes(f.k))
        plane = stage.take(place, rows, self.plan.block_k, count)
        most = stage.largest(plane)
        if f.has_offset:
            stage.hand_out(stage.sums(plane), Global("sums", 0, FLOAT32.nbytes(rows)))
        stage.divide(plane, most)
        stage.hand_out(most, Global("most", 0, FLOAT32.nbytes(rows)))
        line = digit.nbytes(f.k)

        def term(index: int) -> Global:
            return Global("digits", index * f.m * line, digit.nbytes(count), rows, line)

        stage.split(plane, self.scheme, term)
