"""Which measured kernels a run is like, and what is reported of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from calls import CALLS

import npusim
from npusim import TensorSpec, ops
from npusim.accuracy import Accuracy, Kind, Known, accuracy_of, kind_of
from npusim.accuracy.kernels import SHORT_US, known, within
from npusim.run.call import bind
from npusim.run.result import without_values
from npusim.run.user_kernel import load

COURSE = Path(__file__).parents[2] / "docs" / "course"
A2 = "Atlas A2"
KIND = Kind("matmul", A2, "fp16 or bf16", "weight ND [K, N]")
ERRORS = (-0.3, 0.1, 0.05, 0.02, 0.4)


def kernel(name: str, sizes: tuple[int, ...], measured_us: float, error: float) -> Known:
    return Known(name, sizes, measured_us, measured_us * (1 + error), error)


FOUND = (
    kernel("a", (1, 8, 1024, 1024), 12.0, ERRORS[0]),
    kernel("b", (1, 64, 1024, 1024), 20.0, ERRORS[1]),
    kernel("c", (1, 64, 4096, 1024), 30.0, ERRORS[2]),
    kernel("d", (2, 64, 4096, 1024), 60.0, ERRORS[3]),
    kernel("e", (1, 1, 64, 64), 9.0, ERRORS[4]),
)


@pytest.fixture
def five(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five measured kernels of one kind, one of them short."""
    monkeypatch.setattr("npusim.accuracy.kernels.known", lambda: {KIND: FOUND})


# ---- kinds ----


def test_a_kind_is_operator_series_types_and_layout() -> None:
    x, weight = TensorSpec((3, 64, 512), "bfloat16"), TensorSpec((512, 256), "bfloat16")
    called = {"x1": x, "x2": weight, "bias": None}

    assert kind_of("matmul", A2, called) == (KIND, (1, 192, 512, 256))
    assert str(KIND) == "matmul, fp16 or bf16, weight ND [K, N], Atlas A2"
    batched = TensorSpec((3, 256, 512), "bfloat16", "FRACTAL_NZ").T
    kind, sizes = kind_of("matmul", A2, called | {"x1": x, "x2": batched})
    assert (kind.layout, sizes) == ("weight NZ [N, K]", (3, 64, 512, 256))
    assert kind_of("matmul", A2, called | {"x1": TensorSpec((64, 8), "float16").T})[0].layout == (
        "x transposed, weight ND [K, N]"
    )


def test_a_weight_with_scales_of_groups_is_another_kind() -> None:
    tensors = (
        ("x", (4, 64), "float16"),
        ("weight", (64, 32), "int8"),
        ("scale", (2, 32), "float16"),
    )
    called = {name: TensorSpec(shape, dtype) for name, shape, dtype in tensors}
    kind, sizes = kind_of("npu_weight_quant_batchmatmul", A2, called | {"antiquant_group_size": 32})
    assert (kind.types, kind.layout) == (
        "fp16 or bf16 x int8",
        "weight ND [K, N], scales of groups",
    )
    assert sizes == (1, 4, 64, 32)


def test_what_is_no_product_has_rows_and_columns() -> None:
    kind, sizes = kind_of("npu_dynamic_quant", A2, {"x": TensorSpec((3, 8, 64), "float16")})
    assert (kind, sizes) == (Kind("npu_dynamic_quant", A2, "fp16 or bf16", ""), (24, 64))
    assert str(kind) == "npu_dynamic_quant, fp16 or bf16, Atlas A2"
    kind, sizes = kind_of("npu_trans_quant_param", A2, {"scale": TensorSpec((), "float32")})
    assert (kind.types, sizes) == ("float32", (1, 1))
    assert kind_of("npu_made", A2, {"count": 3}) == (Kind("npu_made", A2, "", ""), ())


# ---- what is known of them ----


@pytest.mark.usefixtures("five")
def test_errors_are_of_kernels_that_take_as_long() -> None:
    told = accuracy_of(KIND, 25.0, (1, 32, 1024, 1024))

    assert (told.kind, told.series, told.rows, told.span) == (str(KIND), A2, 4, "10 us and more")
    # Of 0.02, 0.05, 0.1 and 0.3 without sign the third; of all kinds, the short one counts as
    # much as the other four.
    assert (told.median, told.p90) == (0.3, 0.4)
    assert told.bias == pytest.approx(0.035)
    assert str(told) == (
        "expected error: typically 30 %, 90 % of kernels within 40 % (4 measured kernels, 10 us "
        "and more); usually 4 % too slow"
    )
    short = accuracy_of(KIND, 9.99)
    assert (short.rows, short.span, short.median) == (1, "below 10 us", 0.4)
    assert str(short) == (
        "expected error: 40 % or so: npusim is 40 % too slow for the only measured kernel of this "
        "kind, below 10 us"
    )


def test_of_enough_kernels_the_bound_is_one_of_theirs() -> None:
    errors = [0.01 * number for number in range(1, 11)]
    # Ranks 6 of 10 for one half of the next ones, 10 for nine of ten.
    assert (within(errors, 0.5), within(errors, 0.9)) == (0.06, 0.1)
    assert within([-error for error in errors], 0.9) == 0.1
    assert (within(errors[:9], 0.5), within(errors[:9], 0.9)) == (0.05, 0.09)


def test_of_few_kernels_the_bound_is_never_nothing() -> None:
    for count in range(1, 9):
        assert within([0.0] * count, 0.5) > 0.01
        assert within([0.0] * count, 0.9) > 0.1


