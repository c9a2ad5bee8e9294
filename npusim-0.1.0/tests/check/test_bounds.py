"""Copies stay within their tensors, wherever calls move them."""

from __future__ import annotations

import re

import pytest

from npusim.check.bounds import check_inside
from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8
from npusim.data.tensor import GlobalTensor
from npusim.isa import Fixpipe, Global, Load, LoadNd2Nz, Local, MicroOp, Store
from npusim.kernel.program import Binding, Block, Body, Call, Program

UB = Local("ub", 0, UINT8, 32)
TENSORS = [GlobalTensor("x", 64), GlobalTensor("y", 64)]


def block(core: int, base: int, *parts: MicroOp | Call) -> Block:
    bindings = {name: Binding(name, base) for name in ("x", "y")}
    return Block(core, "aiv", Program("kernel", parts), bindings)


def load(start: int, nbytes: int) -> Load:
    return Load(UB, Global("x", start, nbytes), 32)


def refused(touched: str, op: MicroOp, name: str, *blocks: Block) -> None:
    text = (
        f"kernel: copies on core 3 must stay within the 64 bytes of {name}, "
        f"not touch [{touched}] as {op} does; fix the tiling or the binding"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        check_inside(blocks, TENSORS)


def test_a_copy_stays_within_its_tensor() -> None:
    # The slack of 32 bytes behind each tensor may be touched.
    check_inside((block(0, 0, load(32, 64), Store(Global("y", 0, 64), UB)),), TENSORS)
    for base, op, touched in ((0, load(40, 64), "40:104"), (-8, load(0, 32), "-8:24")):
        refused(touched, op, "x", block(3, base, op))


def test_the_micro_op_that_goes_farthest_is_named() -> None:
    far = load(60, 40)
    refused("0:100", far, "x", block(3, 0, load(32, 32), far, load(0, 64)))
    refused("-4:60", load(0, 8), "x", block(3, -4, load(8, 8), load(0, 8), load(0, 64)))


def test_calls_are_looked_at_where_they_are_moved_to() -> None:
    body = Body((load(0, 32), load(8, 8)))
    check_inside((block(0, 0, Call(body), Call(body, {"x": 64}), Call(body, {"y": 99})),), TENSORS)
    parts = (load(0, 8), Call(body, {"x": 8}), Call(body, {"x": 65}), Call(body))
    refused("0:97", load(65, 32), "x", block(3, 0, *parts))


def test_matrices_stay_within_too() -> None:
    rows = LoadNd2Nz(Local("l1", 0, UINT8, 32), Global("x", 0, 16, 3, 48), 16)
    refused("0:112", rows, "x", block(3, 0, rows))
    l0c = Local("l0c", 0, FLOAT32, 256)
    out = Fixpipe(Global("y", 80, 32), l0c, 1, 16, 16, FLOAT16, "cast")
    refused("80:112", out, "y", block(3, 0, out))
    check_inside((block(3, 0, Fixpipe(l0c, l0c, 1, 16, 16, FLOAT16, "cast")),), TENSORS)
