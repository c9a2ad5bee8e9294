"""npu_reshape_and_cache: keys and values of new tokens written into the pages of a cache.

.. code-block:: text

    ND           cache[slot // block_size, slot % block_size, head, j] = x[token, head, j]
    FRACTAL_NZ   cache[slot // block_size, i // C0, slot % block_size, i % C0] = x[token, i]

.. code-block:: text

    ND           cache[slot // block_size, slot % block_size, head, j] = x[token, head, j]
    FRACTAL_NZ   cache[slot // block_size, i // C0, slot % block_size, i % C0] = x[token, i]

torch_npu calls it `_npu_reshape_and_cache`. It does what npu_scatter_pa_kv_cache does, on every
product line: with caches in ND as its mode Norm, with both in FRACTAL_NZ as PA_NZ. The latter are
`(blocks, numbers / C0, block_size, C0)`, numbers being those of a token and C0 as many as 32 bytes
hold; their last two dimensions are one column of fractals, so that the bytes lie as in ND.

Sources: op-plugin@517f2e7 ops/atb/ReshapeAndCachAtb.cpp and ascend-transformer-boost@ddcc8b62
mixkernels/reshape_and_cache. Slots and what is open about them: see npu_scatter_pa_kv_cache.
Assumed: the same types as there, without bfloat16 on Atlas inference, where a token of a cache in
ND must be whole blocks of 32 bytes.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, INT8, Array
from npusim.data.tensor import Tensor
from npusim.isa import BLOCK_BYTES
from npusim.ops._contract import Contract
from npusim.ops._kv_cache.contract import (
    Problem,
    caches_of,
    checked,
    support_of,
    tokens_of,
)
from npusim.ops._kv_cache.kernel import build
from npusim.ops._kv_cache.oracle import with_tokens
from npusim.ops._kv_cache.tiling import Plan, tile
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator
from npusim.ops._support import A2_A3, ATLAS_INFERENCE
from npusim.ops._torch import TorchFunction

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


SUPPORT = (
    *support_of((FLOAT16, BFLOAT16, INT8), "slot_indices", nz=True, on=A2_A3),
    *support_of((FLOAT16, INT8), "slot_indices", nz=True, on=ATLAS_INFERENCE),
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    tokens, caches = tokens_of(contract), caches_of(contract)
    is_nz = caches[0].spec.layout == "FRACTAL_NZ"
    problem = checked(contract, tokens, caches, "slot_indices", is_nz=is_nz)
    for side in problem.sides:
        nbytes = problem.token_bytes(side)
        contract.require(
            contract.spec.series not in ATLAS_INFERENCE or nbytes % BLOCK_BYTES == 0,
            f"{side.name} must have tokens of whole blocks of {BLOCK_BYTES} bytes on "
            f"{contract.spec.series}, not {nbytes} bytes; pad the width",
        )
    return problem


def oracle(given: Given) -> tuple[Array | Tensor, Array | Tensor]:
    """Whole arrays in plain numpy: both caches with the tokens in their slots."""
    pairs = (given.key_cache, given.key), (given.value_cache, given.value)
    slots = np.asarray(given.slot_indices)
    found = [with_tokens(cache, x, slots, is_nz=isinstance(cache, Tensor)) for cache, x in pairs]
    return found[0], found[1]


TORCH = TorchFunction(
    schema="_npu_reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, "
    "Tensor(b!) value_cache, Tensor slot_indices) -> ()",
    aclnn=lambda _: "reshape_and_cache",
    outputs=lambda given, _: tuple(
        (given[name].shape, given[name].dtype) for name in ("key_cache", "value_cache")
    ),
    into=("key_cache", "value_cache"),
)

OPERATOR = Operator(
    name="npu_reshape_and_cache",
    kernel_type="reshape_and_cache",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    seen_by_kernel=("slot_indices",),
    torch=(TORCH,),
)
