"""The program that each core runs for npu_apply_rotary_pos_emb.

The heads of query and key of a few tokens lie behind each other in the buffer. Their halves change
places; then, token by token, what was turned takes the sines and what was not the cosines of the
token, which one instruction repeats for all heads. Results go back to where the numbers came from.

ops-transformer@c29bc10 posembedding/apply_rotary_pos_emb/op_kernel,
apply_rotary_pos_emb_{small,compute_ab,compute_ab_cast}.h. Assumed: the order of the micro-ops of
several tokens, which small, with one, does not tell.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.data.dtypes import BFLOAT16, FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import MAX_REPEATS, Binary, BinaryScalar, Cast, Global, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.halves import columns_of_rows, exchange, half_of_rows
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, load, repeat
from npusim.ops.npu_apply_rotary_pos_emb.contract import Problem
from npusim.ops.npu_apply_rotary_pos_emb.tiling import Plan

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many tokens share their program."""
    kernel = ApplyRotary(spec, p, plan)
    programs: dict[int, Program] = {}
    blocks: list[Block] = []
    for core, (first, tokens) in enumerate(pieces(p.tokens, plan.tokens_per_core)):
        if tokens not in programs:
            programs[tokens] = kernel.program(tokens)
        bound = bindings(*(view[first:, :] for view in _views(p)))
        blocks.append(Block(core, spec.vector_cores[core], programs[tokens], bound))
    return tuple(blocks)


