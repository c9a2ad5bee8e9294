"""npu_dynamic_quant: rows of floats become int8 or packed int4, each scaled by its largest number.

.. code-block:: text

    v = f32(x) * f32(smooth_scales)            without smooth_scales: v = f32(x)
    M = max|v| over the last dimension
    y = fit(round(v * (127 / M)))              int8, in the shape of x; int4: 7 for 127
    scale = M * f32(1 / 127)                   float32, one number a row; or
    scale = 1 / (127 / M)                      with base, large, moe and moe_large

    310P
    y = fit(round(x * f16(127 / M)))           fp16, ties away from zero
    scale = M * f32(1 / 127)

On A2 and A3 all is fp32, one rounding an operation; *round* is to nearest, ties to even, *fit*
saturates and turns NaN into 0. With a group_index each group of rows has smooth scales of its own:
row r takes those of the first group whose entry, the row after its last, lies behind r. The two
scales differ in the last bit of about a quarter of all rows; which one
comes out depends on the vendor's kernel, called template, that takes the call: see ``choice``.

* A row of zeros gives zeros and scale 0. So does, but for the scale, one with an infinity: its
  finite numbers become 0, and 127 / inf times inf is NaN. Its scale is infinite.
* Where 127 / M overflows, which takes bfloat16, numbers other than 0 become 127 or -128.
* A NaN makes its row zeros and the scale NaN: Max keeps it. Not so in all but the last 10240
  columns, or what is left after the last whole 10240, of a row that large or moe_large takes: the
  scalar unit compares their M and drops a NaN. On 310P it counts as 0, and an
  infinity as 65504 (both: asc-devkit, Memory矢量计算接口边界值汇总.md).

Sources: ops-nn@e5c3fa9 quant/dynamic_quant, op_kernel and op_host. What is accepted is what the
operator's document says (torch_npu-npu_dynamic_quant.md), on Atlas A2 and A3. Beyond it:

* 310P takes float16 in rows of a multiple of 32, and int8 only: that document does not name it, the
  one of aclnn does, and vllm-ascend calls it there. It reads neither smooth_scales nor group_index:
  what is given is warned of.
* group_index needs smooth_scales, as the document of aclnn asks, and must reach the last row:
  beyond it the kernel reads what lies there.
* quant_mode and dst_type_max, which are newer, at their defaults: only Ascend950 has others.
* `template` names the kernel that the vendor would not take itself, see `choice`: on A2 and A3
  single_row, multi_row, db, base and large, or moe and moe_large with a group_index.
* x without elements gives empty outputs, and no kernel runs; with rows but no columns it is
  refused, since nobody would write the scales.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchArguments, TorchFunction, quantised
from npusim.ops.npu_dynamic_quant.choice import NAMED
from npusim.ops.npu_dynamic_quant.contract import SUPPORT, Problem, check
from npusim.ops.npu_dynamic_quant.kernel import build
from npusim.ops.npu_dynamic_quant.reference import oracle
from npusim.ops.npu_dynamic_quant.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def _aclnn(given: TorchArguments) -> str:
    # Assumed: that a dst_type makes torch_npu call the second version.
    if given["quant_mode"] not in (None, "pertoken") or given["dst_type_max"]:
        return "aclnnDynamicQuantV4"
    return f"aclnnDynamicQuant{'' if given['dst_type'] is None else 'V2'}"


TORCH = TorchFunction(
    schema="npu_dynamic_quant(Tensor input, *, Tensor? smooth_scales=None, "
    'Tensor? group_index=None, int? dst_type=None, str? quant_mode="pertoken", '
    "float? dst_type_max=0.0) -> (Tensor, Tensor)",
    aclnn=_aclnn,
    outputs=lambda given, _: (
        quantised(given["x"], given["dst_type"]),
        (given["x"].shape[:-1], "float32"),
    ),
    names={"input": "x"},
    dtypes={"dst_type": {"qint8": "int8"}},
)


OPERATOR = Operator(
    kernel_type="DynamicQuant",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    templates=NAMED,
    seen_by_kernel=("group_index",),
    torch=(TORCH,),
)
