"""What kernels are written with: everything that a custom kernel imports is here.

A kernel is a function of a chip and of the specs of its tensors, which returns a
:class:`~npusim.kernel.launch.Kernel`: what each core does. ``npusim.run`` runs it as it runs an
operator. This one doubles `(rows, columns)`, a row at a time, on all vector cores in turn:

>>> import numpy as np
>>> import npusim
>>> from npusim.kernel import GmView, Kernel, Step, VectorCore
>>> from npusim.kernel.steps import tiles
>>> def double(spec, x):
...     core, (rows, columns) = VectorCore("double", spec), x.shape
...     loaded, computed = (queue(x.element, columns, 2) for queue in (core.vecin, core.vecout))
...     core.claim_tails()
...     def row(x, y):
...         tile, out = core.load(loaded, x), computed.alloc()  # mte2, then the vector pipe
...         core.mul(out, tile, 2.0)
...         loaded.free(tile)
...         core.store(computed, out, y)  # mte3, once the vector pipe is done
...     views = [tiles(GmView.of(name, x.element, rows, columns), 1, columns) for name in "xy"]
...     blocks = core.launch(Step(row, views, np.arange(rows) % spec.cores[core.kind].count))
...     return Kernel("double", blocks, {"x": x}, {"y": x})
>>> x = np.arange(96, dtype=np.float32).reshape(3, 32)
>>> bool((npusim.run(double, x, device="Atlas A2").output == 2 * x).all())
True

**Cores.** A :class:`VectorCore` has the verbs of Ascend C's vector unit, each a micro-op and the
barrier that lets the next one read its result. Their operands are tiles, :class:`Local`, which are
cut like arrays: `tile[:n]`. As in Ascend C, a queue carries tiles from one pipe to another, and
sets and awaits the flags as TPipe and TQue do:

====================  ===========================================================
``tile = q.alloc()``  a free tile; waits until its last reader is done with it
``q.enque(tile)``     the producer is done: raise the flag
``tile = q.deque()``  the consumer waits for that flag
``q.free(tile)``      the consumer is done: the tile may be filled again
====================  ===========================================================

With depth 1 the producer waits for the consumer each time; with depth 2 it fills one tile while
the other is read. A kernel can also write flags itself, correctly or not (``core.set_flag``,
``core.wait_flag``).

**Views.** A :class:`GmView` is a part of a tensor, sliced like a numpy array; ``core.load`` and
``core.store`` copy it and include the four calls above. :func:`pieces` cuts an extent into steps.

**Launches are tables.** A :class:`Step` is a stage (a function of views and sizes) with a column
for each argument, and the core that runs each tile. ``core.launch`` writes the stage once for each
distinct shape of its arguments, as a loop on the chip that advances its addresses; :func:`repeat`
does the same tile by tile.

**Launches.** A :class:`Block` is what one core does: a :class:`Program`, and the offsets at which
its global memory names begin (:func:`bindings`). :func:`share` splits work into contiguous runs.
:func:`launch_mixed` starts cube cores with their vector cores, which wait for each other by
:func:`sync_all`. :func:`~npusim.kernel.steps.steps_of` turns loops into steps, where a loop is
simpler than columns.

**Steps of the vector pipe.** :func:`step` is a micro-op and the barrier behind it. A
:class:`Plane` is a matrix in the unified buffer, with operations along its rows or columns.

**Products.** A :class:`GmMatrix` is an operand in global memory, a :class:`Matmul` on a
:class:`CubeCore` multiplies base tiles of two of them, a :class:`ScaleTable` holds quantisation
parameters of the columns. Below it, :class:`L0Pair` multiplies parts of two pieces in L1, each an
:class:`L1Matrix`. An :class:`AiCore` has both units: an :class:`NdFeed` brings operands to its L1,
an :class:`NdOut` stores sums. A :class:`Product` is cut into :class:`Pieces` for the cores.

**Micro-ops** are what ``core.emit(...)`` takes: ``Binary("add", dst, a, b)``, ``Cast``,
``Mmad``, ``Fixpipe`` and all others of :mod:`npusim.isa`. They work on :class:`Local` ranges of
buffers and :class:`Global` ranges of tensors, of element types such as ``FLOAT16``.
"""

