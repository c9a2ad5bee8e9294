"""npu_dynamic_quant: rows of floats become int8, each with the scale that its largest number asks.

.. code-block:: text

    v = f32(x) * f32(smooth_scales)            without smooth_scales: v = f32(x)
    M = max|v| over the last dimension
    y = fit(round(v * (127 / M)))              int8, in the shape of x
    scale = M * f32(1 / 127)                   float32, one number a row; or
    scale = 1 / (127 / M)                      with the templates base and large

All in fp32, one rounding an operation; *round* is to nearest, ties to even, *fit* saturates and
turns NaN into 0. The two scales differ in the last bit of about a quarter of all rows; which one
comes out depends on the vendor's kernel, called template, that takes the call: see ``choice``.

* A row of zeros gives zeros and scale 0. So does, but for the scale, one with an infinity: its
  finite numbers become 0, and 127 / inf times inf is NaN. Its scale is infinite.
* Where 127 / M overflows, which takes bfloat16, numbers other than 0 become 127 or -128.
* A NaN makes its row zeros and the scale NaN: Max is taken to keep NaN, which nobody documents.

Sources: ops-nn@e5c3fa9 quant/dynamic_quant, op_kernel and op_host. What is accepted is what the
operator's document says (torch_npu-npu_dynamic_quant.md), on Atlas A2 and A3. Beyond it:

* Only int8 is simulated, and one row of smooth_scales for all rows of x: dst_type='quint4x2' and
  group_index are refused.
* x without elements gives empty outputs, and no kernel runs; with rows but no columns it is
  refused, since nobody would write the scales.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchFunction, quantised
from npusim.ops.npu_dynamic_quant.contract import Problem, check
from npusim.ops.npu_dynamic_quant.kernel import build
from npusim.ops.npu_dynamic_quant.reference import reference
from npusim.ops.npu_dynamic_quant.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "reference", "tile"]

TORCH = TorchFunction(
    schema="npu_dynamic_quant(Tensor input, *, Tensor? smooth_scales=None, "
    "Tensor? group_index=None, int? dst_type=None) -> (Tensor, Tensor)",
    # Assumed: that a dst_type makes torch_npu call the second version.
    aclnn=lambda given: f"aclnnDynamicQuant{'' if given['dst_type'] is None else 'V2'}",
    outputs=lambda given, _: (
        quantised(given["x"], given["dst_type"]),
        (given["x"].shape[:-1], "float32"),
    ),
    names={"input": "x"},
    dtypes={"dst_type": {"qint8": "int8"}},
)


OPERATOR = Operator(
    name="npu_dynamic_quant",
    document=__doc__,
    check=check,
    tile=tile,
    build=build,
    reference=reference,
    torch=(TORCH,),
)
