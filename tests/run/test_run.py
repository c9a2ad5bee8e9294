"""`npusim.run`: how calls are bound, which halves run, and what a Run says."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chips import THREE, every
from op_calls import assert_same

from npusim import OpError, Run, Tensor, TensorSpec, devices, ops, run
from npusim.chip import L2State
from npusim.ops import npu_trans_quant_param

X = np.linspace(-9, 9, 80, dtype=np.float32).reshape(2, 40)
ONE = np.ones(1, np.float32)
CALL = (X, ONE, None, "qint8", -1, False)
SIGNATURES = {
    "npu_quantize": "(input, scales, zero_points, dtype, axis=1, div_mode=True)",
    "npu_group_quant": "(x, scale, group_index, *, offset=None, dst_dtype=None)",
    "npu_trans_quant_param": "(scale, offset=None, round_mode=0)",
}


def whole(message: str) -> str:
    return "^" + re.escape(message) + "$"


# ---- arguments ----


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "cause"),
    [
        ("npu_quantize", (), {}, "missing a required argument: 'input'; add it"),
        ("npu_quantize", (X, ONE), {}, "missing a required argument: 'zero_points'; add it"),
        (
            *("npu_quantize", (X,), {"scale": ONE}),
            "missing a required argument: 'scales'; did you mean scales?",
        ),
        (
            *("npu_quantize", (X, ONE, None), {"axis": 0}),
            "missing a required argument: 'dtype'; add it",
        ),
        (
            *("npu_quantize", (*CALL, 3), {}),
            "too many positional arguments; pass at most 6 by position",
        ),
        (
            *("npu_quantize", CALL, {"scale": ONE}),
            "got an unexpected keyword argument 'scale'; leave scale out",
        ),
        (
            *("npu_quantize", CALL[:4], {"axes": 0}),
            "got an unexpected keyword argument 'axes'; did you mean axis?",
        ),
        (
            *("npu_quantize", CALL, {"input": X}),
            "multiple values for argument 'input'; pass input once",
        ),
        (
            *("npu_group_quant", (X, X, X, ONE), {}),
            "too many positional arguments; pass at most 3 by position; pass offset, dst_dtype by "
            "name",
        ),
        (
            *("npu_trans_quant_param", (), {"offset": ONE}),
            "missing a required argument: 'scale'; add it",
        ),
    ],
)
def test_bad_arguments(op: str, args: tuple[Any, ...], kwargs: dict[str, Any], cause: str) -> None:
    message = f"{op}: arguments must fit {op}{SIGNATURES[op]}, but: {cause}"
    with pytest.raises(TypeError, match=whole(message)):
        run(op, *args, device="ascend910b2", **kwargs)


def test_keywords_positions_and_defaults_mean_the_same() -> None:
    keywords = {"input": X, "scales": ONE, "zero_points": None, "dtype": "qint8"}
    by_name = run("npu_quantize", device="ascend910b2", **keywords)
    by_place = run("npu_quantize", X, ONE, None, "qint8", 1, True, device="ascend910b2")
    assert by_name.to_json() == by_place.to_json()
    assert by_name.arguments["axis"] == 1
    assert by_name.arguments["div_mode"] is True


def test_a_transposed_array_is_described_as_its_spec() -> None:
    x, weight = np.zeros((16, 64), np.float16), np.zeros((32, 64), np.float16).T
    specs = TensorSpec((16, 64), "float16"), TensorSpec((64, 32), "float16", transposed=True)
    found = run("matmul", x, weight, device="ascend910b2")
    assert found.arguments["x2"] == specs[1]
    assert found.kind == run("matmul", *specs, device="ascend910b2").kind
    # One that is copied first is described as it lies, so that the call can be made again.
    copied = run("add", weight, 1.0, device="ascend910b2")
    assert copied.arguments["x"] == specs[1]
    assert [launch.op for launch in copied.launches] == ["permute", "add"]


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("npu_quantise", "'npu_quantise'; did you mean npu_quantize?"),
        ("group_quant", "'group_quant'; did you mean npu_group_quant?"),
        (
            "npu_rms_norm_quant_v2",
            "npu_rms_norm_quant_v2, which torch_npu has and npusim does not simulate; the closest "
            "one that is: npu_add_rms_norm_quant",
        ),
        (
            "npu_hans_encode",
            "npu_hans_encode, which torch_npu has and npusim does not simulate; npusim ops lists "
            "them all",
        ),
        (
            "npu_mm_all_reduce",
            "'npu_mm_all_reduce'; torch_npu has npu_mm_all_reduce_base, which npusim has under "
            "PyTorch alone; call it in a script and run torchrun --nproc-per-node 2 -m "
            "npusim.torch SCRIPT.py",
        ),
        (
            "npu_silu",
            "npu_silu, which npusim has under PyTorch alone; call it in a script and run python "
            "-m npusim.torch SCRIPT.py",
        ),
        ("Qwen3-32B", "'Qwen3-32B'; for a model run npusim model with its config.json"),
        ("topk", "'topk', which is no operator of torch_npu either; npusim ops lists them all"),
        ("_rows", "'_rows', which is no operator of torch_npu either; npusim ops lists them all"),
        ("", "'', which is no operator of torch_npu either; npusim ops lists them all"),
        (3, "3; npusim ops lists them all"),
        (None, "None; npusim ops lists them all"),
    ],
)
def test_an_operator_that_does_not_exist(op: Any, words: str) -> None:
    message = f"ops: an operator must be one that npusim simulates, not {words}"
    with pytest.raises(ValueError, match=whole(message)):
        run(op, *CALL, device="ascend910b2")


def test_an_operator_whose_kernel_is_not_there_names_another() -> None:
    message = (
        "ops: npu_prompt_flash_attention must be modelled, but is not; call "
        "npu_fused_infer_attention_score on Atlas A2 or A3, whose kernels are not "
        "PromptFlashAttention, with scale for scale_value, and take the first of its two outputs"
    )
    query = TensorSpec((1, 8, 164, 128), "float16")
    call = {"num_heads": 8, "input_layout": "BNSD"}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        run(
            "npu_prompt_flash_attention",
            query,
            query,
            query,
            **call,
            scale_value=0.1,
            device="Atlas A2",
        )
    other = "npu_fused_infer_attention_score"
    found = run(other, query, query, query, **call, scale=0.1, device="Atlas A2")
    assert next(iter(found.outputs.values())).shape == query.shape


def test_a_device_that_does_not_exist() -> None:
    message = (
        f"devices: no device 'ascend910b22'; did you mean ascend910b2? known: "
        f"{devices.listing()}; for your own file give its path, "
        "which ends in .toml"
    )
    with pytest.raises(ValueError, match=whole(message)):
        run("npu_quantize", *CALL, device="ascend910b22")
    message = (
        "devices: a device must be a name, a path or a DeviceSpec, not None; "
        "pass for example 'Atlas A2'"
    )
    with pytest.raises(TypeError, match=whole(message)):
        run("npu_quantize", *CALL, device=None)  # type: ignore[arg-type]


def test_a_device_is_a_name_an_alias_or_a_spec() -> None:
    name = run("npu_quantize", *CALL, device="ascend310p3")
    for device in ("Atlas 300I Pro", "ASCEND310P3", devices.load("ascend310p3")):
        assert run("npu_quantize", *CALL, device=device).to_json() == name.to_json()


@pytest.mark.parametrize(
    "l2", ["hot", "", None, True, ["cold"], ("output",), ("input", 1), {"output": 1}]
)
def test_l2_is_a_state_or_names_of_inputs(l2: Any) -> None:
    message = (
        f"run: l2 must be cold, warm, repeat, or a tuple of inputs out of input, scales, or shares "
        f"of these by name, not {l2!r}; use one of these"
    )
    with pytest.raises(ValueError, match=whole(message)):
        run("npu_quantize", *CALL, device="ascend910b2", l2=l2)


@pytest.mark.parametrize("share", [-0.1, 1.5, math.nan, True, "half", None])
def test_a_share_in_the_l2_is_from_0_to_1(share: Any) -> None:
    message = (
        f"run: the share of input in l2 must be a number from 0 to 1, not {share!r}; 1 is all of it"
    )
    with pytest.raises(ValueError, match=whole(message)):
        run("npu_quantize", *CALL, device="ascend910b2", l2={"scales": 1, "input": share})


def test_a_share_in_the_l2_lies_between_none_and_all() -> None:
    call = TensorSpec((512, 8192), "float32"), TensorSpec((1,), "float32")
    states: list[L2State] = [(), {"input": 0}, {"input": 0.5}, {"input": 1}, ("input",)]
    none, zero, half, one, all_ = (
        run("npu_quantize", *call, None, "qint8", device="ascend910b2", values=False, l2=l2).time_us
        for l2 in states
    )
    assert none == zero > half > one == all_  # type: ignore[operator]


@pytest.mark.parametrize(
    ("l2", "icache"), [("cold", "cold"), ("warm", "warm"), ("repeat", "warm"), (("x",), "cold")]
)
def test_instructions_are_cached_where_the_kernel_has_run_before(l2: Any, icache: str) -> None:
    x = TensorSpec((4, 64), "float16")
    assert run("npu_swiglu", x, device="ascend910b2", l2=l2).icache == icache


@pytest.mark.parametrize("order", ["k2", 16, None])
def test_the_order_of_the_cube_is_one_of_four(order: Any) -> None:
    message = f"run: cube_order must be one of k16, k8, k4, k1, not {order!r}; use one of these"
    with pytest.raises(ValueError, match=whole(message)):
        run("npu_quantize", *CALL, device="ascend910b2", cube_order=order)


# ---- halves ----


def test_values_and_timing_are_turned_off_apart() -> None:
    both = run("npu_quantize", *CALL, device="ascend910b2")
    timed = run("npu_quantize", *CALL, device="ascend910b2", values=False)
    valued = run("npu_quantize", *CALL, device="ascend910b2", timing=False)
    neither = run("npu_quantize", *CALL, device="ascend910b2", values=False, timing=False)
    assert both.cycles == timed.cycles
    assert timed.output == neither.output == TensorSpec((2, 40), "int8")
    assert_same(valued.output, np.asarray(both.output))
    for result in (valued, neither):
        assert (result.cycles, result.time_us, result.trace) == (None, None, None)
        assert (result.counters, result.plan) == ({}, both.plan)


def test_one_tensor_without_values_is_enough_for_none_to_come_out() -> None:
    spec = TensorSpec((1,), "float32")
    result = run("npu_quantize", X, spec, None, "qint8", device="ascend910b2")
    assert result.output == TensorSpec((2, 40), "int8")
    assert result.cycles is not None


@pytest.mark.parametrize("device", every(devices.names()))
def test_time_is_launch_and_the_slowest_core(device: str) -> None:
    result = run("npu_quantize", *CALL, device=device)
    assert result.trace is not None
    assert result.cycles == max(span.end for span in result.trace.spans())
    launch = result.device.launch
    cores = result.plan.block_dim if result.plan else 0
    # An operator reads its tiling first, and all cores fetch its code from global memory.
    code = result.device.cores[result.device.vector_kinds[0]].code
    (run_,) = result.trace.code.values()
    code_bytes = code.kernel_bytes + code.tiling_bytes + run_.micro_ops * code.micro_op_bytes
    fetched_ns = code_bytes / code.line_bytes * (code.line_ns + cores * code.turn_ns)
    around = launch.base_us + launch.tiling_us + launch.completion_us
    expected = around + cores * (launch.start_us + launch.tiling_turn_us) + fetched_ns / 1000
    assert result.launch_us == pytest.approx(expected, rel=1e-12)
    seconds = result.cycles / result.device.clock_hz
    assert result.time_us == pytest.approx(expected + seconds * 1e6, rel=1e-12)


# ---- what time depends on ----


def quantize_time(shape: tuple[int, ...], device: str, **kwargs: Any) -> Run:
    """Float16, scaled by channel, with offset."""
    channel = TensorSpec(shape[-1:], "float16")
    args = (TensorSpec(shape, "float16"), channel, channel, "qint8", -1, False)
    return run("npu_quantize", *args, device=device, **kwargs)


SHAPES = [(2, 40), (48, 48), (47, 333), (7, 31), (3, 4096), (300, 1024), (1, 90001)]


def test_folding_holds_where_two_kinds_of_core_share_the_line_of_the_scale() -> None:
    def cycles(count: int, every_core: bool) -> int | None:
        x, scale = TensorSpec((count,), "float16"), TensorSpec((1,), "float16")
        args = (x, scale, None, "qint8", -1, False)
        return run("npu_quantize", *args, device="ascend310p3", every_core=every_core).cycles

    counts = range(2000, 7000, 409)
    folded = {count: cycles(count, every_core=False) for count in counts}
    assert folded == {count: cycles(count, every_core=True) for count in counts}


@pytest.mark.sample(3)
@pytest.mark.parametrize("device", THREE)
@pytest.mark.parametrize(
    "shapes",
    [
        [(48, 1 << power) for power in range(7, 15)],
        [(1 << power, 1024) for power in range(3, 12)],
        [(64, 1000), (128, 1000), (1280, 1000)],
    ],
    ids=["columns", "rows", "ragged rows"],
)
def test_cycles_grow_with_size(device: str, shapes: list[tuple[int, int]]) -> None:
    """Cycles, since a larger tensor may be split over fewer cores, which start sooner.

    Four rows of 1024 take as many as eight, since both are a row a core.
    """
    cycles = [quantize_time(shape, device).cycles for shape in shapes]
    assert None not in cycles
    assert sorted(set(cycles), key=int) == cycles


@pytest.mark.parametrize("device", ["ascend310p3", "ascend910b2"])
def test_packing_parameters_takes_time_in_proportion(device: str) -> None:
    """One core goes through them one by one."""
    cycles = [
        run("npu_trans_quant_param", TensorSpec((count,), "float32"), device=device).cycles
        for count in (1000, 2000, 4000)
    ]
    assert cycles[2] - cycles[1] == pytest.approx(2 * (cycles[1] - cycles[0]), rel=0.05)


# ---- what a Run says ----

CALLS = {
    "npu_quantize": (CALL, {}),
    "npu_group_quant": ((X, X, np.array([1, 2])), {"offset": ONE}),
    "npu_trans_quant_param": ((X[0], X[1]), {}),
}


KEYS = [
    "op", "device", "arguments", "l2", "icache", "output", "template", "reason", "plan", "engine",
    "time_us", "launch_us", "cycles", "clock_hz", "accuracy", "launches", "gm_bytes",
    "gm_written_bytes",
    "l2_bytes", "l2_hit_bytes", "counters",
]  # fmt: skip


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("timing", [True, False])
def test_json_is_complete_and_plain(op: str, timing: bool) -> None:
    args, kwargs = CALLS[op]
    result = run(op, *args, device="ascend910b2", timing=timing, **kwargs)
    told = result.to_json()
    assert list(told) == KEYS
    assert json.loads(json.dumps(told)).keys() == told.keys()
    assert told["output"]["shape"] == list(np.asarray(result.output).shape)
    assert (told["plan"] is not None, told["cycles"] is not None) == (True, timing)
    assert sorted(told["counters"]) == sorted(str(core) for core in result.counters)


def test_json_of_one_call() -> None:
    told = run("npu_quantize", *CALL, device="Ascend910B2").to_json()
    assert told["device"] == "ascend910b2"
    assert told["arguments"] == {
        "input": {"shape": [2, 40], "dtype": "float32", "layout": "ND"},
        "scales": {"shape": [1], "dtype": "float32", "layout": "ND"},
        "zero_points": None,
        "dtype": "qint8",
        "axis": -1,
        "div_mode": False,
    }
    assert told["output"] == {"shape": [2, 40], "dtype": "int8", "layout": "ND"}
    assert told["plan"]["block_dim"] == 48
    assert told["clock_hz"] == 1_800_000_000
    moved = sum(pipe["nbytes"] for pipes in told["counters"].values() for pipe in pipes.values())
    # The scalar unit reads the scale by way of its own cache, which is not counted.
    assert moved == 320 + 80
    # Each copy in whole sectors of 128 bytes, fetched in whole lines; stores go to the L2.
    assert (told["gm_bytes"], told["gm_written_bytes"]) == (512, 0)
    assert (told["l2_bytes"], told["l2_hit_bytes"]) == (384 + 128, 128)


def test_json_of_a_call_with_nothing_to_do() -> None:
    empty = np.empty((0, 4), np.float32)
    told = run("npu_quantize", empty, ONE, None, "qint8", device="ascend910b2").to_json()
    assert (told["plan"], told["counters"], told["time_us"], told["cycles"]) == (None, {}, 0.0, 0)
    json.dumps(told)


def test_numpy_attributes_are_plain_in_json() -> None:
    args = (X, ONE, None, "qint8", np.int64(1), np.True_)
    told = run("npu_quantize", *args, device="ascend910b2").to_json()
    assert json.loads(json.dumps(told["arguments"]))["axis"] == 1


def test_json_says_what_is_transposed_and_in_fractals() -> None:
    spec = TensorSpec((40, 2), "int8", "FRACTAL_NZ").T
    told = run("npu_format_cast", spec, 2, device="ascend910b2").to_json()
    assert told["arguments"]["x"] == {
        "shape": [2, 40],
        "dtype": "int8",
        "layout": "FRACTAL_NZ",
        "transposed": True,
    }
    assert told["output"] == {"shape": [2, 40], "dtype": "int8", "layout": "ND", "transposed": True}
    tensor = Tensor.of(X, "FRACTAL_NZ")
    told = run("npu_format_cast", tensor, 29, device="ascend910b2").to_json()
    assert told["output"] == told["arguments"]["x"]
    assert told["output"] == {"shape": [2, 40], "dtype": "float32", "layout": "FRACTAL_NZ"}


# ---- several outputs ----


def test_several_outputs_are_a_tuple_in_the_order_of_torch_npu() -> None:
    x = X.astype(np.float16)
    result = run("npu_dynamic_quant", x, device="ascend910b2")
    values, scale = result.output
    assert (values.shape, values.dtype, scale.shape) == ((2, 40), np.int8, (2,))
    assert {name: id(output) for name, output in result.outputs.items()} == {
        "output": id(values),
        "scale": id(scale),
    }
    timed = run("npu_dynamic_quant", TensorSpec((2, 40), "float16"), device="ascend910b2")
    specs = TensorSpec((2, 40), "int8"), TensorSpec((2,), "float32")
    assert timed.output == specs
    assert timed.outputs == dict(zip(("output", "scale"), specs, strict=True))
    assert timed.to_json() == result.to_json()
    assert result.to_json()["output"] == [
        {"shape": [2, 40], "dtype": "int8", "layout": "ND"},
        {"shape": [2], "dtype": "float32", "layout": "ND"},
    ]
    told = f"int8 (2, 40) and float32 (2,), {result.time_us:.2f} us"
    assert repr(result) == f"<npu_dynamic_quant on ascend910b2: {told}>"
    one = run("npu_quantize", *CALL, device="ascend910b2", timing=False)
    assert one.outputs == {"output": one.output}
    assert repr(one) == "<npu_quantize on ascend910b2: int8 (2, 40), not timed>"


def test_every_output_counts_in_global_memory() -> None:
    spec = devices.load("ascend910b2")
    # Without the scales they would fit.
    gm = spec.gm.model_copy(update={"capacity_bytes": 3 * 80})
    small = spec.model_copy(update={"gm": gm})
    message = (
        "npu_dynamic_quant: its tensors must fit into the 240 bytes of global memory of "
        "ascend910b2, not take 248 (x 160, output 80, scale 8); split the call [207001]"
    )
    with pytest.raises(OpError, match=whole(message)):
        run("npu_dynamic_quant", X.astype(np.float16), device=small)


def test_a_template_is_reported_where_the_plan_has_one() -> None:
    plan = ops.Plan(block_dim=1, template="msd", reason="few rows")
    result = run("npu_quantize", *CALL, device="ascend910b2", timing=False)
    assert (result.template, result.reason, result.to_json()["template"]) == (None, None, None)
    result = replace(result, plan=plan)
    assert (result.template, result.reason) == ("msd", "few rows")
    assert result.to_json()["template"] == "msd"


def test_the_oracles_spec_is_no_argument() -> None:
    operator = npu_trans_quant_param.OPERATOR
    assert list(ops.signature(operator).parameters) == ["scale", "offset", "round_mode"]
    assert "spec" not in run("npu_trans_quant_param", ONE, device="ascend910b2").arguments
    message = (
        "npu_trans_quant_param: arguments must fit npu_trans_quant_param(scale, offset=None, "
        "round_mode=0), but: got an unexpected keyword argument 'spec'; leave spec out"
    )
    with pytest.raises(TypeError, match=whole(message)):
        run("npu_trans_quant_param", ONE, spec=None, device="ascend910b2")


def test_tensors_in_fractals_must_fit_into_memory_with_their_edges() -> None:
    """A column of one element is as wide as 32 bytes there."""
    spec = TensorSpec((2**31, 1), "int8")
    device = devices.load("ascend310p3")
    message = (
        f"npu_format_cast: its tensors must fit into the {device.gm.capacity_bytes} bytes of "
        f"global memory of ascend310p3, not take {33 * 2**31} (x {2**31}, output {2**36}); "
        "split the call [207001]"
    )
    with pytest.raises(OpError, match=whole(message)):
        run("npu_format_cast", spec, 29, device=device)


def test_repr() -> None:
    result = run("npu_format_cast", X, 29, device="ascend910b2", timing=False)
    assert repr(result) == (
        "<npu_format_cast on ascend910b2: float32 (2, 40) FRACTAL_NZ, not timed>"
    )
    result = run("npu_quantize", *CALL, device="ascend910b2")
    assert repr(result) == (f"<npu_quantize on ascend910b2: int8 (2, 40), {result.time_us:.2f} us>")
    result = run("npu_quantize", *CALL, device="ascend910b2", values=False, timing=False)
    assert repr(result) == "<npu_quantize on ascend910b2: int8 (2, 40), not timed>"


def test_ranges_of_a_plan_are_their_ends_in_json() -> None:
    table = TensorSpec((64, 128), "float16")
    result = run("embedding", table, np.arange(8), device="ascend910b2")
    assert result.plan is not None
    found = json.loads(json.dumps(result.to_json()))["plan"]
    (first, *_), *_ = found["runs_of_core"]
    assert (found["rows_per_store"] > 0, first) == (True, [0, 1])


def test_what_a_run_holds_is_shown_in_a_line() -> None:
    result = run("npu_quantize", *CALL, device="ascend910b2")
    cycles = result.cycles
    assert repr(result.device) == str(result.device)
    assert repr(result.device) == (
        "<DeviceSpec ascend910b2: Atlas A2, 24 aic and 48 aiv at 1.8 GHz>"
    )
    assert result.trace is not None
    assert repr(result.trace) == f"<Trace of 1 core: {cycles} cycles at 1.8 GHz>"
    (lane,) = result.trace.lanes
    told = f"{len(lane.ops)} micro-ops, {cycles} cycles"
    assert repr(lane) == f"<LaneTrace aiv 0: {told}>"
    assert repr(result.call) == "<call of npu_quantize on ascend910b2>"
