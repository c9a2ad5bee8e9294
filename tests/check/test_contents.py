"""Programs, calls and blocks are taken to pieces before anything calculates with them."""

# mypy: disable-error-code="arg-type, dict-item"

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny import tiny_spec

import npusim
from npusim import DeviceSpec, Kernel, TensorSpec, chip, isa, micro
from npusim.check.bounds import BoundsError
from npusim.check.rules import Place, RuleError, check, check_blocks
from npusim.data.dtypes import FLOAT32, UINT8
from npusim.kernel.builder import Builder
from npusim.kernel.program import Binding, Block, Body, Call, Program
from npusim.run.user_kernel import KernelError

X = isa.Local("ub", 0, FLOAT32, 64)
ZERO = isa.Duplicate(X, 0.0)
BYTE = isa.Local("ub", 0, UINT8, 1)
SPEC = tiny_spec()


def says(text: str) -> str:
    return f"^{re.escape(text)}$"


def block(*parts: Any, **changes: Any) -> Block:
    return replace(Block(0, "aiv", Program("kernel", parts), {}), **changes)


# ---- what a launch is made of ----


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (
            [block(ZERO)],
            "chip: blocks must be a tuple, each a Block, not list; "
            "write for example (Block(0, kind, builder.build(), bindings),)",
        ),
        (
            (block(ZERO), "block"),
            "chip: blocks must be a tuple, each a Block, not a tuple of Block, str; "
            "write for example (Block(0, kind, builder.build(), bindings),)",
        ),
        (
            (block(ZERO, core=1.0),),
            "chip: blocks[0].core must be an integer of at most 48 bits, not 1.0; "
            "pass an int that fits",
        ),
        (
            (block(ZERO), block(ZERO, bindings={"x": "x"})),
            "chip: blocks[1].bindings['x'] must be a Binding, not 'x'; pass one",
        ),
        (
            (block(ZERO, program=Program("\x1b[31m", (ZERO,))),),
            "Program: name must be a printable string, not '\\x1b[31m'; rename it",
        ),
        (
            (block(ZERO, program=Program("kernel", [ZERO])),),
            "Program: parts must be a tuple, not list; take what Builder.build gives",
        ),
        (
            (block(ZERO, program=Program("kernel", (ZERO,), {}, 7)),),
            "Program: lines must be a tuple, not int; take what Builder.build gives",
        ),
        (
            (block(ZERO, Call(Body((ZERO,), None))),),
            "kernel #1: Call: body.part_lines must be a tuple, not None; pass one",
        ),
        (
            (block(ZERO, "add"),),
            "kernel #1: a program must consist of micro-ops and calls, not hold 'add'; "
            "emit micro-ops",
        ),
        (
            (block(ZERO, isa.Duplicate),),
            "kernel #1: a program must consist of micro-ops and calls, not hold type; "
            "emit micro-ops",
        ),
        (
            (block(Call(Body((ZERO, ZERO))), Call(Body((ZERO, None)))),),
            "kernel #3: a program must consist of micro-ops and calls, not hold None; "
            "emit micro-ops",
        ),
        (
            (block(ZERO, Call(Body([ZERO]))),),
            "kernel #1: Call: body.parts must be a tuple, not list; pass one",
        ),
        (
            (block(ZERO, Call((ZERO,))),),
            "kernel #1: Call: body must be a Body, not tuple; pass one",
        ),
        (
            (block(ZERO, Call(Body((ZERO,)), {"x": 0.5})),),
            "kernel #1: Call: shifts['x'] must be an integer of at most 48 bits, not 0.5; "
            "pass an int that fits",
        ),
        (
            (block(ZERO, isa.BinaryScalar("pow", X, X, 1.0)),),
            "kernel #1: BinaryScalar: op must be one of add, sub, mul, div, min, max, leaky_relu, "
            "shift_left, shift_right, shift_right_round, not 'pow'; use one of these",
        ),
        (
            (block(ZERO, replace(ZERO, dst=replace(X, offset_bytes=0.0))),),
            "kernel #1: Duplicate: dst.offset_bytes must be an integer of at most 48 bits, "
            "not 0.0; pass an int that fits",
        ),
        (
            (block(ZERO, kind="gpu"),),
            "kernel: a block must run on a kind of core that tiny has, one of aic, aiv, not gpu; "
            "take one of these",
        ),
    ],
)
def test_what_is_no_launch_is_refused(blocks: Any, message: str) -> None:
    with pytest.raises(RuleError, match=says(message)):
        chip.verify(blocks, SPEC)


