"""A kernel of C++ next to an operator: bits, micro-ops and times."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from commands import npusim_says, refused
from sources import CHIPS, KERNELS, kernels

import npusim
from npusim.explain.kernel_comparison import Given
from npusim.ops import Plan, Problem

ADD, TILED = KERNELS / "add.cpp", KERNELS / "tiled.cpp"
X = np.random.default_rng(5).standard_normal(256).astype(np.float32)
TILING = np.array([X.size, 64], np.uint32)
POINTER, VALUE = f"{TILED}:by_pointer", f"{TILED}:by_value"
ON_A2 = "-d", "A2", "-i", "x=ones:64"
ADDED = (
    *("-d", "A2", "--blocks", "1", "-a", "totalLength=2048"),
    *("-i", "x=arange:2048:float16", "-i", "other=ones:2048:float16"),
)

TABLES = """\
output   elements    bits   first at   by_pointer (C++)   abs
─────────────────────────────────────────────────────────────
output        128   equal

micro-ops of the first core   by_pointer (C++)   abs
────────────────────────────────────────────────────
mte2 load                                    2     1
set_flag mte2->vector                        2     1
wait_flag mte2->vector                       2     1
vector abs                                   2     1
set_flag vector->mte3                        2     1
wait_flag vector->mte3                       2     1
mte3 store                                   2     1
set_flag mte3->vector                        2     1
set_flag vector->mte2                        2     1
wait_flag vector->mte2                       2     1
wait_flag mte3->vector                       2     1
barrier all                                  1     0
all                                         23    11

The order of micro-ops departs first at:
  by_pointer (C++)  #4 (line N of tests/ascendc/kernels/tiled.cpp) vector: set_flag vector->mte3 0
  abs               #4 (line N of npusim/ops/families/elementwise/kernel.py) vector: \
set_flag vector->mte2 0

