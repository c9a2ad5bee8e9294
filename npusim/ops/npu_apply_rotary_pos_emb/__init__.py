"""npu_apply_rotary_pos_emb: rotary position embedding of queries and keys, in place, in one launch.

.. code-block:: text

    y[j]         = x[j + half] * -sin[j] + x[j] * cos[j]             j < half = width / 2
    y[j + half]  = x[j] * sin[j + half] + x[j + half] * cos[j + half]

for x each head of *query* and *key*. float16 and float32 compute in their own type, a rounding for
each product and sum; bfloat16 computes in float32 and rounds once at the end, to nearest, **ties
away from zero**. In both 16-bit types the result so differs from that of npu_rotary_mul.

On a card query and key themselves are overwritten, as they are here for tensors of torch;
`npusim.run` gives new arrays.

Sources: ops-transformer@c29bc10 posembedding/apply_rotary_pos_emb, op_kernel and op_host, and the
operator's document (torch_npu-npu_apply_rotary_pos_emb.md). Vectors of 64 come from a newer kernel
(@05c401f9), whose rounding is the same; that the rest is too is assumed. A NaN stays a NaN, but on
Atlas inference, where float16 saturates, it becomes 0 (assumed of all three steps).
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchFunction
from npusim.ops.npu_apply_rotary_pos_emb.contract import SUPPORT, Problem, check
from npusim.ops.npu_apply_rotary_pos_emb.kernel import build
from npusim.ops.npu_apply_rotary_pos_emb.reference import oracle
from npusim.ops.npu_apply_rotary_pos_emb.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]

TORCH = TorchFunction(
    schema="npu_apply_rotary_pos_emb(Tensor query, Tensor key, Tensor cos, Tensor sin, "
    "str layout='BSND', str rotary_mode='half') -> (Tensor, Tensor)",
    aclnn=lambda _: "aclnnApplyRotaryPosEmb",
    outputs=lambda given, _: tuple(
        (given[name].shape, given[name].dtype) for name in ("query", "key")
    ),
    into=("query", "key"),
)

OPERATOR = Operator(
    kernel_type="ApplyRotaryPosEmb",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(TORCH,),
)
