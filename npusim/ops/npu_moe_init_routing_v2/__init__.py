"""npu_moe_init_routing_v2: the rows of all tokens, sorted by the experts that they go to.

.. code-block:: text

    order                = the choices (token, j), sorted by expert, of equal ones the first
    output[i]            = x[order[i] / k]                            quant_mode -1
    expanded_scale[i]    = scale[order[i] / k]
    output[i]            = int8(v / s), v = x[order[i] / k] * scale[expert], s = max|v| / 127
                                                                      quant_mode 1
    expanded_scale[i]    = s
    expanded_row_idx     = where each choice has gone, or -1          row_idx_type 0
    expanded_row_idx     = order                                      row_idx_type 1
    expert_token_cumsum_or_count = the ends of the experts' rows      expert_tokens_num_type 0
                           how many rows each of them has             expert_tokens_num_type 1
                           (expert, rows), of those that have any     expert_tokens_num_type 2

Experts outside of active_expert_range are sorted behind all others, and nothing is written of their
rows. With drop_pad_mode 1 each expert has expert_capacity rows of output `(experts, capacity,
width)`: further ones are dropped, and missing ones are zeros. v and s are float32; v / s is
cut to the bits of float16 and then rounded, halves away from zero, so that 2.5 becomes 3. The
kernel for single tokens of a certain model makes what it cuts odd, and rounds halves to even. A row
of zeros becomes one of zeros.

A card leaves as it finds them the rows of experts that are not active, the counts without
expert_tokens_num_flag, and the scales without quantisation; here they are full of 0.

Sources: ops-transformer@c29bc10 moe/moe_init_routing_v3, op_kernel and op_host; torch_npu 2.14.0,
the text of this function, which has drop_pad_mode 0 alone, and what it returns to torch.compile,
which has the shapes of drop_pad_mode 1. Assumed: that choices which are not active keep their
order; of drop_pad_mode 1 that rows are dropped from the end, that scales and the index count places
as output has them, and that counts include dropped rows; and what the modules of this folder say of
the schedule. Not simulated: static quantisation, fewer rows than choices (active_num), and the
kernel of many tokens with 8 of 256 experts, of which 32 or fewer are active; the general one stands
in for it. Without values of expert_idx the choices go to the active experts in turn.
"""

from __future__ import annotations

from math import prod
from typing import Any

from npusim.ops._protocol import Operator
from npusim.ops._torch import Result, Sizes, TorchArguments, TorchFunction
from npusim.ops.npu_moe_init_routing_v2.contract import PAIRS, SUPPORT, Problem, check
from npusim.ops.npu_moe_init_routing_v2.kernel import build
from npusim.ops.npu_moe_init_routing_v2.reference import oracle
from npusim.ops.npu_moe_init_routing_v2.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def _outputs(given: TorchArguments, _: Sizes) -> tuple[Result, ...]:
    x, where = given["x"], given["expert_idx"]
    rows = where.shape[0] * where.shape[1]
    active: Any = given["active_expert_range"]
    experts = active[1] - active[0] if active else given["expert_num"]
    counts = (given["expert_num"], 2) if given["expert_tokens_num_type"] == PAIRS else (experts,)
    is_padded = given["drop_pad_mode"] == 1
    places = (given["expert_num"], given["expert_capacity"]) if is_padded else (rows,)
    return (
        ((*places, x.shape[1]), "int8" if given["quant_mode"] == 1 else x.dtype),
        ((rows,), "int32"),
        (counts, "int64"),
        ((prod(places),), "float32"),
    )


TORCH = TorchFunction(
    schema="npu_moe_init_routing_v2(Tensor x, Tensor expert_idx, *, Tensor? scale=None, "
    "Tensor? offset=None, int active_num=-1, int expert_capacity=-1, int expert_num=-1, "
    "int drop_pad_mode=0, int expert_tokens_num_type=0, bool expert_tokens_num_flag=False, "
    "int quant_mode=-1, int[] active_expert_range=[], int row_idx_type=0, int? x_dtype=None) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    aclnn=lambda _: "aclnnMoeInitRoutingV3",
    outputs=_outputs,
    absent=("offset", "x_dtype"),
)

OPERATOR = Operator(
    kernel_type="MoeInitRoutingV3",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    seen_by_kernel=("expert_idx",),
    torch=(TORCH,),
)
