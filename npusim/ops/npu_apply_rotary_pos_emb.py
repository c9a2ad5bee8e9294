"""npu_apply_rotary_pos_emb: rotary position embedding of queries and keys, in place.

.. code-block:: text

    y[j]         = x[j + half] * -sin[j] + x[j] * cos[j]             j < half = width / 2
    y[j + half]  = x[j] * sin[j + half] + x[j + half] * cos[j + half]

for x each head of *query* and *key*. float16 and float32 are computed in their own type, with each
product and sum rounded; bfloat16 is computed in float32 and rounded once at the end, to nearest,
**ties away from zero**. In both 16-bit types the result therefore differs from npu_rotary_mul.

On a card query and key themselves are overwritten, as are tensors of torch here; `npusim.run`
returns new arrays.

Sources: ops-transformer@c29bc10 posembedding/apply_rotary_pos_emb, op_kernel and op_host, and the
operator's document (torch_npu-npu_apply_rotary_pos_emb.md). Vectors of 64 are from a newer kernel
(@05c401f9), with the same rounding; that the rest is equal too is assumed. NaN stays NaN, but on
Atlas inference, where float16 saturates, it becomes 0 (assumed for all three steps).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, Array, DType
from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import MAX_REPEATS, Global, Local
from npusim.kernel import Block, GmView, GmViews, Step, VectorCore, pieces
from npusim.ops import _vocabulary as ops
from npusim.ops._rotary import columns_of_rows, exchange, negate_left
from npusim.ops._vocabulary import A2_A3, ATLAS_INFERENCE, alike, listed

WIDTHS = (64, 128)
"""Widths of vectors: 128 in ops-transformer@c29bc10, 64 too in its successor @05c401f9."""
LAYOUTS = {"BSND": 4, "TND": 3}
"""Layout -> dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: in the kernel query is `(tokens, query_heads, width)`, key likewise."""

    element: DType
    tokens: int
    query_heads: int
    key_heads: int
    width: int

    @property
    def heads(self) -> int:
        """Heads of query and key."""
        return self.query_heads + self.key_heads

    @property
    def computed_in(self) -> DType:
        """bfloat16 is widened."""
        return FLOAT32 if self.element is BFLOAT16 else self.element

    @property
    def moved_bytes(self) -> int:
        """Buffer bytes of a token for copies: its heads are loaded twice, for double buffering, and
        stored once, its cosines and sines loaded twice."""
        return self.element.nbytes((3 * self.heads + 4) * self.width)

    @property
    def computed_bytes(self) -> int:
        """Additional bytes of a token: its heads twice, and widened cosines and sines."""
        lines = 2 if self.element is BFLOAT16 else 0
        return self.computed_in.nbytes((2 * self.heads + lines) * self.width)

    @property
    def alone_bytes(self) -> int:
        """Bytes of a token that shares the buffer with no other, as the vendor's tiling counts."""
        lines = self.element.nbytes(2 * self.width)
        return self.computed_in.nbytes(2 * self.heads * self.width) + lines + self.computed_bytes


SHAPES = {
    "query": "*tokens heads width",
    "key": "*tokens key_heads width",
    "cos": "*tokens 1 width",
    "sin": "*tokens 1 width",
}
ATTRIBUTES: dict[str, Any] = {"layout": tuple(LAYOUTS), "rotary_mode": ("half",)}

