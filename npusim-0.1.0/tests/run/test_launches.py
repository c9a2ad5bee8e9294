"""Calls that launch several kernels: what each takes, and what tells of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chips import THREE
from commands import npusim_says

from npusim import Run, TensorSpec, run
from npusim.explain.operator import explain
from npusim.reports import costs, tables
from npusim.trace import record

OP, FIRST = "npu_quant_matmul", "npu_trans_quant_param"
X1, X2 = TensorSpec((16, 256), "int8"), TensorSpec((256, 96), "int8")
FLOATS, WORDS = TensorSpec((96,), "float32"), TensorSpec((96,), "int64")
ONE = TensorSpec((1,), "float32")


def product(device: str, scale: Any = FLOATS, **kwargs: Any) -> Run:
    return run(OP, X1, X2, scale, device=device, **kwargs)


@pytest.mark.parametrize("device", THREE)
@pytest.mark.parametrize("output", [None, "int8", "float16"])
def test_a_float32_scale_takes_a_launch(device: str, output: str | None) -> None:
    both = product(device, output_dtype=output)
    alone = product(device, WORDS, output_dtype=output)
    packing = run(FIRST, FLOATS, device=device)
    assert [launch.op for launch in both.launches] == [FIRST, OP]
    assert both.launches == packing.launches + alone.launches
    assert both.time_us == packing.time_us + alone.time_us
    assert both.launch_us == packing.launch_us + alone.launch_us
    # Counters are those of the product.
    assert (both.cycles, both.counters) == (alone.cycles, alone.counters)
    assert len(alone.launches) == len(packing.launches) == 1


@pytest.mark.parametrize("offset", [None, FLOATS, ONE])
@pytest.mark.parametrize("scale", [FLOATS, ONE])
def test_the_offset_goes_into_the_words(scale: TensorSpec, offset: TensorSpec | None) -> None:
    both = product("ascend910b2", scale, offset=offset)
    assert both.launches[0] == run(FIRST, scale, offset, device="ascend910b2").launches[0]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"output_dtype": "bfloat16"},
        {"output_dtype": "int32"},
        {"output_dtype": "float16", "pertoken_scale": TensorSpec((16,), "float32")},
        {"output_dtype": "bfloat16", "pertoken_scale": TensorSpec((16,), "float32")},
    ],
)
def test_vector_cores_and_plain_sums_read_no_words(kwargs: dict[str, Any]) -> None:
    assert [launch.op for launch in product("ascend910b2", **kwargs).launches] == [OP]


WEIGHT = {
    "x": TensorSpec((16, 128), "float16"),
    "weight": TensorSpec((128, 96), "int8"),
    "antiquant_scale": TensorSpec((96,), "float16"),
}


@pytest.mark.parametrize(
    ("scale", "offset"),
    [(FLOATS, None), (FLOATS, FLOATS), (ONE, ONE), (TensorSpec((1, 96), "float32"), None)],
)
def test_a_scale_of_an_output_too(scale: TensorSpec, offset: TensorSpec | None) -> None:
    op = "npu_weight_quant_batchmatmul"
    given = WEIGHT | {"quant_offset": offset}
    both = run(op, **given, quant_scale=scale, device="ascend910b2")
    words = replace(scale, dtype="int64")
    alone = run(op, **WEIGHT, quant_scale=words, device="ascend910b2")
    packing = run(FIRST, scale, offset, device="ascend910b2")
    assert both.launches == packing.launches + alone.launches
    assert both.time_us == packing.time_us + alone.time_us
    assert [launch.op for launch in run(op, **WEIGHT, device="ascend910b2").launches] == [op]


@pytest.mark.parametrize("l2", ["warm", "repeat", ("x1", "x2"), ("scale",)])
def test_the_first_kernel_finds_the_same_l2(l2: Any) -> None:
    state = l2 if isinstance(l2, str) else tuple(name for name in l2 if name == "scale")
    first = run(FIRST, FLOATS, device="ascend910b2", l2=state)
    assert product("ascend910b2", l2=l2).launches[0] == first.launches[0]


def test_the_values_are_those_of_packed_words() -> None:
    rng = np.random.default_rng(1)
    x1, x2 = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((4, 64), (64, 32)))
    scale = rng.uniform(0, 1e-3, 32).astype(np.float32)
    words = run(FIRST, scale, device="ascend910b2").output
    both, packed = (run(OP, x1, x2, s, device="ascend910b2").output for s in (scale, words))
    np.testing.assert_array_equal(both, packed)


def test_without_times_the_launches_are_told_all_the_same() -> None:
    both = product("ascend910b2", timing=False)
    assert (both.time_us, both.cycles) == (None, None)
    assert [(launch.op, launch.time_us) for launch in both.launches] == [(FIRST, None), (OP, None)]


def test_a_call_that_runs_no_kernel_has_no_launch() -> None:
    empty = run("npu_dynamic_quant", TensorSpec((0, 4), "float16"), device="ascend910b2")
    assert (empty.launches, empty.time_us, empty.launch_us) == ((), 0.0, 0.0)


# ---- who tells of them ----


def test_json_and_repr_name_both() -> None:
    both = product("ascend910b2")
    told = json.loads(json.dumps(both.to_json()))
    assert [(launch["op"], launch["time_us"]) for launch in told["launches"]] == [
        (launch.op, launch.time_us) for launch in both.launches
    ]
    assert told["time_us"] == sum(launch["time_us"] for launch in told["launches"])
    assert told["launches"][1]["gm_bytes"] == told["gm_bytes"]
    assert repr(both).endswith(f", {both.time_us:.2f} us in 2 launches>")
    assert repr(product("ascend910b2", WORDS)).endswith(" us>")


CALL = (
    *("run", OP, "-d", "Atlas A2", "-i", "x1=spec:16x256:int8", "-i", "x2=spec:256x96:int8"),
    *("-i", "scale=spec:96:float32"),
)


def test_the_command_line_names_both() -> None:
    both = product("ascend910b2")
    packing, own = both.launches
    code, out, _ = npusim_says(*CALL)
    assert code == 0
    assert (
        f"time      {both.time_us:.2f} us in 2 launches = {packing.time_us:.2f} us {FIRST} + "
        f"{own.time_us:.2f} us {OP}\n          {own.time_us:.2f} us {OP} = "
        f"{own.launch_us:.2f} us launch and completion + "
    ) in out


def test_reports_name_both(tmp_path: Path) -> None:
    code, _, err = npusim_says(*CALL, "-o", str(tmp_path / "out"))
    assert (code, err) == (0, "")
    found, both = record.read(tmp_path / "out"), product("ascend910b2")
    assert found.launches == both.launches
    rows = costs.rows(both)
    assert rows == costs.rows(found)
    assert (rows[0].part, rows[0].us) == ("launches before", both.launches[0].time_us)
    assert sum(row.us for row in rows) == pytest.approx(both.time_us)
    assert f"{FIRST} " in tables.facts([found])


# ---- copies of views ----

ROWS = np.arange(64 * 128, dtype=np.float16).reshape(64, 128) % 13
VIEWS = {
    "transposed": (ROWS.T, ["permute"]),
    "columns": (ROWS[:, 16:80], ["narrow"]),
    "every other row": (ROWS[::2], ["narrow"]),
    "columns, transposed": (ROWS[:, 16:48].T, ["narrow", "permute"]),
    "axes in another order": (ROWS.reshape(4, 16, 128).transpose(1, 0, 2), ["permute"]),
    "one row for all": (np.broadcast_to(ROWS[:1], (32, 128)), ["broadcast_to"]),
    "a part of all": (ROWS[:32], []),
    "a row alone": (ROWS[3:4].T.T, []),
}
"""View -> the kernels that copy it."""


@pytest.mark.parametrize("device", THREE)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_copied_by_launches_of_their_own(name: str, device: str) -> None:
    view, kernels = VIEWS[name]
    found = run("npu_swiglu", view, device=device)
    alone = run("npu_swiglu", np.ascontiguousarray(view), device=device)
    assert [launch.op for launch in found.launches] == [*kernels, "npu_swiglu"]
    assert found.launches[-1:] == alone.launches
    took_us = [launch.time_us or 0.0 for launch in found.launches]
    assert found.time_us == pytest.approx(sum(took_us))
    np.testing.assert_array_equal(np.asarray(found.output), np.asarray(alone.output))
    # Asked again for its time alone, as advice does, it is the same call.
    assert found.call is not None
    again = found.call.timed()
    assert again is not None
    assert again.time_us == found.time_us


def test_a_transposed_spec_is_copied_as_an_array_is() -> None:
    spec = TensorSpec((128, 64), "float16", transposed=True)
    of_spec = run("npu_swiglu", spec, device="ascend910b2")
    assert of_spec.launches == run("npu_swiglu", ROWS.T, device="ascend910b2").launches
    assert explain("npu_swiglu", of_spec.device, {"x": spec, "dim": -1}).earlier == ("permute",)


def test_each_operand_that_is_a_view_is_copied() -> None:
    found = run("add", ROWS.T, ROWS.T, device="ascend910b2")
    assert [launch.op for launch in found.launches] == ["permute", "permute", "add"]
    found = run("concat", [ROWS.T, ROWS[:, 1:65].T], 0, device="ascend910b2")
    assert [launch.op for launch in found.launches] == ["permute", "narrow", "permute", "concat"]


def test_a_product_takes_a_transposed_matrix_as_it_lies() -> None:
    found = run("matmul", ROWS, ROWS.T, device="ascend910b2")
    assert [launch.op for launch in found.launches] == ["matmul"]
    found = run("matmul", ROWS[:, :64], ROWS[:, :64].T, device="ascend910b2")
    assert [launch.op for launch in found.launches] == ["narrow", "narrow", "permute", "matmul"]