def test_a_program_is_taken_to_pieces_once() -> None:
    shared = Body((ZERO, isa.Barrier("vector")))
    good = Program("kernel", (Call(shared), Call(shared)))
    check_blocks("chip", (block(program=good), block(program=good)))
    check(good, Place(SPEC, "aiv"))
    check(good, Place(SPEC, "aiv"))


def test_the_line_that_wrote_it_is_named() -> None:
    builder = Builder("kernel", SPEC.cores["aiv"], SPEC.sync)
    builder.emit(ZERO)
    builder.emit(replace(ZERO, dst=replace(X, offset_bytes=8)))
    line = test_the_line_that_wrote_it_is_named.__code__.co_firstlineno + 3
    message = (
        f"kernel #1 (line {line} of test_contents.py): duplicate ub[8:264] float32 <- 0.0: each "
        f"operand must start at a multiple of 32 bytes, not at 8; align it"
    )
    with pytest.raises(RuleError, match=says(message)):
        check(builder.build(), Place(SPEC, "aiv"))


# ---- registers ----


def unset(index: int, op: isa.MicroOp, register: str) -> str:
    return says(
        f"kernel #{index}: {op}: a register must be set before it is read, but nobody has set "
        f"{register!r}; load it with ScalarLoad or compute it with ScalarAlu first"
    )


LOOP = isa.ScalarLoop(2, (isa.ScalarLoad("r", BYTE, 1),))


@pytest.mark.parametrize(
    ("op", "register", "setter"),
    [
        (isa.Duplicate(X, "r"), "r", isa.ScalarLoad("r", BYTE)),
        (isa.BinaryScalar("add", X, X, "r"), "r", LOOP),
        (isa.ScalarStore(BYTE, "r"), "r", isa.ScalarAlu("add", "r", 1, 2)),
        (isa.ScalarAlu("select", "r", 1, 2, "s"), "s", isa.ScalarLoad("s", BYTE)),
    ],
)
def test_registers_are_set_before_use(op: isa.MicroOp, register: str, setter: isa.MicroOp) -> None:
    place = Place(SPEC, "aiv")
    with pytest.raises(RuleError, match=unset(0, op, register)):
        check(Program("kernel", (op, setter)), place)
    check(Program("kernel", (setter, op)), place)


def test_registers_are_set_in_the_order_of_the_calls() -> None:
    place, sets, uses = (
        Place(SPEC, "aiv"),
        Body((isa.ScalarLoad("r", BYTE),)),
        isa.Duplicate(X, "r"),
    )
    user = Body((ZERO, uses))
    check(Program("kernel", (Call(sets), Call(user), Call(user))), place)
    with pytest.raises(RuleError, match=unset(1, uses, "r")):
        check(Program("kernel", (Call(user), Call(sets), Call(user))), place)


# ---- custom kernels ----


def making(*ops: Any, **changes: Any) -> Any:
    """A kernel that copies x to y after *ops*."""

    def mine(spec: DeviceSpec, x: TensorSpec) -> Kernel:
        builder = Builder("mine", spec.cores["aiv"], spec.sync)
        builder.emit(*ops, isa.Load(X, isa.Global("x", 0, 256)))
        builder.sync("mte2", "mte3")
        builder.emit(isa.Store(isa.Global("y", 0, 256), X))
        bound = {name: Binding(name) for name in ("x", "y")}
        made = Kernel("mine", (Block(0, "aiv", builder.build(), bound),), {"x": x}, {"y": x})
        return replace(made, **changes)

    return mine


