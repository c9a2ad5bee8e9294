"""npu_swiglu_quant: SwiGLU of each row, then int8 or int4, smoothed by group.

.. code-block:: text

    a, b = the halves of f32(x), the second one activated unless activate_left
    z = (a / (exp(-a) + 1)) * b
    quant_mode 1    z = z * smooth_scales[group],  scale = 127 / max|z| of the row;  int4: 7
                    y = fit(round(z * scale))
    quant_mode 0    y = fit(round(z * smooth_scales[group] + offsets[group])),  scale = 0

All in fp32, rounded after each operation to nearest, ties to even; *fit* saturates and turns NaN
into 0. The precision of Exp is not public: the nearest value is assumed. The scale is the factor by
which values were multiplied: the inverse of what npu_dynamic_quant returns.

* A row belongs to the first group that ends after it: group_index holds ends, or with
  group_list_type 1 counts. Rows after the last end are neither smoothed nor, with quant_mode 0,
  scaled; without a group_index all rows are one group (assumed).
* A row of zeros gives zeros, and an infinite scale; one with an infinity zeros and scale 0.
* dst_type=quint4x2 packs two elements into a byte, and gives int8 with half as many columns.
* smooth_scales must be given: without them the kernel reads an invalid address. A scalar for each
  group is for quant_mode 0 only, since the kernel of the other mode reads whole rows.

Sources: ops-nn@e5c3fa9 quant/swi_glu_quant, op_kernel and op_host; op-plugin@517f2e7 for the
function. Atlas inference has no such kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, INT32, Array, DType
from npusim.data.errors import Code
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local
from npusim.kernel import (
    FLOATS_PER_BLOCK,
    Block,
    GmView,
    Step,
    VectorCore,
    share,
    sync_all,
)
from npusim.kernel.rectangles import RowPieces
from npusim.kernel.reduction import Reduction
from npusim.kernel.rows import whole_blocks
from npusim.ops import _vocabulary as ops
from npusim.ops._row_groups import (
    Groups,
    GroupSearch,
    check_group_index,
    groups_by_end,
    groups_of_pieces,
)
from npusim.ops._row_quant import LARGEST, clamped, read_quotient
from npusim.ops._swiglu_quant import check_halves, halves_of, swiglu_of
from npusim.ops._swish import exp_plus_1
from npusim.ops._vocabulary import A2_A3, Operands, Row, present, required

# ---- what is accepted ----

TARGETS = {"int8": INT8, "quint4x2": INT4}
MAX_COLUMNS = 8192
"""Most columns of x (op-plugin, and the document of aclnn)."""
STATIC, DYNAMIC = 0, 1
"""quant_mode."""
ENDS, COUNTS = 0, 1
"""group_list_type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: x is `(rows, 2 x columns)` to the kernel, y `(rows, columns)`."""

    x: Operand
    smooth_scales: Operand
    """`(groups, columns)`, or `(groups,)` with quant_mode 0."""
    offsets: Operand | None
    """Like the smooth scales, with quant_mode 0."""
    group_index: Operand | None
    target: DType
    activate_left: bool
    is_dynamic: bool
    holds_counts: bool
    """Whether group_index has the row count of each group instead of the row after its last."""

    @property
    def rows(self) -> int:
        return prod(self.x.shape[:-1])

    @property
    def columns(self) -> int:
        """Columns of y: half of those of x."""
        return self.x.shape[-1] // 2

    @property
    def groups(self) -> int:
        return self.smooth_scales.shape[0]

    @property
    def group_of(self) -> Array:
        """`(rows,)`: the first group that ends after each row, `groups` after the last one.

        An even split for timing alone; without a group_index there is one group.
        """
        if self.group_index is None:
            return np.zeros(self.rows, np.int64)
        return groups_by_end(self.group_index, self.rows, holds_counts=self.holds_counts)


SUPPORT = (
    Row(
        on=A2_A3,
        x=Operands((FLOAT16, BFLOAT16, FLOAT32), ranks=(2, 8)),
        # Without them the kernel reads an invalid address.
        smooth_scales=required(FLOAT32),
        offsets=FLOAT32,
        group_index=INT32,
        quant_mode=(STATIC, DYNAMIC),
        group_list_type=(ENDS, COUNTS),
        dst_type=tuple(TARGETS),
    ),
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    tokens = contract.operand("x")
    check_halves(contract, tokens)
    contract.require(
        tokens.shape[-1] <= MAX_COLUMNS,
        f"the last dimension of x must be at most {MAX_COLUMNS}, not {tokens.shape[-1]}; call "
        f"npu_swiglu and npu_dynamic_quant",
    )
    mode, kind = contract.integer("quant_mode"), contract.integer("group_list_type")
    left = contract.boolean("activate_left")
    target = TARGETS["int8" if contract.value("dst_type") is None else contract.choice("dst_type")]
    columns = tokens.shape[-1] // 2
    contract.require(
        target is INT8 or columns % 2 == 0,
        f"the last dimension of x must be a multiple of 4 with dst_type='quint4x2', not "
        f"{2 * columns}; pad both halves",
    )
    smooth, points = contract.operand("smooth_scales"), contract.optional("offsets")
    index = contract.optional("group_index")
    if index is not None:
        check_group_index(contract, index)
    _check_smooth(contract, tokens, smooth, index, is_dynamic=mode == DYNAMIC)
    _check_offsets(contract, smooth, points, is_dynamic=mode == DYNAMIC)
    points = None if mode == DYNAMIC else points
    whole = (*tokens.shape[:-1], columns if target is INT8 else columns // 2)
    return Problem(
        inputs=present(tokens, smooth, points, index),
        outputs={
            "output": TensorSpec(whole, "int8"),
            "scale": TensorSpec(tokens.shape[:-1], "float32"),
        },
        x=tokens,
        smooth_scales=smooth,
        offsets=points,
        group_index=index,
        target=target,
        activate_left=left,
        is_dynamic=mode == DYNAMIC,
        holds_counts=kind == COUNTS,
    )


def _check_smooth(
    contract: ops.Contract, x: Operand, smooth: Operand, index: Operand | None, *, is_dynamic: bool
) -> None:
    groups = index.shape[0] if index is not None else 1
    known = [(groups, x.shape[-1] // 2)] + [(groups,)] * (not is_dynamic)
    contract.require(
        smooth.shape in known,
        f"smooth_scales must have shape {' or '.join(map(str, known))} with quant_mode="
        f"{int(is_dynamic)}, not {smooth.shape}; pass the scales of each group",
        Code.TILING_ERROR,
    )


def _check_offsets(
    contract: ops.Contract, smooth: Operand, offsets: Operand | None, *, is_dynamic: bool
) -> None:
    if is_dynamic and offsets is not None:
        contract.warn(
            "offsets should be None with quant_mode=1, where no kernel reads them; leave them out"
        )
    came = offsets.shape if offsets is not None else None
    contract.require(
        is_dynamic or came == smooth.shape,
        f"offsets must have the shape of smooth_scales, {smooth.shape}, with quant_mode=0, not "
        f"{came}; pass an offset for each scale",
    )


# ---- tiling: op_host/swi_glu_quant_tiling.cpp ----

MAX_PIECE_ROWS = 255
BYTES_OF_COLUMN = 25
"""Bytes of the buffer for an element of y: twice x, y, and five of fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Each core processes its own rows in pieces of whole rows; all buffers are single."""

    rows_of_core: tuple[int, ...]
    row_step: int


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split rows over all vector cores, the first of which take one more.

    ops-nn@e5c3fa9 quant/swi_glu_quant/op_host/swi_glu_quant_tiling.cpp.
    """
    cores = min(p.rows, len(spec.vector_cores))
    rows = tuple(len(share(p.rows, cores, core)) for core in range(cores))
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    columns = whole_blocks(p.columns, p.x.element)
    fitting = ub_bytes // BYTES_OF_COLUMN // columns
    row_step = max(1, min(MAX_PIECE_ROWS, fitting, rows[0]))
    return Plan(block_dim=cores, rows_of_core=rows, row_step=row_step)


