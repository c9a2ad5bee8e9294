"""npu_trans_quant_param: scale and offset packed into the 64 bits that the fixpipe reads.

.. code-block:: text

    bit   63..47  46         45..37               36..32  31..13             12..0
          0       1 = int8   offset, 9 bits       0       scale, upper bits  0

The offset is rounded to nearest, ties to even, and then clipped to [-256, 255]. The scale loses
its 13 lowest bits: cut off (round_mode 0), or rounded to nearest even (round_mode 1; a zero or
subnormal scale becomes a signed zero, an infinity or NaN keeps its upper bits). Source:
ops-nn@e5c3fa9 quant/trans_quant_param_v2/op_kernel/trans_quant_param_v2.h.

What is accepted is what the operator's document says (torch_npu-npu_trans_quant_param.md):

* without offset any one- or two-dimensional scale, (g, 1) and (g, n) included; the current kernel's
  host code refuses a first dimension other than 1 (aclnn_trans_quant_param_v2.cpp);
* with offset (1,), (n,) or (1, n): one-dimensional ones broadcast, two-dimensional ones are alike;
* round_mode, which the document does not know, is 0 or 1 (op-plugin@517f2e7,
  TransQuantParamKernelNpuOpApi.cpp);
* NaN and infinite scales are the caller's business, as in the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from npusim.data.dtypes import FLOAT32, INT64, Array
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import ScalarAlu, ScalarLoad, ScalarLoop, ScalarOp, ScalarStore
from npusim.kernel.builder import Builder
from npusim.kernel.program import Block
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, load, pieces
from npusim.kernel.views import GmView, bindings
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator, present
from npusim.ops._support import Row
from npusim.ops._torch import Sizes, TorchArguments, TorchFunction

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


# ---- contract ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call."""

    scale: Operand
    offset: Operand | None
    round_mode: int


SUPPORT = (Row(scale=FLOAT32, offset=FLOAT32, round_mode=(0, 1)),)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
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


def _joint_shape(contract: Contract, s: tuple[int, ...], o: tuple[int, ...]) -> tuple[int, ...]:
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
class Plan(_protocol.Plan):
    """One core takes everything, a chunk of results at a time."""

    chunk: int


CHUNK_BYTES = 65536
"""Results that the kernel collects before it stores them (trans_quant_param_v2.h)."""


def tile(_: DeviceSpec, p: Problem) -> Plan:
    """Only the first core works, however long the scale is (trans_quant_param_v2.h)."""
    return Plan(block_dim=1, chunk=min(CHUNK_BYTES // INT64.nbytes(1), p.output.size))


# ---- program ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Load a chunk, pack its elements one by one on the scalar pipe, store it."""
    kind, total = spec.vector_kinds[0], p.output.size
    builder = Builder("npu_trans_quant_param", spec.cores[kind], spec.sync)
    tensors = {x.name: GmView.vector(x.name, FLOAT32, x.spec.size) for x in p.inputs}
    output = GmView.vector("output", INT64, total)
    queues = {
        name: builder.queue("ub", FLOAT32.nbytes(min(plan.chunk, x.columns)), "mte2", "scalar")
        for name, x in tensors.items()
    }
    results = builder.queue("ub", INT64.nbytes(plan.chunk), "scalar", "mte3")
    writer = Writer(builder, spec, "scalar")
    # A single number goes with all of the others, and stays.
    single = {
        name: load(builder, spec, queues[name], x)
        for name, x in tensors.items()
        if x.columns == 1 < total
    }
    for start, count in pieces(total, plan.chunk):
        here = slice(start, start + count)
        slots = {
            name: single.get(name) or load(builder, spec, queues[name], x[:, here])
            for name, x in tensors.items()
        }
        result = results.alloc()
        builder.emit(ScalarLoop(count, _body(p, slots, result, single)))
        for name, slot in slots.items():
            if name not in single:
                queues[name].free(slot)
        writer.store(results, result, output[:, here])
    for name, slot in single.items():
        queues[name].free(slot)
    return (Block(0, kind, builder.build(), bindings(output, *tensors.values())),)


def _body(
    p: Problem, slots: dict[str, Slot], result: Slot, single: dict[str, Slot]
) -> tuple[ScalarOp, ...]:
    """What the scalar pipe does for one element."""

    def element(name: str) -> ScalarLoad:
        step = 0 if name in single else FLOAT32.nbytes(1)
        return ScalarLoad(name, slots[name].of(FLOAT32, 1), step)

    body: list[ScalarOp] = [element("scale")]
    if p.round_mode == 0:
        body.append(ScalarAlu("and", "scale", "scale", UPPER_BITS))
    else:
        body += _rounded()
    body.append(ScalarAlu("or", "word", "scale", INT8_FLAG))
    if p.offset is not None:
        body += [
            element("offset"),
            ScalarAlu("f32_to_i32", "offset", "offset"),
            ScalarAlu("max", "offset", "offset", -256),
            ScalarAlu("min", "offset", "offset", 255),
            ScalarAlu("and", "offset", "offset", 0x1FF),
            ScalarAlu("shl", "offset", "offset", 37),
            ScalarAlu("or", "word", "word", "offset"),
        ]
    body.append(ScalarStore(result.of(INT64, 1), "word", INT64.nbytes(1)))
    return tuple(body)


UPPER_BITS = 0xFFFF_E000
"""The 19 bits of an fp32 that the fixpipe looks at."""
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


# ---- reference ----


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


def oracle(given: Given) -> Array:
    """The words of a whole scale."""
    return reference(given.scale, given.offset, given.round_mode)


# ---- torch ----


def _torch_outputs(given: TorchArguments, sizes: Sizes) -> tuple[tuple[tuple[Any, ...], str]]:
    scale, offset = given["scale"], given["offset"]
    if offset is None or len(scale.shape) != 1:
        return ((scale.shape, "int64"),)
    return (((sizes.sym_max(scale.shape[0], offset.shape[0]),), "int64"),)


TORCH = TorchFunction(
    schema="npu_trans_quant_param(Tensor scale, Tensor? offset=None, int? round_mode=0) -> Tensor",
    aclnn=lambda given: f"aclnnTransQuantParamV{3 if given['round_mode'] else 2}",
    outputs=_torch_outputs,
    defaults={"round_mode": 0},
)


OPERATOR = Operator(
    kernel_type="TransQuantParamV2",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(TORCH,),
)
