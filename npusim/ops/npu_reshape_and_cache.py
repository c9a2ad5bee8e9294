"""npu_reshape_and_cache: keys and values of new tokens stored into a paged cache.

.. code-block:: text

    ND           cache[slot // block_size, slot % block_size, head, j] = x[token, head, j]
    FRACTAL_NZ   cache[slot // block_size, i // C0, slot % block_size, i % C0] = x[token, i]

torch_npu calls it `_npu_reshape_and_cache`. It does the same as npu_scatter_pa_kv_cache, on every
product line: with ND caches like its mode Norm, with both in FRACTAL_NZ like PA_NZ. The latter are
`(blocks, elements / C0, block_size, C0)`, where elements are those of a token and C0 fills 32
bytes; their last two dimensions are a single column of fractals, so the bytes are in the same order
as ND. Keys may then be int8 with values of another type.

Sources: op-plugin@517f2e7 ops/atb/ReshapeAndCachAtb.cpp and ascend-transformer-boost@ddcc8b62
mixkernels/reshape_and_cache. For slots and what is undefined about them see
npu_scatter_pa_kv_cache. Assumed: the same types as there, without bfloat16 on Atlas inference,
where a token of an ND cache must be whole blocks of 32 bytes.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, INT8, Array
from npusim.data.tensor import Tensor
from npusim.isa import BLOCK_BYTES
from npusim.ops import _kv_cache as kv
from npusim.ops import _vocabulary as ops
from npusim.ops._vocabulary import A2_A3, ATLAS_INFERENCE

NZ: tuple[str, ...] = ("FRACTAL_NZ",)
LAYOUTS = ("ND", *NZ)
SLOTS = "slot_indices"
SUPPORT = (
    *kv.support_of((FLOAT16, BFLOAT16, INT8), SLOTS, layouts=LAYOUTS, mixed=NZ, on=A2_A3),
    *kv.support_of((FLOAT16, INT8), SLOTS, layouts=LAYOUTS, mixed=NZ, on=ATLAS_INFERENCE),
)


def check(contract: ops.Contract) -> kv.Problem:
    """Check how the arguments of a call must match; raises OpError."""
    tokens, caches = kv.tokens_of(contract), kv.caches_of(contract)
    is_nz = caches[0].spec.layout == "FRACTAL_NZ"
    problem = kv.checked(contract, tokens, caches, SLOTS, is_nz=is_nz)
    for side in problem.sides:
        nbytes = side.token_bytes
        contract.require(
            contract.spec.series not in ATLAS_INFERENCE or nbytes % BLOCK_BYTES == 0,
            f"{side.name} must have tokens of whole blocks of {BLOCK_BYTES} bytes on "
            f"{contract.spec.series}, not {nbytes} bytes; pad the width",
        )
    return problem


def oracle(given: ops.Given) -> tuple[Array | Tensor, Array | Tensor]:
    """Whole arrays in plain numpy: both caches with the tokens in their slots."""
    return kv.caches_after(
        given, np.asarray(given.slot_indices), is_nz=isinstance(given.key_cache, Tensor)
    )


TORCH = ops.TorchFunction(
    schema="_npu_reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, "
    "Tensor(b!) value_cache, Tensor slot_indices) -> ()",
    aclnn=lambda _: "reshape_and_cache",
    outputs=kv.outputs,
    into=("key_cache", "value_cache"),
)

OPERATOR = ops.Operator(
    name="npu_reshape_and_cache",
    kernel_type="reshape_and_cache",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=kv.tile,
    build=kv.build,
    oracle=oracle,
    value_dependent_inputs=(SLOTS,),
    torch=(TORCH,),
)
