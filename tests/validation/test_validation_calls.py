"""What is timed in place of a measured row."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

import npusim
from npusim import TensorSpec, ops
from npusim.validation import Row, RowError, calls, read
from npusim.validation.calls import CANN_8_5, timed
from npusim.validation.routing import Draw
from npusim.validation.timed import Call, NotModelledError

A2 = "ascend910b2"
MATMUL = Row(
    *("r1", "ours", "matmul", A2, 10.0),
    m=8, k=32, n=48, x_dtype="bfloat16", w_layout="ND", l2="warm",
)  # fmt: skip
QUANT = replace(MATMUL, op="npu_quant_matmul", x_dtype="int8", out_dtype="bfloat16")
WEIGHT = replace(
    MATMUL, op="npu_weight_quant_batchmatmul", x_dtype="float16", scale_dtype="float16"
)
X = TensorSpec((8, 32), "int8")
W = TensorSpec((32, 48), "int8")


def call(row: Row) -> Call:
    (found,) = timed(row)
    assert isinstance(found, Call)
    return found


def refused(row: Row, message: str) -> None:
    with pytest.raises(RowError) as caught:
        timed(row)
    assert str(caught.value) == message


def absent(row: Row, reason: str) -> None:
    with pytest.raises(NotModelledError) as caught:
        timed(row)
    assert str(caught.value) == reason


def shipped(name: str) -> Row:
    return next(row for row in read() if row.id == name)


# ---- weights ----


def test_a_weight_lies_as_the_note_says() -> None:
    straight = TensorSpec((32, 48), "bfloat16")
    turned = TensorSpec((48, 32), "bfloat16").T

    assert call(replace(MATMUL, note="ND, B [K,N]")).args[1] == straight
    assert call(replace(MATMUL, note="ND, W [N,K]; bf16")).args[1] == turned
    assert call(MATMUL).args[1] == straight


def test_a_weight_of_a_linear_layer_is_turned() -> None:
    linear = replace(MATMUL, family="matmul_bf16_910b")

    assert call(linear).args[1] == TensorSpec((48, 32), "bfloat16").T
    assert call(replace(linear, note="[K,N]")).args[1] == TensorSpec((32, 48), "bfloat16")


def test_a_weight_may_lie_in_fractals() -> None:
    found = call(replace(QUANT, w_layout="NZ"))
    assert found.args[1] == TensorSpec((32, 48), "int8", "FRACTAL_NZ")
    assert call(shipped("c001")).args[1] == TensorSpec((2048, 4096), "int8", "FRACTAL_NZ").T


def test_a_row_of_batches_has_them_in_both_operands() -> None:
    x, weight = TensorSpec((3, 8, 32), "bfloat16"), TensorSpec((3, 48, 32), "bfloat16").T

    assert call(replace(MATMUL, b=3, note="[N,K]")).args == (x, weight)
    assert call(replace(QUANT, b=3)).args[:2] == (
        *(TensorSpec((3, 8, 32), "int8"), TensorSpec((3, 32, 48), "int8")),
    )
    assert call(replace(MATMUL, op="npu_dynamic_quant", b=3)).args == (
        TensorSpec((3, 8, 48), "bfloat16"),
    )


def test_what_comes_first_may_be_turned_too() -> None:
    found = call(replace(MATMUL, note="weight [K,N], x [K,M]", variant="template v3", bias=True))
    assert found.args == (TensorSpec((32, 8), "bfloat16").T, TensorSpec((32, 48), "bfloat16"))
    assert found.options == {"template": "v3", "bias": TensorSpec((48,), "bfloat16")}


def test_a_row_of_swiglu_has_its_shape_in_words() -> None:
    assert call(shipped("m0104")).args == (TensorSpec((3, 7, 13, 1018), "float32"),)
    assert call(shipped("m0645")).l2 == "repeat"


def test_a_row_of_dequantised_halves_lists_x_its_scales_and_those_of_y() -> None:
    found = call(shipped("m0210"))

    assert found.args == (TensorSpec((2048, 8192), "int32"),)
    assert found.options == {
        "quant_mode": 1,
        "weight_scale": TensorSpec((1, 8192), "float32"),
        "activation_scale": TensorSpec((2048,), "float32"),
        "quant_scale": TensorSpec((1, 4096), "float32"),
    }
    assert call(shipped("m0202")).options == {
        "quant_mode": 1,
        "quant_scale": TensorSpec((1, 4096), "float32"),
    }


# ---- what the L2 holds ----


@pytest.mark.parametrize("said", ["cold", "unknown", "as noted", ""])
def test_the_l2_is_cold_unless_a_row_says_otherwise(said: str) -> None:
    assert call(replace(MATMUL, l2=said)).l2 == "cold"


def test_a_flush_leaves_some_lines_of_a_small_kernel_and_some_dirt() -> None:
    row = replace(MATMUL, m=1024, k=1024, n=1024)
    calls = {l2: call(replace(row, l2=l2)) for l2 in ("cold", "flushed", "warm")}
    assert [each.icache for each in calls.values()] == ["warm", None, "warm"]
    times = {l2: replace(each, icache="warm").time_us() for l2, each in calls.items()}
    assert times["warm"] < times["flushed"] < times["cold"]


def test_a_step_of_training_leaves_what_the_kernel_before_wrote() -> None:
    row = shipped("rp0055")
    assert row.l2 == "served, last written"
    times = {l2: call(replace(row, l2=l2)).time_us() for l2 in ("warm", row.l2, "served")}
    assert times["warm"] < times[row.l2] < times["served"]


def test_copies_in_a_served_model_write_back_what_others_have_stored() -> None:
    row = shipped("m0634")
    (served,) = timed(row)
    assert isinstance(served, Call)
    assert served.l2 == "served"
    cold_us = replace(served, l2="cold").time_us()
    assert cold_us == pytest.approx(row.latency_min_us, rel=0.05)
    assert served.time_us() == pytest.approx(row.latency_us, rel=0.1)


def test_other_kernels_ran_before_those_of_a_trace() -> None:
    assert call(MATMUL).icache == "warm"
    traced = "hudingyi688/aiconfigurator-npu@90d7765 docs/profiler_alignment/groundtruth"
    assert call(replace(MATMUL, source=traced)).icache == "cold"


def test_two_kernels_that_take_turns_have_cold_instruction_caches() -> None:
    row = replace(QUANT, op="npu_dynamic_quant + npu_quant_matmul", x_dtype="bfloat16")
    assert [each.icache for each in timed(row) if isinstance(each, Call)] == ["cold", "cold"]


def test_an_earlier_dynamic_quant_works_row_by_row() -> None:
    row = replace(MATMUL, op="npu_dynamic_quant", x_dtype="float16")
    table = "hudingyi688/aiconfigurator-npu@90d7765 systems/data/ascend_910b/vllm-ascend/0.18.0"

    assert call(row).options == {}
    assert call(shipped("m0597")).options == {"template": "base"}
    assert call(replace(row, source=f"{table}/x.csv")).options == {"template": "base"}
    assert call(replace(row, source=table, n=17744)).options == {"template": "base"}
    # Longer rows do not fit as a whole.
    assert call(replace(row, source=table, n=17745)).options == {}
    first, second = timed(shipped("m0394"))
    assert isinstance(first, Call)
    assert isinstance(second, Call)
    assert first.options == {"template": "base"}
    assert "template" not in second.options


def test_of_cold_weights_only_activations_are_warm() -> None:
    row = replace(QUANT, l2="weights cold, activations warm")

    assert call(row).l2 == ("x1",)
    assert call(replace(row, pertoken=True)).l2 == ("x1", "pertoken_scale")
    assert call(replace(WEIGHT, l2=row.l2)).l2 == ("x",)
    assert call(replace(row, op="npu_quantize", x_dtype="bfloat16")).l2 == "repeat"


@pytest.mark.parametrize(
    ("k", "l2"),
    [
        (4096, "warm"),
        # Six copies of 8192 x 4096 bytes are as large as the L2: of 128 ways, 48.8 % of a line.
        (8192, {"x2": pytest.approx(0.488, abs=5e-4), "x1": 1.0}),
        (16384, ("x1",)),
    ],
)
def test_of_weights_in_turn_as_much_is_warm_as_all_copies_leave(k: int, l2: object) -> None:
    assert call(replace(QUANT, k=k, n=4096, l2="weights cold")).l2 == l2


# ---- scales and bias ----


def test_a_scale_is_packed_for_fp16_without_scales_a_token() -> None:
    row = replace(QUANT, out_dtype="float16", scale_dtype="float32")
    packed = TensorSpec((48,), "int64")

    assert call(row).args == (X, W, packed)
    assert call(row).options == {"output_dtype": "float16"}
    assert call(replace(row, pertoken=True)).args[2] == TensorSpec((48,), "float32")
    assert call(replace(row, pertoken=True)).options == {
        "output_dtype": "float16",
        "pertoken_scale": TensorSpec((8,), "float32"),
    }


@pytest.mark.parametrize(
    ("given", "taken"), [("bfloat16", "bfloat16"), ("float32", "float32"), ("", "float32")]
)
def test_a_scale_is_as_given_for_bf16(given: str, taken: str) -> None:
    assert call(replace(QUANT, scale_dtype=given)).args[2] == TensorSpec((48,), taken)


def test_a_bias_has_the_last_dtype_of_the_note() -> None:
    def bias(row: Row) -> object:
        return call(replace(row, bias=True)).options["bias"]

    assert bias(replace(QUANT, note="bias; int8/int8/float32/bfloat16")) == (
        TensorSpec((48,), "bfloat16")
    )
    assert bias(QUANT) == TensorSpec((48,), "int32")
    assert bias(WEIGHT) == TensorSpec((48,), "float16")
    assert "bias" not in call(replace(WEIGHT, bias=None)).options


def test_an_offset_is_given_where_it_is_known() -> None:
    channel = TensorSpec((48,), "float16")

    assert call(replace(WEIGHT, antiquant_offset=True)).options == {"antiquant_offset": channel}
    assert call(replace(WEIGHT, antiquant_offset=None)).options == {}


# ---- rows of their own kind ----


def test_static_quantisation_has_a_scale_and_an_offset_for_each_column() -> None:
    row = replace(MATMUL, op="npu_quantize", k=None)
    x, channel = TensorSpec((8, 48), "bfloat16"), TensorSpec((48,), "bfloat16")

    assert timed(row) == (
        Call("npu_quantize", (x, channel, channel, "qint8", -1, False), A2, "repeat", "warm"),
    )


def test_dynamic_quantisation_goes_before_its_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "names", lambda: ("npu_dynamic_quant", "npu_quant_matmul"))
    row = replace(
        QUANT,
        op="npu_dynamic_quant + npu_quant_matmul",
        x_dtype="bfloat16",
        pertoken=True,
        l2="weights cold, activations warm",
    )
    first, second = timed(row)

    assert first == Call(
        "npu_dynamic_quant", (TensorSpec((8, 32), "bfloat16"),), A2, "repeat", "cold"
    )
    alone = call(replace(row, op="npu_quant_matmul"))
    assert second == replace(alone, icache="cold")


def test_the_times_of_a_call_are_those_of_run() -> None:
    row = replace(QUANT, pertoken=True, l2="weights cold, activations warm")
    expected = npusim.run(
        *("npu_quant_matmul", X, W, TensorSpec((48,), "float32")),
        pertoken_scale=TensorSpec((8,), "float32"), output_dtype="bfloat16",
        device=A2, l2=("x1", "pertoken_scale"), icache="warm",
    ).time_us  # fmt: skip
    assert call(row).time_us() == expected


def test_calls_pickle() -> None:
    for row in (MATMUL, QUANT, WEIGHT):
        assert pickle.loads(pickle.dumps(timed(row))) == timed(row)


# ---- what is not modelled ----


def test_rows_that_nothing_can_be_held_against_say_why() -> None:
    absent(replace(MATMUL, op="cumsum"), "npusim has no cumsum")
    absent(
        replace(MATMUL, op="micro: DataCopy GM->UB"),
        "a kernel of the vendor's guide that is not simulated, or not by that name",
    )
    absent(
        replace(MATMUL, op="as noted: RmsNorm per call"),
        "mentioned in passing, as a sum or for a shape that is not exact",
    )


def test_an_operator_that_npusim_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "names", lambda: ("npu_quant_matmul",))
    absent(
        replace(QUANT, op="npu_dynamic_quant + npu_quant_matmul"), "npusim has no npu_dynamic_quant"
    )


def test_a_kernel_of_another_kind_can_be_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    class Softmax:
        def time_us(self) -> float:
            return 2.5

    kernel = Softmax()
    monkeypatch.setitem(calls.KERNELS, "cumsum", lambda _: (kernel,))
    assert timed(replace(MATMUL, op="cumsum")) == (kernel,)


# ---- rows that are wrong ----


def test_a_size_that_is_missing_is_named() -> None:
    refused(
        replace(QUANT, k=None),
        "validate: row r1: k must be given for npu_quant_matmul, not empty; fill the cell",
    )


@pytest.mark.parametrize("shape", ["", "3x", "3x4,3x4", "three"])
def test_a_shape_that_is_wrong_is_named(shape: str) -> None:
    refused(
        replace(MATMUL, op="maximum", shape=shape),
        f"validate: row r1: shape must be sizes such as 3x4 , 3x4 for maximum, not {shape!r}; "
        f"fix the cell",
    )


WORDS = replace(MATMUL, op="concat", x_dtype="bf16", shape="3x4 , 3x8", variant="dim 1")


def test_operators_are_called_in_words() -> None:
    x, y = TensorSpec((3, 4), "bfloat16"), TensorSpec((3, 8), "bfloat16")
    assert call(WORDS) == Call("concat", (), A2, "repeat", "warm", {"tensors": [x, y], "dim": 1})
    whole = TensorSpec((3, 4), "float32")
    row = replace(WORDS, op="add", shape="3x4 , 3x4", x_dtype="float32/bf16", variant="")
    assert call(row) == Call("add", (whole, x), A2, "repeat", "warm")
    row = replace(WORDS, op="mul", shape="3x4", variant="other 0.5")
    assert call(row) == Call("mul", (x,), A2, "repeat", "warm", {"other": 0.5})
    row = replace(WORDS, op="cast", shape="3x4", variant="")
    assert call(row).options == {"dtype": "float32"}


@pytest.mark.parametrize("variant", ["dim", "dim 1,start 0", "1 dim"])
def test_a_variant_that_is_wrong_is_named(variant: str) -> None:
    refused(
        replace(WORDS, variant=variant),
        f"validate: row r1: variant must be names and values such as dim 1, start 0 for concat, "
        f"not {variant!r}; fix the cell",
    )


def test_words_that_are_no_call_are_named() -> None:
    row = replace(WORDS, op="add", variant="")
    refused(
        replace(row, shape="3x4"),
        "validate: row r1: shape and variant must be a call of add, but: missing a required "
        "argument: 'other'; fix the cells",
    )
    refused(
        replace(row, shape="3x4 , 3x4 , 3x4 , 3x4"),
        "validate: row r1: shape must have as many tensors as add takes, but 2 of '3x4 , 3x4 , "
        "3x4 , 3x4' are left; take them out",
    )


def test_a_dtype_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError) as told:
        TensorSpec((8, 32), "float17")
    refused(replace(MATMUL, x_dtype="float17"), f"validate: row r1: {told.value}")


GROUPED = replace(
    MATMUL, op="npu_grouped_matmul", b=2, m=12, k=64, n=32, shape="ends 5 12", x_dtype="int8",
    out_dtype="float16", scale_dtype="float32", pertoken=True, variant="tuning 6, activation 4",
)  # fmt: skip


def test_a_grouped_product_has_its_ends_and_its_options() -> None:
    (found,) = timed(GROUPED)
    assert isinstance(found, Call)
    assert found.options["group_list"].tolist() == [5, 12]
    assert (found.options["tuning_config"], found.options["act_type"]) == ([6], 4)
    assert found.options["scale"] == TensorSpec((2, 32), "float32")
    assert found.options["per_token_scale"] == TensorSpec((12,), "float32")


@pytest.mark.parametrize("shape", ["", "5 12", "ends 12", "ends 5 x"])
def test_ends_of_groups_that_are_wrong_are_named(shape: str) -> None:
    refused(
        replace(GROUPED, shape=shape),
        f"validate: row r1: shape must be ends and where each of 2 groups ends for "
        f"npu_grouped_matmul, not {shape!r}; fix the cell",
    )


def test_a_layer_of_experts_is_its_products_and_swiglu() -> None:
    op = f"{calls.QUANTISED} + npu_swiglu + {calls.QUANTISED}"
    row = replace(GROUPED, op=op, out_dtype="bfloat16", scale_dtype="bfloat16")
    found = timed(row)
    assert [one.op for one in found if isinstance(one, Call)] == op.split(" + ")
    with pytest.raises(NotModelledError, match=r"^which experts so few rows went to is not known$"):
        timed(replace(row, m=2))


NOTE_OF_40 = "a model: 64 tokens, 6 of 160 experts each, 40 of them here"


def test_few_tokens_go_to_as_many_experts_as_expected() -> None:
    op = "npu_grouped_matmul + npu_swiglu + npu_grouped_matmul"
    row = replace(GROUPED, op=op, b=64, m=48, x_dtype="float16", out_dtype="float16")
    note = "weight ND [N,K]; a model: {} tokens, 6 of {} experts each, 64 of them here; L2 assumed"
    found, *_ = timed(replace(row, note=note.format(8, 64)))
    assert isinstance(found, Call)
    assert found.options["group_list"].tolist() == [2] * 13 + [1] * 22 + [0] * 29
    # Of more rows than experts, too: 64 tokens leave 3 experts of 40 without one, as expected.
    found, *_ = timed(replace(row, b=40, m=96, note=NOTE_OF_40))
    assert isinstance(found, Call)
    assert np.count_nonzero(found.options["group_list"]) == round(40 * (1 - (1 - 6 / 160) ** 64))
    text = (
        r"^which experts so few rows went to is not known, and how many differs by 17% from draw "
        r"to draw$"
    )
    with pytest.raises(NotModelledError, match=text):
        timed(replace(row, note=note.format(8, 160)))


@pytest.mark.parametrize(("tokens", "chosen", "experts", "here"), [(1, 2, 5, 5), (3, 2, 4, 2)])
def test_draws_are_those_of_all_cases(tokens: int, chosen: int, experts: int, here: int) -> None:
    draw = Draw(tokens, chosen, experts, here)
    one = list(combinations(range(experts), chosen))
    numbers = [len({e for each in every for e in each if e < here})
               for every in product(one, repeat=tokens)]  # fmt: skip
    assert draw.mean == pytest.approx(np.mean(numbers))
    assert draw.spread == pytest.approx(np.std(numbers) / np.mean(numbers), abs=1e-7)


def _is_open(row: Row) -> bool:
    """Whether a layer has so few tokens that its experts may be others."""
    draw = Draw.read(row.note)
    assert draw is not None
    return (row.m or 0) <= (row.b or 0) and draw.spread > calls.OPEN


def test_every_operator_of_the_shipped_rows_takes_their_calls() -> None:
    int64 = "int64/int64"
    modelled = [
        row
        for row in read()
        if (row.op in calls.KERNELS or row.op in ops.names())
        and row.x_dtype != int64
        and not (row.family.startswith("moe_910b") and _is_open(row))
    ]
    assert len(modelled) == 3442
    for found in (found for row in modelled for found in timed(row)):
        assert isinstance(found, Call)
        operator = ops.load(found.op)
        bound = ops.signature(operator).bind(*found.args, **found.options)
        bound.apply_defaults()
        problem = operator.check(npusim.devices.load(found.device), **bound.arguments)
        names = {operand.name for operand in problem.inputs}
        assert isinstance(found.l2, str) or set(found.l2) <= names


def test_heads_that_share_no_keys_run_the_kernel_of_their_release() -> None:
    rows = [
        row
        for row in read()
        if row.op == "npu_fused_infer_attention_score" and CANN_8_5 in row.source
    ]
    asked = {
        (row.shape.split(" , ")[0] == row.shape.split(" , ")[1], call(row).options.get("template"))
        for row in rows
    }
    assert asked == {(True, "FIA"), (False, None)}
    later = replace(next(row for row in rows if "FIA" in call(row).options.values()), source="mine")
    assert "template" not in call(later).options
