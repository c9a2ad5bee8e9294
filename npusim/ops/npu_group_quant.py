"""npu_group_quant: floats to int8 or packed int4, with scales for groups of rows.

.. code-block:: text

    y[r] = fit(round(f32(x[r]) * f32(scale[e]) + f32(offset)))
    where group_index[e - 1] <= r < group_index[e]

All in fp32, rounded after each operation; *round* is to nearest, ties to even, *fit* saturates and
turns NaN into 0 (ops-nn@e5c3fa9 quant/group_quant/op_kernel/group_quant_base.h). group_index holds
the row after the last one of each group, so equal neighbours mean an empty group.

Accepted calls follow the operator's document (torch_npu-npu_group_quant.md). In addition:

* the kernel reads group_index, on every core, and a bad one stops it: the error is raised at run
  time, with the code of a device exception instead of that of a wrong argument;
* a scale without groups is refused beforehand, following the document, though it would trap;
* x without rows or columns gives an empty result, and no kernel runs (aclnn_group_quant.cpp; the
  document is silent);
* 'qint8' is accepted like 'int8', since the document's examples pass it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, INT32, INT64, Array, DType
from npusim.data.tensor import Operand
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import Local, ScalarAlu, ScalarLoad, ScalarLoop, Trap
from npusim.kernel import Block, GmView, GmViews, Step, VectorCore, bindings, pieces, repeat, share
from npusim.kernel.rectangles import RowPieces
from npusim.kernel.rows import BODY_ROWS
from npusim.ops import _vocabulary as ops
from npusim.ops._quant_parameters import QuantParameter
from npusim.ops._row_groups import look_at
from npusim.ops._row_quant import clamped, output_of, packed
from npusim.ops._torch import quantised
from npusim.ops._vocabulary import A2_A3, Operands, alike, present

# ---- what is accepted ----

FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
TARGETS = {"int8": INT8, "qint8": INT8, "quint4x2": INT4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: `x` is `(rows, columns)`, `scale` `(groups, columns)`."""

    x: Operand
    scale: Operand
    group_index: Operand
    offset: Operand | None
    target: DType

    @property
    def rows(self) -> int:
        return self.x.shape[0]

    @property
    def columns(self) -> int:
        return self.x.shape[1]

    @property
    def groups(self) -> int:
        return self.scale.shape[0]

    @property
    def ends(self) -> Array:
        """`(groups,)`: the row after each group's last; spread evenly when only time counts."""
        if self.group_index.array is not None:
            return self.group_index.array.astype(np.int64)
        return -(-np.arange(1, self.groups + 1) * self.rows // self.groups)

    def fault(self) -> str | None:
        """The error in the values of group_index, in the order in which the kernel checks."""
        ends = self.ends
        if np.any(np.diff(ends) < 0):
            must = "group_index must not decrease"
        elif ends[0] < 0:
            must = "group_index must not be negative"
        elif ends[-1] != self.rows:
            must = f"group_index must end with the number of rows of x, {self.rows}"
        else:
            return None
        shown = ends.tolist() if ends.size <= 8 else [*ends[:4].tolist(), "...", ends[-1].item()]
        came = ", ".join(str(end) for end in shown)
        return f"{must}, not be [{came}]; pass the end row of each group, in order"


SUPPORT = alike(
    FLOATS,
    *("scale", "offset"),
    on=A2_A3,
    shapes={"scale": "groups columns"},
    x=Operands(FLOATS, shape="rows columns"),
    group_index=Operands((INT32, INT64), shape="groups"),
    dst_dtype=tuple(TARGETS),
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    tokens, scales = contract.operand("x"), contract.operand("scale")
    index, point = contract.operand("group_index"), contract.optional("offset")
    contract.require(
        scales.shape[0] > 0,
        f"scale must have at least one row, not shape {scales.shape}; add one, and its end to "
        f"group_index",
    )
    contract.require(
        point is None or point.shape in ((), (1,)),
        f"offset must be one number, of shape () or (1,), not {point.shape if point else None}; "
        f"pass one",
    )
    dtype = contract.value("dst_dtype")
    target = INT8 if dtype is None else TARGETS[contract.choice("dst_dtype")]
    output = output_of(contract, tokens, target, f"dst_dtype={dtype!r}", "pad x and scale")
    return Problem(
        inputs=present(tokens, scales, index, point),
        outputs={"output": output},
        x=tokens,
        scale=scales,
        group_index=index,
        offset=point,
        target=target,
    )


# ---- tiling: op_host/group_quant_tiling.cpp ----

CHUNK = 8192
"""Columns that a core processes at a time (ops-nn, group_quant_tiling.cpp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Rows are split evenly; a core processes one at a time, with single buffers."""

    rows_of_core: tuple[int, ...]
    column_step: int


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split rows over all vector cores; the first cores take one more if they do not divide.

    ops-nn@e5c3fa9 quant/group_quant/op_host/group_quant_tiling.cpp.
    """
    cores = min(p.rows, len(spec.vector_cores))
    rows = tuple(len(share(p.rows, cores, core)) for core in range(cores))
    return Plan(block_dim=cores, rows_of_core=rows, column_step=min(CHUNK, p.columns))


# ---- kernel: op_kernel/group_quant_base.h ----

INDEX_CHUNK = 256
"""Entries of group_index in the buffer at a time: 1 KiB of int32 (group_quant_base.h)."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Process one row at a time on each core, up to 8192 columns of it.

    The core looks up the groups in group_index, which all cores check first, and loads the scales
    of each group once, or again for each row if the buffers do not hold them.
    """
    core = VectorCore("npu_group_quant", spec)
    kernel = GroupQuant(core, p, plan)
    cores = np.arange(plan.block_dim)
    begin = Step(kernel.begin, (), cores, 0 * cores - 1, keeps_slots=True)
    if p.fault() is not None:
        # The checks have trapped; nothing after them runs.
        return core.launch(begin)
    # group_index holds the ends of groups: row r belongs to the first group that ends after r.
    group_of = np.searchsorted(p.ends, np.arange(p.rows), side="right")
    core_of = np.repeat(cores, plan.rows_of_core)
    # Runs of rows on one core that have the same scales, in pieces.
    is_new = (np.diff(group_of, prepend=-1) != 0) | (np.diff(core_of, prepend=-1) != 0)
    starts = np.flatnonzero(is_new)
    runs = RowPieces.of(np.diff(starts, append=p.rows).tolist(), BODY_ROWS)
    x = GmView.of("x", p.x.element, p.rows, p.columns)
    output = GmView.of("output", p.target, p.rows, p.columns)
    every = GmView.of("scale", p.scale.element, p.groups, p.columns)
    group, core_of_run, take = group_of[runs.first], core_of[runs.first], runs.is_first
    scales, order = GmViews.row(every, group), 2 * np.arange(group.size)
    # The group of the run before, and the chunk of group_index that is in the buffer then.
    is_first = np.diff(core_of[starts], prepend=-1) != 0
    before = np.where(is_first, 0, group_of[starts - 1])
    loaded = np.where(is_first, p.groups - 1, before) // INDEX_CHUNK * INDEX_CHUNK
    found = scales.select(take), before, loaded, group[take]
    is_last = np.diff(runs.core, append=-1) != 0
    # x and output start with the first row of a core.
    first_row = np.searchsorted(core_of, cores)
    mine = replace(runs, first=runs.first - first_row[core_of_run])
    rows = mine.views(x), mine.views(output), scales, group % INDEX_CHUNK, is_last
    whole = [GmView.vector(each.name, each.element, each.spec.size) for each in p.inputs[1:]]
    return core.launch(
        begin,
        Step(kernel.take_group, found, core_of_run[take], order[take], keeps_slots=True),
        Step(kernel.rows, rows, core_of_run, order + 1, keeps_slots=True),
        Step(kernel.drop_scales, (), cores, 0 * cores + order.size * 2, keeps_slots=True),
        bound=lambda core: bindings(x[first_row[core] :, :], output[first_row[core] :, :], *whole),
    )


class GroupQuant:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p, self.plan = core, p, plan
        width, scale, index = plan.column_step, p.scale.element, p.group_index.element
        self.is_wide = p.columns > width
        """Whether a row is too long for the buffers."""
        self.x_in, self.y_out = core.vecin(p.x.element, width), core.vecout(p.target, width)
        self.scale_in = core.vecin(scale, width)
        self.work = None if p.x.element is FLOAT32 else core.tile(FLOAT32, width)
        self.factors = self.scale_in.only if scale is FLOAT32 else core.tile(FLOAT32, width)
        """The scales as float32."""
        self.entries = GmView.vector("group_index", index, p.groups)
        self.index_in = core.tiles(index, INDEX_CHUNK, "mte2", "scalar")
        if index is INT32:
            self.before, self.after = (core.vecin(INT32, INDEX_CHUNK) for _ in range(2))
        core.claim_tails()
        self.offset: QuantParameter | None = None
        if p.offset is not None:
            reader: Pipe = "scalar" if p.offset.element is FLOAT32 else "vector"
            self.offset = QuantParameter(core, p.offset, 1, reader=reader)

    # ---- stages ----

    def begin(self) -> None:
        """Check group_index, and take the offset."""
        self._check()
        fault = self.p.fault()
        if fault is not None:
            self.core.emit(Trap(1, fault))
        elif self.offset is not None:
            self.offset.take_number("offset")

    def take_group(self, scales: GmView, before: int, loaded: int, group: int) -> None:
        """Search group_index for *group*, entry by entry, from the group of the row *before* on.

        The buffer holds the chunk that starts with entry *loaded*. *scales* `(columns,)` are
        those of the group.
        """
        while before <= group:
            loaded = self._fetch(loaded, before // INDEX_CHUNK * INDEX_CHUNK)
            stop = min(group + 1, loaded + INDEX_CHUNK)
            look_at(self.core, self._entry(before - loaded), stop - before)
            before = stop
        self.drop_scales()
        if not self.is_wide:
            self._take_scales(scales)

    def rows(self, x: GmView, output: GmView, scales: GmView, entry: int, is_last: bool) -> None:
        """Quantise *x* to *output*, both `(rows, columns)`, with *scales* `(columns,)`.

        The scalar unit reads *entry* of group_index again unless the row *is_last* of its group.
        """
        for row in range(x.rows):
            here = slice(row, row + 1)
            for start, width in pieces(x.columns, self.plan.column_step):
                part = here, slice(start, start + width)
                if self.is_wide:
                    self.drop_scales()
                    self._take_scales(scales[:, part[1]])
                repeat(self.core, self._piece, x[part], output[part])
            if row + 1 < x.rows or not is_last:
                look_at(self.core, self._entry(entry))
                if self.is_wide:
                    self.drop_scales()

    def drop_scales(self) -> None:
        """Release the scales, if there are any."""
        for tile in self.scale_in.in_use:
            self.scale_in.free(tile)

    # ---- rows ----

    def _take_scales(self, scales: GmView) -> None:
        loaded = self.core.load(self.scale_in, scales)
        if loaded.dtype is not FLOAT32:
            self.core.widen(self.factors[: scales.columns], loaded[: scales.columns])

    def _piece(self, x: GmView, output: GmView) -> None:
        """Quantise *x* to *output*, both `(1, width)`, with the loaded scales."""
        core, width = self.core, x.columns
        loaded, out = core.load(self.x_in, x), self.y_out.alloc()
        # float32 is processed in place.
        values = (loaded if self.work is None else self.work)[:width]
        if self.work is not None:
            core.widen(values, loaded[:width])
        core.mul(values, values, self.factors[:width])
        if self.offset is not None:
            core.add(values, values, "offset")
        core.quantize(out[:width], values)
        self.x_in.free(loaded)
        core.store(self.y_out, out, output)

    # ---- group_index ----

    def _entry(self, number: int) -> Local:
        return self.index_in.only[number : number + 1]

    def _fetch(self, loaded: int | None, start: int) -> int:
        """Load entries from *start* on unless they are the *loaded* ones; returns *start*."""
        if loaded != start:
            if loaded is not None:
                self.index_in.free(self.index_in.only)
            self.core.load_rows(self.index_in, self.entries[:, start : start + INDEX_CHUNK])
        return start

    def _check(self) -> None:
        """Trap unless the entries ascend from 0 or more to the number of rows."""
        core, count, loaded = self.core, self.p.groups, None
        # Chunks overlap by one entry, so that every pair of neighbours is compared once.
        for start in range(0, count - 1, INDEX_CHUNK - 1):
            if self.entries.dtype is INT32:
                self._check_by_vector(start, min(INDEX_CHUNK, count - start) - 1)
            else:
                loaded = self._fetch(loaded, start)
                self._check_by_scalar(min(INDEX_CHUNK, count - start) - 1)
        loaded = self._fetch(loaded, 0)
        core.get_value("end", self._entry(0))
        core.alu("lt", "bad", "end", 0)
        self._trap()
        loaded = self._fetch(loaded, (count - 1) // INDEX_CHUNK * INDEX_CHUNK)
        core.get_value("end", self._entry(count - 1 - loaded))
        core.alu("eq", "good", "end", self.p.rows)
        core.alu("eq", "bad", "good", 0)
        self._trap()

    def _trap(self) -> None:
        self.core.emit(Trap("bad", self.p.fault() or "group_index must be in order"))

    def _check_by_vector(self, start: int, count: int) -> None:
        """Check int32: the smallest difference of neighbours, as a float, must not be negative."""
        core, before, after = self.core, self.before.alloc(), self.after.alloc()
        # Entries [start, start + count) and the entry after each of them.
        a, b = before[:count], after[:count]
        core.data_copy(a, self.entries[:, start : start + count].operand)
        core.data_copy(b, self.entries[:, start + 1 : start + 1 + count].operand)
        self.before.enque(before)
        self.after.enque(after)
        before, after = self.before.deque(), self.after.deque()
        # (count,) int32 differences, then float32 in place of the first entries
        differences = a.as_dtype(FLOAT32)
        core.sub(b, b, a)
        core.cast(differences, b, "none")
        core.reduce("min", differences[:1], differences)
        core.sync("vector", "scalar")
        core.get_value("least", differences[:1])
        # The sign of a float is its highest bit.
        core.alu("shr", "bad", "least", 31)
        self._trap()
        core.sync("scalar", "vector")
        self.before.free(before)
        self.after.free(after)

    def _check_by_scalar(self, count: int) -> None:
        """Check int64: compare each of *count* entries after the first with the one before it."""
        step_bytes = INT64.nbytes(1)
        body = (
            ScalarLoad("before", self._entry(0), step_bytes),
            ScalarLoad("end", self._entry(1), step_bytes),
            ScalarAlu("lt", "bad", "end", "before"),
            Trap("bad", self.p.fault() or "group_index must be in order"),
        )
        self.core.emit(ScalarLoop(count, body))


# ---- oracle ----


def oracle(given: ops.Given) -> Array:
    """Quantise x `(rows, columns)` with the scales of each row's group.

    The result has the shape of x, with 'quint4x2' one int32 for eight columns. group_index must be
    valid: the rows of an invalid one have no group.
    """
    x, offset = given.x, given.offset
    group = np.searchsorted(given.group_index, np.arange(x.shape[0]), side="right")
    with np.errstate(all="ignore"):
        values = x.astype(np.float32) * given.scale.astype(np.float32)[group]
        if offset is not None:
            values = values + offset.astype(np.float32).reshape(())
    if given.dst_dtype == "quint4x2":
        return packed(clamped(values, INT4))
    return clamped(values)


# ---- declaration ----

TORCH = ops.TorchFunction(
    schema="npu_group_quant(Tensor x, Tensor scale, Tensor group_index, *, Tensor? offset=None, "
    "int? dst_dtype=None) -> Tensor",
    aclnn=lambda _: "aclnnGroupQuant",
    outputs=lambda given, _: (quantised(given["x"], given["dst_dtype"]),),
    dtypes={"dst_dtype": {}},
)


OPERATOR = ops.Operator(
    kernel_type="GroupQuant",
    document=__doc__,
    support=SUPPORT,
    elsewhere="use npu_quantize with div_mode=False for each group",
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=("group_index",),
    torch=(TORCH,),
)
