"""npu_scatter_pa_kv_cache: keys and values of new tokens written into the pages of a cache.

.. code-block:: text

    cache_mode "Norm"    cache[slot // block_size, slot % block_size, head, j] = x[token, head, j]
    cache_mode "PA_NZ"   cache[slot // block_size, i // C0, slot % block_size, i % C0] = x[token, i]

for keys and values, *slot* being that of the token in *slot_mapping*, i = head * width + j, and C0
the numbers in 32 bytes; caches of PA_NZ may be tensors in FRACTAL_NZ, as the document has them,
which lie as those in ND. Tokens with a negative slot are left out. The bits come out as they went
in. On a card both caches are written in place, as they are here for tensors of torch; `npusim.run`
gives new arrays.

Sources: ops-transformer@05c401f9 attention/scatter_pa_kv_cache (op_kernel of the mode Norm),
ascend-transformer-boost@ddcc8b62 mixkernels/reshape_and_cache, and the operator's document
(torch_npu-npu_scatter_pa_kv_cache.md). Atlas A2 and A3. Slots are int32, what the kernel of A2
reads (assumed of int64 that it is refused). A slot beyond the cache, or named twice, is open on a
card and refused here. Without values of slot_mapping the tokens take the first slots in turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, INT8, Array
from npusim.data.errors import Code
from npusim.data.tensor import Tensor
from npusim.devices.schema import DeviceSpec
from npusim.ops._contract import Contract
from npusim.ops._kv_cache.contract import Problem, caches_of, checked, tokens_of
from npusim.ops._kv_cache.kernel import build
from npusim.ops._kv_cache.oracle import with_tokens
from npusim.ops._kv_cache.tiling import Plan, tile
from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchFunction

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "reference", "tile"]

NORM, PA_NZ = "Norm", "PA_NZ"


def check(
    spec: DeviceSpec,
    key: Any,
    value: Any,
    key_cache: Any,
    value_cache: Any,
    slot_mapping: Any,
    *,
    cache_mode: Any = PA_NZ,
) -> Problem:
    """Hold a call against the contract of its product line; raises OpError."""
    contract = Contract("npu_scatter_pa_kv_cache", spec)
    contract.require(
        spec.series != "Atlas inference",
        f"the chip must have the kernel ScatterPaKvCache, not be one of {spec.series}; "
        f"run npu_reshape_and_cache, or on Atlas A2 or A3",
        Code.UNSUPPORTED,
    )
    tokens = tokens_of(contract, key, value, (FLOAT16, BFLOAT16, INT8))
    is_nz = contract.choice("cache_mode", cache_mode, (NORM, PA_NZ)) == PA_NZ
    layouts = ("ND", "FRACTAL_NZ") if is_nz else ("ND",)
    caches = caches_of(contract, key_cache, value_cache, tokens[0].element, layouts)
    return checked(contract, tokens, caches, slot_mapping, "slot_mapping", is_nz=is_nz)


def reference(
    key: Array,
    value: Array,
    key_cache: Array | Tensor,
    value_cache: Array | Tensor,
    slot_mapping: Array,
    *,
    cache_mode: str = PA_NZ,
) -> tuple[Array | Tensor, Array | Tensor]:
    """Whole arrays in plain numpy: both caches with the tokens in their slots."""
    pairs = (key_cache, key), (value_cache, value)
    slots = np.asarray(slot_mapping)
    found = [with_tokens(cache, x, slots, is_nz=cache_mode == PA_NZ) for cache, x in pairs]
    return found[0], found[1]


TORCH = TorchFunction(
    schema="npu_scatter_pa_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache, "
    "Tensor(b!) value_cache, Tensor slot_mapping, *, Tensor? compress_lens=None, "
    "Tensor? compress_seq_offsets=None, Tensor? seq_lens=None, str? cache_mode='PA_NZ') -> ()",
    aclnn=lambda _: "aclnnScatterPaKvCache",
    outputs=lambda given, _: tuple(
        (given[name].shape, given[name].dtype) for name in ("key_cache", "value_cache")
    ),
    defaults={"cache_mode": PA_NZ},
    into=("key_cache", "value_cache"),
    absent=("compress_lens", "compress_seq_offsets", "seq_lens"),
)

OPERATOR = Operator(
    name="npu_scatter_pa_kv_cache",
    kernel_type="ScatterPaKvCache",
    document=__doc__,
    contract=check,
    tile=tile,
    build=build,
    oracle=reference,
    seen_by_kernel=("slot_mapping",),
    torch=(TORCH,),
)
