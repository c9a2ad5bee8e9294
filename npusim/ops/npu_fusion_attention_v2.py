"""npu_fusion_attention_v2: the same with rotated parts of heads, by other parameter names.

.. code-block:: text

    attention_out, softmax_max, softmax_sum = npu_fusion_attention(query, key, value, ...)

The same kernel, see :mod:`npusim.ops.npu_fusion_attention`, which lists what is simulated of it.
The bounds of a band are pre_tokens and next_tokens. In TND heads of 128 columns may have separate
rotary parts of 64, query_rope and key_rope, whose products are added. pse_type says how pse is
added: 0 to scaled scores, 1 to scores before they are scaled. With 2 and 3 it is a slope for each
head, `(heads,)` or `(requests, heads)` in float32, and slope * |key + kv_start_idx - token -
q_start_idx|, or with 3 slope * the root of that distance, is taken away from scaled scores.

Sources: op-plugin@517f2e7, op_plugin_functions.yaml and FlashAttentionKernelNpuOpApi.cpp.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.data.dtypes import Array
from npusim.ops import _vocabulary as ops
from npusim.ops import npu_fusion_attention as first
from npusim.ops._attention import at_once, build, oracle_of
from npusim.ops._attention.check import Problem

NAMES = {"pre_tockens": "pre_tokens", "next_tockens": "next_tokens"}
"""The first version's name of a parameter -> the name here."""


def check(contract: ops.Contract) -> Problem:
    """Check like the first version, with the parameter names of this one."""
    ours = {other: name for name, other in NAMES.items()}
    given = {ours.get(name, name): value for name, value in contract.arguments.items()}
    return first.check(replace(contract, names=NAMES, arguments=given))


def oracle(given: ops.Given) -> tuple[Array, ...]:
    """The attention output of each token, and the maxima and sums of its scores."""
    return oracle_of(OPERATOR, given)


OPERATOR = ops.Operator(
    kernel_type="FlashAttentionScore",
    document=__doc__,
    support=first.support_of(*first.ROPES),
    elsewhere="run it on Atlas A2 or A3",
    contract=check,
    tile=first.tile,
    build=build,
    oracle=oracle,
    at_once=at_once,
    torch=(
        ops.TorchFunction(
            schema="npu_fusion_attention_v2(Tensor query, Tensor key, Tensor value, int head_num, "
            "str input_layout, *, Tensor? pse=None, Tensor? padding_mask=None, "
            "Tensor? atten_mask=None, Tensor? query_rope=None, Tensor? key_rope=None, "
            "float scale=1., float keep_prob=1., int pre_tokens=2147483647, "
            "int next_tokens=2147483647, int inner_precise=0, int[]? prefix=None, "
            "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, "
            "bool gen_mask_parallel=True, bool sync=False, int pse_type=1, "
            'int[]? q_start_idx=None, int[]? kv_start_idx=None, str softmax_layout="", '
            "Tensor? sink=None, Tensor? dropout_mask=None, int seed=0, int offset=0) -> "
            f"{first.RESULTS}",
            aclnn=lambda given: f"{first.aclnn(given)}V2",
            outputs=first.outputs,
            behind=first.behind,
            gradient=ops.Gradient(
                "query, key, value, pse, query_rope, key_rope, sink: "
                "npu_fusion_attention_grad_v2(query, key, value, grad, head_num, input_layout, "
                "pse, padding_mask, atten_mask, result1, result2, result3, result0, query_rope, "
                "key_rope, scale, keep_prob, pre_tokens, next_tokens, inner_precise, result4, "
                "result5, result6, prefix, actual_seq_qlen, actual_seq_kvlen, sparse_mode, "
                "gen_mask_parallel, sync, pse_type, q_start_idx, kv_start_idx, softmax_layout, "
                "sink)"
            ),
        ),
    ),
)