def _views(p: Problem) -> list[GmView]:
    """query, key, cos and sin, each as `(tokens, heads * width)`."""
    return [
        GmView.of(operand.name, p.element, p.tokens, operand.spec.size // p.tokens)
        for operand in p.inputs
    ]


class ApplyRotary:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan = p, plan
        self.builder = builder = Builder(
            "npu_apply_rotary_pos_emb", spec.cores[spec.vector_kinds[0]], spec.sync
        )
        heads, line = plan.loaded_tokens * p.heads * p.width, plan.loaded_tokens * p.width
        computed = plan.computed_tokens * p.heads * p.width
        nbytes = p.element.nbytes
        self.x = builder.queue("ub", nbytes(heads), "mte2", "vector", plan.depth)
        self.cos = builder.queue("ub", nbytes(line), "mte2", "vector", plan.depth)
        self.sin = builder.queue("ub", nbytes(line), "mte2", "vector", plan.depth)
        self.is_cast = p.element is BFLOAT16
        self.work = p.computed_in
        self.turned = builder.claim("ub", self.work.nbytes(computed))
        self.values = builder.claim("ub", self.work.nbytes(computed))
        """x in float32, or x times the cosines."""
        self.lines: tuple[Slot, ...] = ()
        """Cosines and sines in float32."""
        if self.is_cast:
            # (tokens, width) each
            self.lines = tuple(builder.claim("ub", FLOAT32.nbytes(line)) for _ in range(2))
        self.y = builder.queue("ub", nbytes(heads), "vector", "mte3")

    def program(self, tokens: int) -> Program:
        """*tokens* tokens, from where the block's tensors begin."""
        views = _views(self.p)
        for first, count in pieces(tokens, self.plan.loaded_tokens):
            repeat(self.builder, self._tokens, *(view[first : first + count, :] for view in views))
        return self.builder.build()

    def _tokens(self, query: GmView, key: GmView, cos: GmView, sin: GmView) -> None:
        """Turn a few tokens: *query* and *key* `(tokens, heads * width)`, the others one line."""
        builder, queues, views = self.builder, (self.cos, self.sin), (cos, sin)
        slots = [load(builder, queue, view) for queue, view in zip(queues, views, strict=True)]
        slot, out = self._load_heads(query, key), self.y.alloc()
        # (tokens, width) each
        cosines, sines = (self._line(index, slots[index], cos.rows) for index in range(2))
        for left in half_of_rows(sines, self.p.width, 0):
            builder.emit(BinaryScalar("mul", left, left, -1.0))
        builder.barrier("vector")
        for first, count in pieces(query.rows, self.plan.computed_tokens):
            for row, heads in self._planes(query.rows, first):
                here = slice(first * self.p.width, (first + count) * self.p.width)
                lines = [line.at(here.start, count * self.p.width) for line in (cosines, sines)]
                self._turn(slot, out, row, heads, *lines)
        self.x.free(slot)
        for queue, each in zip(queues, slots, strict=True):
            queue.free(each)
        self._store_heads(out, query, key)

    def _planes(self, tokens: int, first: int) -> list[tuple[int, int]]:
        """Where the heads of token *first* of *tokens* begin in the buffer, and how many follow.

        All queries lie before all keys; those of a single token are one run.
        """
        p = self.p
        if tokens == 1:
            return [(0, p.heads)]
        keys = tokens * p.query_heads + first * p.key_heads
        return [(first * p.query_heads, p.query_heads), (keys, p.key_heads)]

    def _line(self, index: int, slot: Slot, tokens: int) -> Local:
        """The cosines or sines in *slot*, `(tokens, width)`, in the type that is computed in."""
        line = slot.of(self.p.element, tokens * self.p.width)
        if not self.is_cast:
            return line
        widened = self.lines[index].of(FLOAT32, line.count)
        step(self.builder, Cast(widened, line))
        return widened

    def _turn(self, x: Slot, y: Slot, row: int, heads: int, cos: Local, sin: Local) -> None:
        """Turn the *heads* heads a token that begin at *row* of *x*, by *cos* and *sin*, into *y*.

        *x* and *y* are `(rows, width)`, *cos* and *sin* `(tokens, width)`.
        """
        p, builder = self.p, self.builder
        count, start_bytes = heads * cos.count, p.element.nbytes(row * p.width)
        # (tokens * heads, width) each
        source, result = (slot.of(p.element, count, start_bytes) for slot in (x, y))
        values, turned = (slot.of(self.work, count) for slot in (self.values, self.turned))
        if self.is_cast:
            step(builder, Cast(values, source))
            source = values
        exchange(builder, turned, source, p.width)
        self._multiply(turned, turned, sin, heads)
        self._multiply(values, source, cos, heads)
        builder.barrier("vector")
        # The sum of both products, (tokens * heads, width).
        if self.is_cast:
            step(builder, Binary("add", values, turned, values))
            # Ties go away from zero here, as they do in no other of these kernels.
            step(builder, Cast(result, values, "round"))
        else:
            step(builder, Binary("add", result, turned, values))

    def _multiply(self, dst: Local, x: Local, line: Local, heads: int) -> None:
        """`dst = x * line`, `(tokens * heads, width)` by the line of each token; no barrier."""
        width = self.p.width
        for token in range(line.count // width):
            turns = line.at(token * width, width)
            for head, count in pieces(heads, MAX_REPEATS):
                rows = (token * heads + head) * width, count * width
                columns = (
                    columns_of_rows(each, width, range(width))
                    for each in (dst.at(*rows), x.at(*rows), turns)
                )
                for result, factor, turn in zip(*columns, strict=True):
                    again = replace(turn, count=factor.count, repeat_stride=0)
                    self.builder.emit(Binary("mul", result, factor, again))

    # ---- copies ----

    def _load_heads(self, query: GmView, key: GmView) -> Slot:
        """*query* and, behind it, *key*, in one slot: `(tokens * heads, width)`."""
        slot = self.x.alloc()
        for view, start_bytes in ((query, 0), (key, query.nbytes)):
            src = Global(view.name, view.offset_bytes, view.nbytes)
            self.builder.data_copy(slot.of(view.dtype, view.rows * view.columns, start_bytes), src)
        self.x.enque(slot)
        return self.x.deque()

    def _store_heads(self, slot: Slot, query: GmView, key: GmView) -> None:
        """What is in *slot* back to *query* and *key*, and free it."""
        self.y.enque(slot)
        slot = self.y.deque()
        for view, start_bytes in ((query, 0), (key, query.nbytes)):
            dst = Global(view.name, view.offset_bytes, view.nbytes)
            self.builder.data_copy(dst, slot.of(view.dtype, view.rows * view.columns, start_bytes))
        self.y.free(slot)
