"""npu_incre_flash_attention: attention of single tokens to keys and values of int8.

.. code-block:: text

    output, _ = npu_fused_infer_attention_score(query, key, value, ...)

The kernel IFA alone, which npu_fused_infer_attention_score has such calls done by: see
:mod:`npusim.ops._attention.ifa`. *query* has one token for each request, in layout BSH, BSND or
BNSD; *antiquant_scale* `(2, ...)` is a number or one for each column of the heads of keys, and of
those of values. Keys may lie in pages. *actual_seq_lengths* are the keys of each request, and
scale_value is the first operator's scale. inner_precise changes nothing (assumed).

The kernel of the same operator for keys of fp16 and bf16 is not simulated.

Sources: op-plugin@517f2e7, op_plugin_functions.yaml; ops-transformer@3a280bc
attention/incre_flash_attention. Atlas A2 and A3: Atlas inference has its own kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from npusim.data.errors import Code
from npusim.ops import npu_fused_infer_attention_score as first
from npusim.ops._attention import build, oracle_of, tile
from npusim.ops._attention.check import INT8_BOTH, Problem, check_as
from npusim.ops._attention.problem import LARGEST_TOKENS
from npusim.ops._contract import Contract
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator
from npusim.ops._support import ATLAS_INFERENCE
from npusim.ops._torch import Result, Sizes, TorchArguments, TorchFunction

__all__ = ["OPERATOR"]

NAMES = {"actual_seq_lengths_kv": "actual_seq_lengths", "scale": "scale_value"}
"""The first operator's name of a parameter -> this one's."""
FIXED = {
    "actual_seq_lengths": None,
    "sparse_mode": 0,
    "pre_tokens": LARGEST_TOKENS,
    "next_tokens": LARGEST_TOKENS,
    "softmax_lse_flag": False,
    "template": None,
}
"""Parameters that the first operator alone has -> what they are here."""


def check(contract: Contract) -> Problem:
    """Check as the first operator does, by the names of this one; keys must be of int8."""
    contract.require(
        contract.value("antiquant_scale") is not None,
        "antiquant_scale must be given, with key and value of int8, not None: the kernel for other "
        "keys is not simulated; call npu_fused_infer_attention_score, which has others",
        Code.UNSUPPORTED,
    )
    problem = check_as(contract, NAMES, FIXED)
    return replace(problem, outputs={"output": problem.output})


def oracle(given: Given) -> Any:
    """The output of the first operator's."""
    return oracle_of(OPERATOR, given)[0]


def _outputs(given: TorchArguments, sizes: Sizes) -> tuple[Result, ...]:
    return first.outputs({**given, "softmax_lse_flag": False}, sizes)[:1]


TORCH = TorchFunction(
    schema="npu_incre_flash_attention(Tensor query, Tensor key, Tensor value, *, "
    "Tensor? padding_mask=None, "
    "Tensor? atten_mask=None, Tensor? pse_shift=None, SymInt[]? actual_seq_lengths=None, "
    "Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? block_table=None, "
    "Tensor? dequant_scale1=None, Tensor? quant_scale1=None, Tensor? dequant_scale2=None, "
    "Tensor? quant_scale2=None, Tensor? quant_offset2=None, Tensor? kv_padding_size=None, "
    'int num_heads=1, float scale_value=1.0, str input_layout="BSH", '
    "int num_key_value_heads=0, int block_size=0, int inner_precise=1) -> Tensor",
    aclnn=lambda _: "aclnnIncreFlashAttentionV4",
    outputs=_outputs,
)

OPERATOR = Operator(
    kernel_type="IncreFlashAttention",
    document=__doc__,
    support=INT8_BOTH,
    elsewhere="run it on Atlas A2 or A3",
    unsimulated=ATLAS_INFERENCE,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=("block_table",),
    torch=(TORCH,),
)
