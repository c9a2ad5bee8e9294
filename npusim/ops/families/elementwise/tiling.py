"""Cores and tiles of elementwise kernels.

Operands that all have the shape of the result are one run of elements. One core per 4 KiB of it, in
the widest intermediate type, up to all cores, gets an equal share of whole 512 elements: a cast of
6144 numbers from 16 to 32 bits runs on 6 cores, one of 4096 to 64 bits on 8, a product of 4096 in
fp32 on 4 and a negation of 4096 flags on 2 (profiles of training steps in
Ascend/msinsight@4e16fca1 and Ascend-mstt@99c2e0f9). The tiles are those of the vendor's tiling
library (dengguojie/vue-element-admin@7d77ce32 ops/built-in/op_tiling/elewise_v3.cc, of 2022): the
unified buffer has room for all tensors that are needed at a time, each counted in the widest type;
a larger share is processed in equal tiles with every operand and the result double buffered.

If an operand is broadcast, tiles are rows of the last two axes along which operands are broadcast
differently (broadcast_v3.cc there): padded to whole blocks in the buffer, as many as leave room for
all tensors, a broadcast one counted in full. They are assigned in order, equally many to each core
except the last, and nothing is double buffered. How an operand is broadcast inside the buffer was
not read. Assumed: each row is one instruction, which reads a broadcast row directly, and a number
per row from a block made by Brcb. A single number is a scalar operand.

The kernels that ship for these chips are closed; that they follow both is inferred from their
times.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from npusim.data.dtypes import FLOAT16, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.ops import _vocabulary as ops
from npusim.ops.families.elementwise.chain import Chain, Place, Step, Value, places
from npusim.ops.families.elementwise.contract import Problem

LEAST_BYTES = 4096
SHARE, TILE = 512, 128
"""A core's share, and a tile of several, are multiples of these elements."""
LIMITS = {8: 32767, 16: 32767, 32: 16383}
"""Bits of the widest type -> most elements of a tile of a run."""
BRCB_LANES = 8
"""Elements that Brcb processes at a time."""
WHOLE = 128
"""Elements in a repeat of 16 bits; a comparison needs full ones."""
LEAST_ELEMENTS = 8
"""Fewest elements of 32 bits in a load, a block, padded with zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Tiles of `(rows, columns)`, assigned to the cores."""

    tile_rows: int
    tile_columns: int
    tiles_per_core: int
    """Tiles of a core's share, a run of elements, of which the last core may have fewer."""
    share: int
    """Elements of a core's run; 0 if operands are broadcast."""
    depth: int
    """Depth of each operand and of the result."""


