"""npu_fusion_attention_grad_v2: the same with the parameter names of the second version.

.. code-block:: text

    output, dkey, dvalue = npu_fusion_attention_grad(query, key, value, dy, ...)

The same kernel, see :mod:`npusim.ops.npu_fusion_attention_grad`. Bounds of a band are pre_tokens
and next_tokens; separate rotary parts of heads are not simulated.

Sources: op-plugin@517f2e7, op_plugin_functions.yaml and FlashAttentionKernelNpuOpApi.cpp.
"""

from __future__ import annotations

from npusim.data.dtypes import Array
from npusim.ops import _vocabulary as ops
from npusim.ops import npu_fusion_attention_grad as first
from npusim.ops import npu_fusion_attention_v2 as forward
from npusim.ops._attention.check import Problem
from npusim.ops._torch import Result

NAMES = first.NAMES | forward.NAMES


def check(contract: ops.Contract) -> Problem:
    """Check like the first version, with the parameter names of this one."""
    return first.check(contract, NAMES)


def oracle(given: ops.Given) -> tuple[Array, ...]:
    """The gradients of query, key and value."""
    return first.oracle_of(OPERATOR, given)


def behind(given: ops.TorchArguments) -> tuple[Result | int, ...]:
    """The gradients of pse, rotary parts and sink, which do not exist."""
    return first.of_pse(given), *[((0,), given["query"].dtype)] * 2, ((0,), "float32")


OPERATOR = ops.Operator(
    kernel_type="FlashAttentionScoreGrad",
    document=__doc__,
    support=first.SUPPORT_V2,
    extras=first.EXTRAS,
    elsewhere="run it on Atlas A2 or A3",
    contract=check,
    tile=first.tile,
    build=first.build,
    oracle=oracle,
    at_once=first.at_once,
    torch=(
        ops.TorchFunction(
            schema="npu_fusion_attention_grad_v2(Tensor query, Tensor key, Tensor value, "
            "Tensor dy, int head_num, str input_layout, *, Tensor? pse=None, "
            "Tensor? padding_mask=None, Tensor? atten_mask=None, Tensor? softmax_max=None, "
            "Tensor? softmax_sum=None, Tensor? softmax_in=None, Tensor? attention_in=None, "
            "Tensor? query_rope=None, Tensor? key_rope=None, float scale_value=1., "
            "float keep_prob=1., int pre_tokens=2147483647, int next_tokens=2147483647, "
            "int inner_precise=0, int seed=0, int offset=0, int numels=0, int[]? prefix=None, "
            "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, "
            "bool gen_mask_parallel=True, bool sync=False, int pse_type=1, "
            'int[]? q_start_idx=None, int[]? kv_start_idx=None, str softmax_layout="", '
            "Tensor? sink=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
            aclnn=lambda given: f"{first.aclnn(given)}V2",
            outputs=first.outputs,
            behind=behind,
        ),
    ),
)
