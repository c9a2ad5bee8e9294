"""npu_fused_infer_attention_score: attention for inference, of tokens of requests to their keys.

.. code-block:: text

    s[i, j] = fp32(q[i] . k[j]) * scale                hidden ones: - 3e38
    p[i, j] = exp(s[i, j] - max_j s[i, j])
    output[i] = T(sum_j T(p[i, j]) * v[j] / sum_j p[i, j])           T: the type of query
    softmax_lse[i] = ln(sum_j p[i, j]) + max_j s[i, j]               fp32

for each request and each of its heads; *num_key_value_heads* heads of key and value serve as many
query heads each. All is fp32 but for the factors of both products. Keys are taken 512 at a time,
counted from the first of the request; what was found for the tiles before shrinks by
exp(maximum before - maximum now). That exp and ln give the nearest number is assumed.

Sources: ops-transformer@3a280bc attention/fused_infer_attention_score, op_host and op_kernel, and
the operator's document (op-plugin@517f2e7, torch_npu-npu_fused_infer_attention_score.md). Atlas A2
and A3; Atlas inference has no such kernel. Simulated are:

* fp16 and bf16 in input_layout TND: query `(tokens, heads, columns)`, the tokens of all requests
  behind each other, and keys likewise, or in a cache `(blocks, block_size, heads x columns)` with
  a block_table `(requests, blocks)`.
* actual_seq_lengths and actual_seq_lengths_kv are lists of integers: sums of lengths so far, for
  keys in a cache the length of each request.
* sparse_mode 0 without a mask, and 3, causal, with the stencil `numpy.triu(ones, 1)` of 2048 x 2048
  whatever the lengths are; nonzero hides.
* `template` names the kernel that the vendor would not take itself, see `choice`.

A block_table without values stands for blocks that follow each other; `run.plan.reason` says so.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops.npu_fused_infer_attention_score.contract import Problem, check
from npusim.ops.npu_fused_infer_attention_score.kernel import Plan, build, tile
from npusim.ops.npu_fused_infer_attention_score.reference import reference

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "reference", "tile"]

OPERATOR = Operator(
    name="npu_fused_infer_attention_score",
    document=__doc__,
    check=check,
    tile=tile,
    build=build,
    reference=reference,
    seen_by_kernel=("block_table",),
)
