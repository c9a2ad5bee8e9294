"""npu_dynamic_quant_asymmetric: rows of floats become int8 or int4, by a scale and an offset each.

.. code-block:: text

    v = f32(x) * f32(smooth_scales)            without smooth_scales: v = f32(x)
    scale = max((max v - min v) / 255, 1e-12)  over the last dimension; int4: 15
    offset = 127 - max v / scale               int4: 7
    y = fit(round(v * (1 / scale) + offset))

All in fp32, one rounding an operation; *round* is to nearest, ties to even, *fit* saturates and
turns NaN into 0. What a row was is about (y - offset) * scale. With a group_index each group of
rows has smooth scales of its own, as in npu_dynamic_quant.

* A row of one number c gets scale 1e-12, offset about -c * 1e12 and zeros, a row of zeros 127.
* A row with a NaN or an infinity becomes zeros with a NaN as offset, its scale 1e-12 or infinite;
  where minus infinity is the only one, the others become 127, like the offset.
* A NaN in all but the last part of 10240 columns, of a row too long for the buffer, is lost: the
  scalar unit compares what the parts have (assumed, from the kernel of npu_dynamic_quant).

Sources: ops-nn@e5c3fa9 quant/dynamic_quant and quant/dynamic_quant_v2, op_kernel and op_host. What
is accepted, and which kernel takes it, is as in npu_dynamic_quant, but for the kernels of several
rows an instruction, which give no offsets. Atlas inference has a kernel that nothing documents, and
that forgets the offsets of rows of more than 4096: refused.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchFunction, quantised
from npusim.ops.npu_dynamic_quant.choice import NAMED, SEVERAL_ROWS
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.tiling import Plan, tile
from npusim.ops.npu_dynamic_quant_asymmetric.contract import SUPPORT, check
from npusim.ops.npu_dynamic_quant_asymmetric.kernel import build
from npusim.ops.npu_dynamic_quant_asymmetric.reference import oracle

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


TORCH = TorchFunction(
    schema="npu_dynamic_quant_asymmetric(Tensor input, *, Tensor? smooth_scales=None, "
    'Tensor? group_index=None, int? dst_type=None, str? quant_mode="pertoken", '
    "float? dst_type_max=0.0) -> (Tensor, Tensor, Tensor)",
    aclnn=lambda given: (
        "aclnnDynamicQuantV4"
        if given["quant_mode"] not in (None, "pertoken") or given["dst_type_max"]
        else "aclnnDynamicQuantV2"
    ),
    outputs=lambda given, _: (
        quantised(given["x"], given["dst_type"]),
        (given["x"].shape[:-1], "float32"),
        (given["x"].shape[:-1], "float32"),
    ),
    names={"input": "x"},
    dtypes={"dst_type": {"qint8": "int8"}},
)


OPERATOR = Operator(
    kernel_type="DynamicQuantV2",
    document=__doc__,
    support=SUPPORT,
    elsewhere="use npu_dynamic_quant",
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    templates=tuple(name for name in NAMED if name not in SEVERAL_ROWS),
    seen_by_kernel=("group_index",),
    torch=(TORCH,),
)
