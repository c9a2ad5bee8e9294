"""npu_fused_infer_attention_score: attention of new tokens to the keys of their requests.

.. code-block:: text

    s[i, j] = fp32(q[i] . k[j]) * scale                masked scores: very low
    p[i, j] = exp(s[i, j] - max_j s[i, j])
    output[i] = T(sum_j T(p[i, j]) * v[j] / sum_j p[i, j])           T: the type of query
    softmax_lse[i] = ln(sum_j p[i, j]) + max_j s[i, j]               fp32

for each request and each of its heads; *num_key_value_heads* heads of key and value are shared
evenly by the query heads. All is fp32 except the factors of both products. Keys are processed a
tile at a time, counted from the first key of the request; earlier results are scaled by exp(maximum
before - maximum now). That exp and ln round to nearest is assumed. The rest depends on the kernel
that takes a call:

.. code-block:: text

                      FAI, FAI-FD, FAI-DEC            FIA
    tiles             512 keys                        512 to 8192 keys
    masked scores     + -3e38                         replaced by -1e12
    T() of p          ties to even                    ties away from zero
    T() of output     ties to even                    fp16: ties away from zero; bf16: to even
    order of sums     tree of 512 or 256, or 64s      that of the softmax library

Sources: ops-transformer@3a280bc attention/fused_infer_attention_score and attention/common, op_host
and op_kernel, and the operator's document (op-plugin@517f2e7,
torch_npu-npu_fused_infer_attention_score.md). Atlas A2 and A3; Atlas inference has no such kernel.
What is simulated:

* fp16 and bf16 in all input_layouts. In TND and NTD the tokens of all requests are concatenated,
  and lengths are cumulative sums. The suffix after an underscore gives the layout of the output.
  Keys may also lie in a cache `(blocks, block_size, heads x columns)`, `(blocks, heads,
  block_size, columns)` or, in fractals, `(blocks, heads, columns / 16, block_size, 16)`, with a
  block_table `(requests, blocks)`; actual_seq_lengths_kv is then the length of each request.
* FAI: layout TND, sparse_mode 0 without a mask, and with the stencil `numpy.triu(ones, 1)` of 2048
  x 2048, whatever the lengths are, 3, causal, and 4, a band from pre_tokens before to next_tokens
  behind. Nonzero masks a score. With inner_precise 1, fp16, and as many key heads as query heads,
  scores, sums and products are fp16.
* FIA: all other layouts, and what FAI refuses. sparse_mode 0 and 1 with any mask, which may be
  larger than tokens and keys, or without one, 2 left-up and 3 right-down causal, 4 a band from
  pre_tokens before to next_tokens behind the diagonal that ends at the last key. With sparse_mode 0
  and a mask, pre_tokens and next_tokens select the tiles of keys that are processed; within a tile
  only the mask applies. If each request has one token, in BSH, BSND and BNSD, modes and tokens are
  ignored. Bit 1 of inner_precise zeroes rows whose keys such a mask hides all, which otherwise
  are the mean of the values; bit 0 changes nothing. Positions beyond the tokens of a request
  give zeros and an infinite softmax_lse. Heads of 128 columns may have separate rotary parts of 64,
  query_rope and key_rope, and heads of 192 columns may have values of 128.
* FIA-MLA: latent keys, a head of 512 columns that all query heads share, with separate rotary parts
  of 64 (query_rope, key_rope), as in DeepSeek's decoding: sparse_mode 0, 3 and 4. Pass key for
  value, too. The sums of tiles stay in global memory, where vector cores scale them, see
  :mod:`npusim.ops._attention.mla_vector`.
* Tokens for which a mode leaves no key give zeros and an infinite softmax_lse.
* IFA: layouts BSH, BSND and BNSD, one token for each request, key and value of int8, without mask
  and softmax_lse. `antiquant_scale` for both, `(2, ...)`, or `key_antiquant_scale` and
  `value_antiquant_scale`: with antiquant_mode (key_antiquant_mode, value_antiquant_mode) 0 a scalar
  or one value for each column, in the type of query; with 1 one for each token, `(requests,
  tokens)`, float32. Nothing is dequantised: the query and p become two digits of int8 each, see
  :mod:`npusim.ops._attention.ifa`. If both forms are given, the separate ones apply.
* IFA-ATB: layout TND, keys and values of int8 in pages of three dimensions, with scales and
  offsets of float32 for each column, without a mask or with the stencil, without softmax_lse. Keys
  and values are dequantised, and scores are fp16, see :mod:`npusim.ops._attention.ifa_atb`.
* `template` selects a kernel that the vendor would not choose, see
  :mod:`npusim.ops._attention.problem`. The table of rules gives the requirements, where they are
  checked and the messages, see :mod:`npusim.ops._attention.rules`. Latent keys of int8 are refused.

A block_table without values stands for consecutive blocks; `run.plan.reason` says so.
"""

