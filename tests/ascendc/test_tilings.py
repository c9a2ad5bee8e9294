"""Tilings given by the names of their fields, and lists of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import npusim_says, refused
from sources import CHIPS, KERNELS, kernels

import npusim
from npusim.ascendc import AscendCError

DRAWS = np.random.default_rng(21)
X = DRAWS.standard_normal(256).astype(np.float32)
WHOLE: dict[str, Any] = {
    "mode": 1,
    "starts": [0, 128],
    "count": 2,
    "parts": [{"length": 64, "factor": 0.5}, {"length": 32, "factor": -2}],
    "bias": 0.25,
    "isNegative": True,
}


@pytest.mark.parametrize("device", CHIPS)
def test_fields_of_structures_within_structures(device: str) -> None:
    y = np.zeros_like(X)
    kernels("tiled.cpp").in_parts[1](X, y, WHOLE, device=device)
    expected = np.zeros_like(X)
    expected[:64] = X[:64] * np.float32(0.5) - np.float32(0.25)
    expected[128:160] = X[128:160] * np.float32(-2) - np.float32(0.25)
    np.testing.assert_array_equal(y, expected)


def test_a_structure_that_is_passed_by_value() -> None:
    y = np.zeros_like(X)
    kernels("tiled.cpp").by_value[1](X, y, tiling={"length": 256, "tile": 64}, device="Atlas A2")
    np.testing.assert_array_equal(y, abs(X))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"modes": 1},
            "tiling must have fields of Whole, which are mode, starts, count, parts, bias, "
            "isNegative, not 'modes'; did you mean mode?",
        ),
        ({"count": -(2**63) - 1}, "tiling.count must lie in [-9223372036854775808, "
         "9223372036854775808), not be -9223372036854775809; pass what fits"),
        ({"bias": "much"}, "tiling.bias must be a number, not 'much'; pass one"),
        ({"starts": [0] * 5}, "tiling.starts must have at most 4 elements, not 5; leave out the "
         "others"),
        ({"starts": 3}, "tiling.starts must be a list of 4, not 3; pass one"),
        ({"parts": [{"length": 1 << 16, "factor": 1}]}, "tiling.parts[0].length must lie in "
         "[0, 65536), not be 65536; pass what fits"),
        ({"parts": [{"length": 64}]}, "tiling.parts[0] must have each field of Part, but lacks "
         "factor; give them as well"),
    ],
)  # fmt: skip
def test_a_field_that_does_not_fit(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(AscendCError) as caught:
        kernels("tiled.cpp").in_parts[1](X, X.copy(), WHOLE | changed, device="Atlas A2")
    assert str(caught.value) == f"in_parts: {message}"


def test_a_field_that_is_missing() -> None:
    with pytest.raises(AscendCError) as caught:
        kernels("tiled.cpp").in_parts[1](X, X.copy(), {"mode": 1, "bias": 2}, device="Atlas A2")
    assert str(caught.value) == (
        "in_parts: tiling must have each field of Whole, but lacks starts, count, parts, "
        "isNegative; give them as well"
    )


def test_a_structure_out_of_several_must_be_named() -> None:
    tiling = {"length": 256, "tile": 64}
    with pytest.raises(AscendCError) as caught:
        kernels("tiled.cpp").by_key[1](X, X.copy(), tiling, device="Atlas A2")
    assert str(caught.value) == (
        "by_key: tiling must be a structure of the source where it is given by its fields, not one "
        "of parts::Part, Tiling; say which by --tiling-struct, or pass its bytes"
    )
    y = np.zeros_like(X)
    chosen = npusim.ascendc.load(KERNELS / "tiled.cpp", tiling_struct="Tiling")
    chosen.by_key[1](X, y, tiling, device="Atlas A2")
    np.testing.assert_array_equal(y, abs(X))


HOST_HEADER = """
#include "exists/on/the/host.h"
namespace optiling {
constexpr uint32_t PARTS = 2; // of a tensor
BEGIN_TILING_DATA_DEF(Rows)
TILING_DATA_FIELD_DEF(uint32_t, first);
TILING_DATA_FIELD_DEF_ARR(uint16_t, PARTS, lengths)
END_TILING_DATA_DEF;
REGISTER_TILING_DATA_CLASS(RowsOp, Rows)
BEGIN_TILING_DATA_DEF(AddOneTilingData)
TILING_DATA_FIELD_DEF_STRUCT(Rows, rows);
TILING_DATA_FIELD_DEF(float, step);
END_TILING_DATA_DEF;
REGISTER_TILING_DATA_CLASS(AddOne, AddOneTilingData)
ge::graphStatus Tiling(gert::TilingContext* context);
}
"""
KERNEL = """#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void add_one(GM_ADDR x, GM_ADDR y, GM_ADDR tiling)
{
    GET_TILING_DATA(data, tiling);
    GlobalTensor<float> xGm, yGm;
    xGm.SetGlobalBuffer((__gm__ float*)x);
    yGm.SetGlobalBuffer((__gm__ float*)y);
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 4096);
    LocalTensor<float> a = buffer.Get<float>();
    uint32_t count = data.rows.lengths[0] + data.rows.lengths[1];
    DataCopy(a, xGm[data.rows.first], count);
    PipeBarrier<PIPE_ALL>();
    Adds(a, a, data.step, count);
    PipeBarrier<PIPE_ALL>();
    DataCopy(yGm, a, count);
}
"""


def test_a_header_of_the_host(tmp_path: Path) -> None:
    """Of which nothing but the structures can be compiled."""
    source, header = tmp_path / "add_one.cpp", tmp_path / "add_one_tiling.h"
    source.write_text(KERNEL)
    header.write_text(HOST_HEADER)
    add_one = npusim.ascendc.load(source, tiling_headers=[header]).add_one
    y = np.zeros(64, np.float32)
    tiling = {"rows": {"first": 8, "lengths": [16, 48]}, "step": 1.5}
    add_one[1](X, y, tiling, device="Atlas A2")
    np.testing.assert_array_equal(y, X[8:72] + np.float32(1.5))


def test_types_by_number(tmp_path: Path) -> None:
    source = tmp_path / "compared.cpp"
    source.write_text(
        KERNEL.replace("GET_TILING_DATA(data, tiling);", "")
        .replace("data.rows.lengths[0] + data.rows.lengths[1]", "64")
        .replace("data.rows.first", "0")
        .replace("data.step", "STEP")
        .replace(
            "using namespace AscendC;",
            """using namespace AscendC;
