"""npu_interleave_rope: rotary position embedding of pairs that are neighbours.

.. code-block:: text

    e, o = x[0::2], x[1::2]
    y[j]        = e[j] * cos[j] + -o[j] * sin[j]                      j < 32
    y[j + 32]   = o[j] * cos[j + 32] + e[j] * sin[j + 32]

for each head of x, `(batch, heads, tokens, 64)`. The pairs are split: first all even, then all odd
elements. All is fp32, rounded after each product and sum, and at the end to nearest, ties to even.

============  ==================================================================================
template      what a core processes
============  ==================================================================================
BN1D          some of 512 or more tokens, for all heads, each with its own row of cos and sin
FIXED_B11D    four of 32 batches of 32 heads of one token
B11D          batches, or some heads and tokens of all batches, which share one row per batch
B1SD          batches in which each token has its own row
============  ==================================================================================

Sources: hicann/ops-transformer posembedding/interleave_rope, op_kernel and op_host. Atlas A2 and
A3; the document names no others. Assumed: B11D multiplies only the existing rows; the kernel
requests twice as many repeats, which lie beyond them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, Array, DType
from npusim.data.integers import ceil_div
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local, PlacesOf
from npusim.kernel import Block, GmView, GmViews, Step, VectorCore, pieces
from npusim.ops import _vocabulary as ops
from npusim.ops._rotary import columns_of_rows

HALVES = tuple(ops.Operands((dtype,), ranks=(4, 4)) for dtype in (FLOAT16, BFLOAT16))
SUPPORT = tuple(ops.Row(on=ops.A2_A3, x=half, cos=half, sin=half) for half in HALVES)
WIDTH, HALF = 64, 32
"""Columns of a head, and pairs in it (DEFAULT_HIDDEN_DIM)."""
LONG = 512
"""From this many tokens on they are split over the cores (MIN_SEQUANCE_LEN)."""
LONG_ROWS = 32
"""Of them, the rows in a loop iteration (ubFactor)."""
FIXED, FIXED_BATCHES = (32, 32, 1), 4
"""Batches, heads and tokens with a special template, and batches of a core in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call."""

    element: DType
    batches: int
    heads: int
    tokens: int
    has_lines: bool
    """Whether each token has its own row of cos and sin, instead of one for the batch."""


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    x, cos, sin = map(contract.operand, ("x", "cos", "sin"))
    contract.require_filled(x)
    batches, heads, tokens, width = x.shape
    contract.require(
        width == WIDTH, f"x must have {WIDTH} columns, not {width}; rotate them with npu_rotary_mul"
    )
    for line in (cos, sin):
        shapes = (batches, 1, tokens, WIDTH), (batches, 1, 1, WIDTH)
        contract.require_shape(line, *shapes, remedy="pass one of a batch or a token")
    contract.require_shape(sin, cos.shape, when=" as cos has", remedy="pass both alike")
    return Problem(
        inputs=(x, cos, sin),
        outputs={"output": TensorSpec(x.shape, x.spec.dtype)},
        element=x.element,
        batches=batches,
        heads=heads,
        tokens=tokens,
        has_lines=cos.shape[2] == tokens and tokens > 1,
    )


# ---- tiling: op_host/interleave_rope_tiling.cpp ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """The share of the batches, or of their rows, on a core."""

    batches: int
    """Batches of a core."""
    rows: int
    """Rows of a core, for each batch and, if tokens have their own cos and sin, head."""
    loop_rows: int
    depth: int = 1
    """Buffers for loads and stores."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Choose a template; only long sequences and few batches are split."""
    cores, ub_bytes = len(spec.vector_cores), spec.cores["aiv"].usable_bytes("ub")
    row_bytes = FLOAT32.nbytes(WIDTH)
    if p.tokens >= LONG and p.has_lines:
        rows = ceil_div(p.tokens, cores)
        return Plan(
            block_dim=ceil_div(p.tokens, rows),
            template="BN1D",
            reason=f"{p.tokens} tokens with lines of their own",
            batches=p.batches,
            rows=rows,
            loop_rows=LONG_ROWS,
            depth=2,
        )
    batches, rows = ceil_div(p.batches, cores), p.heads * p.tokens
    # Assumed: a chip with fewer cores than the template starts uses the general one.
    if (p.batches, p.heads, p.tokens) == FIXED and batches <= FIXED_BATCHES:
        template, batches, most = "FIXED_B11D", FIXED_BATCHES, FIXED_BATCHES * rows
        reason = "32 batches of 32 heads of a token"
    elif p.has_lines:
        template, rows, most = "B1SD", p.tokens, ub_bytes // (row_bytes * 10) // 2
        reason = "each token has a line"
    else:
        template, most = "B11D", (ub_bytes - 4 * row_bytes) // (row_bytes * 6) // 2
        reason = "a batch has a line"
        if p.batches < cores and p.batches < rows:
            batches, rows = p.batches, ceil_div(rows, cores)
            reason += ", and there are fewer than cores"
    whole = p.heads * p.tokens
    blocks = ceil_div(p.batches, batches) if batches < p.batches or rows >= whole else 0
    return Plan(
        block_dim=blocks or ceil_div(whole, rows),
        template=template,
        reason=reason,
        batches=batches,
        rows=rows,
        loop_rows=min(rows, most) if template != "FIXED_B11D" else most,
    )


