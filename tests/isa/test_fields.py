"""What the fields of a record can hold is read off their annotations."""

# mypy: disable-error-code="arg-type, dict-item"

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from npusim import isa
from npusim.data.dtypes import BUFFER_DTYPES, FLOAT32, UINT8, DType
from npusim.isa.fields import Range
from npusim.kernel.program import Binding, Block, Body, Call, Program

X = isa.Local("ub", 0, FLOAT32, 64)
ADD = isa.Binary("add", X, X, X)
LOAD = isa.Load(X, isa.Global("x", 0, 32, 2, 64), 32)
AN_INT = "must be an integer of at most 48 bits"
FIT = "pass an int that fits"
BITS_32 = f"must be an integer from 0 to {2**32 - 1}"
COUNT = f"must be an integer from 1 to {2**32 - 1}"
STRIDE = "must be an integer from 0 to 65535"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            isa.BinaryScalar("pow", X, X, 1.0),
            "op must be one of add, sub, mul, div, min, max, leaky_relu, shift_left, shift_right, "
            "shift_right_round, not 'pow'; use one of these",
        ),
        (replace(ADD, a=None), "a must be a Local, not None; pass one"),
        (
            isa.BinaryScalar("add", X, X, None),
            "scalar must be a number or a printable string, not None; pass one",
        ),
        (
            isa.BinaryScalar("add", X, X, 2**70),
            "scalar must be a number or a printable string, not 1180591620717411303424; pass one",
        ),
        (replace(ADD, dst=replace(X, count=1.5)), f"dst.count {AN_INT}, not 1.5; {FIT}"),
        (
            replace(ADD, dst=replace(X, count=np.int32(64))),
            f"dst.count {AN_INT}, not np.int32(64); {FIT}",
        ),
        (
            replace(ADD, dst=replace(X, offset_bytes=10**5000)),
            f"dst.offset_bytes {AN_INT}, not one of 16610 bits; {FIT}",
        ),
        (
            replace(ADD, dst=replace(X, block_stride=-10)),
            f"dst.block_stride {STRIDE}, not -10; {FIT}",
        ),
        (
            replace(ADD, dst=replace(X, repeat_stride=7 * 10**7 + 1)),
            f"dst.repeat_stride {STRIDE}, not 70000001; {FIT}",
        ),
        (
            replace(ADD, dst=replace(X, buffer="ub_reserved")),
            "dst.buffer must be one of ub, l1, l0a, l0b, l0c, bt, fb, not 'ub_reserved'; use "
            "one of these",
        ),
        (
            replace(ADD, dst=replace(X, dtype="float32")),
            f"dst.dtype must be one of the types {', '.join(x.name for x in BUFFER_DTYPES)}, not "
            "'float32'; use one of these",
        ),
        (
            replace(ADD, dst=replace(X, dtype=DType("float32", np.dtype(np.float32), 32, ""))),
            f"dst.dtype must be one of the types {', '.join(x.name for x in BUFFER_DTYPES)}, not "
            "DType; use one of these",
        ),
        (isa.Load(X, isa.Global("x", 0, 32.0)), f"src.burst_bytes {COUNT}, not 32.0; {FIT}"),
        (
            isa.Load(X, isa.Global("x", 64, 32, 2, -64)),
            f"src.stride_bytes {BITS_32}, not -64; {FIT}",
        ),
        (isa.Load(X, isa.Global(7, 0, 32)), "src.name must be a printable string, not 7; pass one"),
        (
            isa.Load(X, isa.Global("\x1b[31m", 0, 32)),
            "src.name must be a printable string, not '\\x1b[31m'; pass one",
        ),
        (
            isa.SetFlag("mte4", "vector", 0),
            "src must be one of scalar, vector, cube, mte1, mte2, mte3, fixpipe, not 'mte4'; "
            "use one of these",
        ),
        (
            isa.Barrier(3),
            "on must be one of scalar, vector, cube, mte1, mte2, mte3, fixpipe or None, not "
            "3; pass one",
        ),
        (
            isa.ScalarAlu("add", "r", 2**64),
            f"a must be a printable string or an integer from {-(2**63)} to {2**63 - 1}, "
            f"not {2**64}; pass one",
        ),
        (isa.Trap(1, None), "reason must be a printable string, not None; pass one"),
        (
            isa.ScalarLoop(1, [isa.Trap(1, "")]),
            "body must be a tuple, each a ScalarLoad or a ScalarStore or a ScalarAlu or a "
            "Trap, not list; pass one",
        ),
        (
            isa.ScalarLoop(1, (isa.Trap(0, ""), isa.ScalarLoad("r", X, -1))),
            f"body[1].step_bytes {BITS_32}, not -1; {FIT}",
        ),
        (
            isa.ScalarLoop(1, (ADD,)),
            "body[0] must be a ScalarLoad or a ScalarStore or a ScalarAlu or a Trap, not "
            "Binary; pass one",
        ),
        (
            isa.Fixpipe(X, X, 1, 1, 16, FLOAT32, "none", -1),
            f"scale must be a Local or an integer from 0 to {2**64 - 1} or None, not -1; pass one",
        ),
        (
            isa.Fixpipe(X, X, 1, 1, 16, FLOAT32, atomic=1),
            "atomic must be True or False, not 1; pass one",
        ),
        (Call(Body(()), {"x": 0.5}), f"shifts['x'] {AN_INT}, not 0.5; {FIT}"),
        (Call(Body(()), {1: 0}), "shifts.keys() must be a printable string, not 1; pass one"),
        (
            Call(Body(()), ()),
            f"shifts must be a dictionary, each {AN_INT[8:]}, not tuple; pass one",
        ),
        (
            Block(0, "aiv", Program("k", ()), {"x": Binding("x", 1.0)}),
            f"bindings['x'].base_bytes {AN_INT}, not 1.0; {FIT}",
        ),
        (Block(0, "aiv", "program", {}), "program must be a Program, not 'program'; pass one"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_field_cannot_hold_is_named_with_what_it_can(record: Any, message: str) -> None:
    assert isa.misfit(record) == message


@pytest.mark.parametrize(
    "record",
    [
        ADD,
        LOAD,
        replace(ADD, dst=replace(X, offset_bytes=np.int64(32))),
        isa.BinaryScalar("add", X, X, np.float32(0.5)),
        isa.BinaryScalar("add", X, X, "r"),
        isa.BinaryScalar("add", X, X, float("inf")),
        isa.ScalarLoop(
            3, (isa.ScalarLoad("r", isa.Local("ub", 0, UINT8, 1), 1), isa.Trap("r", "no"))
        ),
        isa.Barrier(),
        isa.Fixpipe(X, X, 1, 1, 16, FLOAT32, "none", 2**64 - 1),
    ],
)
def test_what_fits_is_taken(record: object) -> None:
    assert isa.misfit(record) is None


def test_every_field_of_every_micro_op_is_looked_at() -> None:
    for kind in isa.MICRO_OPS:
        empty = object.__new__(kind)
        names = [field.name for field in fields(kind)]
        for name in names:
            object.__setattr__(empty, name, object())
        said = isa.misfit(empty)
        assert said is not None
        assert re.fullmatch(rf"{names[0]} must be .*, not object; (pass|use) .*", said)


@dataclass(frozen=True, slots=True)
class Fresh:
    """What has nothing but its annotations."""

    mode: Literal["up", "down"]
    lanes: Annotated[int, Range(1, 8)]


def test_a_fresh_record_needs_its_annotations_alone() -> None:
    assert isa.misfit(Fresh("up", 8)) is None
    message = "lanes must be an integer from 1 to 8, not 9; pass an int that fits"
    assert isa.misfit(Fresh("up", 9)) == message
    assert (
        isa.misfit(Fresh("left", 1)) == "mode must be one of up, down, not 'left'; use one of these"
    )
