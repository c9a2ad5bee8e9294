"""matmul: matrices of fp16, bf16 or fp32 multiplied on the cube.

.. code-block:: text

    acc = f32(bias)
    acc = round32(acc + the sum of 16 products)      for k = 0, 16, 32, ...
    y   = round(acc) to the type of the inputs

Products are exact and the accumulator is fp32. The order in which the cube adds the products of a
block, and its rounding, are not public: that it adds 16 of them exactly, k ascending, and rounds
once, to nearest even, is our model, the same on every machine; *cube_order* uses blocks of 8, 4 or
1 instead. The result is rounded to nearest even on its way out (asc-devkit, F322F16 and
F322BF16); on overflow it becomes infinite on A2 and A3 and the largest number on 310P, where NaN
becomes 0 (Ascend/pytorch, npu_sys_ctrl.cpp).

Templates that split k sum chunks of it, each from zero, the first one from the bias:

.. code-block:: text

    single_core_split_k,
    al1_split_k            s = chunk 0;  s = round32(s + chunk i)              for i = 1, 2, ...
    deterministic_split_k  s_c the same for the chunks of core c, which are consecutive
                           s = s_0;  s = round32(s + s_c)                      for c = 1, 2, ...
                           y = round(s) to the type of the inputs

Chunks are 384 of k, or 512 in single_core_split_k if there is no bias and the output has fewer
squares of 384 than the chip has cores, or in al1_split_k as much as L1 holds of x1. In
deterministic_split_k there are as many cores as chunks, or all (ops-nn@e5c3fa9 matmul/mat_mul_v3).

What is accepted:

* torch.matmul's shapes of two and more dimensions, batches broadcast; none of them empty; if x2 is
  one matrix and x1 is stored as (..., m, k), its batches are further rows (ops-nn,
  aclnn_matmul.cpp);
* fp16 everywhere, bf16 and fp32 on A2 and A3; both matrices, and the result, have one type;
* fp32 in full precision, as torch_npu multiplies if allow_hf32 is not set: four of k a cycle. That
  the base kernel accepts it is assumed;
* x2 of 16 bits in FRACTAL_NZ, and transposed views of both, without copying them;
* `output_dtype` may be float32 on A2 and A3: the sums are output unrounded, as aclnnAddmm requests
  them if it adds a whole matrix to them (ops-nn, aclnn_addmm.cpp);
* `template` selects one of the vendor's kernels, which `choice` lists; by default its rules choose;
* a bias (n,) or (1, n), from which the accumulator starts: fp16 or fp32 with fp16, which the bias
  table widens to fp32 (asc-devkit, DataCopy from C1 to C2), and fp32 with bf16 and fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npusim.devices.schema import DeviceSpec
from npusim.kernel import Block
from npusim.ops import _vocabulary as ops
from npusim.ops.matmul.check import SUPPORT, Plan, Problem, check
from npusim.ops.matmul.choice import Template
from npusim.ops.matmul.oracle import at_once, oracle
from npusim.ops.matmul.templates import (
    bl1_aligned_output,
    deterministic_split_k,
    nd2nz,
    split_k,
    whole_k,
)

Tile = Callable[[DeviceSpec, Problem], Plan]
Build = Callable[[DeviceSpec, Problem, Any], tuple[Block, ...]]

KERNELS: dict[Template, tuple[Tile, Build]] = {
    "bl1_aligned_output": (bl1_aligned_output.tile, bl1_aligned_output.build),
    "al1_split_k": (split_k.tile_al1, split_k.build),
    "bl1_full_load": (whole_k.tile_full_load, whole_k.build),
    "single_core_split_k": (split_k.tile_single_core, split_k.build),
    "deterministic_split_k": (deterministic_split_k.tile, deterministic_split_k.build),
    "v2": (whole_k.tile_v2, whole_k.build),
    "nd2nz": (nd2nz.tile, nd2nz.build),
    "base": (whole_k.tile_base, whole_k.build),
}


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split like the template that runs the call."""
    return KERNELS[p.choice.template][0](spec, p)


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block per core."""
    return KERNELS[p.choice.template][1](spec, p, plan)


def _kernel_type(_: DeviceSpec, p: Problem, plan: Plan) -> str:
    """BatchMatMul for a batch of x2; a batch of x1 alone counts as rows (aclnn_matmul.cpp)."""
    is_batch = len(p.x2.shape) > 2
    return f"{'Batch' if is_batch else ''}MatMul{'V2' if plan.template == 'v2' else 'V3'}"


OPERATOR = ops.Operator(
    signature="matmul(Tensor x1, Tensor x2, Tensor? bias=None, *, dtype? output_dtype=None) "
    "-> Tensor",
    document=__doc__,
    kernel_type=_kernel_type,
    support=SUPPORT,
    contract=check,
    oracle=oracle,
    at_once=at_once,
    tile=tile,
    build=build,
    templates=tuple(KERNELS),
)
