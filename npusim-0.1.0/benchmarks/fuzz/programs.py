"""Programs: those of operators, in which micro-ops are exchanged, lost, moved or made twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from outcome import Case

import npusim
from npusim import Kernel, TensorSpec, devices, ops
from npusim.data.dtypes import DTYPES
from npusim.data.tensor import Tensor
from npusim.isa import BLOCK_BYTES, MICRO_OPS, Global, Local, MicroOp
from npusim.kernel.program import Binding, Block, Call, Program

__all__ = ["program"]

Rng = np.random.Generator
INTEGERS = (
    0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 64, 127, 255, 256, 4095, 4096, 65535, 65536, 10**7, 2**31,
    2**63, -1, -8, -(10**7),
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, 0.5, -1.5, float("nan"), "", "some", "pow", "add", "mte2", "vector", "all", "group",
    "\x1b[31m", [], (), {}, b"x", object(), np.int64(3), np.float32(2.0), np.array([1, 2]),
)  # fmt: skip
Calls = tuple[str, str, tuple[Any, ...], dict[str, Any]]
HALF, BYTES = TensorSpec((3, 40), "float16"), TensorSpec((5, 64), "int8")
CALLS: tuple[Calls, ...] = (
    ("npu_quantize", "ascend910b2", (HALF, TensorSpec((40,), "float16"), None, "qint8", -1, False),
     {}),
    ("npu_quantize", "ascend310p3", (HALF, TensorSpec((1,), "float32"), None, "qint8"), {}),
    ("npu_dynamic_quant", "ascend910_9391", (TensorSpec((3, 128), "float16"),), {}),
    ("matmul", "ascend910b2", (HALF, TensorSpec((40, 32), "float16")), {}),
    ("matmul", "ascend310p3", (HALF, TensorSpec((40, 32), "float16")), {}),
    ("npu_quant_matmul", "ascend910b2", (BYTES, TensorSpec((64, 32), "int8"),
     TensorSpec((1,), "float32")), {"output_dtype": "bfloat16"}),
    ("npu_weight_quant_batchmatmul", "ascend910b2", (TensorSpec((2, 64), "float16"),
     TensorSpec((64, 32), "int8"), TensorSpec((32,), "float16")), {}),
    ("npu_format_cast", "ascend910b2", (TensorSpec((18, 40), "int8"), 29), {}),
)  # fmt: skip


class Base(NamedTuple):
    """A kernel that is right, and the chip it is for."""

    op: str
    device: str
    blocks: tuple[Block, ...]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    workspaces: dict[str, int]
    is_mix: bool


@cache
def _base(index: int) -> Base:
    op, device, arguments, keywords = CALLS[index]
    operator, spec = ops.load(op), devices.load(device)
    bound = ops.signature(operator).bind(*arguments, **keywords)
    bound.apply_defaults()
    problem = operator.check(spec, **bound.arguments)
    plan = operator.plan(spec, problem)
    assert plan is not None
    inputs = {operand.name: operand.spec for operand in problem.inputs}
    blocks = operator.build(spec, problem, plan)
    return Base(op, device, blocks, inputs, problem.outputs, plan.workspaces, plan.is_mix)


def program(rng: Rng) -> Case:
    """The kernel of an operator, changed in a few places, as a custom kernel."""
    base = _base(int(rng.integers(len(CALLS))))
    changed: dict[Program, Program] = {}
    changes: list[str] = []
    blocks = list(base.blocks)
    for index, block in enumerate(blocks):
        if block.program not in changed:
            is_left_alone = changed and rng.random() < 0.5
            ops_before = [_within(part) for part in block.program.ops]
            after = ops_before if is_left_alone else _changed(rng, ops_before, changes)
            changed[block.program] = Program(block.program.name, tuple(after))
        blocks[index] = replace(block, program=changed[block.program])
    if rng.random() < 0.15:
        at = int(rng.integers(len(blocks)))
        blocks[at] = _other_block(rng, blocks[at], changes)
    kernel = Kernel(
        "changed", tuple(blocks), base.inputs, base.outputs, base.is_mix, base.workspaces
    )
    values = {name: _numbers(rng, spec) for name, spec in base.inputs.items()}
    function = _function(kernel, list(values))
    text = f"{base.op} on {base.device}: {'; '.join(changes) or 'as it is'}"
    return Case(text, lambda: npusim.run(function, **values, device=base.device))


def _function(kernel: Kernel, names: list[str]) -> Callable[..., Kernel]:
    """A function of the tensors *names* that returns *kernel*."""
    scope: dict[str, Any] = {"kernel": kernel}
    exec(f"def changed(spec, {', '.join(names)}): return kernel", scope)
    found: Callable[..., Kernel] = scope["changed"]
    return found


def _within(part: MicroOp | Call) -> MicroOp:
    assert isinstance(part, MicroOp)
    return part


def _numbers(rng: Rng, spec: TensorSpec) -> Any:
    array = rng.integers(-8, 8, spec.shape).astype(spec.element.numpy)
    return Tensor.of(array, spec.layout) if spec.layout != "ND" else array


def _changed(rng: Rng, before: list[MicroOp], changes: list[str]) -> list[Any]:
    """*before* with one to three changes."""
    after: list[Any] = list(before)
    for _ in range(rng.integers(0, 4)):
        at = int(rng.integers(len(after)))
        match rng.integers(8):
            case 0:
                changes.append(f"{at} left out")
                after.pop(at)
            case 1:
                changes.append(f"{at} twice")
                after.insert(at, after[at])
            case 2:
                other = int(rng.integers(len(after)))
                changes.append(f"{at} and {other} exchanged")
                after[at], after[other] = after[other], after[at]
            case 3:
                after[at] = _invented(rng)
                changes.append(f"{at} is {after[at]!r}")
            case _:
                after[at] = _other_field(rng, after[at])
                changes.append(f"{at} is {after[at]!r}")
        if not after:
            break
    return after


def _other_field(rng: Rng, part: Any) -> Any:
    """*part*, a micro-op or an operand, with another value in one field."""
    names = (
        [field.name for field in fields(part)] if isinstance(part, MicroOp | Local | Global) else []
    )
    if not names:
        return part
    name = names[rng.integers(len(names))]
    value = getattr(part, name)
    if isinstance(value, Local | Global) and rng.random() < 0.85:
        return replace(part, **{name: _other_field(rng, value)})
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.8:
        near = int(rng.choice([-BLOCK_BYTES, -1, 1, BLOCK_BYTES, value, -value]))
        other = value + near if rng.random() < 0.5 else INTEGERS[rng.integers(len(INTEGERS))]
        return replace(part, **{name: other})
    if rng.random() < 0.4:
        return replace(part, **{name: DTYPES[rng.integers(len(DTYPES))]})
    return replace(part, **{name: ODD_VALUES[rng.integers(len(ODD_VALUES))]})


def _invented(rng: Rng) -> MicroOp:
    """A micro-op of any kind with drawn operands."""
    while True:
        kind = MICRO_OPS[rng.integers(len(MICRO_OPS))]
        drawn = {
            field.name: _value(rng, str(field.type))
            for field in fields(kind)  # type: ignore[arg-type]
            if field.default is MISSING or rng.random() < 0.3
        }
        try:
            return kind(**drawn)
        except (ValueError, TypeError):
            # It is refused where it is made, which is as good.
            continue


def _value(rng: Rng, annotation: str) -> Any:
    if rng.random() < 0.1:
        return ODD_VALUES[rng.integers(len(ODD_VALUES))]
    number = int(INTEGERS[rng.integers(len(INTEGERS))])
    match annotation:
        case "Local":
            buffer = str(rng.choice(["ub", "l1", "l0a", "l0b", "l0c", "bt", "fb"]))
            dtype = DTYPES[rng.integers(len(DTYPES))]
            return Local(buffer, BLOCK_BYTES * int(rng.integers(64)), dtype, abs(number) % 4096)
        case "Global":
            return Global(str(rng.choice(["x", "output"])), BLOCK_BYTES, 64, 1 + abs(number) % 9)
        case "int":
            return number
        case "bool":
            return bool(rng.random() < 0.5)
        case _:
            return ODD_VALUES[rng.integers(len(ODD_VALUES))]


def _other_block(rng: Rng, block: Block, changes: list[str]) -> Block:
    """*block* on another core, of another kind or group, or bound to other places."""
    kinds: tuple[Any, ...] = ("aic", "aiv", "ai_core", "vector_core", "none", None, 3)
    number = INTEGERS[rng.integers(len(INTEGERS))]
    match rng.integers(4):
        case 0:
            changes.append("a core of another kind")
            return replace(block, kind=kinds[rng.integers(len(kinds))])
        case 1:
            changes.append(f"core {number}")
            return replace(block, core=number)
        case 2:
            changes.append(f"group {number}")
            return replace(block, group=number)
        case _:
            names = list(block.bindings)
            name, other = (names[at] for at in rng.integers(len(names), size=2))
            bound = Binding(block.bindings[other].tensor, number)
            changes.append(f"{name} bound to {bound}")
            return replace(block, bindings=block.bindings | {name: bound})
