"""npu_trans_quant_param: scale and offset packed into the 64 bits that fixpipe reads.

.. code-block:: text

    bit   63..47  46         45..37               36..32  31..13             12..0
          0       1 = int8   offset, 9 bits       0       scale, upper bits  0

The offset is rounded to nearest, ties to even, and then clipped to [-256, 255]. The scale loses
its 13 lowest bits: truncated (round_mode 0), or rounded to nearest even (round_mode 1; a zero or
subnormal scale becomes a signed zero, an infinity or NaN keeps its upper bits). Source:
ops-nn@e5c3fa9 quant/trans_quant_param_v2/op_kernel/trans_quant_param_v2.h.

Accepted calls follow the operator's document (torch_npu-npu_trans_quant_param.md):

* without offset any one- or two-dimensional scale, (g, 1) and (g, n) included; the current kernel's
  host code refuses a first dimension other than 1 (aclnn_trans_quant_param_v2.cpp);
* with offset (1,), (n,) or (1, n): one-dimensional ones broadcast, two-dimensional ones match;
* round_mode, which is not in the document, is 0 or 1 (op-plugin@517f2e7,
  TransQuantParamKernelNpuOpApi.cpp);
* NaN and infinite scales are not checked, like in the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from npusim.data.dtypes import FLOAT32, INT64, Array
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local, ScalarAlu, ScalarLoad, ScalarLoop, ScalarOp, ScalarStore
from npusim.kernel import Block, GmView, Step, VectorCore
from npusim.kernel.rectangles import RowPieces
from npusim.ops import _vocabulary as ops
from npusim.ops._torch import Sizes
from npusim.ops._vocabulary import Row, present

# ---- what is accepted ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call."""

    scale: Operand
    offset: Operand | None
    round_mode: int


SUPPORT = (Row(scale=FLOAT32, offset=FLOAT32, round_mode=(0, 1)),)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    s = contract.operand("scale")
    contract.require(
        len(s.shape) in (1, 2) and 0 not in s.shape,
        f"scale must have one or two dimensions, none of them 0, not shape {s.shape}; "
        f"pass (n,) or (1, n)",
    )
    o = contract.optional("offset")
    shape = s.shape if o is None else _joint_shape(contract, s.shape, o.shape)
    mode = contract.integer("round_mode")
    return Problem(
        inputs=present(s, o),
        outputs={"output": TensorSpec(shape, "int64")},
        scale=s,
        offset=o,
        round_mode=mode,
    )


def _joint_shape(contract: ops.Contract, s: tuple[int, ...], o: tuple[int, ...]) -> tuple[int, ...]:
    if len(s) == 2:
        contract.require(
            s[0] == 1 and o == s,
            f"scale and offset must both have shape (1, n) if scale has two dimensions, "
            f"not {s} and {o}; flatten both",
        )
        return s
    fits = prod(o) in (1, s[0]) or (s[0] == 1 and prod(o) > 0)
    contract.require(
        len(o) == 1 and o[0] > 0 and (1 in (s[0], o[0]) or s == o),
        f"offset must have shape (1,) or that of scale, {s}, not {o}; "
        f"{'reshape it' if fits else 'pass one number, or one for each of scale'}",
    )
    return (max(s[0], o[0]),)


# ---- tiling ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """One core takes everything, a chunk of results at a time."""

    chunk: int


CHUNK_BYTES = 65536
"""Bytes of results that the kernel collects before it stores them (trans_quant_param_v2.h)."""