# ---- kernel: op_kernel/interleave_rope_{split_s,b11d,b1sd,fixed_bnsd_b11d}.h ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Load rows of cos and sin first, then rotate the rows that they apply to, loop by loop."""
    kernel = Rope(VectorCore("npu_interleave_rope", spec), p, plan)
    turns = _long_turns(p, plan) if p.has_lines else _short_turns(p, plan)
    core, top, lines, first, rows, *ends = np.array(turns, np.int64).T
    x, y = (
        GmView.of(name, p.element, p.batches * p.heads * p.tokens, WIDTH)
        for name in ("x", "output")
    )
    of_lines = [GmView.of(name, p.element, top.max() + lines.max(), WIDTH) for name in LINES]
    columns = [GmViews.of(view, first, 0, rows, WIDTH) for view in (x, y)]
    columns += [GmViews.of(view, top, 0, lines, WIDTH) for view in of_lines]
    is_first, is_last = (each.astype(np.bool_) for each in ends)
    return kernel.core.launch(
        Step(kernel.turn, (*columns, is_first, is_last), core, keeps_slots=True)
    )


LINES = ("cos", "sin")
PAIRS: tuple[PlacesOf, ...] = ("even", "odd")
Turn = tuple[int, int, int, int, int, bool, bool]
"""Core, first and number of rows of cos and sin, first row and rows, and whether the former are
loaded before, and released after."""


def _long_turns(p: Problem, plan: Plan) -> list[Turn]:
    """Some tokens at a time, for one head after the other."""
    found = []
    of_tokens = list(enumerate(pieces(p.tokens, plan.rows)))
    for batch in range(p.batches):
        for part, (first, count) in of_tokens:
            core = part if plan.template == "BN1D" else batch // plan.batches
            for token, rows in pieces(count, plan.loop_rows):
                top = batch * p.tokens + first + token
                for head in range(p.heads):
                    row = (batch * p.heads + head) * p.tokens + first + token
                    ends = head == 0, head == p.heads - 1
                    found.append((core, top, rows, row, rows, *ends))
    return found


def _short_turns(p: Problem, plan: Plan) -> list[Turn]:
    """Heads and tokens of a batch, some at a time; several batches if all fit."""
    found, whole = [], p.heads * p.tokens
    if plan.template == "FIXED_B11D":
        rows = FIXED_BATCHES * whole
        return [
            (core, core * FIXED_BATCHES, FIXED_BATCHES, core * rows, rows, True, True)
            for core in range(plan.block_dim)
        ]
    for batch in range(p.batches):
        for part, (first, count) in enumerate(pieces(whole, plan.rows)):
            core = part if plan.rows < whole else batch // plan.batches
            loops = list(pieces(count, plan.loop_rows))
            for number, (row, rows) in enumerate(loops):
                ends = number == 0, number == len(loops) - 1
                found.append((core, batch, 1, batch * whole + first + row, rows, *ends))
    return found


