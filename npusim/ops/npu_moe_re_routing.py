"""npu_moe_re_routing: rows received from all ranks, sorted by their experts.

.. code-block:: text

    expert_token_num_per_rank[r, e] rows come from rank r for expert e, in that order
    output                  the rows of expert 0 of all ranks, then those of expert 1, ...
    permute_scales          per_token_scales likewise
    permute_token_idx[i]    the source of row i of output
    expert_token_num[e]     the sum over ranks of expert_token_num_per_rank[r, e]

The bits are copied unchanged. A core processes the rows of a rank, expert by expert, as many at a
time as half of its buffer holds; the scalar unit sums the table before each of them, and on the
first core also the table's totals.

Sources: hicann/ops-transformer moe/moe_re_routing, op_kernel/moe_re_routing.h and op_host/
moe_re_routing_membase_tiling.cpp, and its document. Atlas A2 and A3. The content of permute_scales
without per_token_scales is not defined; here it is 0. Rows that the table does not count are not
written, 0 here. If it counts more rows than there are, a card reads and writes beyond its tensors;
here a warning says so, and rows are moved only within them. Without values of the table each rank
has equally many rows for each expert, or one more. Assumed: an index is computed by eight writes of
the scalar unit and additions, and each sum of the table goes through a register once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, INT64, Array, DType
from npusim.data.integers import ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local, ScalarLoadGlobal, ScalarStoreGlobal
from npusim.kernel import Block, GmView, GmViews, Step, VectorCore, bindings, pieces
from npusim.kernel.core import TileQueue
from npusim.kernel.rows import whole_blocks
from npusim.kernel.sequences import count_up
from npusim.ops import _vocabulary as ops

TABLE, SCALES = "expert_token_num_per_rank", "per_token_scales"
SUPPORT = (
    ops.Row(
        on=ops.A2_A3,
        tokens=ops.Operands((FLOAT16, BFLOAT16, INT8), ranks=(2, 2)),
        expert_token_num_per_rank=ops.Operands((INT32, INT64), ranks=(2, 2)),
        per_token_scales=ops.Operands((FLOAT32,), ranks=(1, 1)),
    ),
)
MOST_COLUMNS = 16384
"""TOKENS_LENGTH_UPPER_BOUND."""
RESERVED_BYTES = 256
"""Bytes reserved of the unified buffer (RESERVE_UB_SIZE, of which the value is assumed)."""
LINE_BYTES = 64
"""Bytes of a line of the scalar unit's data cache (asc-devkit, DataCacheCleanAndInvalid.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call."""

    element: DType
    rows: int
    width: int
    counted_in: DType
    """The type of the table."""
    table: tuple[tuple[int, ...], ...]
    """The rows of each rank for each expert."""
    has_scales: bool

    @property
    def experts(self) -> int:
        return len(self.table[0])


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    tokens, table = contract.operand("tokens"), contract.operand(TABLE)
    scales = contract.optional(SCALES)
    for name, must in (("expert_token_num_type", 1), ("idx_type", 0)):
        value = contract.integer(name)
        contract.require(
            value == must, f"{name} must be {must}, not {value}: others are of later chips; leave "
            f"it out"
        )  # fmt: skip
    (rows, width), (ranks, experts) = tokens.shape, table.shape
    contract.require(
        0 < width <= MOST_COLUMNS,
        f"tokens must have 1 to {MOST_COLUMNS} columns, not {width}; cut them",
    )
    contract.require_filled(table)
    if scales is not None:
        contract.require_shape(scales, (rows,), remedy="pass a scale for each row of tokens")
    return Problem(
        inputs=ops.present(tokens, table, scales),
        outputs={
            "output": TensorSpec(tokens.shape, tokens.spec.dtype),
            "permute_scales": TensorSpec((rows,), "float32"),
            "permute_token_idx": TensorSpec((rows,), "int32"),
            "expert_token_num": TensorSpec((experts,), table.spec.dtype),
        },
        element=tokens.element,
        rows=rows,
        width=width,
        counted_in=table.element,
        table=_counts(contract, table, rows, ranks * experts),
        has_scales=scales is not None,
    )


