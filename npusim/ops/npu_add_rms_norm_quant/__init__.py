"""npu_add_rms_norm_quant: two tensors added, rows scaled as by npu_add_rms_norm, and quantised.

.. code-block:: text

    x = T(f32(x1) + f32(x2))                            T: the type of x1
    v = f32(x)                                          or the sum before it is rounded, see below
    r = 1 / sqrt(sum(v * v * fp32(1 / n)) + epsilon)    over the dimensions of gamma
    t = f32(fp16(fp16(v * r) * gamma)) + f32(beta)      fp16
    t = (v * r) * f32(gamma) + f32(beta)                bf16; without beta the product alone
    y = fit(rint(t / f32(scale) + f32(zero_point)))     with div_mode False: t * f32(scale)

One rounding an operation, to nearest, ties to even; *fit* saturates to int8 and turns NaN into 0.
The squares are added up in 64 running sums and a tree of them, in split_d piece by piece, but of
fp16 in single_n the upper half of a row onto the lower one. bf16 is squared and scaled as stored in
single_n and with beta, else before it is rounded. What template takes a call: see ``choice``.

With one scale and one zero point, beta, no second scales, and div_mode, another kernel takes the
call: all of it is fp32, unrounded, and t is multiplied by 1 / scale.

* A row with an infinity gives 0 there, and elsewhere what zeros give; one with a NaN gives zeros.
* y2 without scales2 is not written: undefined on a card, and 0 here; zero_points2 is then not read.

Sources: ops-nn@e5c3fa9 norm/add_rms_norm_quant and add_rms_norm_quant_v2, op_kernel and op_host.
What is accepted is what the operator's document says (torch_npu-npu_add_rms_norm_quant.md):

* fp16 with scales in fp32 and zero points in int32 on all, rows of 32 at least on 310P; bf16 with
  both in bf16 on A2 and A3. There bf16 takes scales in fp32 and zero points in int32 as well, which
  the kernels have and the document does not name: warned of.
* axis must be -1; dst_type is int8, which is its default.
* `template` names the kernel that the vendor would not take itself, see `choice`, on A2 and A3.
* An x1 or gamma without elements gives empty outputs, and no kernel runs.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchArguments, TorchFunction
from npusim.ops.npu_add_rms_norm_quant.choice import NAMED
from npusim.ops.npu_add_rms_norm_quant.contract import Problem, check
from npusim.ops.npu_add_rms_norm_quant.kernel import build
from npusim.ops.npu_add_rms_norm_quant.reference import reference
from npusim.ops.npu_add_rms_norm_quant.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "reference", "tile"]


def _outputs(given: TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
    x = given["x1"]
    return (x.shape, "int8"), (x.shape, "int8"), (x.shape, x.dtype)


TORCH = TorchFunction(
    schema="npu_add_rms_norm_quant(Tensor x1, Tensor x2, Tensor gamma, Tensor scales1, "
    "Tensor? zero_points1, Tensor? beta=None, Tensor? scales2=None, Tensor? zero_points2=None, *, "
    "int axis=-1, float epsilon=1e-06, bool div_mode=True, int? dst_type=None) -> "
    "(Tensor, Tensor, Tensor)",
    aclnn=lambda _: "aclnnAddRmsNormQuantV2",
    outputs=_outputs,
    dtypes={"dst_type": {"qint8": "int8"}},
)

OPERATOR = Operator(
    name="npu_add_rms_norm_quant",
    kernel_type=lambda _, p, __: f"AddRmsNormQuant{'V2' if p.per_tensor else ''}",
    document=__doc__,
    contract=check,
    tile=tile,
    build=build,
    oracle=reference,
    templates=NAMED,
    torch=(TORCH,),
)