SUPPORT = (
    *alike((FLOAT16, BFLOAT16, FLOAT32), *SHAPES, on=A2_A3, shapes=SHAPES, **ATTRIBUTES),
    *alike((FLOAT16, FLOAT32), *SHAPES, on=ATLAS_INFERENCE, shapes=SHAPES, **ATTRIBUTES),
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    spec = contract.spec
    q, k, c, s = map(contract.operand, SHAPES)
    layout = contract.choice("layout")
    contract.choice("rotary_mode")
    for operand in (q, k, c, s):
        contract.require(
            len(operand.shape) == LAYOUTS[layout],
            f"{operand.name} must have {LAYOUTS[layout]} dimensions in layout {layout}, not "
            f"{len(operand.shape)}; reshape it",
        )
    contract.require(
        q.shape[-1] in WIDTHS,
        f"query must have a last dimension of {listed(tuple(map(str, WIDTHS)))}, not "
        f"{q.shape[-1]}; pad or cut it, or use npu_rotary_mul",
    )
    contract.require(
        q.spec.size > 0 and k.spec.size > 0,
        f"query and key must have elements, not shapes {q.shape} and {k.shape}; leave the call out",
    )
    problem = Problem(
        inputs=(q, k, c, s),
        outputs={"query": q.spec, "key": k.spec},
        element=q.element,
        tokens=prod(q.shape[:-2]),
        query_heads=q.shape[-2],
        key_heads=k.shape[-2],
        width=q.shape[-1],
    )
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    need_bytes = problem.moved_bytes + problem.computed_bytes
    if problem.tokens <= len(spec.vector_cores):
        need_bytes = min(need_bytes, problem.alone_bytes)
    contract.require(
        need_bytes <= ub_bytes,
        f"query and key must have so few heads that a token's {problem.heads} fit, with room to "
        f"work, into the {ub_bytes} bytes of the unified buffer, not need {need_bytes}; split the "
        f"heads over several calls",
    )
    return problem


# ---- tiling ----

SMALL, AB, AB_CAST = "small", "ab", "ab_cast"
"""The templates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Each core has its own tokens and processes all heads of a few at a time."""

    tokens_per_core: int
    loaded_tokens: int
    """Tokens that are loaded and stored together."""
    computed_tokens: int
    """Those of them that are computed together."""
    depth: int
    """Buffers of what is loaded."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Tokens are divided evenly; the buffers decide how many are processed at a time.

    ops-transformer@c29bc10 posembedding/apply_rotary_pos_emb/op_host. Assumed: the meaning of its
    sums of bytes, that is, what a token needs twice for double buffering.
    """
    cores = len(spec.vector_cores)
    tokens = ceil_div(p.tokens, cores)
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    used = ceil_div(p.tokens, tokens)
    if tokens == 1 and p.alone_bytes <= ub_bytes:
        template, reason = SMALL, "a token a core, all of whose heads fit the buffer"
        loaded = computed = depth = 1
    else:
        depth = 2
        token_bytes = p.moved_bytes + p.computed_bytes
        computed = min(tokens, ub_bytes // token_bytes)
        spare = 0
        if p.element is not BFLOAT16:
            spare = (ub_bytes - computed * token_bytes) // p.moved_bytes
        loaded = min(tokens, computed + spare)
        template = AB if spare else AB_CAST
        reason = f"the buffer holds {'' if spare else 'no '}more tokens than are computed together"
    return Plan(
        block_dim=used,
        template=template,
        reason=reason,
        tokens_per_core=tokens,
        loaded_tokens=loaded,
        computed_tokens=computed,
        depth=depth,
    )


# ---- kernel: op_kernel, apply_rotary_pos_emb_{small,compute_ab,compute_ab_cast}.h ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """A few tokens at a time; cores with equally many share their program.

    Assumed: the order of the micro-ops of several tokens, which small, with one, does not show.
    """
    core = VectorCore("npu_apply_rotary_pos_emb", spec)
    kernel = ApplyRotary(core, p, plan)
    cuts = [
        (number, first + start, count)
        for number, (first, tokens) in enumerate(pieces(p.tokens, plan.tokens_per_core))
        for start, count in pieces(tokens, plan.loaded_tokens)
    ]
    cores, top, rows = np.array(cuts, np.int64).T
    # query, key, cos and sin, each as (tokens, heads * width)
    views = [
        GmView.of(operand.name, p.element, p.tokens, operand.spec.size // p.tokens)
        for operand in p.inputs
    ]
    columns = tuple(GmViews.of(view, top, 0, rows, view.columns) for view in views)
    return core.launch(Step(kernel.tokens, columns, cores))


class ApplyRotary:
    """The buffers of a core, and its stage.

    The heads of query and key of a few tokens are contiguous in the buffer. Their halves are
    swapped; then, token by token, the swapped heads are multiplied by the sines and the others by
    the cosines of the token, which one instruction repeats for all heads. Results replace their
    operands.
    """

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p, self.plan = core, p, plan
        heads, line = plan.loaded_tokens * p.heads * p.width, plan.loaded_tokens * p.width
        computed = plan.computed_tokens * p.heads * p.width
        self.x = core.vecin(p.element, heads, plan.depth)
        self.cos, self.sin = (core.vecin(p.element, line, plan.depth) for _ in range(2))
        self.turned, self.values = (core.tile(p.computed_in, computed) for _ in range(2))
        """The latter is x in float32, or x times the cosines."""
        self.lines: tuple[Local, ...] = ()
        """Cosines and sines in float32."""
        self.is_cast = p.element is BFLOAT16
        if self.is_cast:
            # (tokens, width) each
            self.lines = tuple(core.tile(FLOAT32, line) for _ in range(2))
        self.y = core.vecout(p.element, heads)

    def tokens(self, query: GmView, key: GmView, cos: GmView, sin: GmView) -> None:
        """Rotate a few tokens: *query* and *key* `(tokens, heads * width)`, the others one line."""
        core, width, queues = self.core, self.p.width, (self.cos, self.sin)
        held = [core.load_rows(*each) for each in zip(queues, (cos, sin), strict=True)]
        x, out = self._load_heads(query, key), self.y.alloc()
        # (tokens, width) each
        cosines, sines = (self._line(index, held[index], cos.rows) for index in range(2))
        negate_left(core, sines, width)
        for first, count in pieces(query.rows, self.plan.computed_tokens):
            lines = [line.at(first * width, count * width) for line in (cosines, sines)]
            for row, heads in self._planes(query.rows, first):
                here = slice(row * width, (row + heads * count) * width)
                self._turn(x[here], out[here], heads, *lines)
        self.x.free(x)
        for queue, tile in zip(queues, held, strict=True):
            queue.free(tile)
        self.y.enque(out)
        out = self.y.deque()
        for to, tile in self._heads(out, query, key):
            core.data_copy(to, tile)
        self.y.free(out)

    def _load_heads(self, query: GmView, key: GmView) -> Local:
        """Load *query* and, after it, *key*, to one tile: `(tokens * heads, width)`."""
        tile = self.x.alloc()
        for of, to in self._heads(tile, query, key):
            self.core.data_copy(to, of)
        self.x.enque(tile)
        return self.x.deque()

    def _heads(self, tile: Local, query: GmView, key: GmView) -> Iterator[tuple[Global, Local]]:
        """*query* and *key* as one run each, with their places in *tile*."""
        first = 0
        for view in (query, key):
            count = view.rows * view.columns
            yield Global(view.name, view.offset_bytes, view.nbytes), tile.at(first, count)
            first += count

    def _planes(self, tokens: int, first: int) -> list[tuple[int, int]]:
        """Offset of the heads of token *first* of *tokens* in the buffer, and their number.

        All queries precede all keys; those of a single token are one run.
        """
        p = self.p
        if tokens == 1:
            return [(0, p.heads)]
        keys = tokens * p.query_heads + first * p.key_heads
        return [(first * p.query_heads, p.query_heads), (keys, p.key_heads)]

    def _line(self, index: int, tile: Local, tokens: int) -> Local:
        """The cosines or sines in *tile*, `(tokens, width)`, in the type of the computation."""
        line = tile[: tokens * self.p.width]
        if not self.is_cast:
            return line
        self.core.cast(self.lines[index][: line.count], line)
        return self.lines[index][: line.count]

    def _turn(self, x: Local, y: Local, heads: int, cos: Local, sin: Local) -> None:
        """Rotate *x*, *heads* heads per token, by *cos* and *sin*, into *y*.

        *x* and *y* are `(tokens * heads, width)`, *cos* and *sin* `(tokens, width)`.
        """
        core, values, turned = self.core, self.values[: x.count], self.turned[: x.count]
        if self.is_cast:
            core.cast(values, x)
            x = values
        exchange(core, turned, x, self.p.width)
        with core.independent():
            self._multiply(turned, turned, sin, heads)
            self._multiply(values, x, cos, heads)
        # The sum of both products.
        if self.is_cast:
            core.add(values, turned, values)
            # Ties round away from zero here, unlike in the other kernels.
            core.cast(y, values, "round")
        else:
            core.add(y, turned, values)

    def _multiply(self, dst: Local, x: Local, line: Local, heads: int) -> None:
        """`dst = x * line`, `(tokens * heads, width)` by the line of each token."""
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
                    self.core.mul(result, factor, again)


# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array]:
    """Rotate query and key `(..., heads, width)` by cos and sin `(..., 1, width)`."""
    cos, sin, spec = given.cos, given.sin, given.spec
    saturates = spec is not None and spec.half_overflow == "saturate"
    return _turned(given.query, cos, sin, saturates), _turned(given.key, cos, sin, saturates)


def _turned(x: Array, cos: Array, sin: Array, saturates: bool) -> Array:
    bf16 = x.dtype == ml_dtypes.bfloat16
    half = x.shape[-1] // 2
    if bf16:
        x, cos, sin = (array.astype(np.float32) for array in (x, cos, sin))
    with np.errstate(all="ignore"):
        signed = np.concatenate((-sin[..., :half], sin[..., half:]), axis=-1)
        swapped = np.concatenate((x[..., half:], x[..., :half]), axis=-1)
        first, second = _kept(swapped * signed, saturates), _kept(x * cos, saturates)
        total = _kept(first + second, saturates)
    return _away_from_zero(total) if bf16 else total


def _kept(values: Array, saturates: bool) -> Array:
    """*values*; float16 without infinities or NaN if the chip has none."""
    if not saturates or values.dtype != np.float16:
        return values
    largest = np.finfo(np.float16).max
    return np.clip(np.where(np.isnan(values), np.float16(0), values), -largest, largest)


def _away_from_zero(values: Array) -> Array:
    """float32 to the nearest bfloat16, ties away from zero."""
    words = values.view(np.uint32)
    # Add half a step in magnitude, then truncate.
    rounded = ((words + np.uint32(0x8000)) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)
    return np.where(np.isnan(values), values.astype(ml_dtypes.bfloat16), rounded)


TORCH = ops.TorchFunction(
    schema="npu_apply_rotary_pos_emb(Tensor query, Tensor key, Tensor cos, Tensor sin, "
    "str layout='BSND', str rotary_mode='half') -> (Tensor, Tensor)",
    aclnn=lambda _: "aclnnApplyRotaryPosEmb",
    outputs=lambda given, _: tuple(
        (given[name].shape, given[name].dtype) for name in ("query", "key")
    ),
    into=("query", "key"),
)

OPERATOR = ops.Operator(
    kernel_type="ApplyRotaryPosEmb",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(TORCH,),
)
