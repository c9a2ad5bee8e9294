"""npu_incre_flash_attention: attention of one new token for each request.

.. code-block:: text

    output, _ = npu_fused_infer_attention_score(query, key, value, ...)

*query* has one token for each request, in layout BSH, BSND or BNSD. *actual_seq_lengths* are the
key counts of the requests, and scale_value is the first operator's scale. inner_precise changes
nothing (assumed).

* Keys and values of int8 go to the kernel that npu_fused_infer_attention_score uses for such calls,
  see :mod:`npusim.ops._attention.ifa`. *antiquant_scale* `(2, ...)` is a scalar or one value for
  each column of the key heads, and likewise for the value heads. Keys may lie in pages.
* Those of float16, with as many key heads as query heads, go to a kernel on vector cores alone, see
  :mod:`npusim.ops._attention.ifa_vector`: without pages or mask, and with enough heads that their
  keys are not split over several cores.

The templates for bfloat16, for heads that share keys, for pages and for few heads (CUBE_VIEW_MM,
NORMAL, and flash decoding) are not simulated.

Sources: op-plugin@517f2e7, op_plugin_functions.yaml; ops-transformer@3a280bc
attention/incre_flash_attention. Atlas A2 and A3: Atlas inference has its own kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from npusim import devices
from npusim.data.dtypes import FLOAT16
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops import npu_fused_infer_attention_score as first
from npusim.ops._attention import CHIP, ifa_vector, oracle_of
from npusim.ops._attention import build as build_both
from npusim.ops._attention import tile as tile_both
from npusim.ops._attention.check import INT8_BOTH, Problem, check_as
from npusim.ops._attention.ifa_vector_check import VectorProblem
from npusim.ops._attention.ifa_vector_check import check as check_halves
from npusim.ops._attention.problem import LARGEST_TOKENS
from npusim.ops._attention.rules import table
from npusim.ops._contract import Contract
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator, Plan
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, Row
from npusim.ops._torch import Result, Sizes, TorchArguments, TorchFunction

__all__ = ["OPERATOR"]

VECTOR = Row(on=A2_A3, query=FLOAT16, key=FLOAT16, value=FLOAT16)
"""Keys of the type of the query."""

NAMES = {"actual_seq_lengths_kv": "actual_seq_lengths", "scale": "scale_value"}
"""The first operator's name of a parameter -> the name here."""
FIXED = {
    "actual_seq_lengths": None,
    "sparse_mode": 0,
    "pre_tokens": LARGEST_TOKENS,
    "next_tokens": LARGEST_TOKENS,
    "softmax_lse_flag": False,
    "template": None,
}
"""Parameters that only the first operator has -> their values here."""


def check(contract: Contract) -> Problem | VectorProblem:
    """Check keys of int8 like the first operator, with the parameter names of this one."""
    if contract.value("antiquant_scale") is None:
        return check_halves(contract)
    problem = check_as(contract, NAMES, FIXED)
    return replace(problem, outputs={"output": problem.output})


def tile(spec: DeviceSpec, p: Problem | VectorProblem) -> Plan:
    """Split like the kernel that takes the call."""
    return ifa_vector.tile(spec, p) if isinstance(p, VectorProblem) else tile_both(spec, p)


def build(spec: DeviceSpec, p: Problem | VectorProblem, plan: Plan) -> tuple[Block, ...]:
    """The programs of that kernel."""
    if isinstance(p, VectorProblem):
        assert isinstance(plan, ifa_vector.VectorPlan)
        return ifa_vector.build(spec, p, plan)
    return build_both(spec, p, plan)


def oracle(given: Given) -> Any:
    """The output of the first operator, or of the kernel for vector cores alone."""
    if given.antiquant_scale is None:
        spec = given.spec or devices.load(CHIP)
        problem = OPERATOR.check(spec, **given.arguments)
        assert isinstance(problem, VectorProblem)
        return ifa_vector.attend(problem, given.query, given.key, given.value)
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
    support=(*INT8_BOTH, VECTOR),
    elsewhere="run it on Atlas A2 or A3",
    unsimulated=ATLAS_INFERENCE,
    rules=table(NAMES, FIXED),
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=("block_table",),
    torch=(TORCH,),
)