# ---- steps ----


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a tile, and the places of their values."""

    operands: tuple[Value, ...]
    steps: tuple[Step, ...]
    places: dict[Value, Place]
    work: tuple[Value, ...]
    constants: tuple[tuple[Value, float], ...]
    output: DType

    @property
    def widest_bits(self) -> int:
        """The most bits per element of any tensor in the buffer."""
        tensors = [*self.operands, *self.work, *(x for x, _ in self.constants)]
        return max(*(x.dtype.bits for x in tensors if not x.is_mask), self.output.bits)

    @property
    def whole(self) -> int:
        """Tiles are padded to a multiple of this many elements: full repeats for comparisons."""
        is_compared = any(step.result.is_mask for step in self.steps)
        return WHOLE if is_compared else LEAST_ELEMENTS

    def pitch(self, columns: int) -> int:
        """Elements from row to row: each starts at a block in every type."""
        dtypes = [*(x.dtype for x in self.operands), self.output]
        return align_up(columns, max(block_elements(dtype) for dtype in dtypes))

    @property
    def tensors(self) -> int:
        """Tiles of the widest type for which the buffer must have room."""
        bits = sum(x.dtype.bits for x in self.operands if x.extent != "number") + self.output.bits
        bits += sum(1 if x.is_mask else x.dtype.bits for x in self.work)
        bits += sum(x.dtype.bits for x, _ in self.constants)
        return ceil_div(bits, self.widest_bits)


def steps_of(spec: DeviceSpec, p: Problem) -> Steps:
    """The steps of the kernel of *p* for a tile."""
    chain = Chain(spec)
    # A single number is widened once, on its way to its register.
    # Flags are compared in float16, whatever they choose from.
    targets = [FLOAT16 if x.name == "condition" else p.computed_in for x in p.inputs]
    operands = [
        chain.operand(target if extent == "number" else x.element, extent)
        for x, extent, target in zip(p.inputs, p.extents, targets, strict=True)
    ]
    values = [chain.cast(x, target) for x, target in zip(operands, targets, strict=True)]
    found = p.expression.write(chain, *values, *p.attributes)
    output = p.output.element
    found = found if p.expression.gives_bool else chain.cast(found, output)
    if not chain.steps or found.extent != "tile":
        chain.copy(found)
    where, work = places(chain, operands, output)
    kept = tuple(work), tuple(chain.constants)
    return Steps(tuple(operands), tuple(chain.steps), where, *kept, output)


# ---- tiling ----


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """A run of elements in equal shares, or tiles of rows."""
    steps = steps_of(spec, p)
    kind = spec.vector_kinds[0]
    room = spec.cores[kind].usable_bytes("ub")
    if all(extent in ("tile", "number") for extent in p.extents):
        return _run(spec, p, steps, room)
    return _rows(spec, p, steps, room)


def _run(spec: DeviceSpec, p: Problem, steps: Steps, room: int) -> Plan:
    count = p.output.size
    widest = steps.widest_bits
    cores = min(ceil_div(count * widest, 8 * LEAST_BYTES), len(spec.vector_cores))
    share = align_up(ceil_div(count, cores), SHARE)
    most = room // steps.tensors * 8 // widest
    depth, width = 1, min(share, count)
    if width > min(most, LIMITS[widest]):
        depth = 2
        most = min(most // 2, LIMITS[widest]) // TILE * TILE
        width = align_up(ceil_div(width, ceil_div(width, most)), TILE)
    return Plan(
        block_dim=ceil_div(count, share),
        reads_tiling=False,
        tile_rows=1,
        tile_columns=width,
        tiles_per_core=ceil_div(min(share, count), width),
        share=share,
        depth=depth,
    )


def _rows(spec: DeviceSpec, p: Problem, steps: Steps, room: int) -> Plan:
    *outer, rows, columns = (axis.size for axis in p.axes)
    pitch, element_bytes = steps.pitch(columns), steps.tensors * steps.widest_bits // 8
    granule = spec.transfer.store_granule_bytes
    # Padding of tiles, and a separate tail if stores have a least size.
    slack = steps.whole * element_bytes + (granule if granule > 1 else 0)
    widest = align_down((room - slack) // element_bytes, steps.whole)
    width = min(pitch, widest)
    # A number per row, and the block that Brcb makes of it.
    extra = sum(BLOCK_BYTES + x.dtype.bits // 8 for x in steps.operands if x.extent == "column")
    tile_rows = max(1, min(rows, (room - slack) // (width * element_bytes + extra)))
    tiles = prod(outer) * ceil_div(rows, tile_rows) * ceil_div(columns, width)
    cores = len(spec.vector_cores)
    if p.output.element.nbytes(columns) < granule:
        # Such rows spill into the next ones when they are stored, so one core takes them all.
        cores = 1
    each = ceil_div(tiles, cores)
    return Plan(
        block_dim=ceil_div(tiles, each),
        reads_tiling=False,
        tile_rows=tile_rows,
        tile_columns=min(width, columns),
        tiles_per_core=each,
        share=0,
        depth=1,
    )


def block_elements(dtype: DType) -> int:
    """Elements of a block."""
    return BLOCK_BYTES * 8 // dtype.bits