from __future__ import annotations

from npusim.data.dtypes import Array
from npusim.ops._attention import ELSEWHERE, at_once, build, oracle_of, tile
from npusim.ops._attention.check import INT8_PER_TOKEN, READS, check, shapes_of
from npusim.ops._attention.problem import LAYOUTS, TEMPLATES
from npusim.ops._attention.rules import table
from npusim.ops._attention.shapes import columns_of
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator
from npusim.ops._torch import Result, Sizes, TorchArguments, TorchFunction

__all__ = ["OPERATOR", "outputs"]


def outputs(given: TorchArguments, _: Sizes) -> tuple[Result, ...]:
    """Shapes and dtypes of the outputs, for tensors without values."""
    query, heads, returns_lse = given["query"], given["num_heads"], given["softmax_lse_flag"]
    # A query of another rank, and an unknown layout, are refused when the operator runs.
    layout = given["input_layout"] if given["input_layout"] in LAYOUTS else "BSH"
    kv_heads = max(1, given["num_key_value_heads"] or heads)
    is_paged = given["block_table"] is not None
    columns = columns_of(given["value"].shape, kv_heads, layout, is_paged)
    output, lse = shapes_of(query.shape, heads, layout, columns, returns_lse=returns_lse)
    return (output, query.dtype), (lse, "float32")


def oracle(given: Given) -> tuple[Array, ...]:
    """The attention output of each token, and softmax_lse."""
    return oracle_of(OPERATOR, given)


TORCH = TorchFunction(
    schema="npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *, "
    "Tensor? pse_shift=None, Tensor? atten_mask=None, SymInt[]? actual_seq_lengths=None, "
    "SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None, "
    "Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None, "
    "Tensor? quant_offset2=None, Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, "
    "Tensor? key_antiquant_scale=None, Tensor? key_antiquant_offset=None, "
    "Tensor? value_antiquant_scale=None, Tensor? value_antiquant_offset=None, "
    "Tensor? block_table=None, Tensor? query_padding_size=None, Tensor? kv_padding_size=None, "
    "Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, "
    "SymInt[]? actual_shared_prefix_len=None, Tensor? query_rope=None, Tensor? key_rope=None, "
    "Tensor? key_rope_antiquant_scale=None, int num_heads=1, float scale=1.0, "
    'int pre_tokens=2147483647, int next_tokens=2147483647, str input_layout="BSH", '
    "int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0, "
    "int antiquant_mode=0, int key_antiquant_mode=0, int value_antiquant_mode=0, "
    "bool softmax_lse_flag=False) -> (Tensor, Tensor)",
    # The version of the aclnn function is assumed.
    aclnn=lambda _: "aclnnFusedInferAttentionScoreV3",
    outputs=outputs,
)

OPERATOR = Operator(
    kernel_type="FusedInferAttentionScore",
    document=__doc__,
    support=INT8_PER_TOKEN,
    elsewhere=ELSEWHERE,
    rules=table({}),
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