GIVEN = np.arange(64, dtype=np.float32)
# Where `making` writes its micro-ops.
LINE = f"(line {making.__code__.co_firstlineno + 5} of test_contents.py)"


def test_a_good_one_runs() -> None:
    run = npusim.run(making(), GIVEN, device=SPEC)
    np.testing.assert_array_equal(run.output, GIVEN)
    large = [np.int64(0), np.int64(64)]
    same = making(isa.Duplicate(isa.Local("ub", large[0] + 512, FLOAT32, large[1]), 0.0))
    np.testing.assert_array_equal(npusim.run(same, GIVEN, device=SPEC).output, GIVEN)


@pytest.mark.parametrize("timing", [True, False])
@pytest.mark.parametrize(
    ("op", "message"),
    [
        # Once ended the process.
        (
            isa.BinaryScalar(
                "add", isa.Local("ub", 0, FLOAT32, 128, -(10**7), 7 * 10**7 + 1), X, 1.0
            ),
            "BinaryScalar: dst.block_stride must be an integer from 0 to 65535, not -10000000; "
            "pass an int that fits",
        ),
        # Once wrote below the buffer.
        (
            isa.BinaryScalar("add", isa.Local("ub", 0, FLOAT32, 128, -10, 80), X, 1.0),
            "BinaryScalar: dst.block_stride must be an integer from 0 to 65535, not -10; "
            "pass an int that fits",
        ),
        # Once read below the tensor.
        (
            isa.Load(isa.Local("ub", 0, UINT8, 64), isa.Global("x", 0, 32, 2, -64), 32),
            "Load: src.stride_bytes must be an integer from 0 to 4294967295, not -64; "
            "pass an int that fits",
        ),
        # Once wrote into the neighbour's slot.
        (
            isa.Load(isa.Local("ub", 0, FLOAT32, 8), isa.Global("x", 0, 256)),
            "load ub[0:32] float32 <- x+0 256 B: dst must hold the 256 bytes that are written, "
            "ub[0:256] uint8, not be ub[0:32] float32; name more or move less",
        ),
        (
            "a copy",
            "a program must consist of micro-ops and calls, not hold 'a copy'; emit micro-ops",
        ),
    ],
)
def test_what_is_no_micro_op_is_refused(op: Any, message: str, timing: bool) -> None:
    with pytest.raises(RuleError, match=says(f"mine #0 {LINE}: {message}")):
        npusim.run(making(op), GIVEN, device=SPEC, timing=timing)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"outputs": {"y": "float32"}},
            "mine: Kernel.outputs['y'] must be a TensorSpec, not 'float32'; pass one",
        ),
        (
            {"workspaces": {"w": -1}},
            f"mine: Kernel.workspaces['w'] must be an integer from 0 to {2**32 - 1}, not -1; "
            f"pass an int that fits",
        ),
        ({"is_mix": "yes"}, "mine: Kernel.is_mix must be True or False, not 'yes'; pass one"),
        (
            {"blocks": ["block"]},
            "mine: Kernel.blocks must be a tuple, each a Block, not list; pass one",
        ),
    ],
)
def test_what_is_no_kernel_is_refused(changes: Any, message: str) -> None:
    with pytest.raises(KernelError, match=says(message)):
        npusim.run(making(**changes), GIVEN, device=SPEC)


@pytest.mark.parametrize(
    ("bound", "came"),
    [({"x": Binding("x")}, "nothing"), ({"x": Binding("x"), "y": Binding("z")}, "z")],
)
def test_names_of_a_bare_kernel_are_bound(bound: dict[str, Binding], came: str) -> None:
    kernel = making()(SPEC, TensorSpec((64,), "float32"))
    kernel = replace(kernel, blocks=(replace(kernel.blocks[0], bindings=bound),))
    message = (
        f"mine: core 0 must bind y to one of x, y, not to {came}; add it to the block's bindings"
    )
    with pytest.raises(BoundsError, match=says(message)):
        micro.time(kernel, SPEC)
    with pytest.raises(BoundsError, match=says(message)):
        micro.compute(kernel, SPEC, x=GIVEN)
