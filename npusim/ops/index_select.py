"""index_select: parts of a tensor along an axis, one for each index.

.. code-block:: text

    output[i, ..., j, ..., k] = x[i, ..., index[j], ..., k], index at axis dim

The bits are unchanged. Torch runs it for `torch.index_select` on the card. The dimensions after the
axis form a row, those before it count tables, from each of which the same rows are taken, as
:mod:`npusim.ops._gather` does for one table.

Sources: ops-nn@e5c3fa9 index/gather_v2/op_api/aclnn_index_select.cpp. On A2 and A3 it calls
GatherV3, whose tiling library is closed, and GatherV2 for types that this one does not support.
That GatherV2's templates serve all axes and types is assumed. On a card an index beyond the axis,
or a negative one, reads other memory: both are refused. Without values of *index* the rows are
taken in turn, repeatedly.
"""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.data.dtypes import INT32, INT64, Array
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops._contract import MAX_RANK, Contract
from npusim.ops._gather import TYPES, TYPES_310P, Plan, Problem, build, tile, time_key
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, Operands, Row

INDEX = Operands((INT32, INT64), ranks=(1, 1))

SUPPORT = (
    Row(on=A2_A3, x=Operands(TYPES, ranks=(1, MAX_RANK)), index=INDEX),
    Row(on=ATLAS_INFERENCE, x=Operands(TYPES_310P, ranks=(1, MAX_RANK)), index=INDEX),
)


def check(contract: Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    table, where = contract.operand("x"), contract.operand("index")
    shape, axis = table.shape, contract.axis("dim", table)
    rows, tables, width = shape[axis], prod(shape[:axis]), prod(shape[axis + 1 :])
    (count,) = where.shape
    row_bytes = table.element.nbytes(width)
    contract.require(
        rows > 0 or count == 0,
        f"x must have rows along dim for the {count} indices, not shape {shape}; pass a tensor "
        f"that has them",
    )
    output = TensorSpec((*shape[:axis], count, *shape[axis + 1 :]), table.spec.dtype)
    return Problem(
        inputs=(table, where),
        outputs={"output": output},
        rows=rows,
        row_bytes=row_bytes,
        count=tables * count,
        tables=tables,
        index_type=where.element,
        indices=contract.indices("index", where.array, range(rows), "rows", "x"),
    )


def oracle(given: Given) -> Array:
    """The part of x along axis dim for each of index `(count,)`."""
    return np.asarray(np.take(given.x, given.index, axis=given.dim))


def _kernel_type(spec: DeviceSpec, _: Problem, __: Plan) -> str:
    return "GatherV2" if spec.series == "Atlas inference" else "GatherV3"


OPERATOR = Operator(
    signature="index_select(Tensor x, int dim, Tensor index) -> Tensor",
    kernel_type=_kernel_type,
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=lambda given, *_: oracle(given),
    value_dependent_inputs=("index",),
    time_key=time_key,
)
