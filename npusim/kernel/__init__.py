"""What kernels are written with: everything that a kernel of one's own imports is here.

A kernel is a function of a chip and of the specs of its tensors, which returns a
:class:`~npusim.kernel.launch.Kernel`: what each core does. ``npusim.run`` runs it as it runs an
operator. This one doubles `(rows, columns)`, a row at a time, on the first vector core:

>>> import numpy as np
>>> import npusim
>>> from npusim.kernel import BinaryScalar, Block, Builder, GmView, Kernel
>>> from npusim.kernel import bindings, load, repeat, store
>>> def double(spec, x):
...     kind, (rows, columns) = spec.vector_kinds[0], x.shape
...     builder = Builder("double", spec.cores[kind], spec.sync)
...     loaded = builder.queue("ub", x.element.nbytes(columns), "mte2", "vector", depth=2)
...     computed = builder.queue("ub", x.element.nbytes(columns), "vector", "mte3", depth=2)
...     x_gm, y_gm = (GmView.of(name, x.element, rows, columns) for name in "xy")
...     def row(x, y):
...         slot = load(builder, loaded, x)  # mte2, then the vector pipe may go on
...         out = computed.alloc()
...         source, target = (buffer.of(x.dtype, columns) for buffer in (slot, out))
...         builder.emit(BinaryScalar("mul", target, source, 2.0))
...         loaded.free(slot)
...         store(builder, computed, out, y)  # mte3, once the vector pipe is done
...     for index in range(rows):
...         here = slice(index, index + 1)
...         repeat(builder, row, x_gm[here, :], y_gm[here, :])
...     block = Block(0, kind, builder.build(), bindings(x_gm, y_gm))
...     return Kernel("double", (block,), {"x": x}, {"y": x})
>>> x = np.arange(96, dtype=np.float32).reshape(3, 32)
>>> bool((npusim.run(double, x, device="Atlas A2").output == 2 * x).all())
True

**Builder and queues.** As in Ascend C, a queue carries buffers from one pipe to another, and sets
and awaits the flags as TPipe and TQue do:

====================  ===========================================================
``slot = q.alloc()``  a free buffer; waits until its last reader is done with it
``q.enque(slot)``     the producer is done: raise the flag
``slot = q.deque()``  the consumer waits for that flag
``q.free(slot)``      the consumer is done: the buffer may be filled again
====================  ===========================================================

With depth 1 the producer waits for the consumer each time; with depth 2 it fills one buffer while
the other is read. Flags can also be written explicitly, right or wrong (``Builder.set_flag``,
``Builder.wait_flag``).

**Views.** A :class:`GmView` is a part of a tensor, cut as numpy cuts arrays; :func:`load` and
:func:`store` copy it and own the four calls above; :func:`repeat` writes a stage of a kernel once
for all places, as a loop on the chip moves its addresses. :func:`pieces` cuts an extent into steps.

**Launches.** A :class:`Block` is what one core does: a :class:`Program`, and where its names of
global memory begin (:func:`bindings`). :func:`share` splits work into runs, :func:`mixed_launch`
starts cube cores with their vector cores, whose cores wait for each other by :func:`sync_all`.

**Steps of the vector pipe.** :func:`step` is a micro-op and the barrier behind it;
:func:`to_float32` and :func:`to_quantised` are chains of them. A :class:`Plane` is rows and columns
in the unified buffer, with what goes along rows or columns; a :class:`ColumnVector` is a vector
along n as float32.

**Products.** A :class:`GmMatrix` is an operand in global memory, a :class:`GmFeed` loads it into
L1, a :class:`CubeWriter` multiplies base tiles, :class:`Tables` hold bias and scales. Below them,
:class:`L0Pair` multiplies parts of two pieces in L1.

**Micro-ops** are what ``builder.emit(...)`` takes: ``Binary("add", dst, a, b)``, ``Cast``,
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
    GatherMask,
    Global,
    Load,
    LoadData,
    LoadNd2Nz,
    LoadTable,
    Local,
    MicroOp,
    Mmad,
    MrgSort,
    MulAddDst,
    Reduce,
    Register,
    ScalarAlu,
    ScalarLoad,
    ScalarLoadGlobal,
    ScalarLoop,
    ScalarStore,
    Select,
    SetFlag,
    Sort32,
    Store,
    Transpose,
    Trap,
    Unary,
    WaitFlag,
    WholeReduce,
)
from npusim.kernel.builder import (
    Builder,
)
from npusim.kernel.chain import (
    step,
    to_float32,
    to_quantised,
)
from npusim.kernel.columns import (
    ColumnVector,
)
from npusim.kernel.core import (
    Core,
    TileQueue,
)
from npusim.kernel.cross_core import (
    sync_all,
)
from npusim.kernel.cube import (
    BaseTile,
    CubeWriter,
    GmFeed,
    GmMatrix,
    GmTile,
    L0Pair,
    L1Operand,
    Tables,
)
from npusim.kernel.launch import (
    Kernel,
    mixed_launch,
    share,
)
from npusim.kernel.plane import (
    Plane,
    by_column,
    by_row,
    spread_rows,
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
    "Axpy",
    "Barrier",
    "BaseTile",
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
    "Choices",
    "ColumnVector",
    "Compare",
    "CompareScalar",
    "Copy",
    "CopyL0c",
    "CopyToL1",
    "Core",
    "CrossCoreSetFlag",
    "CrossCoreWaitFlag",
    "CubeWriter",
    "DType",
    "Duplicate",
    "Fixpipe",
    "Fold",
    "Gather",
    "GatherMask",
    "Global",
    "GmFeed",
    "GmMatrix",
    "GmTile",
    "GmView",
    "GmViews",
    "Kernel",
    "L0Pair",
    "L1Operand",
    "Line",
    "Load",
    "LoadData",
    "LoadNd2Nz",
    "LoadTable",
    "Local",
    "MicroOp",
    "Mmad",
    "MrgSort",
    "MulAddDst",
    "Plane",
    "Program",
    "ProgramError",
    "Queue",
    "Reduce",
    "Register",
    "ScalarAlu",
    "ScalarLoad",
    "ScalarLoadGlobal",
    "ScalarLoop",
    "ScalarStore",
    "Select",
    "SetFlag",
    "Slot",
    "Sort32",
    "Step",
    "Store",
    "Tables",
    "TileQueue",
    "Transpose",
    "Trap",
    "Unary",
    "VectorCore",
    "WaitFlag",
    "WholeReduce",
    "bindings",
    "by_column",
    "by_row",
    "column",
    "fill",
    "in_reach",
    "load",
    "mixed_launch",
    "pieces",
    "repeat",
    "share",
    "spread_rows",
    "step",
    "store",
    "sync_all",
    "to_float32",
    "to_quantised",
]

__kernel_vocabulary__ = True