# ---- kernel: op_kernel/swi_glu_quant.h, _static.h and _base.h ----

STARTED = 0
"""Flag of all cores: each has read the group_index."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """SwiGLU handles all rows of a piece in one instruction; the rest goes row by row.

    The largest magnitude of each row passes through the scalar unit. Assumed: the order of the
    buffers.
    """
    kernel = SwiGluQuant(VectorCore("npu_swiglu_quant", spec), p, plan)
    x = GmView.of("x", p.x.element, p.rows, 2 * p.columns)
    y = GmView.of("output", p.target, p.rows, p.columns)
    scale = GmView.vector("scale", FLOAT32, p.rows)
    pieces = RowPieces.of(plan.rows_of_core, plan.row_step)
    views = tuple(map(pieces.views, (x, y, scale)))
    step = Step(kernel.piece, (*views, *groups_of_pieces(p.group_of, pieces)), pieces.core)
    return kernel.core.launch(step, begin=kernel.begin)


class SwiGluQuant:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p = core, p
        dtype, columns = p.x.element, p.columns
        self.pitch = whole_blocks(columns, dtype)
        """Elements between rows in the buffer."""
        self.y_pitch = whole_blocks(columns, p.target)
        size = plan.row_step * self.pitch
        self.a_in, self.b_in = core.vecin(dtype, size), core.vecin(dtype, size)
        self.y_out = core.vecout(p.target, plan.row_step * self.y_pitch)
        self.scale_out = core.tiles(FLOAT32, plan.row_step, "scalar", "mte3")
        self.values, self.work = (core.tile(FLOAT32, size) for _ in range(2))
        self.smooth, self.offset = (core.tile(FLOAT32, columns) for _ in range(2))
        self.row, self.magnitudes = (core.tile(FLOAT32, columns) for _ in range(2))
        self.largest, self.absmax = (core.tile(FLOAT32, FLOATS_PER_BLOCK) for _ in range(2))
        self.factor = core.tiles(FLOAT32, FLOATS_PER_BLOCK, "vector", "scalar")
        self.reduction = Reduction(core, columns)
        self.search = GroupSearch(core, p.groups)
        self.has_numbers = not p.is_dynamic and len(p.smooth_scales.shape) == 1
        """Whether a group has a single scale and offset."""
        core.claim_tails()

    def begin(self) -> None:
        """Load group_index, accumulate counts, and wait for all cores."""
        core, p = self.core, self.p
        if p.group_index is not None:
            self.search.begin()
        if p.group_index is not None and p.holds_counts:
            core.alu("add", "end", 0, 0)
            for group in range(p.groups):
                entry = self.search.index[group : group + 1]
                core.get_value("count", entry)
                core.alu("add", "end", "end", "count")
                core.set_value(entry, "end")
        core.duplicate(self.largest, float(LARGEST[p.target]))
        sync_all(core, "mte3", "mte2", STARTED)

    def piece(self, x: GmView, y: GmView, scale: GmView, before: int, groups: Groups) -> None:
        """*y* and *scale* `(rows,)` of *x*, with rows in *groups*, those before in *before*."""
        core, columns = self.core, y.columns
        self._swiglu(x)
        # Every piece starts with the smooth scales of the last group of the piece before.
        self._load_smooth(before)
        out, scales = self.y_out.alloc(), self.scale_out.alloc()
        for row, group in enumerate(groups):
            self._advance(before, group)
            before = group
            core.copy(self.row, self.values[row * self.pitch : row * self.pitch + columns])
            if group < self.p.groups:
                self._apply_smooth()
            self._scale_row(scales[row : row + 1])
            core.quantize(out[row * self.y_pitch : row * self.y_pitch + columns], self.row)
        core.store(self.y_out, out, y, self.y_pitch)
        core.store_rows(self.scale_out, scales, scale)

    def _swiglu(self, x: GmView) -> None:
        """Write `(a / (exp(-a) + 1)) x b` for all rows of *x* `(rows, 2 x columns)` to `values`."""
        core, columns, count = self.core, self.p.columns, x.rows * self.pitch
        halves = x[:, :columns], x[:, columns:]
        active, other = halves if self.p.activate_left else halves[::-1]
        values, work = self.values[:count], self.work[:count]
        # float32 is copied.
        widen = core.copy if x.dtype is FLOAT32 else core.widen
        loaded, waiting = core.load(self.a_in, active), core.load(self.b_in, other)
        widen(values, loaded[:count])
        self.a_in.free(loaded)
        exp_plus_1(core, work, values)
        core.div(values, values, work)
        widen(work, waiting[:count])
        self.b_in.free(waiting)
        core.mul(values, values, work)

    def _advance(self, before: int, group: int) -> None:
        """Search for the group of the next row, and load its data if it is a different one."""
        last = min(group, self.p.groups - 1)
        if self.p.group_index is not None and before <= last:
            self.search.advance(before, last)
        if group != before:
            self._load_smooth(group)

    def _load_smooth(self, group: int) -> None:
        """Load the smooth scales and offsets of *group*, if it exists."""
        core, p = self.core, self.p
        if group >= p.groups:
            return
        core.sync("vector", "mte2")
        for tile, operand in ((self.smooth, p.smooth_scales), (self.offset, p.offsets)):
            if operand is not None:
                each = operand.spec.size // p.groups
                view = GmView.of(operand.name, FLOAT32, p.groups, each).row(group)
                core.data_copy(tile[:each], view.operand)
        core.sync("mte2", "vector")
        if self.has_numbers:
            core.sync("mte2", "scalar")
            core.get_value("smooth", self.smooth[:1])
            core.get_value("offset", self.offset[:1])

    def _apply_smooth(self) -> None:
        """Multiply the row by the scales of its group, and with quant_mode 0 add its offsets."""
        core, values = self.core, self.row
        core.mul(values, values, "smooth" if self.has_numbers else self.smooth)
        if not self.p.is_dynamic:
            core.add(values, values, "offset" if self.has_numbers else self.offset)

    def _scale_row(self, scale: Local) -> None:
        """Multiply the row by 127 / M, with quant_mode 1, and store that factor to *scale*."""
        core = self.core
        if not self.p.is_dynamic:
            core.alu("add", "zero", 0, 0)
            core.set_value(scale, "zero")
            return
        core.abs(self.magnitudes, self.row)
        self.reduction.find_largest(self.absmax, self.magnitudes)
        factor = read_quotient(core, self.factor, self.largest, self.absmax)
        core.set_value(scale, "factor")
        self.factor.free(factor)
        core.mul(self.row, self.row, "factor")


# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array]:
    """int8 `(..., columns)` of x `(..., 2 x columns)`, and scales `(...)`, float32.

    With 'quint4x2' the first has two elements a byte. Rows behind the last group are not smoothed.
    """
    index, smooth, x = given.group_index, given.smooth_scales, given.x
    *outer, width = x.shape
    target, rows = TARGETS[given.dst_type or "int8"], x.reshape(-1, width)
    ends = np.array([len(rows)]) if index is None else index.astype(np.int64)
    ends = np.cumsum(ends) if given.group_list_type == COUNTS else ends
    behind = np.asarray(np.arange(len(rows))[:, None] < ends[None, :])
    group, has_group = behind.argmax(axis=1), np.asarray(behind.any(axis=1))[:, None]
    with np.errstate(all="ignore"):
        z = swiglu_of(*halves_of(rows.astype(np.float32), given.activate_left))
        scaled = z * smooth.reshape(len(ends), -1)[group]
        if given.quant_mode == DYNAMIC:
            z = np.where(has_group, scaled, z)
            factor = np.float32(LARGEST[target]) / np.abs(z).max(axis=1, initial=0)
            z = z * factor[:, None]
        else:
            scaled = scaled + given.offsets.reshape(len(ends), -1)[group]
            z, factor = np.where(has_group, scaled, z), np.zeros(len(rows), np.float32)
        whole = clamped(z, target)
    if target is INT4:
        nibbles = whole.view(np.uint8) & 0xF
        whole = (nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)).view(np.int8)
    return whole.reshape(*outer, -1), factor.reshape(outer)


# ---- declaration ----


def _shape(given: ops.TorchArguments) -> tuple[object, ...]:
    *outer, columns = given["x"].shape
    return (*outer, columns // (4 if given["dst_type"] == "quint4x2" else 2))


TORCH = ops.TorchFunction(
    schema="npu_swiglu_quant(Tensor x, *, Tensor? smooth_scales=None, Tensor? offsets=None, "
    "Tensor? group_index=None, bool activate_left=False, int quant_mode=0, "
    "int group_list_type=0, int? dst_type=None) -> (Tensor, Tensor)",
    aclnn=lambda _: "aclnnSwiGluQuantV2",
    outputs=lambda given, _: (
        (_shape(given), "int8"),
        (given["x"].shape[:-1], "float32"),
    ),
    dtypes={"dst_type": {"qint8": "int8"}},
)


OPERATOR = ops.Operator(
    kernel_type="SwiGluQuant",
    document=__doc__,
    support=SUPPORT,
    elsewhere="use npu_swiglu and npu_dynamic_quant",
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=("group_index",),
    torch=(TORCH,),
)
