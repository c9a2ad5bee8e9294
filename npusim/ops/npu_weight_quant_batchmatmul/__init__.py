"""npu_weight_quant_batchmatmul: floats times a weight of int8 or int4.

.. code-block:: text

    y = x @ ((weight + antiquant_offset) * antiquant_scale) + bias        then int8 if quantised

x is `(m, k)`, weight `(k, n)`. This is the formula; the exact bits depend on the vendor's kernel,
called template, that takes the call. Notation: every `+ - * /` is one fp32 operation rounded to
nearest even, `h()` and `b()` round to fp16 and bf16 likewise, `away()` rounds to an integer and
`y()` to the type of x, both with ties away from zero (CAST_ROUND), `@` is the cube.

.. code-block:: text

    custom, weight_nz   fp16: w = h(h(weight + offset) * scale)
                        bf16: w = b((weight + offset) * scale)
                        x @ w + bias in the cube, bias first; rounded ties to even by the fixpipe,
                        or quantised by it: rint(clip(y * s, -256, 255)) + o, clipped to int8
    fixpipe             w = h((weight + offset) * s) on the cube itself, s the 19 bits of the scale
    msd multicore       per row M = max|x|, S = sum(x), q = x * (1 / M)  (k < 128: x / M)
                        a1 = away(q * F1), a2 = away((q - a1 / F1) * F2), F1 = 127.499, F2 = 2 F1^2
                        c = (a1 @ weight) / F1 + (a2 @ weight) / F2, the products exact in int32
                        y((S * offset + c * M) * scale + bias)
    msd multicore_hp    the same, S = (sum(a1 / F1) + sum(a2 / F2)) * M
    msd split_k         M, S and digits for each block of at most 12288 of k
                        p = x / M * f1, a_t = away(p), p = (p - a_t) * f_(t+1)
                        int8: f = 127, 254; int4: f = 7.49, 14.98, 14.98
                        u_b = (sum_t (a_t @ weight) / (f1 .. f_t)) * scale
                        y(sum_b S_b * (scale * offset) + sum_b u_b * M_b + bias)
    msd per_group       the same for groups of k, in packs of 1024: all offsets of a pack, then its
                        products; with inner_precise=1 the digits' products are rounded to fp16 and
                        combined in fp16, two roundings a step
    msd_group           the same for groups, offset and product of each in turn; cores share k and
                        add up in fp32 with atomics
    nz_splitk           fp16 as custom; bf16: w = b(h(weight + h(offset))), scale after the product;
                        cores share k and add up in fp32 with atomics; y(), but ties to even if
                        fp16, no bias and one core along k
    split_k             bf16: w = b(h(weight + h(offset)) * scale); the groups of 64 are added up in
                        fp32 with atomics; b()

`a / F` stands for `a * f32(1 / F)`. Axpy and MulAddDst round the product, then the sum: inferred
from asc-devkit, Memory矢量计算接口边界值汇总.md, tables 20 to 22. The order of atomic adds is not
fixed; here it is ascending k, and a deterministic call never takes these templates. The order
inside the cube is a model (`cube_order`). The device file gives the overflow of fp16 and bf16.

Sources: ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2 (op_kernel and op_host/op_tiling);
op-plugin@517f2e7 WeightQuantBatchMatmulV2KernelNpuOpApi.cpp for what precedes the kernel.

Accepted calls follow the document of torch_npu.contrib.module.LinearWeightQuant, for the tensors
that the operator receives, so scales are `(1,)`, `(n,)`, `(1, n)` or `(ceil(k / group), n)`. In
addition:

* `(1, 1)` scales are accepted (aclnn_weight_quant_batch_matmul_v2.cpp); a bias of one value is
  broadcast over the columns, which the document allows and aclnn refuses;
* scales and offsets of groups may be stored in either orientation: they are transposed like the
  weight before the kernel starts (inferred from what aclnn does on Atlas inference);
* quant_scale with an int8 FRACTAL_NZ weight, which the document forbids but uses in its example, is
  accepted with a warning; so is an x that is not transposed with an int32 FRACTAL_NZ weight scaled
  per group;
* int8 FRACTAL_NZ weights are scaled per channel and x is not transposed; int32 ones give no int8
  output (the same file);
* on Atlas inference an ND weight is converted to FRACTAL_NZ of its transpose beforehand, like in
  aclnn; scales for all columns or for groups, which the kernel supports, are refused following the
  document; batches are not simulated;
* a float32 quant_scale passes through npu_trans_quant_param with quant_offset: torch_npu launches
  that first, and its time is part of the call's. The kernels never read quant_offset. Packed words
  that it cannot have produced are refused, and int32 offsets beyond int8;
* by the document weights in FRACTAL_NZ are for graph mode: torch's calls outside of a compiled
  graph are accepted with a warning, and `run`, which times a kernel in either mode, without one;
* inner_precise only affects int4 in groups, in msd and msd_group;
* `template` names the kernel, `deterministic` is the runtime's switch of that name.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import get_args

from npusim.data.arguments import Arguments
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops import _vocabulary as ops
from npusim.ops._operands import words_of
from npusim.ops._protocol import EarlierCall
from npusim.ops._torch import Result, columns_of
from npusim.ops.npu_weight_quant_batchmatmul.check import SUPPORT, check
from npusim.ops.npu_weight_quant_batchmatmul.choice import Choice, Template
from npusim.ops.npu_weight_quant_batchmatmul.oracle import at_once, oracle
from npusim.ops.npu_weight_quant_batchmatmul.problem import Plan, Problem

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]

MODULES = {
    ("msd", "multicore"): "msd_multicore",
    ("msd", "multicore_hp"): "msd_multicore",
    ("msd", "split_k"): "msd_split_k",
    ("msd", "per_group"): "msd_per_group",
    ("split_k", ""): "shared_k",
    ("nz_splitk", ""): "shared_k",
}
"""Template and form -> the module of the kernel; other modules have their template's name."""


