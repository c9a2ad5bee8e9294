"""npu_scatter_pa_kv_cache: keys and values of new tokens stored into a paged cache.

.. code-block:: text

    cache_mode "Norm"    cache[slot // block_size, slot % block_size, head, j] = x[token, head, j]
    cache_mode "PA_NZ"   cache[slot // block_size, i // C0, slot % block_size, i % C0] = x[token, i]

for keys and values, where *slot* is the token's entry in *slot_mapping*, i = head * width + j, and
C0 the elements in 32 bytes; keys and values of PA_NZ may have different types, and its caches may
be tensors in FRACTAL_NZ, following the document, which are stored like those in ND. Tokens with a
negative slot are skipped. The bits are copied unchanged. On a card both caches are written in
place, like here for tensors of torch; `npusim.run` returns new arrays.

Sources: ops-transformer@05c401f9 attention/scatter_pa_kv_cache (op_kernel of the mode Norm; types
from op_api of @3a280bc),
ascend-transformer-boost@ddcc8b62 mixkernels/reshape_and_cache, and the operator's document
(torch_npu-npu_scatter_pa_kv_cache.md). Atlas A2 and A3. Slots are int32 or int64, following the
document; the kernel that was read takes int32, and that the one for int64 is the same is assumed. A
slot beyond the cache, or repeated, is undefined on a card and refused here. Without values of
slot_mapping the tokens take the first slots in order.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, INT8, INT32, INT64, Array
from npusim.data.tensor import Tensor
from npusim.ops import _kv_cache as kv
from npusim.ops import _vocabulary as ops
from npusim.ops._vocabulary import A2_A3

NORM, PA_NZ = "Norm", "PA_NZ"
TYPES, SLOTS = (FLOAT16, BFLOAT16, INT8), (INT32, INT64)
LAYOUTS = ("ND", "FRACTAL_NZ")

SUPPORT = (
    *kv.support_of(TYPES, "slot_mapping", SLOTS, on=A2_A3, cache_mode=(NORM,)),
    *kv.support_of(
        TYPES,
        "slot_mapping",
        SLOTS,
        layouts=LAYOUTS,
        mixed=LAYOUTS,
        on=A2_A3,
        cache_mode=(PA_NZ,),
    ),
)


def check(contract: ops.Contract) -> kv.Problem:
    """Check how the arguments of a call must match; raises OpError."""
    tokens = kv.tokens_of(contract)
    is_nz = contract.choice("cache_mode") == PA_NZ
    caches = kv.caches_of(contract)
    return kv.checked(contract, tokens, caches, "slot_mapping", is_nz=is_nz)


def oracle(given: ops.Given) -> tuple[Array | Tensor, Array | Tensor]:
    """Whole arrays in plain numpy: both caches with the tokens in their slots."""
    return kv.caches_after(given, np.asarray(given.slot_mapping), is_nz=given.cache_mode == PA_NZ)


TORCH = ops.TorchFunction(
    schema="npu_scatter_pa_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache, "
    "Tensor(b!) value_cache, Tensor slot_mapping, *, Tensor? compress_lens=None, "
    "Tensor? compress_seq_offsets=None, Tensor? seq_lens=None, str? cache_mode='PA_NZ') -> ()",
    aclnn=lambda _: "aclnnScatterPaKvCache",
    outputs=kv.outputs,
    defaults={"cache_mode": PA_NZ},
    into=("key_cache", "value_cache"),
    absent=("compress_lens", "compress_seq_offsets", "seq_lens"),
)

OPERATOR = ops.Operator(
    kernel_type="ScatterPaKvCache",
    document=__doc__,
    support=SUPPORT,
    elsewhere="run npu_reshape_and_cache, or on Atlas A2 or A3",
    contract=check,
    tile=kv.tile,
    build=kv.build,
    oracle=oracle,
    value_dependent_inputs=("slot_mapping",),
    torch=(TORCH,),
)
