"""Marks around the cube: what is found of whole matrices is what is found of their elements."""

from __future__ import annotations

import random

import numpy as np
import pytest

from npusim import devices
from npusim.check.uninitialized import cube_flow
from npusim.check.uninitialized.flow import FLOW
from npusim.check.uninitialized.marks import NOBODY, Marks
from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32
from npusim.data.integers import align_up
from npusim.isa import Fixpipe, Global, LoadData, Local, MicroOp, Mmad

CORE = devices.load("ascend910b2").cores["aic"]


def drawn(rng: random.Random) -> MicroOp:
    """A micro-op of a few rows, columns and depths, many of them ragged."""
    m, n, k = (rng.choice((16, 32, 5, 17, 30)) for _ in range(3))
    whole_m, whole_n = align_up(m, 16), align_up(n, 16)
    dtype = rng.choice((FLOAT16, INT8))
    sums = FLOAT32 if dtype is FLOAT16 else INT32
    l0c = Local("l0c", 0, sums, whole_m * whole_n)
    match rng.randrange(3):
        case 0:
            where = rng.choice(("l0a", "l0b"))
            is_turned = rng.random() < 0.3 and dtype is FLOAT16
            dst = Local(where, 0, dtype, m * k)
            src = Local("l1", 0, dtype, align_up(m, 32) * align_up(k, 32))
            return LoadData(dst, src, align_up(m, 16), 0, 0, m, k, is_turned)
        case 1:
            a = Local("l0a", 0, dtype, whole_m * align_up(k, 32))
            b = Local("l0b", 0, dtype, whole_n * align_up(k, 32))
            init = rng.choice(("zero", "accumulate"))
            return Mmad(l0c, a, b, m, n, k, init)
        case _:
            dst = Global("y", 0, 2 * n, m, 2 * n)
            return Fixpipe(dst, l0c, m, n, whole_m, sums)


def test_whole_matrices_are_marked_as_their_elements_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, marked, skipped = random.Random(0), 0, 0
    for number in range(600):
        op = drawn(rng)
        found = []
        for is_fast in (True, False):
            marks, bits = Marks(CORE, np.uint8), np.random.default_rng(number)
            for raw in marks.bytes.values():
                share = (0, 0, 1e-3, 0.5)[number % 4]
                raw[:65536] = bits.random(min(raw.size, 65536)) < share
                raw[65536:] = NOBODY
            with monkeypatch.context() as patch:
                if not is_fast:
                    patch.setattr(cube_flow, "_nz_is_written", lambda *_: False)
                    patch.setattr(cube_flow, "_factor_is_written", lambda *_: False)
                out = FLOW[type(op)](op, marks)
            lets_out = out is not None and bool(out.any())
            found.append((lets_out, {name: raw.tobytes() for name, raw in marks.bytes.items()}))
            marked += lets_out
            skipped += is_fast and not lets_out
        assert found[0] == found[1], op
    assert marked > 50
    assert skipped > 300