#if ORIG_DTYPE_X == DT_FLOAT
constexpr DTYPE_X STEP = 2;
#else
constexpr DTYPE_X STEP = 3;
#endif""",
        )
    )
    y = np.zeros(64, np.float32)
    defines = ["ORIG_DTYPE_X=DT_FLOAT", "DTYPE_X=float"]
    npusim.ascendc.load(source, defines).add_one[1](X, y, None, device="Atlas A2")
    np.testing.assert_array_equal(y, X[:64] + 2)


def test_a_header_without_a_tiling(tmp_path: Path) -> None:
    source, header = tmp_path / "add_one.cpp", tmp_path / "plain.h"
    source.write_text(KERNEL)
    header.write_text("struct Plain {};\n")
    add_one = npusim.ascendc.load(source, tiling_headers=[header]).add_one
    with pytest.raises(AscendCError) as caught:
        add_one[1](X, X.copy(), {}, device="Atlas A2")
    assert str(caught.value) == (
        f"ascendc: {header} must define a tiling, but has no BEGIN_TILING_DATA_DEF; name the "
        f"header that has"
    )


@pytest.mark.parametrize("device", CHIPS)
def test_a_list_of_tensors(device: str) -> None:
    xs = [DRAWS.standard_normal(shape).astype(np.float32) for shape in ((4, 16), (256,), (8,))]
    ys = [np.zeros_like(x) for x in xs]
    run = kernels("tiled.cpp").each_twice[2](xs, ys, device=device)
    assert list(run.outputs) == ["y[0]", "y[1]", "y[2]"]
    for x, y in zip(xs, ys, strict=True):
        np.testing.assert_array_equal(y, 2 * x)


def test_a_list_of_one_tensor() -> None:
    y = np.zeros_like(X)
    kernels("tiled.cpp").each_twice[1]([X], (y,), device="Atlas A2")
    np.testing.assert_array_equal(y, 2 * X)


