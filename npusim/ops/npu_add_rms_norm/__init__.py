"""npu_add_rms_norm: two tensors added, and the rows of the sum scaled as npu_rms_norm does.

.. code-block:: text

    x = T(f32(x1) + f32(x2))                            T: the type of x1
    v = f32(x)                                          bf16 in normal: f32(x1) + f32(x2)
    r = 1 / sqrt(sum(v * v * fp32(1 / n)) + epsilon)    over the dimensions of gamma
    y = T(T(v * r) * gamma)
    rstd = r                                            fp32, 1 for each dimension of gamma

One rounding an operation, to nearest, ties to even; v * r is rounded to T before it is multiplied
by gamma, which npu_rms_norm does not do. Each square is multiplied by 1 / n before it is added: 64
running sums, then a tree of them, in split_d piece by piece. For bf16 the bits depend on the number
of rows, since that chooses the vendor's kernel, called template (see ``choice``): single_n, merge_n
and multi_n work on the rounded sum, normal on the exact one, and split_d adds up squares of the
exact one and scales the rounded one.

* A row with an infinity gives NaN there, zeros elsewhere, and rstd 0; a NaN makes its row NaN. The
  fp16 sum of large numbers is infinite on A2 and A3 and 65504 on 310P.
* 310P does not write rstd: it is undefined there, and 0 here.

Sources: ops-nn@e5c3fa9 norm/add_rms_norm, op_kernel and op_host. What is accepted is what the
operator's document says (torch_npu-npu_add_rms_norm.md):

* fp16, bf16 and fp32 on A2 and A3, fp16 and fp32 on 310P; x1, x2 and gamma of one type.
* `template` names the kernel that the vendor would not take itself, see `choice`, on A2 and A3.
* An x1 or gamma without elements gives empty outputs, and no kernel runs.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchArguments, TorchFunction
from npusim.ops.npu_add_rms_norm.choice import NAMED
from npusim.ops.npu_add_rms_norm.contract import Problem, check
from npusim.ops.npu_add_rms_norm.kernel import build
from npusim.ops.npu_add_rms_norm.reference import reference
from npusim.ops.npu_add_rms_norm.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "reference", "tile"]


def _outputs(given: TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
    x, rank = given["x1"], len(given["gamma"].shape)
    outer = x.shape[: len(x.shape) - rank]
    return (x.shape, x.dtype), ((*outer, *(1,) * rank), "float32"), (x.shape, x.dtype)


TORCH = TorchFunction(
    schema="npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> "
    "(Tensor, Tensor, Tensor)",
    aclnn=lambda _: "aclnnAddRmsNorm",
    outputs=_outputs,
)

OPERATOR = Operator(
    name="npu_add_rms_norm",
    kernel_type="AddRmsNorm",
    document=__doc__,
    contract=check,
    tile=tile,
    build=build,
    oracle=reference,
    templates=NAMED,
    torch=(TORCH,),
)
