"""npu_rms_norm: rows divided by their root mean square, and multiplied by a weight a column.

.. code-block:: text

    r = 1 / sqrt(mean(f32(x) * f32(x)) + epsilon)       the mean over the dimensions of gamma
    y = T((f32(x) * r) * f32(gamma))                    T: the type of x
    rstd = r                                            fp32, 1 for each dimension of gamma

All is fp32, one rounding an operation; T rounds to nearest, ties to even. The mean is a sum times
fp32(1 / n), and the order of the sum is that of the vendor's kernel, called template, that takes
the call (see ``choice``): 64 running sums in merge_n, the upper half onto the lower one in the
others, piece by piece in split_d; all end in a tree of 64 numbers. merge_n and split_d find r on
the vector unit, the others on the scalar unit; that both round square root and quotient correctly
is assumed, and so is that the scalar unit rounds a product before it adds epsilon.

* A row with an infinity gives NaN there, zeros elsewhere, and rstd 0; a NaN makes its row NaN.
* A row of zeros gives zeros and 1 / sqrt(epsilon), or NaN and infinity where epsilon is 0.

Sources: ops-nn@e5c3fa9 norm/rms_norm, op_kernel and op_host. What is accepted is what the
operator's document says (torch_npu-npu_rms_norm.md) and what the tiling refuses:

* fp16, bf16 and fp32 on A2 and A3, there with gamma in fp32 beside 16 bits as well; fp16 and fp32
  on 310P, in rows of 32 bytes at least, without infinities and NaN.
* `template` names the kernel that the vendor would not take itself, see `choice`: on A2 and A3
  merge_n, normal and split_d, and single_row with gamma in fp32 beside 16 bits.
* An x or gamma without elements is refused: the document has it supported, the tiling does not.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchArguments, TorchFunction
from npusim.ops.npu_rms_norm.choice import NAMED
from npusim.ops.npu_rms_norm.contract import SUPPORT, Problem, check
from npusim.ops.npu_rms_norm.kernel import build
from npusim.ops.npu_rms_norm.reference import oracle
from npusim.ops.npu_rms_norm.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def _outputs(given: TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
    x, rank = given["x"], len(given["gamma"].shape)
    outer = x.shape[: len(x.shape) - rank]
    return (x.shape, x.dtype), ((*outer, *(1,) * rank), "float32")


TORCH = TorchFunction(
    schema="npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
    aclnn=lambda _: "aclnnRmsNorm",
    outputs=_outputs,
    names={"self": "x"},
)

OPERATOR = Operator(
    kernel_type="RmsNorm",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    templates=NAMED,
    torch=(TORCH,),
)
