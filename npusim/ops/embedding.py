"""embedding: rows of a table, one for each index.

.. code-block:: text

    output[..., j] = weight[indices[...], j]

The bits are unchanged. Torch runs it for `torch.nn.functional.embedding` on the card.
The vendor's kernel is GatherV2 with axis 0.

Sources: ops-nn@e5c3fa9 index/embedding/op_api/aclnn_embedding.cpp; for the kernel gather_v2.py of
CANN 8.1.RC1 and gather_v2.cc, the tiling library of 2022. Assumed: the types, that chips of A2 and
A3 run that kernel in its default mode, and what :mod:`npusim.ops._gather` assumes. On a card an
index beyond the table, or a negative one, reads other memory: both are refused. Without values of
*indices* the rows are taken in turn, repeatedly.
"""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.data.dtypes import INT32, INT64, Array
from npusim.data.tensor import TensorSpec
from npusim.ops import _vocabulary as ops
from npusim.ops._contract import MAX_RANK
from npusim.ops._gather import TYPES, TYPES_310P, Problem, build, tile, time_key
from npusim.ops._vocabulary import A2_A3, ATLAS_INFERENCE, Operands, Row

INDICES = Operands((INT32, INT64), ranks=(0, MAX_RANK - 1))

SUPPORT = (
    Row(on=A2_A3, weight=Operands(TYPES, ranks=(2, 2)), indices=INDICES),
    Row(on=ATLAS_INFERENCE, weight=Operands(TYPES_310P, ranks=(2, 2)), indices=INDICES),
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    table, where = contract.operand("weight"), contract.operand("indices")
    rows, width = table.shape
    contract.require(
        rows > 0 or where.spec.size == 0,
        f"weight must have rows for the {where.spec.size} indices, not shape {table.shape}; "
        f"pass a table that has them",
    )
    return Problem(
        inputs=(table, where),
        outputs={"output": TensorSpec((*where.shape, width), table.spec.dtype)},
        rows=rows,
        row_bytes=table.element.nbytes(width),
        count=prod(where.shape),
        index_type=where.element,
        indices=contract.indices("indices", where.array, range(rows), "rows", "weight"),
    )


def oracle(given: ops.Given) -> Array:
    """Rows of weight `(rows, width)`, one for each of indices: `(*indices.shape, width)`."""
    return np.asarray(np.take(given.weight, given.indices, axis=0))


OPERATOR = ops.Operator(
    signature="embedding(Tensor weight, Tensor indices) -> Tensor",
    kernel_type="GatherV2",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=lambda given, *_: oracle(given),
    value_dependent_inputs=("indices",),
    time_key=time_key,
)
