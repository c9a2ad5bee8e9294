"""npu_fused_infer_attention_score_v2: the same operator with other parameter names.

.. code-block:: text

    output, softmax_lse = npu_fused_infer_attention_score(query, key, value, ...)

The kernels and what is simulated are the same, see
:mod:`npusim.ops.npu_fused_infer_attention_score`. Lengths are actual_seq_qlen and actual_seq_kvlen,
the query heads are num_query_heads, and softmax_scale and return_softmax_lse are its scale and
softmax_lse_flag.

learnable_sink, an extra score of each head with value 0, is checked against the rules and refused:
multiply the output by `1 / (1 + exp(learnable_sink - softmax_lse))`.

Source: op-plugin@517f2e7, op_plugin_functions.yaml; the schema is that of torch_npu 2.14.0.
"""

from __future__ import annotations

from npusim.data.dtypes import Array
from npusim.ops import npu_fused_infer_attention_score as first
from npusim.ops._attention import ELSEWHERE, at_once, build, oracle_of, tile
from npusim.ops._attention.check import KEYS_ALIKE, READS, Problem, check_as
from npusim.ops._attention.problem import TEMPLATES
from npusim.ops._attention.rules import table
from npusim.ops._contract import Contract
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator
from npusim.ops._torch import Result, Sizes, TorchArguments, TorchFunction

__all__ = ["NAMES", "OPERATOR"]

NAMES = {
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "num_heads": "num_query_heads",
    "scale": "softmax_scale",
    "softmax_lse_flag": "return_softmax_lse",
}
"""The first operator's name of a parameter -> the name here."""
DTYPES = (
    *("query_dtype", "key_dtype", "value_dtype", "query_rope_dtype", "key_rope_dtype"),
    *("key_shared_prefix_dtype", "value_shared_prefix_dtype", "dequant_scale_query_dtype"),
    *("dequant_scale_key_dtype", "dequant_scale_value_dtype", "dequant_scale_key_rope_dtype"),
    "out_dtype",
)
"""Parameters for types that the chips simulated here do not have."""


def check(contract: Contract) -> Problem:
    """Check like the first operator, with the parameter names of this one."""
    return check_as(contract, NAMES)


def _outputs(given: TorchArguments, sizes: Sizes) -> tuple[Result, ...]:
    return first.outputs({**given, **{name: given[own] for name, own in NAMES.items()}}, sizes)


def oracle(given: Given) -> tuple[Array, ...]:
    """The attention output of each token, and softmax_lse."""
    return oracle_of(OPERATOR, given)


TORCH = TorchFunction(
    schema="npu_fused_infer_attention_score_v2(Tensor query, Tensor key, Tensor value, *, "
    "Tensor? query_rope=None, "
    "Tensor? key_rope=None, Tensor? pse_shift=None, Tensor? atten_mask=None, "
    "SymInt[]? actual_seq_qlen=None, SymInt[]? actual_seq_kvlen=None, Tensor? block_table=None, "
    "Tensor? dequant_scale_query=None, Tensor? dequant_scale_key=None, "
    "Tensor? dequant_offset_key=None, Tensor? dequant_scale_value=None, "
    "Tensor? dequant_offset_value=None, Tensor? dequant_scale_key_rope=None, "
    "Tensor? quant_scale_out=None, Tensor? quant_offset_out=None, Tensor? quant_scale_p=None, "
    "Tensor? learnable_sink=None, "
    "int num_query_heads=1, int num_key_value_heads=0, float softmax_scale=1.0, "
    'int pre_tokens=2147483647, int next_tokens=2147483647, str input_layout="BSH", '
    "int sparse_mode=0, int block_size=0, int query_quant_mode=0, int key_quant_mode=0, "
    "int value_quant_mode=0, int inner_precise=0, bool return_softmax_lse=False, "
    f"{', '.join(f'int? {name}=None' for name in DTYPES)}) -> (Tensor, Tensor)",
    # The version of the aclnn function is assumed.
    aclnn=lambda _: "aclnnFusedInferAttentionScoreV4",
    outputs=_outputs,
    absent=DTYPES,
)

OPERATOR = Operator(
    kernel_type="FusedInferAttentionScore",
    document=__doc__,
    support=KEYS_ALIKE,
    elsewhere=ELSEWHERE,
    rules=table(NAMES),
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=at_once,
    templates=TEMPLATES,
    value_dependent_inputs=("block_table",),
    contract_reads=READS,
    torch=(TORCH,),
)
