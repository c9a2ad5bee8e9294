"""npu_convert_weight_to_int4pack: int4 weights packed eight to an int32, on the host.

.. code-block:: text

    out[i, j] = sum over t of (weight[i, 8 j + t] & 0xF) << 4 t

Numbers beyond [-8, 7] silently lose their upper bits (op-plugin@517f2e7,
ConvertWeightToINT4PackKernelNpuOpApi.cpp). It runs on the host: the weight is copied there, packed,
and copied back, so no kernel runs on the chip and the Task Duration is 0. A weight in FRACTAL_NZ is
cast to ND, packed, and cast back, a row of a fractal then holding 8 int32, that is 64 int4.
inner_k_tiles is only part of the signature; nothing depends on it.

Accepted calls follow the same source: int32 (float32 is for chips after A3), two dimensions (three
are for those, too), contiguous, the last dimension a multiple of 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import INT32, Array
from npusim.data.tensor import LAYOUTS, Operand, Tensor, TensorSpec
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator
from npusim.ops._support import A2_A3, Operands, Row
from npusim.ops._torch import TorchFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call."""

    weight: Operand


SUPPORT = (Row(on=A2_A3, weight=Operands((INT32,), LAYOUTS, ranks=(2, 2))),)


def check(contract: Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    weight, w = contract.value("weight"), contract.matrix("weight")
    strided = isinstance(weight, np.ndarray) and not weight.flags.c_contiguous
    contract.require(
        not (strided or w.spec.transposed),
        "weight must be contiguous, not a view with gaps or a transpose; make it so",
    )
    contract.require(
        w.shape[1] % 8 == 0,
        f"the last dimension of weight must be a multiple of 8, not {w.shape[1]}; pad it",
    )
    contract.integer("inner_k_tiles")
    output = TensorSpec((w.shape[0], w.shape[1] // 8), "int32", w.spec.layout)
    return Problem(inputs=(w,), outputs={"output": output}, weight=w)


def oracle(given: Given) -> Array | Tensor:
    """Pack weight, int32 `(k, n)`, into int32 `(k, n / 8)` of the same layout."""
    weight = given.weight
    if isinstance(weight, Tensor):
        return Tensor.of(_packed(weight.numpy()), weight.layout)
    return _packed(weight)


def _packed(weight: Array) -> Array:
    rows, columns = weight.shape
    nibbles = (weight & 0xF).astype(np.uint32).reshape(rows, columns // 8, 8)
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    words = np.bitwise_or.reduce(nibbles << shifts, axis=-1)
    return np.asarray(words.view(np.int32))


TORCH = TorchFunction(
    schema="npu_convert_weight_to_int4pack(Tensor weight, int inner_k_tiles=0) -> Tensor",
    aclnn=lambda _: "aclnnConvertWeightToINT4Pack",
    outputs=lambda given, _: (
        ((given["weight"].shape[0], given["weight"].shape[1] // 8), given["weight"].dtype),
    ),
)


OPERATOR = Operator(
    document=__doc__,
    support=SUPPORT,
    elsewhere="use int8 weights",
    contract=check,
    oracle=oracle,
    on_host=True,
    torch=(TORCH,),
)
