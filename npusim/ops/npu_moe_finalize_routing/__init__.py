"""npu_moe_finalize_routing: the weighted sum of the experts' results for each token.

.. code-block:: text

    output[r] = (skip1[r] + skip2[r]) + sum over j of scales[r, j] * (rows[i(r, j)] + bias[e(r, j)])

    i(r, j) = expanded_src_to_dst_row[j * tokens + r]     drop_pad_mode 0, 1
              expanded_src_to_dst_row[r * k + j]          drop_pad_mode 2, 3
    e(r, j) = export_for_source_row[r, j]

Products are added in ascending order of j; without skips the first one starts the sum. float16 and
float32 are calculated in their own type, rounded after each operation, and without bias 0 is added,
which turns -0 into +0. bfloat16 is calculated in float32 and rounded once, to nearest, ties to
even. In drop_pad_mode 1 and 3 an index of -1 stands for a row that was dropped and contributes 0.

Sources: ops-transformer@c29bc10 moe/moe_finalize_routing, op_kernel and op_host. Assumed: that a
dropped row contributes neither bias nor scale, that k is the number of experts of a token if no
scales are given and that nothing is multiplied then, and the schedule, as described in
:mod:`npusim.ops.npu_moe_finalize_routing.kernel`. An index beyond the rows reads other memory on a
card: it is refused. Without values of the indices the rows are taken in order.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops import _vocabulary as ops
from npusim.ops.npu_moe_finalize_routing.check import DROPPED, SUPPORT, check, tile
from npusim.ops.npu_moe_finalize_routing.kernel import build


def oracle(given: ops.Given) -> Array:
    """`(tokens, width)` in the type of expanded_permuted_rows."""
    expanded_permuted_rows, experts = given.expanded_permuted_rows, given.export_for_source_row
    skip1, skip2, bias, scales = given.skip1, given.skip2, given.bias, given.scales
    dtype = expanded_permuted_rows.dtype
    # float16 and float32 are calculated in their own type, bfloat16 in float32.
    wide = dtype if dtype in (np.float16, np.float32) else np.dtype(np.float32)
    rows = expanded_permuted_rows.reshape(-1, expanded_permuted_rows.shape[-1]).astype(wide)
    choices = given.k if scales is None else scales.shape[1]
    where = given.expanded_src_to_dst_row
    if given.drop_pad_mode in (0, 1):
        where = where.reshape(choices, -1).T
    where = where.reshape(-1, choices)
    total: Array | None = None
    with np.errstate(all="ignore"):
        if skip1 is not None:
            total = skip1.astype(wide)
            total = total if skip2 is None else total + skip2.astype(wide)
        for choice in range(choices):
            # The rows of this choice for all tokens, (tokens, width).
            term = rows[where[:, choice]]
            if bias is not None:
                term = term + bias.astype(wide)[experts[:, choice]]
            elif wide == dtype:
                term = term + wide.type(0)
            if scales is not None:
                term = term * scales[:, choice : choice + 1].astype(wide)
            term = np.where(where[:, choice : choice + 1] == DROPPED, wide.type(0), term)
            total = term if total is None else total + term
        assert total is not None
        return np.asarray(total.astype(dtype))


def _outputs(given: ops.TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
    rows, where, scales = (
        given[name] for name in ("expanded_permuted_rows", "expanded_src_to_dst_row", "scales")
    )
    k = given["k"] if scales is None else scales.shape[1]
    return (((where.shape[0] // k, rows.shape[-1]), rows.dtype),)


TORCH = ops.TorchFunction(
    schema="npu_moe_finalize_routing(Tensor expanded_permuted_rows, Tensor? skip1, Tensor? skip2, "
    "Tensor? bias, Tensor? scales, Tensor expanded_src_to_dst_row, Tensor? export_for_source_row, "
    "int drop_pad_mode=0, int k=1) -> Tensor",
    aclnn=lambda _: "aclnnMoeFinalizeRoutingV2",
    outputs=_outputs,
)

OPERATOR = ops.Operator(
    kernel_type="MoeFinalizeRoutingV2",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=("expanded_src_to_dst_row", "export_for_source_row"),
    torch=(TORCH,),
)