def test_a_structure_of_numpy_and_as_bytes() -> None:
    y = np.zeros_like(X)
    launch = kernels("tiled.cpp").by_pointer[1]
    tiling = np.array([256, 64], np.uint32)
    run = launch(X, y, None, {"length": tiling[0], "tile": tiling[1:]}, device="Atlas A2")
    np.testing.assert_array_equal(y, abs(X))
    assert run.to_json()["arguments"]["tiling"] == {"length": 256, "tile": [64]}
    y[:] = 0
    run = launch(X, y, None, tiling.tobytes(), device="Atlas A2")
    np.testing.assert_array_equal(y, abs(X))
    assert run.to_json()["arguments"]["tiling"]["shape"] == [8]


# ---- on the command line ----


def test_fields_and_files_on_the_command_line(tmp_path: Path) -> None:
    x = tmp_path / "x.npy"
    np.save(x, X)
    (tmp_path / "tiling.toml").write_text(
        "mode = 0\nstarts = [64]\ncount = 1\nparts = [{length = 8, factor = 0}]\n"
        "bias = 1\nisNegative = true\n"
    )
    words = ["run", f"{KERNELS}/tiled.cpp:in_parts", "-d", "A2", "--blocks", "1"]
    words += ["-i", f"x={x}", "-i", "y=like:x", "-a", f"tiling={tmp_path}/tiling.toml"]
    words += ["-a", "tiling.bias=0.25", "-o", f"{tmp_path}/out"]
    assert npusim_says(*words).code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out/y.npy")[64:72], X[64:72] - 0.25)


def test_a_tiling_that_a_function_makes(tmp_path: Path) -> None:
    (tmp_path / "plan.py").write_text(
        "import struct\n"
        "def tiling():\n    return {'length': 256, 'tile': 64}\n"
        "def packed():\n    return struct.pack('<II', 256, 64)\n"
        "def wrong():\n    return 256\n"
    )
    kernel = f"{KERNELS}/tiled.cpp:by_pointer"
    words = ["run", kernel, "-d", "A2", "--blocks", "1", "-i", "x=arange:256", "-i", "y=like:x"]
    words += ["-i", "workspace=none", "--force", "-o", f"{tmp_path}/out", "-a"]
    for function in ("tiling", "packed"):
        assert npusim_says(*words, f"tiling={tmp_path}/plan.py:{function}").code == 0
        np.testing.assert_array_equal(np.load(tmp_path / "out/y.npy"), np.arange(256))
    wrong = f"{tmp_path}/plan.py:wrong"
    refused(
        1,
        f"run: tiling must be made of a dictionary, bytes or an array, not int; have {wrong} "
        f"return one",
        *words,
        f"tiling={wrong}",
    )


def test_a_list_on_the_command_line(tmp_path: Path) -> None:
    kernel = f"{KERNELS}/tiled.cpp:each_twice"
    words = ["run", kernel, "-d", "A2", "--blocks", "1", "-i", "y=like:x", "-o"]
    several = ["-i", "x=arange:16", "-i", "x=ones:8"]
    assert npusim_says(*words, f"{tmp_path}/several", *several).code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "several/y[0].npy"), 2 * np.arange(16))
    np.testing.assert_array_equal(np.load(tmp_path / "several/y[1].npy"), np.full(8, 2))
    assert npusim_says(*words, f"{tmp_path}/one", "-i", "x=[arange:16]").code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "one/y[0].npy"), 2 * np.arange(16))


def test_a_file_that_is_no_structure(tmp_path: Path) -> None:
    (tmp_path / "tiling.json").write_text("{")
    words = ["run", f"{KERNELS}/tiled.cpp:in_parts", "-d", "A2", "--blocks", "1"]
    words += ["-i", "x=ones:8", "-i", "y=like:x", "-a", f"tiling={tmp_path}/tiling.json"]
    refused(
        1,
        f"run: tiling must be a file of a structure, but {tmp_path}/tiling.json cannot be read: "
        f"Expecting property name enclosed in double quotes: line 1 column 2 (char 1); correct it",
        *words,
    )