"""
"""What is printed ahead of the times, of a kernel that takes two tiles of 64."""


@pytest.mark.parametrize("device", CHIPS)
def test_bits_and_times_are_those_of_both_runs(device: str) -> None:
    found = npusim.compare(
        kernels("tiled.cpp").by_value, "abs", {"x": X}, device=device, scalars={"tiling": TILING}
    )
    assert found.is_equal
    (output,) = found.outputs
    assert (output.name, output.pointer, output.count) == ("output", "y", X.size)
    np.testing.assert_array_equal(np.asarray(found.kernel.outputs["y"]).view(np.float32), abs(X))
    assert found.operator.plan is not None
    assert found.kernel.plan is not None
    assert found.kernel.plan.block_dim == found.operator.plan.block_dim
    assert found.times_us[1] == found.operator.time_us
    kernel_us, operator_us = found.times_us
    assert found.time_difference == operator_us / kernel_us - 1


def test_a_tiling_may_come_of_the_plan() -> None:
    seen: list[tuple[Problem, Plan]] = []

    def tiling(problem: Problem, plan: Plan) -> bytes:
        seen.append((problem, plan))
        return TILING.tobytes()

    given: dict[str, Given] = {"workspace": np.zeros(64, np.uint8), "tiling": tiling}
    found = npusim.compare(
        kernels("tiled.cpp").by_pointer, "abs", {"x": X}, device="Atlas A2", pointers=given
    )
    assert found.is_equal
    ((problem, plan),) = seen
    assert [operand.name for operand in problem.inputs] == ["x"]
    assert plan == found.operator.plan


def test_the_table(tmp_path: Path) -> None:
    (tmp_path / "tiling.bin").write_bytes(np.array([128, 64], np.uint32).tobytes())
    words = "-d", "A2", "-i", "x=arange:128", "--blocks", "1"
    given = "-p", "workspace=none", "-p", f"tiling={tmp_path / 'tiling.bin'}"
    code, out, err = npusim_says("compare", POINTER, "abs", *words, *given)
    assert (code, err) == (0, "")
    tables, _, times = out.partition("time ")
    assert re.sub(r"line \d+", "line N", tables) == TABLES
    assert [line.split()[0] for line in times.splitlines()[2:]] == ["us", "cycles"]


def test_what_differs_is_listed_and_the_exit_code_is_1() -> None:
    code, out, err = npusim_says("compare", f"{ADD}:add_custom", "sub", *ADDED)
    assert (code, err) == (1, "")
    assert out.startswith(
        "output   elements          bits   first at   add_custom (C++)    sub\n"
        "────────────────────────────────────────────────────────────────────\n"
        "output       2048   2048 differ          0                1.0   -1.0\n"
    )


def test_json_says_the_same() -> None:
    words = "compare", f"{ADD}:add_custom", "sub", *ADDED
    code, out, err = npusim_says(*words, "--json")
    assert (code, err) == (1, "")
    found = json.loads(out)
    assert (found["kernel"], found["operator"], found["blocks"]) == ("add_custom", "sub", 1)
    assert found["outputs"][0]["values"] == [1.0, -1.0]
    assert found["micro_ops"]["vector add"] == {"kernel": 1, "operator": 0}
    assert found["micro_ops"]["vector sub"] == {"kernel": 0, "operator": 1}
    assert found["departure"]["kernel"]["line"] == 38


POINTER, VALUE = f"{TILED}:by_pointer", f"{TILED}:by_value"
ON_A2 = "-d", "A2", "-i", "x=ones:64"
REFUSED = {
    (VALUE, "abs", "-i", "x=ones:64"): (
        2,
        f"compare: it must be said where {VALUE} and abs run; add for example -d A2",
    ),
    (VALUE, "abs", "neg", *ON_A2): (
        2,
        "compare: a kernel must stand next to one operator, not 2; compare it with each by itself",
    ),
    (VALUE, "abs", "-d", "A2", "-i", "x=ones:0", "-a", "tiling=1"): (
        1,
        "compare: abs must launch a kernel, but has nothing to do; pass other shapes",
    ),
    (VALUE, "abs", *ON_A2): (
        1,
        "compare: by_value must be given its scalars, tiling, not none; pass each by its name, for "
        "example -a tiling=64",
    ),
    (VALUE, "abs", *ON_A2, "-p", "tiling=none"): (
        1,
        "compare: by_value must have the pointer tiling, but has x, y; name one of these",
    ),
    (VALUE, "abs", *ON_A2, "-p", "x"): (
        2,
        "compare: -p and -a must be NAME=VALUE, not 'x'; write for example -p tiling=tiling.bin",
    ),
    (VALUE, "abs", *ON_A2, "-p", "y=z"): (
        1,
        "compare: y of by_value must be a tensor of the operator, one of x, output, not z; name "
        "one of these, or pass an array",
    ),
    (POINTER, "abs", *ON_A2): (
        1,
        "compare: pointers of by_pointer must stand for the operator's tensors one by one, but x, "
        "y, workspace, tiling are left for x, output; say what the others are, for example "
        "-p tiling=zeros:64",
    ),
    (f"{TILED}:in_place", "abs", *ON_A2, "--blocks", "1"): (
        1,
        "compare: in_place must store y, which stands for output of abs, but stores x; have "
        "another pointer stand for output",
    ),
    ("ones:8", "ones:8", "-d", "A2"): (
        2,
        "compare: -d, -i, -a, -p and --set must come with a kernel of C++, such as add.cpp:add, "
        "not with ones:8; leave them out",
    ),
}


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: " ".join(words[1:]))
def test_refused(words: tuple[str, ...]) -> None:
    code, message = REFUSED[words]
    refused(code, message, "compare", *words)


MADE = {
    "return 1": "tiling of by_pointer must be made of bytes or an array, not int; have its "
    "function return one",
    "return plan.rows": "what makes tiling of by_pointer must run with the operator's problem and "
    "plan, but line 2 of tiling.py raises AttributeError: 'Plan' object has no attribute 'rows'; "
    "fix it",
}


@pytest.mark.parametrize("line", MADE)
def test_a_function_that_makes_no_tiling_is_refused(line: str, tmp_path: Path) -> None:
    file = tmp_path / "tiling.py"
    file.write_text(f"def tiling(problem, plan):\n    {line}\n")
    words = "-p", "workspace=none", "-p", f"tiling={file}:tiling"
    refused(1, f"compare: {MADE[line]}", "compare", POINTER, "abs", *ON_A2, *words)
