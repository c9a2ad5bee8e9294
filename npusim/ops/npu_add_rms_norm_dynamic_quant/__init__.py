"""npu_add_rms_norm_dynamic_quant: two tensors added, rows scaled as by npu_rms_norm, and quantised.

.. code-block:: text

    v = f32(x1) + f32(x2)                       x = T(v): the type of x1
    r = 1 / sqrt(mean(v * v) + epsilon)         over the last dimension
    t = (v * r) * f32(gamma) + f32(beta)        without beta: the product alone
    z = t * f32(smooth_scale)                   once for each of the two outputs
    q = 127 / max|z|                            of the row; int4: 7 for 127
    y = fit(rint(z * q))                        int8, or int4 eight to an int32
    scale = 1 / q                               fp32, one number a row

All is fp32, one rounding an operation, and the sum of two fp16 is not rounded before it is squared,
as npu_add_rms_norm does. The mean is a sum times fp32(1 / n): the upper half of a row onto the
lower one, and so on, slice by slice in slice_d. The scalar unit finds r, q and the scale, with two
divisions; *fit* saturates and turns NaN into 0. That the scalar unit rounds a product before it
adds epsilon is assumed.

* A row whose z are all zero gives zeros and scale 0. One with an infinity gives zeros and NaN.

Sources: ops-nn@e5c3fa9 norm/add_rms_norm_dynamic_quant, op_kernel and op_host. What is accepted is
what the operator's document says (torch_npu-npu_add_rms_norm_dynamic_quant.md), on A2 and A3:

* fp16 and bf16 of 2 to 8 dimensions; gamma, beta and the smooth scales of their type, one number a
  column; epsilon above 0.
* y2 and scale2 come with both smooth scales, or as output_mask says; without a mask the template
  normal computes the second in any case, and drops it, which takes its time. What is not asked for
  comes back as a tensor without dimensions, undefined on a card and 0 here.
* `template` names the kernel that the vendor would not take itself, see `choice`.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchArguments, TorchFunction, quantised
from npusim.ops.npu_add_rms_norm_dynamic_quant.choice import NAMED
from npusim.ops.npu_add_rms_norm_dynamic_quant.contract import Problem, check
from npusim.ops.npu_add_rms_norm_dynamic_quant.kernel import build
from npusim.ops.npu_add_rms_norm_dynamic_quant.reference import reference
from npusim.ops.npu_add_rms_norm_dynamic_quant.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "reference", "tile"]


def _outputs(given: TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
    x, mask = given["x1"], given["output_mask"]
    shape, dtype = quantised(x, "quint4x2" if given["y_dtype"] == "int4" else given["y_dtype"])
    first, second = mask or (True, given["smooth_scale2"] is not None)
    return (
        (shape if first else (), dtype),
        (shape if second else (), dtype),
        (x.shape, x.dtype),
        (x.shape[:-1] if first else (), "float32"),
        (x.shape[:-1] if second else (), "float32"),
    )


TORCH = TorchFunction(
    schema="npu_add_rms_norm_dynamic_quant(Tensor x1, Tensor x2, Tensor gamma, *, "
    "Tensor? smooth_scale1=None, Tensor? smooth_scale2=None, Tensor? beta=None, "
    "float epsilon=1e-06, bool[2]? output_mask=None, int? y_dtype=None) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    aclnn=lambda _: "aclnnAddRmsNormDynamicQuantV2",
    outputs=_outputs,
    dtypes={"y_dtype": {"qint8": "int8"}},
)

OPERATOR = Operator(
    name="npu_add_rms_norm_dynamic_quant",
    kernel_type="AddRmsNormDynamicQuant",
    document=__doc__,
    contract=check,
    tile=tile,
    build=build,
    oracle=reference,
    templates=NAMED,
    torch=(TORCH,),
)
