"""embedding: rows of a table, one for each index.

.. code-block:: text

    output[..., j] = weight[indices[...], j]

The bits come out as they went in. Torch runs it for `torch.nn.functional.embedding` on the card.
The vendor's kernel is GatherV2 with axis 0.

Sources: ops-nn@e5c3fa9 index/embedding/op_api/aclnn_embedding.cpp; of the kernel gather_v2.py of
CANN 8.1.RC1 and gather_v2.cc, the tiling library of 2022. Assumed: the types, that chips of A2 and
A3 run that kernel in its default mode, and what :mod:`npusim.ops.embedding.kernel` says of it. An
index beyond the table reads elsewhere on a card, and a negative one too: both are refused. Without
values of *indices* the rows are taken in turn, again and again.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops.embedding.contract import SUPPORT, Problem, check
from npusim.ops.embedding.kernel import build
from npusim.ops.embedding.reference import oracle
from npusim.ops.embedding.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]

OPERATOR = Operator(
    signature="embedding(Tensor weight, Tensor indices) -> Tensor",
    kernel_type="GatherV2",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    seen_by_kernel=("indices",),
)
