"""npu_moe_gating_top_k_softmax: the best experts of each token by softmax, and their weights.

.. code-block:: text

    p          = e / sum(e), e = exp(x - max(x))
    y          = the k largest elements of p, of equal ones the first
    expert_idx = their columns; the number of columns if the row is finished
    row_idx    = j * rows + row for choice j; on Atlas inference row * k + j

float16 is calculated in float16, bfloat16 and float32 in float32, rounded after each step. y of
bfloat16 is rounded to nearest, halves away from zero. Sums are taken over repeats of 256 bytes,
pairwise over neighbours, and these sums are added one after the other. NaN ranks above all values,
see :mod:`npusim.isa.sorting`.

On Atlas inference float16 is calculated in float32: e times 1 / sum(e), rounded to float16, by
which rows are sorted. The sum first adds columns 64 apart, one after the other, and then
neighbours. Its kernel does not read finished, and every AI core computes all rows, so vllm-ascend
passes 1024 at a time; the module `coupled` has its sources.

Sources: ops-transformer@c29bc10 moe/moe_gating_top_k_softmax, op_kernel and op_host; asc-devkit,
TopK.md, for finished rows. Assumed: the order of the sum, which is that of ReduceSum; that float16
is sorted as float32; that the scalar unit reads whether a row is finished from global memory and
multiplies by it; and where the barriers are.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT8, Array
from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import FLOATS_PER_REPEAT, ScalarLoadGlobal
from npusim.kernel import Block, GmView, Step, VectorCore, bindings
from npusim.kernel.sequences import count_up
from npusim.kernel.steps import tiles
from npusim.ops import _vocabulary as ops
from npusim.ops._gates import NOTHING, Plan, Scores, descending, row_sums
from npusim.ops._sorting import Sorter, padded
from npusim.ops.npu_moe_gating_top_k_softmax import coupled
from npusim.ops.npu_moe_gating_top_k_softmax.check import SUPPORT, CoupledPlan, Problem, check
from npusim.ops.npu_moe_gating_top_k_softmax.check import coupled as coupled_plan

# ---- tiling ----


def tile(spec: DeviceSpec, p: Problem) -> Plan | CoupledPlan:
    """Split rows evenly over the vector cores.

    The vendor has templates for few columns, for rows that fit and for longer ones
    (ops-transformer@c29bc10 moe/moe_gating_top_k_softmax); all rows are handled here like those
    that fit, which is assumed.
    """
    if spec.series in ops.ATLAS_INFERENCE:
        return coupled_plan(spec, p)
    rows = ceil_div(p.rows, len(spec.vector_cores))
    return Plan(block_dim=ceil_div(p.rows, rows), rows_per_core=rows)


# ---- kernel: op_kernel; a row is sorted whole, with its column indices ----

DONE, GOES_ON = "done", "goes_on"
"""Registers."""


def build(spec: DeviceSpec, p: Problem, plan: Plan | CoupledPlan) -> tuple[Block, ...]:
    """A run of rows for each core, which counts them to give the destination of each row."""
    if isinstance(plan, CoupledPlan):
        return coupled.build(spec, p, plan)
    core = VectorCore("gating_top_k_softmax", spec)
    gate = GatingSoftmax(core, p)
    views = [
        GmView.of("x", p.element, p.rows, p.experts),
        GmView.of("output", p.element, p.rows, p.k),
        *(GmView.of(name, INT32, p.rows, p.k) for name in ("expert_idx", "row_idx")),
    ]
    if p.has_finished:
        views.append(GmView.of("finished", UINT8, p.rows, 1))
    rows, cores = np.arange(p.rows), np.arange(plan.block_dim)
    begin = Step(gate.begin, (cores * plan.rows_per_core,), cores, np.full(cores.size, -1))
    columns = tuple(tiles(view, 1, view.columns) for view in views)
    step = Step(gate.row, columns, rows // plan.rows_per_core)
    return core.launch(begin, step, bound=lambda _: bindings(*views))


class GatingSoftmax:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem) -> None:
        self.core, self.p = core, p
        is_half = p.element is FLOAT16
        self.x, self.y = core.vecin(p.element, p.experts), core.vecout(p.element, p.k)
        self.chosen, self.rows = core.vecout(INT32, p.k), core.vecout(INT32, p.k)
        lanes = padded(p.experts)
        self.keys = core.tile(FLOAT32, lanes)
        self.half = core.tile(FLOAT16, p.experts) if is_half else None
        """A row of float16, which is calculated in its own type."""
        self.steps = Scores(core, p.experts, FLOAT16 if is_half else FLOAT32)
        self.sorter = Sorter(core, lanes)
        self.columns = core.tile(INT32, lanes)
        self.best, self.places = core.tile(FLOAT32, p.k), core.tile(INT32, p.k)
        """The latter is the destination of the row for each choice."""

    def begin(self, first_row: int) -> None:
        """Set up what all rows of a core share, and the destinations for its first row."""
        self.core.duplicate(self.keys, NOTHING)
        count_up(self.core, self.columns)
        count_up(self.core, self.places, first_row, self.p.rows)

    def row(
        self, x: GmView, y: GmView, chosen: GmView, rows: GmView, finished: GmView | None = None
    ) -> None:
        """Find the best *k* of *x* `(1, experts)`."""
        core, keys = self.core, self.keys[: self.p.experts]
        tile = core.load_rows(self.x, x)
        own = keys if self.half is None else self.half
        core.convert(own, tile)
        if own is self.half:
            core.cast(keys, own)
        self.x.free(tile)
        self.steps.exponential(own, keys)
        self.steps.divide_by_total(own)
        if own is self.half:
            core.cast(keys, own)
        self.sorter.sort(self.keys, self.columns)
        self._store_best(y)
        self._store_experts(chosen, finished)
        # Advance the destinations from this row to the next.
        out = self.rows.alloc()
        core.copy(out, self.places)
        core.add(self.places, self.places, 1)
        core.store_rows(self.rows, out, rows)

    def _store_best(self, y: GmView) -> None:
        self.sorter.take_keys(self.best)
        out = self.y.alloc()
        self.core.convert(out, self.best, "rint" if y.dtype is FLOAT16 else "round")
        self.core.store_rows(self.y, out, y)

    def _store_experts(self, chosen: GmView, finished: GmView | None) -> None:
        """Store the columns of the best; the number of columns if the row is finished."""
        core, experts = self.core, self.chosen.alloc()
        self.sorter.take_indices(experts)
        if finished is not None:
            core.emit(ScalarLoadGlobal(DONE, finished.operand, UINT8))
            core.alu("eq", GOES_ON, DONE, 0)
            core.alu("sub", DONE, 1, GOES_ON)
            core.alu("mul", DONE, DONE, self.p.experts)
            core.mul(experts, experts, GOES_ON)
            core.add(experts, experts, DONE)
        core.store_rows(self.chosen, experts, chosen)


# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array, Array]:
    """Weights, experts and row destinations, each `(..., k)`."""
    x, finished, k = given.x, given.finished, given.k
    if given.spec is not None and given.spec.series in ops.ATLAS_INFERENCE:
        return _coupled(given)
    shape = (*x.shape[:-1], k)
    wide = x.reshape(-1, x.shape[-1])
    if x.dtype != np.float16:
        wide = wide.astype(np.float32)
    with np.errstate(all="ignore"):
        scores = _softmax(wide)
        # NaN ranks above all, and -0 does not occur.
        ranks = np.where(np.isnan(scores), np.float32(np.inf), scores.astype(np.float32))
        experts = descending(ranks)[:, :k]
        weights = np.take_along_axis(scores, experts, axis=-1)
    if finished is not None:
        experts = np.where(finished.reshape(-1, 1) != 0, x.shape[-1], experts)
    rows = len(wide)
    places = np.arange(k) * rows + np.arange(rows)[:, None]
    results = (_half_away(weights, x), experts.astype(np.int32), places.astype(np.int32))
    weights, experts, places = (each.reshape(shape) for each in results)
    return weights, experts, places


def _coupled(given: ops.Given) -> tuple[Array, Array, Array]:
    """The same for Atlas inference, in float32 up to the weights."""
    x, k = given.x, given.k
    wide = x.reshape(-1, x.shape[-1]).astype(np.float32)
    with np.errstate(all="ignore"):
        apart = wide - np.max(wide, axis=-1, keepdims=True)
        exponential = np.exp(apart.astype(np.float64)).astype(np.float32)
        inverse = np.float32(1) / _lane_sums(exponential)
        scores = given.rounded(exponential * inverse[:, None], x.dtype)
    experts = descending(scores.astype(np.float32))[:, :k]
    weights = np.take_along_axis(scores, experts, axis=-1)
    places = np.arange(len(wide) * k, dtype=np.int32)
    shape = (*x.shape[:-1], k)
    return weights.reshape(shape), experts.astype(np.int32).reshape(shape), places.reshape(shape)


def at_once(given: ops.Given, *_: object) -> tuple[Array, ...] | None:
    """The same, without a NaN."""
    found = oracle(given)
    return None if np.isnan(found[0]).any() else found


def _lane_sums(x: Array) -> Array:
    """Add columns 64 apart one after the other, then neighbours pairwise."""
    total = np.zeros((len(x), FLOATS_PER_REPEAT), np.float32)
    for start in range(0, x.shape[1], FLOATS_PER_REPEAT):
        part = x[:, start : start + FLOATS_PER_REPEAT]
        total[:, : part.shape[1]] += part
    while total.shape[1] > 1:
        total = total[:, 0::2] + total[:, 1::2]
    return np.asarray(total[:, 0])


def _softmax(x: Array) -> Array:
    """In the type of *x*, float32 or float16, rounded to it after each step."""
    apart = x - np.max(x, axis=-1, keepdims=True)
    exponential = np.exp(apart.astype(np.float64)).astype(x.dtype)
    return np.asarray(exponential / row_sums(exponential)[:, None])


def _half_away(weights: Array, x: Array) -> Array:
    """*weights* in the type of *x*; halves round away from zero for bfloat16."""
    if weights.dtype == x.dtype:
        return weights
    bits = weights.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x8000) >> 16).astype(np.uint16).view(x.dtype)
    return np.where(np.isnan(weights), weights.astype(x.dtype), rounded)


def _outputs(given: ops.TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
    x = given["x"]
    shape = (*x.shape[:-1], given["k"])
    return (shape, x.dtype), (shape, "int32"), (shape, "int32")


TORCH = ops.TorchFunction(
    schema="npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) -> "
    "(Tensor, Tensor, Tensor)",
    aclnn=lambda _: "aclnnMoeGatingTopKSoftmax",
    outputs=_outputs,
)

OPERATOR = ops.Operator(
    kernel_type="MoeGatingTopKSoftmax",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=at_once,
    torch=(TORCH,),
)