def _counts(
    contract: ops.Contract, table: Operand, rows: int, entries: int
) -> tuple[tuple[int, ...], ...]:
    found = table.array
    if found is None:
        found = (rows // entries + (np.arange(entries) < rows % entries)).reshape(table.shape)
    least, total = int(found.min()), int(found.sum())
    contract.require(
        least >= 0,
        f"{TABLE} must not be negative anywhere, as {least} is; pass how many came of each rank",
    )
    if total > rows:
        contract.warn(
            f"{TABLE} must count at most the {rows} rows of tokens, not {total}: a card reads and "
            f"writes beyond its tensors, which is not simulated; pass how many came of each rank"
        )
    return tuple(map(tuple, found.tolist()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Ranks are assigned to the cores round-robin."""

    rows_at_once: int


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """As many cores as ranks, or so that all have equally many; half of the buffer for rows."""
    half_bytes = (spec.cores["aiv"].usable_bytes("ub") - RESERVED_BYTES) // 2
    # The tiling counts the scales even if there are none.
    row_bytes = p.element.nbytes(p.width) + FLOAT32.nbytes(1) + INT32.nbytes(1)
    ranks, cores = len(p.table), len(spec.vector_cores)
    return Plan(
        block_dim=ceil_div(ranks, ceil_div(ranks, cores)), rows_at_once=half_bytes // row_bytes
    )


# ---- kernel: op_kernel/moe_re_routing.h ----

COUNT, TOTAL = "count", "total"
"""Registers."""
Read = tuple[int, int, int, bool]
"""Core, turn, entry of the table, and whether its line was read before."""
Move = tuple[int, int, int, int, int]
"""Core, turn, the first row of tokens and of output, and rows."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Alternate between reads of the table and the rows that they locate."""
    core = VectorCore("npu_moe_re_routing", spec)
    kernel = ReRouting(core, p, plan)
    reads, moves = _turns(p, plan)
    table = GmView.vector(TABLE, p.counted_in, len(p.table) * p.experts)
    tokens, output = (GmView.of(x, p.element, p.rows, p.width) for x in ("tokens", "output"))
    index = GmView.vector("permute_token_idx", INT32, p.rows)
    counts = GmView.vector("expert_token_num", p.counted_in, p.experts)
    views = [table, tokens, output, index, counts]
    cores, turns, entry, known = np.array(reads, np.int64).reshape(-1, 4).T
    entries = GmViews.of(table, 0, entry, 1, 1)
    steps = [Step(kernel.read, (entries, known.astype(np.bool_)), cores, turns)]
    cores, turns, of, to, rows = np.array(moves, np.int64).reshape(-1, 5).T
    columns = [
        GmViews.of(tokens, of, 0, rows, p.width),
        GmViews.of(output, to, 0, rows, p.width),
        GmViews.of(index, 0, to, 1, rows),
    ]
    if p.has_scales:
        scales = [GmView.vector(x, FLOAT32, p.rows) for x in (SCALES, "permute_scales")]
        columns += [GmViews.of(x, 0, at, 1, rows) for x, at in zip(scales, (of, to), strict=True)]
        views += scales
    steps.append(Step(kernel.move, (of, *columns), cores, turns))
    last = np.iinfo(np.int64).max
    every = np.arange(p.experts)
    sums = [GmViews.of(table, 0, rank * p.experts + every, 1, 1) for rank in range(len(p.table))]
    totals = GmViews.of(counts, 0, every, 1, 1)
    first = np.zeros(p.experts, np.int64)
    steps.append(Step(kernel.count, (totals, *sums), first, first + last))
    return core.launch(*steps, bound=lambda _: bindings(*views), block_dim=plan.block_dim)


def _turns(p: Problem, plan: Plan) -> tuple[list[Read], list[Move]]:
    """The table entries that each core reads and the rows that it moves, in order."""
    table = np.array(p.table)
    ranks, experts = table.shape
    # The first row of each rank and expert, in input and output.
    of = np.cumsum([0, *table.reshape(-1)])[:-1].reshape(ranks, experts)
    to = np.cumsum([0, *table.T.reshape(-1)])[:-1].reshape(experts, ranks).T
    reads, moves, line = [], [], LINE_BYTES // p.counted_in.nbytes(1)
    for core in range(plan.block_dim):
        seen: set[int] = set()
        turn = 0
        for rank in range(core, ranks, plan.block_dim):
            for expert, entries in _reads(rank, ranks, experts):
                for entry in entries:
                    reads.append((core, turn, entry, entry // line in seen))
                    seen.add(entry // line)
                turn += 1
                if expert is None:
                    continue
                first, last = int(of[rank, expert]), int(to[rank, expert])
                within = max(0, min(int(table[rank, expert]), p.rows - max(first, last)))
                for row, count in pieces(within, plan.rows_at_once):
                    moves.append((core, turn, first + row, last + row, count))
                turn += 1
    return reads, moves


def _reads(rank: int, ranks: int, experts: int) -> Iterator[tuple[int | None, list[int]]]:
    """The entries that a core reads for *rank*: those of the ranks before, then for each expert its
    own, those before, and those from it on."""
    yield None, list(range(rank * experts))
    for expert in range(experts):
        column = [each * experts + expert for each in range(ranks)]
        yield expert, [column[rank], *column]


class ReRouting:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p = core, p
        rows = max(1, min(plan.rows_at_once, max(map(max, p.table))))
        self.rows = core.tiles(p.element, rows * p.width, "mte2", "mte3", 2)
        self.scales = core.tiles(FLOAT32, rows, "mte2", "mte3", 2) if p.has_scales else None
        self.index = core.vecout(INT32, whole_blocks(rows, INT32), 2)

    def read(self, entry: GmView, is_known: bool) -> None:
        """Add an entry of the table to a sum."""
        self.core.emit(ScalarLoadGlobal(COUNT, entry.operand, self.p.counted_in, is_known))

    def move(self, first: int, of: GmView, to: GmView, index: GmView, *scales: GmView) -> None:
        """Move rows *of* tokens, starting at index *first*, to their destinations."""
        core = self.core
        # They are contiguous on both sides.
        tile = core.load_rows(self.rows, of.flat)
        if self.scales is not None:
            found = core.load_rows(self.scales, scales[0])
        numbers = self.index.alloc()
        count_up(core, numbers[: index.columns], first)
        core.store_rows(self.index, numbers, index)
        self._leave(self.rows, tile, to.flat)
        if self.scales is not None:
            self._leave(self.scales, found, scales[1])

    def _leave(self, queue: TileQueue, tile: Local, to: GmView) -> None:
        """Store *tile* of *queue* to *to*, a contiguous run."""
        self.core.data_copy(to.operand, tile[: to.columns])
        queue.free(tile)

    def count(self, total: GmView, *entries: GmView) -> None:
        """Store the sum of *entries*, those of an expert."""
        core = self.core
        core.alu("add", TOTAL, 0, 0)
        for entry in entries:
            core.emit(ScalarLoadGlobal(COUNT, entry.operand, self.p.counted_in, True))
            core.alu("add", TOTAL, TOTAL, COUNT)
        core.emit(ScalarStoreGlobal(total.operand, TOTAL, self.p.counted_in))


# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array, Array, Array]:
    """Whole arrays in plain numpy."""
    tokens, table, scales = given.tokens, given.expert_token_num_per_rank, given.per_token_scales
    ranks, experts = table.shape
    of_row = np.repeat(np.tile(np.arange(experts), ranks), table.reshape(-1))
    order = np.argsort(of_row, kind="stable")[: len(tokens)]
    to = np.flatnonzero(order < len(tokens))
    order = order[to]
    rows, index = np.zeros_like(tokens), np.zeros(len(tokens), np.int32)
    moved = np.zeros(len(tokens), np.float32)
    rows[to], index[to] = tokens[order], order
    if scales is not None:
        moved[to] = scales[order]
    return rows, moved, index, table.sum(axis=0, dtype=table.dtype)


def _outputs(given: ops.TorchArguments, _: object) -> tuple[tuple[tuple[int, ...], str], ...]:
    tokens, table = given["tokens"], given[TABLE]
    rows = (tokens.shape[0],)
    counts = (table.shape[1:], table.dtype)
    return (tokens.shape, tokens.dtype), (rows, "float32"), (rows, "int32"), counts


OPERATOR = ops.Operator(
    kernel_type="MoeReRouting",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=(TABLE,),
    torch=(
        ops.TorchFunction(
            schema="npu_moe_re_routing(Tensor tokens, Tensor expert_token_num_per_rank, *, "
            "Tensor? per_token_scales=None, int expert_token_num_type=1, int idx_type=0, "
            "int? tokens_dtype=None) -> (Tensor, Tensor, Tensor, Tensor)",
            aclnn=lambda _: "aclnnMoeReRouting",
            outputs=_outputs,
            absent=("tokens_dtype",),
        ),
    ),
)
