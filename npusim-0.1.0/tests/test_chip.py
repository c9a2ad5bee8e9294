"""Programs played for their values on several cores, and what stops them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from npusim import chip
from npusim.check.hazards import DeadlockError, RaceError
from npusim.check.rules import RuleError
from npusim.chip import Binding, Block
from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    Barrier,
    BinaryScalar,
    Cast,
    Duplicate,
    Global,
    Load,
    Local,
    MicroOp,
    ScalarLoad,
    SetFlag,
    Store,
    WaitFlag,
)
from npusim.kernel.program import Program

X = Local("ub", 0, FLOAT32, 8)
BYTES = Local("ub", 0, UINT8, 32)
DOUBLE = Program(
    "double",
    (
        Load(BYTES, Global("x", 0, 32)),
        *(SetFlag("mte2", "vector", 0), WaitFlag("mte2", "vector", 0)),
        BinaryScalar("mul", X, X, 2.0),
        *(SetFlag("vector", "mte3", 0), WaitFlag("vector", "mte3", 0)),
        Store(Global("y", 0, 32), BYTES),
    ),
)


def rows(program: Program, cores: int, kind: str = "aiv") -> tuple[Block, ...]:
    return tuple(
        Block(core, kind, program, {name: Binding(name, 32 * core) for name in ("x", "y")})
        for core in range(cores)
    )


def tensors(x: np.ndarray) -> tuple[list[GlobalTensor], np.ndarray]:
    """x with its values, and room for as many float32."""
    out = np.zeros(x.size * 4, np.uint8)
    return [GlobalTensor("x", x.nbytes, x.view(np.uint8)), GlobalTensor("y", out.size, out)], out


def test_values_come_without_time_and_time_without_values(tiny: DeviceSpec) -> None:
    blocks = rows(DOUBLE, 5)
    trace = chip.time(blocks, [GlobalTensor("x", 160), GlobalTensor("y", 160)], tiny)
    assert trace.cores == (0, 1, 2, 3, 4)
    text = (
        "chip: tensor x must have values, but only its size is known; "
        "place an array or ask for time only"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        chip.compute(blocks, [GlobalTensor("x", 160), GlobalTensor("y", 160)], tiny, {DOUBLE: (0,)})


def test_registers_do_not_pass_from_core_to_core(tiny: DeviceSpec) -> None:
    word = Local("ub", 0, FLOAT32, 1)
    ops: tuple[MicroOp, ...] = (
        Load(BYTES, Global("x", 0, 32)),
        *(SetFlag("mte2", "scalar", 0), WaitFlag("mte2", "scalar", 0)),
        *(ScalarLoad("r", word), SetFlag("scalar", "vector", 0), WaitFlag("scalar", "vector", 0)),
        *(Duplicate(X, "r"), SetFlag("vector", "mte3", 0), WaitFlag("vector", "mte3", 0)),
        Store(Global("y", 0, 32), BYTES),
    )
    x = np.arange(16, dtype=np.float32)
    placed, out = tensors(x)
    blocks = rows(Program("first", ops), 2)
    chip.compute(blocks, placed, tiny, chip.verify(blocks, tiny))
    assert out.view(np.float32).tolist() == [0] * 8 + [8] * 8


def test_the_chip_saturates_large_halves(tiny: DeviceSpec, tiny_2002: DeviceSpec) -> None:
    half = Local("ub", 32, FLOAT16, 8)
    program = Program(
        "narrow",
        (
            Duplicate(X, 1e30),
            Barrier("vector"),
            Cast(half, X, "none"),
            Barrier("vector"),
            Cast(X, half, "none"),
            *(SetFlag("vector", "mte3", 0), WaitFlag("vector", "mte3", 0)),
            Store(Global("y", 0, 32), BYTES),
        ),
    )
    found = []
    for spec, kind in ((tiny, "aiv"), (tiny_2002, "vector_core")):
        placed, out = tensors(np.zeros(8, np.float32))
        blocks = rows(program, 1, kind)
        chip.compute(blocks, placed, spec, chip.verify(blocks, spec))
        found.append(out.view(np.float32)[0])
    assert found == [np.inf, 65504]


def test_programs_are_checked_before_they_run(tiny: DeviceSpec) -> None:
    racing = Program("race", (Load(BYTES, Global("x", 0, 32)), Duplicate(X, 0.0)))
    stuck = Program("stuck", (WaitFlag("mte2", "vector", 0), Duplicate(X, 0.0)))
    odd = Program("odd", (Duplicate(Local("ub", 8, FLOAT32, 8), 0.0),))
    for program, error in ((racing, RaceError), (stuck, DeadlockError), (odd, RuleError)):
        with pytest.raises(error, match=rf"^{program.name}"):
            chip.verify(rows(program, 1), tiny)


def test_a_program_is_checked_on_each_kind_of_core(tiny: DeviceSpec) -> None:
    blocks = (*rows(DOUBLE, 1), Block(1, "aic", DOUBLE, rows(DOUBLE, 2)[1].bindings))
    with pytest.raises(RuleError, match=r"^double #0: "):
        chip.verify(blocks, tiny)