from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT32,
    INT64,
    UINT8,
    UINT64,
    DType,
)
from npusim.isa import (
    BLOCK_BYTES,
    FLOATS_PER_BLOCK,
    FLOATS_PER_REPEAT,
    Axpy,
    Barrier,
    Binary,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    BroadcastToL0c,
    Cast,
    CastDequant,
    Compare,
    CompareScalar,
    Copy,
    CopyL0c,
    CopyToL1,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    Duplicate,
    Fixpipe,
    Fold,
    Gather,
    GatherBlocks,
    GatherMask,
    GetCmpMask,
    Global,
    Load,
    LoadData,
    LoadFractals,
    LoadImage,
    LoadNd2Nz,
    LoadTable,
    Local,
    MicroOp,
    Mmad,
    MrgSort,
    MrgSort4,
    MulAddDst,
    Padding,
    ProposalConcat,
    ProposalExtract,
    Reduce,
    Register,
    RpSort16,
    ScalarAlu,
    ScalarLoad,
    ScalarLoadGlobal,
    ScalarLoop,
    ScalarStore,
    ScalarStoreGlobal,
    Scatter,
    Select,
    SetCmpMask,
    SetFlag,
    Sort32,
    Store,
    TransDataTo5HD,
    Transpose,
    Trap,
    Unary,
    WaitFlag,
    WholeReduce,
)
from npusim.kernel.ai_core import (
    AiCore,
    NdFeed,
    NdOut,
    RowTable,
)
from npusim.kernel.blocks import (
    base_tile,
    product_steps,
)
from npusim.kernel.builder import (
    Builder,
    step,
)
from npusim.kernel.core import (
    Core,
    TileQueue,
)
from npusim.kernel.cross_core import (
    sync_all,
)
from npusim.kernel.cube_core import (
    BiasTable,
    CubeCore,
    L0Pair,
    MmadInit,
    ScaleTable,
)
from npusim.kernel.launch import (
    CoreSteps,
    Kernel,
    launch_mixed,
    share,
)
from npusim.kernel.matmul import (
    BaseTile,
    Matmul,
)
from npusim.kernel.matrices import (
    GmMatrix,
    GmTile,
    GmTiles,
    L1Matrix,
)
from npusim.kernel.plane import (
    Plane,
    by_column,
    by_row,
    spread_rows,
)
from npusim.kernel.product import (
    Product,
)
from npusim.kernel.program import (
    Binding,
    Block,
    Body,
    Call,
    Line,
    Program,
)
from npusim.kernel.queues import (
    ProgramError,
    Queue,
    Slot,
)
from npusim.kernel.repeats import (
    in_reach,
)
from npusim.kernel.rows import (
    pieces,
)
from npusim.kernel.steps import (
    Choices,
    GmViews,
    Step,
    column,
)
from npusim.kernel.tiles import (
    CubeTiles,
    Piece,
    Pieces,
)
from npusim.kernel.vector_core import (
    VectorCore,
)
from npusim.kernel.views import (
    GmView,
    bindings,
    fill,
    load,
    repeat,
    store,
)

__all__ = [
    "BFLOAT16",
    "BLOCK_BYTES",
    "FLOAT16",
    "FLOAT32",
    "FLOATS_PER_BLOCK",
    "FLOATS_PER_REPEAT",
    "INT4",
    "INT8",
    "INT32",
    "INT64",
    "UINT8",
    "UINT64",
    "AiCore",
    "Axpy",
    "Barrier",
    "BaseTile",
    "BiasTable",
    "Binary",
    "BinaryScalar",
    "Binding",
    "Block",
    "BlockReduce",
    "Body",
    "Broadcast",
    "BroadcastToL0c",
    "Builder",
    "Call",
    "Cast",
    "CastDequant",
    "Choices",
    "Compare",
    "CompareScalar",
    "Copy",
    "CopyL0c",
    "CopyToL1",
    "Core",
    "CoreSteps",
    "CrossCoreSetFlag",
    "CrossCoreWaitFlag",
    "CubeCore",
    "CubeTiles",
    "DType",
    "Duplicate",
    "Fixpipe",
    "Fold",
    "Gather",
    "GatherBlocks",
    "GatherMask",
    "GetCmpMask",
    "Global",
    "GmMatrix",
    "GmTile",
    "GmTiles",
    "GmView",
    "GmViews",
    "Kernel",
    "L0Pair",
    "L1Matrix",
    "Line",
    "Load",
    "LoadData",
    "LoadFractals",
    "LoadImage",
    "LoadNd2Nz",
    "LoadTable",
    "Local",
    "Matmul",
    "MicroOp",
    "Mmad",
    "MmadInit",
    "MrgSort",
    "MrgSort4",
    "MulAddDst",
    "NdFeed",
    "NdOut",
    "Padding",
    "Piece",
    "Pieces",
    "Plane",
    "Product",
    "Program",
    "ProgramError",
    "ProposalConcat",
    "ProposalExtract",
    "Queue",
    "Reduce",
    "Register",
    "RowTable",
    "RpSort16",
    "ScalarAlu",
    "ScalarLoad",
    "ScalarLoadGlobal",
    "ScalarLoop",
    "ScalarStore",
    "ScalarStoreGlobal",
    "ScaleTable",
    "Scatter",
    "Select",
    "SetCmpMask",
    "SetFlag",
    "Slot",
    "Sort32",
    "Step",
    "Store",
    "TileQueue",
    "TransDataTo5HD",
    "Transpose",
    "Trap",
    "Unary",
    "VectorCore",
    "WaitFlag",
    "WholeReduce",
    "base_tile",
    "bindings",
    "by_column",
    "by_row",
    "column",
    "fill",
    "in_reach",
    "launch_mixed",
    "load",
    "pieces",
    "product_steps",
    "repeat",
    "share",
    "spread_rows",
    "step",
    "store",
    "sync_all",
]

__kernel_vocabulary__ = True
