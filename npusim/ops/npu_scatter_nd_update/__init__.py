"""npu_scatter_nd_update: rows of a tensor replaced, each by the index that its update has.

.. code-block:: text

    self[indices[i, 0], ..., indices[i, a - 1], ...] = updates[i, ...]

*indices* is `(..., a)`, with a index numbers for the first a dimensions of *self*; what the others
hold is a row. The bits come out as they went in. npu_scatter_nd_update_ writes in place, as the
kernel does; npu_scatter_nd_update gives a new tensor, and the kernel that copies *self* first is
not in its time. `npusim.run` gives a new array.

Sources: ops-nn@e5c3fa9 index/scatter_nd_update, op_host/arch22 and op_kernel/arch22, in its default
mode, and the operator's document (op-plugin@517f2e7). Atlas A2 and A3. Not there:

* On Atlas inference another kernel runs, which was not read; npusim refuses.
* An index that is out of range, or named twice, is open on a card (of equal ones the last seems to
  win) and refused here.
* The hardware's sort of the indices takes no time: its cycles are not public.

Without values of *indices* they are taken to be spread evenly over the rows.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import Sizes, TorchArguments, TorchFunction
from npusim.ops.npu_scatter_nd_update.contract import SUPPORT, Problem, check
from npusim.ops.npu_scatter_nd_update.kernel import build
from npusim.ops.npu_scatter_nd_update.reference import oracle
from npusim.ops.npu_scatter_nd_update.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def _outputs(given: TorchArguments, _: Sizes) -> tuple[tuple[tuple[int, ...], str]]:
    return ((given["self"].shape, given["self"].dtype),)


IN_PLACE = TorchFunction(
    schema="npu_scatter_nd_update_(Tensor(a!) self, Tensor indices, Tensor updates) -> Tensor(a!)",
    aclnn=lambda _: "aclnnScatterNdUpdate",
    outputs=_outputs,
    into=("self",),
)
FUNCTIONAL = TorchFunction(
    schema="npu_scatter_nd_update(Tensor self, Tensor indices, Tensor updates) -> Tensor",
    aclnn=lambda _: "aclnnScatterNdUpdate",
    outputs=_outputs,
)

OPERATOR = Operator(
    kernel_type="ScatterNdUpdate",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    seen_by_kernel=("indices",),
    torch=(FUNCTIONAL, IN_PLACE),
)
