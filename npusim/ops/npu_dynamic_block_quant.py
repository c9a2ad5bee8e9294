"""npu_dynamic_block_quant: floats to int8, with one scale for each 128 columns of a row.

.. code-block:: text

    m        = max |x| of the block
    scale    = m * f32(1 / 127)                      at most 1 / min_scale, if that is not 0
    y        = int8(rint(x * ((1 / m) * 127)))       the factor at least min_scale
    output, scale                                    int8 as x, fp32 (rows, blocks of columns)

All in fp32, rounded after each operation. A block of zeros gives zeros: 0 times infinity is NaN,
which int16 represents as 0.

Rows are split evenly over the cores; the blocks of the remaining rows are divided among all cores.
A core loads 32 KiB at a time, computes and stores it, without overlap.

Sources: ops-nn@e5c3fa9 quant/dynamic_block_quant, op_kernel/dynamic_block_quant.h and op_host/
dynamic_block_quant_i8_tiling.cpp, and the operator's document. Atlas A2 and A3: float8 and other
blocks need later chips. Assumed: one Brcb broadcasts the factors over their blocks, and the padding
columns of the last block are zeroed row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT16, Array, DType
from npusim.data.errors import shown
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Local
from npusim.kernel import Block, GmView, GmViews, Step, VectorCore, pieces
from npusim.kernel.wide_plane import WidePlane, by_rows
from npusim.ops import _vocabulary as ops
from npusim.ops._rotary import columns_of_rows

COLUMNS, LOOP_BYTES, LANES = 128, 32 * 1024, 64
"""Columns of a block; bytes loaded at a time; and float32 in a repeat."""
LARGEST = 127.0
"""The value to which the largest magnitude of a block is scaled."""

SUPPORT = (ops.Row(on=ops.A2_A3, x=ops.Operands((FLOAT16, BFLOAT16), ranks=(2, 3))),)
FIXED = {
    "round_mode": ("rint", "the kernel rounds ties to even"),
    "dst_type": (1, "int8; others are of later chips"),
    "row_block_size": (1, "larger blocks are of later chips"),
    "col_block_size": (COLUMNS, "other blocks are of later chips"),
    "dst_type_max": (0.0, "it is of later chips"),
}
"""Attribute -> the required value, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: x is `(rows, columns)` to the kernel."""

    element: DType
    rows: int
    columns: int
    min_scale: float

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return ceil_div(self.columns, COLUMNS)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    x = contract.operand("x")
    for name, (must, why) in FIXED.items():
        value = contract.value(name)
        contract.require(
            isinstance(value, str | int | float | np.number) and value == must,
            f"{name} must be {must!r}, not {shown(value)}: {why}; leave it out",
        )
    least = contract.value("min_scale")
    contract.require(least >= 0, f"min_scale must be at least 0, not {least}; leave it out")
    *rows, columns = x.shape
    return Problem(
        inputs=(x,),
        outputs={
            "output": TensorSpec(x.shape, "int8"),
            "scale": TensorSpec((*rows, ceil_div(columns, COLUMNS)), "float32"),
        },
        element=x.element,
        rows=int(np.prod(rows)),
        columns=columns,
        min_scale=float(np.float32(least)),
    )


# ---- tiling: op_host/dynamic_block_quant_i8_tiling.cpp ----

Span = tuple[int, int, int, int]
"""First row, rows, first block of columns, blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Whole rows for each core, and blocks of the remaining rows."""

    rows_of_core: int
    left_over: tuple[tuple[int, int, int], ...]
    """Row, first block and block count of each core that has any."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split whole rows evenly, and the blocks of the remaining rows over all cores."""
    cores = len(spec.vector_cores)
    each, left = divmod(p.rows, cores)
    first = each * cores
    spans = [(first + row, block, 1) for row in range(left) for block in range(p.blocks)]
    if len(spans) > cores:
        spans = []
        for row in range(left):
            own = cores // left + (row < cores % left)
            sizes = [p.blocks // own + (core < p.blocks % own) for core in range(own)]
            starts = np.cumsum([0, *sizes])[:-1]
            spans += [(first + row, int(x), n) for x, n in zip(starts, sizes, strict=True)]
    return Plan(block_dim=cores if each else len(spans), rows_of_core=each, left_over=tuple(spans))


def _spans(p: Problem, plan: Plan) -> Iterator[tuple[int, Span]]:
    """Each core with the spans that it processes in turn."""
    most = LOOP_BYTES // p.element.nbytes(COLUMNS)
    for core in range(plan.block_dim):
        rows = max(1, most // p.blocks)
        for row, count in pieces(plan.rows_of_core, rows):
            for block, blocks in pieces(p.blocks, most) if count == 1 else [(0, p.blocks)]:
                yield core, (core * plan.rows_of_core + row, count, block, blocks)
    for core, (row, first, count) in enumerate(plan.left_over):
        for block, blocks in pieces(count, most):
            yield core, (row, 1, first + block, blocks)


# ---- kernel: op_kernel/dynamic_block_quant.h ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Process a few blocks at a time."""
    core = VectorCore("npu_dynamic_block_quant", spec)
    kernel = BlockQuant(core, p)
    cores, row, rows, block, blocks = (
        np.array([(core, *span) for core, span in _spans(p, plan)], np.int64).reshape(-1, 5).T
    )
    left = block * COLUMNS
    width = np.minimum(blocks * COLUMNS, p.columns - left)
    x, output = (
        GmView.of(name, dtype, p.rows, p.columns)
        for name, dtype in (("x", p.element), ("output", INT8))
    )
    scale = GmView.of("scale", FLOAT32, p.rows, p.blocks)
    views = (
        GmViews.of(x, row, left, rows, width),
        GmViews.of(output, row, left, rows, width),
        GmViews.of(scale, row, block, rows, blocks),
    )
    return core.launch(Step(kernel.blocks, views, cores), begin=kernel.begin)


class BlockQuant:
    """The buffers of a core, and its stage."""

    def __init__(self, core: VectorCore, p: Problem) -> None:
        self.core, self.p = core, p
        size = LOOP_BYTES // p.element.nbytes(1)
        count = align_up(size // COLUMNS, LANES)
        self.x = core.vecin(p.element, size)
        self.values = core.vecout(FLOAT32, size)
        self.work = core.tile(FLOAT32 if p.element is BFLOAT16 else FLOAT16, size)
        self.scale = core.vecout(FLOAT32, count)
        self.largest = core.tile(p.element if p.element is FLOAT16 else FLOAT32, count)
        self.factor, self.spread = core.tile(FLOAT32, count), core.tile(FLOAT32, count * 8)
        self.one = core.tile(FLOAT32, count)

    def begin(self) -> None:
        """Set the dividends to 1, and the maxima too, so that those without a block are finite."""
        with self.core.independent():
            self.core.duplicate(self.one, 1.0)
            self.core.duplicate(self.largest, 1.0)

    def blocks(self, x: GmView, y: GmView, scale: GmView) -> None:
        """Quantise *x* `(rows, columns)`, each row padded to whole blocks."""
        core, p = self.core, self.p
        pitch = align_up(x.columns, COLUMNS)
        count, blocks = x.rows * pitch, x.rows * pitch // COLUMNS
        tile = core.load_rows(self.x, x, pitch=pitch)
        filled = align_up(x.columns, BLOCK_BYTES // p.element.nbytes(1))
        if filled < pitch:
            with core.independent():
                for row in range(x.rows):
                    # Zero has the same bits in both types; bf16 has no Duplicate.
                    rest = tile.at(row * pitch + filled, pitch - filled)
                    core.duplicate(rest.as_dtype(FLOAT16, rest.count), 0.0)
        out = self.values.alloc()
        values = out[:count]
        core.cast(values, tile[:count])
        self._reduce(tile[:count] if p.element is FLOAT16 else values, blocks)
        self.x.free(tile)
        scales = self.scale.alloc()
        self._factors(scales[: align_up(blocks, 8)])
        core.store_rows(self.scale, scales, scale if x.rows == 1 else scale.flat)
        core.brcb(self.spread[: 8 * align_up(blocks, 8)], self.factor[: align_up(blocks, 8)])
        by_rows(core, "mul", WidePlane(values, blocks, COLUMNS, COLUMNS), self.spread)
        whole, half = values.as_dtype(INT16, count), values.as_dtype(FLOAT16, count)
        narrow = values.as_dtype(INT8, count)
        core.cast(whole, values, "rint")
        core.cast(half, whole, "rint")
        core.cast(narrow, half, "none")
        self._store(out, y, pitch)

    def _reduce(self, values: Local, blocks: int) -> None:
        """Find the largest magnitude of each of *blocks* blocks of *values*."""
        core, work = self.core, self.work[: values.count]
        core.abs(work, values)
        if self.p.element is FLOAT16:
            core.whole_reduce("max", self.largest[:blocks], work)
            return
        halves = (columns_of_rows(work, COLUMNS, range(x, x + LANES)) for x in (0, LANES))
        for first, second in zip(*halves, strict=True):
            core.max(work[: blocks * LANES], first, second)
        core.whole_reduce("max", self.largest[:blocks], work[: blocks * LANES])

    def _factors(self, scale: Local) -> None:
        """Compute the scale of each block, and the factor by which it is multiplied."""
        core, least = self.core, self.p.min_scale
        largest, factor = self.largest[: scale.count], self.factor[: scale.count]
        core.convert(scale, largest)
        core.div(factor, self.one[: scale.count], scale)
        core.mul(factor, factor, LARGEST)
        core.mul(scale, scale, float(np.float32(1) / np.float32(LARGEST)))
        if least > 0:
            core.max(factor, factor, least)
            core.min(scale, scale, float(np.float32(1) / np.float32(least)))

    def _store(self, out: Local, y: GmView, pitch: int) -> None:
        """Store the int8 in the first bytes of *out* to *y*; its rows are *pitch* apart."""
        self.values.enque(out)
        out = self.values.deque()
        src = out.as_dtype(INT8, (y.rows - 1) * pitch + y.columns)
        self.core.data_copy(y.operand, src, pitch if y.rows > 1 else 0)
        self.values.free(out)


# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array]:
    """Whole arrays in plain numpy."""
    x, least = given.x.astype(np.float32), np.float32(given.min_scale)
    columns = x.shape[-1]
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -columns % COLUMNS)])
    blocks = padded.reshape(*x.shape[:-1], -1, COLUMNS)
    with np.errstate(all="ignore"):
        largest = np.abs(blocks).max(axis=-1)
        factor = (np.float32(1) / largest) * np.float32(LARGEST)
        scale = largest * (np.float32(1) / np.float32(LARGEST))
        if least > 0:
            factor, scale = np.maximum(factor, least), np.minimum(scale, np.float32(1) / least)
        values = np.rint(blocks * factor[..., None])
        whole = np.clip(np.where(np.isnan(values), 0, values), -128, 127).astype(np.int8)
    return whole.reshape(padded.shape)[..., :columns].copy(), scale


def _outputs(given: ops.TorchArguments, _: object) -> tuple[tuple[tuple[int, ...], str], ...]:
    *rows, columns = given["x"].shape
    return ((*rows, columns), "int8"), ((*rows, -(-columns // COLUMNS)), "float32")


OPERATOR = ops.Operator(
    kernel_type="DynamicBlockQuant",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(
        ops.TorchFunction(
            schema="npu_dynamic_block_quant(Tensor x, *, float min_scale=0.0, "
            'str round_mode="rint", int dst_type=1, int row_block_size=1, int col_block_size=128, '
            "float dst_type_max=0.0) -> (Tensor y, Tensor scale)",
            aclnn=lambda _: "aclnnDynamicBlockQuant",
            outputs=_outputs,
        ),
    ),
)