class Rope:
    """The buffers of a core, and its stage."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core = core
        lines = plan.loop_rows if p.has_lines else FIXED_BATCHES
        size = plan.loop_rows * WIDTH
        self.x = core.vecin(p.element, size, plan.depth)
        self.lines = tuple(core.vecin(p.element, lines * WIDTH, plan.depth) for _ in LINES)
        self.wide = tuple(core.tile(FLOAT32, lines * WIDTH) for _ in LINES)
        self.narrow = tuple(core.tile(p.element, size // 2) for _ in LINES)
        self.pairs = tuple(core.tile(FLOAT32, size // 2) for _ in LINES)
        self.sums = tuple(core.tile(FLOAT32, size) for _ in LINES)
        self.y = core.vecout(p.element, size, plan.depth)

    def turn(
        self, x: GmView, y: GmView, cos: GmView, sin: GmView, is_first: bool, is_last: bool
    ) -> None:
        """Rotate *x* `(rows, 64)` by lines `(rows, 64)`, or fewer, each for equally many rows."""
        core, count = self.core, x.rows * WIDTH
        if is_first:
            for queue, view, wide in zip(self.lines, (cos, sin), self.wide, strict=True):
                core.cast(wide[: cos.rows * WIDTH], core.load_rows(queue, view)[: cos.rows * WIDTH])
        tile = core.load_rows(self.x, x)
        with core.independent():
            for places, narrow in zip(PAIRS, self.narrow, strict=True):
                core.gather_mask(places, narrow[: count // 2], tile[:count])
        pairs = [each[: count // 2] for each in self.pairs]
        for wide, narrow in zip(pairs, self.narrow, strict=True):
            core.cast(wide, narrow[: count // 2])
        self.x.free(tile)
        first, second = (each[:count] for each in self.sums)
        self._multiply(first, pairs, self.wide[0], cos.rows)
        core.mul(pairs[1], pairs[1], -1.0)
        self._multiply(second, pairs[::-1], self.wide[1], cos.rows)
        core.add(first, first, second)
        out = self.y.alloc()
        core.cast(out[:count], first, "rint")
        core.store_rows(self.y, out, y)
        if is_last:
            for queue in self.lines:
                queue.free(*queue.in_use)

    def _multiply(self, dst: Local, pairs: list[Local], line: Local, lines: int) -> None:
        """Both halves of *dst* `(rows, 64)` = *pairs* `(rows, 32)` x those of *line*."""
        rows = dst.count // WIDTH
        # One line for all rows, one for each, or one for each group of equally many.
        parts = 1 if lines == rows else lines
        with self.core.independent():
            for part, (row, count) in enumerate(pieces(rows, rows // parts)):
                own = line.at(part * WIDTH, lines // parts * WIDTH)
                for side, of in enumerate(pairs):
                    here = range(side * HALF, (side + 1) * HALF)
                    to = columns_of_rows(dst.at(row * WIDTH, count * WIDTH), WIDTH, here)
                    factors = columns_of_rows(of.at(row * HALF, count * HALF), HALF, range(HALF))
                    turns = columns_of_rows(own, WIDTH, here)
                    for result, factor, turn in zip(to, factors, turns, strict=True):
                        again = turn
                        if turn.count < factor.count:
                            again = replace(turn, count=factor.count, repeat_stride=0)
                        self.core.mul(result, factor, again)


# ---- oracle ----


def oracle(given: ops.Given) -> Array:
    """Whole arrays in plain numpy."""
    x, cos, sin = (each.astype(np.float32) for each in (given.x, given.cos, given.sin))
    even, odd = x[..., 0::2], x[..., 1::2]
    with np.errstate(all="ignore"):
        first = np.concatenate((even, odd), axis=-1) * cos
        second = np.concatenate((-odd, even), axis=-1) * sin
        return given.rounded(first + second, given.x.dtype)


OPERATOR = ops.Operator(
    kernel_type="InterleaveRope",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(
        ops.TorchFunction(
            schema="npu_interleave_rope(Tensor x, Tensor cos, Tensor sin) -> Tensor",
            aclnn=lambda _: "aclnnInterleaveRope",
            outputs=lambda given, _: ((given["x"].shape, given["x"].dtype),),
        ),
    ),
)
