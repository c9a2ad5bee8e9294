"""npu_weight_quant_batchmatmul on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.tensor import Tensor
from npusim.devices.schema import DeviceSpec
from npusim.ops import npu_trans_quant_param
from npusim.ops.npu_weight_quant_batchmatmul.choice import Choice, choose
from npusim.ops.npu_weight_quant_batchmatmul.references import channels, floats, groups
from npusim.ops.npu_weight_quant_batchmatmul.references.inputs import (
    CubeOrder,
    ReferenceInputs,
    reference_inputs,
)

__all__ = ["reference"]

TEMPLATES: dict[tuple[str, str], Callable[[ReferenceInputs], Array]] = {
    ("msd", "multicore"): channels.multicore,
    ("msd", "multicore_hp"): channels.multicore_hp,
    ("msd", "split_k"): channels.split_k,
    ("msd", "per_group"): groups.per_group,
    ("msd_group", ""): groups.msd_group,
    ("split_k", ""): floats.split_k,
    ("nz_splitk", ""): floats.nz_splitk,
    ("custom", "nd"): floats.custom,
    ("custom", "nz"): floats.custom,
    ("fixpipe", ""): floats.fixpipe,
    ("weight_nz", ""): floats.weight_nz,
}


def reference(
    x: Array,
    weight: Array | Tensor,
    antiquant_scale: Array,
    antiquant_offset: Array | None = None,
    quant_scale: Array | None = None,
    quant_offset: Array | None = None,
    bias: Array | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    *,
    template: str | None = None,
    deterministic: bool = False,
    cube_order: CubeOrder = "k16",
    spec: DeviceSpec | None = None,
) -> Array:
    """Multiply *x* `(m, k)` by the dequantised *weight* `(k, n)` as *template* does.

    *spec* decides which template is taken, how many cores share k, and what overflow does; None is
    an Atlas A2 with 24 cube cores. *weight* is an array or a Tensor; one of *spec* 310P may be ND.
    """
    if quant_scale is not None and quant_scale.dtype == np.float32:
        quant_scale = npu_trans_quant_param.reference(quant_scale, quant_offset)
    call = reference_inputs(
        x,
        weight,
        antiquant_scale,
        antiquant_offset,
        quant_scale,
        bias,
        antiquant_group_size,
        deterministic,
        inner_precise=inner_precise,
        aic=spec.cores["aic"].count if spec is not None and spec.arch == "2201" else 24,
        overflow=spec.half_overflow if spec is not None else "inf_nan",
        cube_order=cube_order,
    )
    choice = _choice(call, spec, template)
    with np.errstate(all="ignore"):
        return TEMPLATES[choice.template, choice.form](call)


def _choice(call: ReferenceInputs, spec: DeviceSpec | None, template: str | None) -> Choice:
    if spec is not None and spec.arch == "2002":
        # Its only kernel; aclnn converts the weight to the form that it needs.
        return Choice("weight_nz", "", "")
    return choose(call.traits, spec, template)