def test_of_rows_left_out_nine_of_ten_are_within_what_the_others_say() -> None:
    inside, total = 0, 0
    for found in known().values():
        for is_short in (False, True):
            errors = [one.error for one in found if (one.measured_us < SHORT_US) == is_short]
            for place, error in enumerate(errors):
                others = errors[:place] + errors[place + 1 :]
                if others:
                    total += 1
                    inside += abs(error) <= within(others, 0.9)
    assert 0.87 < inside / total < 0.93


@pytest.mark.parametrize("name", CALLS)
def test_every_call_has_an_accuracy(name: str) -> None:
    op, arguments = CALLS[name]
    bound = bind(ops.load(op), (), arguments)
    kind, sizes = kind_of(op, A2, {key: without_values(value) for key, value in bound.items()})
    assert str(accuracy_of(kind, 25.0, sizes))
    # As a kernel of no rows at all, which a group of experts may be.
    assert str(accuracy_of(kind, 25.0, (0,) * len(sizes)))


def test_fewer_rows_than_experts_have_a_nearest_kernel() -> None:
    weight = TensorSpec((16, 256, 512), "bfloat16", transposed=True)
    run = npusim.run(
        *("npu_grouped_matmul", [TensorSpec((4, 256), "bfloat16")], [weight]),
        group_list=np.minimum(np.arange(1, 17), 4),
        split_item=3,
        group_type=0,
        device="ascend910b2",
        values=False,
    )
    assert run.accuracy is not None
    assert run.accuracy.nearest is not None


def test_all_are_told_of_where_none_takes_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npusim.accuracy.kernels.known", lambda: {KIND: FOUND[:4]})
    told = accuracy_of(KIND, 3.0)
    assert (told.rows, told.span) == (4, "of any length")


@pytest.mark.usefixtures("five")
@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ((1, 16, 1024, 1024), "a"),
        ((1, 32, 1024, 1024), "b"),
        # As far from b as from c: twice as many columns, or half as many.
        ((1, 64, 2048, 1024), "b"),
        ((2, 32, 4096, 1024), "d"),
        ((1, 2, 64, 64), "e"),
    ],
)
def test_the_nearest_is_so_in_ratios(sizes: tuple[int, ...], name: str) -> None:
    nearest = accuracy_of(KIND, 25.0, sizes).nearest
    assert nearest is not None
    assert nearest.id == name


def test_a_measured_kernel_in_words() -> None:
    assert str(FOUND[2]) == (
        "64 x 4096 x 1024, measured 30.00 us, npusim 31.50 us (row c of silicon.csv)"
    )
    assert str(FOUND[3]) == (
        "2 x 64 x 4096 x 1024, measured 60.00 us, npusim 61.20 us (row d of silicon.csv)"
    )
    assert str(kernel("q", (1, 4096), 4.0, 0.0)) == (
        "1 x 4096, measured 4.00 us, npusim 4.00 us (row q of silicon.csv)"
    )


@pytest.mark.usefixtures("five")
def test_what_nobody_measured_is_a_guess() -> None:
    other = KIND._replace(series="Atlas inference")
    told = accuracy_of(other, 25.0, (1, 1, 1, 1))

    assert told == Accuracy(str(other), "Atlas inference", 0)
    assert str(told) == (
        "unvalidated: no public measurement of this kind of kernel on Atlas inference; 90 % of "
        "the kernels of other kinds are within 40 %"
    )


@pytest.mark.usefixtures("five")
def test_it_survives_json() -> None:
    for told in (accuracy_of(KIND, 25.0, (1, 1, 1, 1)), Accuracy(None, A2, 0)):
        assert Accuracy.from_json(json.loads(json.dumps(asdict(told)))) == told


def test_the_kernels_that_ship_are_known() -> None:
    kinds = known()
    assert KIND in kinds
    for found in kinds.values():
        assert [one.id for one in found] == sorted(one.id for one in found)


# ---- runs ----


def test_a_run_reports_its_kind() -> None:
    x, weight = TensorSpec((16, 512), "float16"), TensorSpec((512, 256), "float16")
    run = npusim.run("matmul", x, weight, device="ascend910b2")

    assert run.time_us is not None
    assert run.accuracy == accuracy_of(KIND, run.time_us, (1, 16, 512, 256))
    assert run.accuracy.rows > 0
    assert run.to_json()["accuracy"] == asdict(run.accuracy)


def test_without_a_time_there_is_nothing_to_trust() -> None:
    x, weight = TensorSpec((16, 512), "float16"), TensorSpec((512, 256), "float16")
    untimed = npusim.run("matmul", x, weight, device="ascend910b2", timing=False)
    nothing, scale = TensorSpec((0, 8), "float16"), TensorSpec((1,), "float32")
    empty = npusim.run("npu_quantize", nothing, scale, None, "qint8", device="ascend910b2")
    assert (untimed.accuracy, empty.accuracy) == (None, None)


def test_a_custom_kernel_is_a_guess_whatever_its_name() -> None:
    add = load(f"{COURSE / 'vector_add.py'}:add")

    def matmul(spec: npusim.DeviceSpec, x: TensorSpec, y: TensorSpec) -> npusim.Kernel:
        kernel: npusim.Kernel = add(spec, x, y)
        return kernel

    vector = TensorSpec((992,), "float16")
    run = npusim.run(matmul, vector, vector, device="ascend910b2")
    assert (run.op, run.kind) == ("matmul", None)
    assert run.accuracy == Accuracy(None, A2, 0)
