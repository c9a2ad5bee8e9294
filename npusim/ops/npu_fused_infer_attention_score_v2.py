"""npu_fused_infer_attention_score_v2: npu_fused_infer_attention_score with other names.

.. code-block:: text

    output, softmax_lse = npu_fused_infer_attention_score(query, key, value, ...)

The same kernels, see :mod:`npusim.ops.npu_fused_infer_attention_score`; what is simulated of them
is the same too. Lengths are actual_seq_qlen and actual_seq_kvlen, heads of the query are
num_query_heads, and softmax_scale and return_softmax_lse are its scale and softmax_lse_flag.

Source: op-plugin@517f2e7, op_plugin_functions.yaml; the schema is that of torch_npu 2.14.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, Literal

from npusim.data.dtypes import Array
from npusim.devices.schema import DeviceSpec
from npusim.ops import npu_fused_infer_attention_score as first
from npusim.ops._contract import Contract
from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchArguments, TorchFunction
from npusim.ops.npu_fused_infer_attention_score import Problem

__all__ = ["OPERATOR", "check", "reference"]

OP = "npu_fused_infer_attention_score_v2"
LARGEST_TOKENS = 2147483647
NAMES = {
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "num_heads": "num_query_heads",
    "scale": "softmax_scale",
    "softmax_lse_flag": "return_softmax_lse",
}
"""The first operator's name of a parameter -> this one's."""
DTYPES = (
    *("query_dtype", "key_dtype", "value_dtype", "query_rope_dtype", "key_rope_dtype"),
    *("key_shared_prefix_dtype", "value_shared_prefix_dtype", "dequant_scale_query_dtype"),
    *("dequant_scale_key_dtype", "dequant_scale_value_dtype", "dequant_scale_key_rope_dtype"),
    "out_dtype",
)
"""Parameters for types that the chips simulated here do not have."""


def check(
    spec: DeviceSpec,
    query: Any,
    key: Any,
    value: Any,
    *,
    query_rope: Any = None,
    key_rope: Any = None,
    pse_shift: Any = None,
    atten_mask: Any = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    block_table: Any = None,
    dequant_scale_query: Any = None,
    dequant_scale_key: Any = None,
    dequant_offset_key: Any = None,
    dequant_scale_value: Any = None,
    dequant_offset_value: Any = None,
    dequant_scale_key_rope: Any = None,
    quant_scale_out: Any = None,
    quant_offset_out: Any = None,
    quant_scale_p: Any = None,
    learnable_sink: Any = None,
    num_query_heads: Any = 1,
    num_key_value_heads: Any = 0,
    softmax_scale: Any = 1.0,
    pre_tokens: Any = LARGEST_TOKENS,
    next_tokens: Any = LARGEST_TOKENS,
    input_layout: Any = "BSH",
    sparse_mode: Any = 0,
    block_size: Any = 0,
    query_quant_mode: Any = 0,
    key_quant_mode: Any = 0,
    value_quant_mode: Any = 0,
    inner_precise: Any = 0,
    return_softmax_lse: Any = False,
    template: Any = None,
) -> Problem:
    """Hold a call against the contract of its product line; raises OpError."""
    given = dict(locals())
    for name in ("spec", "query", "key", "value"):
        given.pop(name)
    options = first.in_own_names(given, NAMES)
    return first.checked(Contract(OP, spec, NAMES), query, key, value, options)


def reference(
    query: Array,
    key: Array,
    value: Array,
    *,
    query_rope: None = None,
    key_rope: None = None,
    pse_shift: None = None,
    atten_mask: Array | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    block_table: Array | None = None,
    dequant_scale_query: None = None,
    dequant_scale_key: None = None,
    dequant_offset_key: None = None,
    dequant_scale_value: None = None,
    dequant_offset_value: None = None,
    dequant_scale_key_rope: None = None,
    quant_scale_out: None = None,
    quant_offset_out: None = None,
    quant_scale_p: None = None,
    learnable_sink: None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    pre_tokens: int = LARGEST_TOKENS,
    next_tokens: int = LARGEST_TOKENS,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    block_size: int = 0,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    value_quant_mode: int = 0,
    inner_precise: int = 0,
    return_softmax_lse: bool = False,
    template: str | None = None,
    spec: DeviceSpec | None = None,
    cube_order: Literal["k16", "k8", "k4", "k1"] = "k16",
) -> tuple[Array, Array]:
    """As the first operator's, by its own names."""
    options = first.in_own_names(dict(locals()), NAMES)
    # What this one alone has must be None or 0 here.
    known = signature(first.reference).parameters
    return first.reference(**{name: value for name, value in options.items() if name in known})


def _outputs(given: TorchArguments, sizes: Any) -> tuple[tuple[tuple[Any, ...], str], ...]:
    return first.outputs(first.in_own_names(dict(given), NAMES), sizes)


TORCH = TorchFunction(
    schema=f"{OP}(Tensor query, Tensor key, Tensor value, *, Tensor? query_rope=None, "
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
    # Which of aclnn's versions it is, is assumed.
    aclnn=lambda _: "aclnnFusedInferAttentionScoreV4",
    outputs=_outputs,
    absent=DTYPES,
)

OPERATOR = Operator(
    name=OP,
    kernel_type=first.OPERATOR.kernel_type,
    document=__doc__,
    contract=check,
    tile=first.tile,
    build=first.build,
    oracle=reference,
    templates=first.OPERATOR.templates,
    seen_by_kernel=("block_table",),
    torch=(TORCH,),
)
