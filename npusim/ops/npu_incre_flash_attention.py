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
attention/incre_flash_attention. Atlas A2 and A3: Atlas inference has a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from npusim.data.dtypes import Array
from npusim.data.errors import Code
from npusim.devices.schema import DeviceSpec
from npusim.ops import npu_fused_infer_attention_score as first
from npusim.ops._contract import Contract
from npusim.ops._protocol import Operator
from npusim.ops._torch import Sizes, TorchArguments, TorchFunction
from npusim.ops.npu_fused_infer_attention_score import Problem

__all__ = ["OPERATOR", "check", "reference"]

OP = "npu_incre_flash_attention"
LARGEST_TOKENS = 2147483647
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


def check(
    spec: DeviceSpec,
    query: Any,
    key: Any,
    value: Any,
    *,
    padding_mask: Any = None,
    atten_mask: Any = None,
    pse_shift: Any = None,
    actual_seq_lengths: Any = None,
    antiquant_scale: Any = None,
    antiquant_offset: Any = None,
    block_table: Any = None,
    dequant_scale1: Any = None,
    quant_scale1: Any = None,
    dequant_scale2: Any = None,
    quant_scale2: Any = None,
    quant_offset2: Any = None,
    kv_padding_size: Any = None,
    num_heads: Any = 1,
    scale_value: Any = 1.0,
    input_layout: Any = "BSH",
    num_key_value_heads: Any = 0,
    block_size: Any = 0,
    inner_precise: Any = 1,
) -> Problem:
    """Hold a call against the contract of its product line; raises OpError."""
    given = dict(locals())
    for name in ("spec", "query", "key", "value"):
        given.pop(name)
    contract = Contract(OP, spec, NAMES)
    contract.require(
        spec.arch != "2002",
        f"the chip must be one of Atlas A2 or A3, not of {spec.series}, whose kernel is not "
        f"simulated; run it on Atlas A2 or A3",
        Code.UNSUPPORTED,
    )
    contract.require(
        antiquant_scale is not None,
        "antiquant_scale must be given, with key and value of int8, not None: the kernel for other "
        "keys is not simulated; call npu_fused_infer_attention_score, which has others",
        Code.UNSUPPORTED,
    )
    problem = first.checked(contract, query, key, value, FIXED | first.in_own_names(given, NAMES))
    return replace(problem, outputs={"output": problem.output})


def reference(
    query: Array,
    key: Array,
    value: Array,
    *,
    padding_mask: None = None,
    atten_mask: None = None,
    pse_shift: None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    antiquant_scale: Array | None = None,
    antiquant_offset: None = None,
    block_table: Array | None = None,
    dequant_scale1: None = None,
    quant_scale1: None = None,
    dequant_scale2: None = None,
    quant_scale2: None = None,
    quant_offset2: None = None,
    kv_padding_size: None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    block_size: int = 0,
    inner_precise: int = 1,
    spec: DeviceSpec | None = None,
) -> Array:
    """As the first operator's output, by its own names."""
    options = first.in_own_names(dict(locals()), NAMES)
    # What this one alone has must be None.
    options.pop("padding_mask")
    return first.reference(**options)[0]


def _outputs(given: TorchArguments, sizes: Sizes) -> tuple[tuple[tuple[Any, ...], str], ...]:
    return first.outputs({**given, "softmax_lse_flag": False}, sizes)[:1]


TORCH = TorchFunction(
    schema=f"{OP}(Tensor query, Tensor key, Tensor value, *, Tensor? padding_mask=None, "
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
    name=OP,
    document=__doc__,
    kernel_type="IncreFlashAttention",
    contract=check,
    tile=first.tile,
    build=first.build,
    oracle=reference,
    seen_by_kernel=("block_table",),
    torch=(TORCH,),
)
