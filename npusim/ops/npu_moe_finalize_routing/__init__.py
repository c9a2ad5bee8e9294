"""npu_moe_finalize_routing: the rows that experts made, weighed and added up for each token.

.. code-block:: text

    output[r] = (skip1[r] + skip2[r]) + sum over j of scales[r, j] * (rows[i(r, j)] + bias[e(r, j)])

    i(r, j) = expanded_src_to_dst_row[j * tokens + r]     drop_pad_mode 0, 1
              expanded_src_to_dst_row[r * k + j]          drop_pad_mode 2, 3
    e(r, j) = export_for_source_row[r, j]

Products are added in ascending order of j; without skips the first one starts the sum. float16 and
float32 are calculated in their own type, each operation rounded by itself, and without bias 0 is
added, which makes +0 of -0. bfloat16 is calculated in float32 and rounded once, to nearest, ties to
even. In drop_pad_mode 1 and 3 an index of -1 stands for a row that was dropped and contributes 0.

Sources: ops-transformer@c29bc10 moe/moe_finalize_routing, op_kernel and op_host. Assumed: that a
dropped row contributes neither bias nor scale, that k tells how many experts a token has where
scales are not given and that nothing is multiplied then, and what
:mod:`npusim.ops.npu_moe_finalize_routing.kernel` says of the schedule. An index beyond the rows
reads elsewhere on a card: it is refused. Without values of the indices the rows are taken in turn.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import Result, Sizes, TorchArguments, TorchFunction
from npusim.ops.npu_moe_finalize_routing.contract import SUPPORT, Problem, check
from npusim.ops.npu_moe_finalize_routing.kernel import build
from npusim.ops.npu_moe_finalize_routing.reference import oracle
from npusim.ops.npu_moe_finalize_routing.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def _outputs(given: TorchArguments, _: Sizes) -> tuple[Result, ...]:
    rows, where, scales = (
        given[name] for name in ("expanded_permuted_rows", "expanded_src_to_dst_row", "scales")
    )
    k = given["k"] if scales is None else scales.shape[1]
    return (((where.shape[0] // k, rows.shape[-1]), rows.dtype),)


TORCH = TorchFunction(
    schema="npu_moe_finalize_routing(Tensor expanded_permuted_rows, Tensor? skip1, Tensor? skip2, "
    "Tensor? bias, Tensor? scales, Tensor expanded_src_to_dst_row, Tensor? export_for_source_row, "
    "int drop_pad_mode=0, int k=1) -> Tensor",
    aclnn=lambda _: "aclnnMoeFinalizeRoutingV2",
    outputs=_outputs,
)

OPERATOR = Operator(
    kernel_type="MoeFinalizeRoutingV2",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    seen_by_kernel=("expanded_src_to_dst_row", "export_for_source_row"),
    torch=(TORCH,),
)
