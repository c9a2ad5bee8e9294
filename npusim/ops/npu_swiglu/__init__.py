"""npu_swiglu: the first half of x, weighed by its own sigmoid, times the second half.

.. code-block:: text

    a, b = split(x, 2, dim)
    float32             y = ((1 / (exp(-a) + 1)) * a) * b
    float16, bfloat16   y = round((f32(a) / (exp(-f32(a)) + 1)) * f32(b))

All in fp32, one rounding an operation to nearest, ties to even; the two forms differ in the last
bit. What precision Exp has is not public: the nearest fp32 number is assumed.

* Where a is below -88.7, exp(-a) is infinite and y is zero, with the sign of a times b; a of
  minus infinity gives NaN.
* On 310P, which has no infinities in fp16, they count as what they are in fp32, and y is at most
  65504 (assumed).

Sources: ops-nn@e5c3fa9 activation/swi_glu, op_kernel and op_host. torch_npu's document names Atlas
A2 alone; that of aclnn and vllm-ascend have it on Atlas inference and Atlas A3 too. Atlas inference
takes float16 and float32 whose half rows are multiples of 64 bytes, and nothing empty.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchArguments, TorchFunction
from npusim.ops.npu_swiglu.contract import SUPPORT, Problem, check
from npusim.ops.npu_swiglu.kernel import build
from npusim.ops.npu_swiglu.reference import oracle
from npusim.ops.npu_swiglu.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def _halved(given: TorchArguments) -> tuple[object, ...]:
    shape, dim = list(given["x"].shape), given["dim"]
    shape[dim] = shape[dim] // 2
    return tuple(shape)


TORCH = TorchFunction(
    schema="npu_swiglu(Tensor self, int dim=-1) -> Tensor",
    aclnn=lambda _: "aclnnSwiGlu",
    outputs=lambda given, _: ((_halved(given), given["x"].dtype),),
    names={"self": "x"},
)


OPERATOR = Operator(
    kernel_type="SwiGlu",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(TORCH,),
)