def tile(_: DeviceSpec, p: Problem) -> Plan:
    """Only the first core works, however long the scale is (trans_quant_param_v2.h)."""
    return Plan(block_dim=1, chunk=min(CHUNK_BYTES // INT64.nbytes(1), p.output.size))


# ---- kernel ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Load a chunk, pack its elements one by one on the scalar pipe, store it."""
    core, total = VectorCore("npu_trans_quant_param", spec), p.output.size
    whole = {x.name: GmView.vector(x.name, FLOAT32, x.spec.size) for x in p.inputs}
    queues = {
        name: core.tiles(FLOAT32, min(plan.chunk, view.columns), "mte2", "scalar")
        for name, view in whole.items()
    }
    results = core.tiles(INT64, plan.chunk, "scalar", "mte3")
    core.claim_tails("scalar")
    # A single value goes with all of the others, and stays in the buffer.
    single = [name for name, view in whole.items() if view.columns == 1 < total]

    def load_single() -> None:
        for name in single:
            core.load(queues[name], whole[name])

    def free_single() -> None:
        for name in single:
            queues[name].free(queues[name].only)

    def chunk(output: GmView, *views: GmView) -> None:
        """Compute *output* from *views*, of scale and offset."""
        for view in views:
            if view.name not in single:
                core.load(queues[view.name], view)
        result = results.alloc()
        elements = {
            name: ScalarLoad(name, queue.only[:1], 0 if name in single else FLOAT32.nbytes(1))
            for name, queue in queues.items()
        }
        core.emit(ScalarLoop(output.columns, _body(p.round_mode, elements, result)))
        for name, queue in queues.items():
            if name not in single:
                queue.free(queue.only)
        core.store(results, result, output)

    chunks = RowPieces.of([total], plan.chunk)
    views = [view if name in single else chunks.views(view) for name, view in whole.items()]
    output = chunks.views(GmView.vector("output", INT64, total))
    once, end = np.zeros(1, np.int64), np.full(1, chunks.core.size)
    return core.launch(
        Step(load_single, (), once, once - 1, keeps_slots=True),
        Step(chunk, (output, *views), chunks.core, keeps_slots=True),
        Step(free_single, (), once, end, keeps_slots=True),
    )


def _body(round_mode: int, elements: dict[str, ScalarLoad], result: Local) -> tuple[ScalarOp, ...]:
    """The scalar pipe's operations for one element."""
    body: list[ScalarOp] = [elements["scale"]]
    if round_mode == 0:
        body.append(ScalarAlu("and", "scale", "scale", UPPER_BITS))
    else:
        body += _rounded()
    body.append(ScalarAlu("or", "word", "scale", INT8_FLAG))
    if "offset" in elements:
        body += [
            elements["offset"],
            ScalarAlu("f32_to_i32", "offset", "offset"),
            ScalarAlu("max", "offset", "offset", -256),
            ScalarAlu("min", "offset", "offset", 255),
            ScalarAlu("and", "offset", "offset", 0x1FF),
            ScalarAlu("shl", "offset", "offset", 37),
            ScalarAlu("or", "word", "word", "offset"),
        ]
    body.append(ScalarStore(result[:1], "word", INT64.nbytes(1)))
    return tuple(body)


UPPER_BITS = 0xFFFF_E000
"""The 19 bits of an fp32 value that the fixpipe uses."""
INT8_FLAG = 1 << 46


def _rounded() -> list[ScalarOp]:
    """Round the bits in register `scale` to their upper 19, ties to even."""
    return [
        ScalarAlu("shr", "exponent", "scale", 23),
        ScalarAlu("and", "exponent", "exponent", 0xFF),
        ScalarAlu("shr", "even", "scale", 13),
        ScalarAlu("and", "even", "even", 1),
        ScalarAlu("add", "up", "scale", 0xFFF),
        ScalarAlu("add", "up", "up", "even"),
        ScalarAlu("and", "up", "up", UPPER_BITS),
        ScalarAlu("and", "cut", "scale", UPPER_BITS),
        ScalarAlu("and", "zero", "scale", 0x8000_0000),
        ScalarAlu("eq", "special", "exponent", 0xFF),
        ScalarAlu("select", "up", "special", "cut", "up"),
        ScalarAlu("eq", "tiny", "exponent", 0),
        ScalarAlu("select", "scale", "tiny", "zero", "up"),
    ]


# ---- oracle ----


def reference(scale: Array, offset: Array | None = None, round_mode: int = 0) -> Array:
    """Pack whole arrays in plain numpy: *scale* and *offset* float32, the result int64."""
    bits = scale.view(np.uint32).astype(np.int64)
    if round_mode == 1:
        mantissa, exponent = bits & 0x7FFFFF, (bits >> 23) & 0xFF
        low = mantissa & 0x1FFF
        up = (low > 0x1000) | ((low == 0x1000) & (mantissa & 0x2000 != 0))
        bits = np.where(up & (exponent != 255), bits + 0x2000, bits)
        bits = np.where(exponent == 0, bits & 0x80000000, bits)
    words = (bits & 0xFFFFE000) | (1 << 46)
    if offset is not None:
        whole = np.rint(np.where(np.isnan(offset), 0, offset).astype(np.float64))
        words = words | ((np.clip(whole, -256, 255).astype(np.int64) & 0x1FF) << 37)
    return np.asarray(words)


def oracle(given: ops.Given) -> Array:
    """The words of a whole scale."""
    return reference(given.scale, given.offset, given.round_mode)


# ---- declaration ----


def _torch_outputs(given: ops.TorchArguments, sizes: Sizes) -> tuple[tuple[tuple[Any, ...], str]]:
    scale, offset = given["scale"], given["offset"]
    if offset is None or len(scale.shape) != 1:
        return ((scale.shape, "int64"),)
    return (((sizes.sym_max(scale.shape[0], offset.shape[0]),), "int64"),)


TORCH = ops.TorchFunction(
    schema="npu_trans_quant_param(Tensor scale, Tensor? offset=None, int? round_mode=0) -> Tensor",
    aclnn=lambda given: f"aclnnTransQuantParamV{3 if given['round_mode'] else 2}",
    outputs=_torch_outputs,
    defaults={"round_mode": 0},
)


OPERATOR = ops.Operator(
    kernel_type="TransQuantParamV2",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(TORCH,),
)