def _module_of(choice: Choice) -> ModuleType:
    name = MODULES.get((choice.template, choice.form), choice.template)
    return import_module(f"{__name__}.templates.{name}")


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split like the template that takes the call."""
    plan: Plan = _module_of(p.choice).tile(spec, p)
    return plan


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Build one block per core with the kernel of the template."""
    blocks: tuple[Block, ...] = _module_of(p.choice).build(spec, p, plan)
    return blocks


def _prologue(p: Problem, arguments: Arguments) -> tuple[EarlierCall, ...]:
    if not p.packs_scale:
        return ()
    given = {"scale": arguments["quant_scale"], "offset": arguments.get("quant_offset")}
    return (("npu_trans_quant_param", given),)


def _warns_eager(given: ops.TorchArguments) -> str | None:
    weight = given["weight"]
    if weight is None or weight.layout == "ND":
        return None
    return (
        "the document of LinearWeightQuant takes weights in FRACTAL_NZ in graph mode only; it is "
        "taken; compile with torchair's backend, or leave the weight in ND"
    )


def _outputs(given: ops.TorchArguments, _: object) -> tuple[Result, ...]:
    kind = given["x"].dtype if given["quant_scale"] is None else "int8"
    return (((given["x"].shape[0], columns_of(given["weight"])), kind),)


OPERATOR = ops.Operator(
    kernel_type="WeightQuantBatchMatmulV2",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    prologue=_prologue,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=at_once,
    templates=get_args(Template),
    extras="bool deterministic=False",
    flags_may_stay_up=True,
    contract_reads=(
        ops.Reads(operands=("antiquant_scale",), finds=words_of),
        ops.Reads(operands=("quant_scale", "quant_offset"), converts=True),
    ),
    torch=(
        ops.TorchFunction(
            schema="npu_weight_quant_batchmatmul(Tensor x, Tensor weight, Tensor antiquant_scale, "
            "Tensor? antiquant_offset=None, Tensor? quant_scale=None, Tensor? quant_offset=None, "
            "Tensor? bias=None, int antiquant_group_size=0, int inner_precise=0, "
            "int? weight_dtype=None) -> Tensor",
            aclnn=lambda given: (
                f"aclnnWeightQuantBatchMatmulV{3 if given['inner_precise'] == 1 else 2}"
            ),
            outputs=_outputs,
            absent=("weight_dtype",),
            warns_eager=_warns_eager,
        ),
    ),
)
