"""Which kernel takes a weight-quantised product: the vendor's own tiling tests, and each need.

Source: ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/tests/ut/op_host/*_tiling.cpp.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from npusim import Code, OpError, devices
from npusim.ops.npu_weight_quant_batchmatmul.choice import CallTraits, choose, k_cores, k_step

CHIPS = {20: devices.load("ascend910b4"), 24: devices.load("ascend910_9391")}
ONLY_310P = devices.load("ascend310p3")


def test_the_chips_have_the_cores_that_the_vendor_tests_with() -> None:
    assert {count: spec.cores["aic"].count for count, spec in CHIPS.items()} == {20: 20, 24: 24}


def call(m: int, k: int, n: int, *words: str) -> CallTraits:
    """A call in the words of the vendor's tests: int4, g64, tB, nz, offset, ..."""
    given: dict[str, Any] = {}
    meaning: dict[str, dict[str, Any]] = {
        "bf16": {"x": "bfloat16"},
        "int4": {"weight": "int4"},
        "tA": {"trans_x": True},
        "tB": {"trans_weight": True},
        "nz": {"is_nz": True},
        "tensor": {"scaling": "tensor"},
        "g32": {"scaling": "group", "group_size": 32},
        "g64": {"scaling": "group", "group_size": 64},
        "g128": {"scaling": "group", "group_size": 128},
        "offset": {"has_offset": True},
        "bias": {"has_bias": True},
        "quant": {"has_quant": True},
        "i64": {"is_packed": True},
        "det": {"deterministic": True},
    }
    for word in words:
        given |= meaning[word]
    return CallTraits(m, k, n, **given)


VENDOR = [
    (call(64, 2560, 5120, "offset"), 20, "msd", "multicore"),
    (call(1, 4320, 10240, "tB"), 20, "msd", "multicore"),
    (call(8, 10240, 8640), 20, "msd", "multicore"),
    (call(1, 10240, 1536, "bias"), 20, "msd", "multicore"),
    (call(36, 8192, 1280, "tB", "offset"), 24, "msd", "multicore_hp"),
    (call(36, 8192, 1280, "tB", "offset", "nz"), 24, "msd", "multicore_hp"),
    (call(4, 20480, 5120, "tB"), 24, "msd", "split_k"),
    (call(4, 20480, 5120, "tB", "nz"), 24, "msd", "split_k"),
    (call(10, 8192, 3072, "int4", "tB"), 24, "msd", "split_k"),
    (call(51, 800, 64, "int4", "tB"), 24, "custom", "nd"),
    (call(1, 65472, 65472, "int4", "g64"), 24, "msd", "per_group"),
    (call(1, 11008, 4096, "int4", "g128"), 24, "msd_group", ""),
    (call(1, 4096, 22016, "int4", "g128"), 24, "msd_group", ""),
    (call(1, 12288, 1792, "bf16", "g64"), 20, "msd_group", ""),
    (call(24, 12288, 7808, "bf16", "g64", "offset"), 24, "split_k", ""),
    (call(1, 4096, 8192, "int4", "g128", "tB"), 24, "custom", "nd"),
    (call(1, 4096, 8192, "int4", "g128", "tA"), 24, "custom", "nd"),
    (call(80, 4096, 1536, "nz", "tB"), 20, "nz_splitk", ""),
    (call(100, 1344, 128, "bf16", "nz", "tB"), 20, "nz_splitk", ""),
    (call(127, 2049, 1023, "nz", "tB"), 24, "custom", "nz"),
    (call(96, 11264, 6912, "tensor"), 24, "custom", "nd"),
    (call(96, 4096, 32064, "tB", "i64"), 24, "fixpipe", ""),
]


def test_the_vendors_tests_choose_so(subtests: pytest.Subtests) -> None:
    for traits, aic, template, form in VENDOR:
        with subtests.test(traits=traits):
            choice = choose(traits, CHIPS[aic])
            assert (choice.template, choice.form) == (template, form)


GROUP = call(16, 4096, 4096, "int4", "g128")
SPLIT_K = call(24, 12288, 7808, "bf16", "g64", "offset")
CHANNEL = call(64, 4096, 4096)
NZ = call(65, 4096, 4096, "nz", "tB")
FALLS = [
    # (a call, what it takes, the nearest call, what that takes)
    (CHANNEL, "msd", replace(CHANNEL, m=65), "custom"),
    (CHANNEL, "msd", replace(CHANNEL, k=4080), "custom"),
    (CHANNEL, "msd", replace(CHANNEL, n=4080), "custom"),
    (CHANNEL, "msd", replace(CHANNEL, trans_x=True), "custom"),
    (CHANNEL, "msd", replace(CHANNEL, has_quant=True), "custom"),
    (CHANNEL, "msd", replace(CHANNEL, scaling="tensor"), "custom"),
    (CHANNEL, "msd", replace(CHANNEL, weight="int4"), "custom"),
    (CHANNEL, "msd", replace(CHANNEL, deterministic=True), "msd"),
    (GROUP, "msd_group", replace(GROUP, m=17), "custom"),
    (GROUP, "msd_group", replace(GROUP, k=13952), "msd_group"),
    (GROUP, "msd_group", replace(GROUP, k=14080), "msd"),
    (GROUP, "msd_group", replace(GROUP, n=2048 * 24), "msd_group"),
    (GROUP, "msd_group", replace(GROUP, n=2048 * 24 + 64), "msd"),
    (GROUP, "msd_group", replace(GROUP, n=4064), "custom"),
    (GROUP, "msd_group", replace(GROUP, k=4064), "custom"),
    (GROUP, "msd_group", replace(GROUP, deterministic=True), "msd"),
    (GROUP, "msd_group", replace(GROUP, weight="int8", group_size=64, m=8), "custom"),
    # 13952 x 32 / 2 + 2048 x 128 bytes fit into L1, 13952 x 64 / 2 + 2048 x 128 do not.
    (replace(GROUP, m=8, k=13952, n=2048 * 24), "msd_group",
     replace(GROUP, m=9, k=13952, n=2048 * 24), "msd"),
    (SPLIT_K, "split_k", replace(SPLIT_K, m=23), "custom"),
    (SPLIT_K, "split_k", replace(SPLIT_K, has_offset=False), "custom"),
    (SPLIT_K, "split_k", replace(SPLIT_K, has_bias=True), "custom"),
    (SPLIT_K, "split_k", replace(SPLIT_K, x="float16"), "custom"),
    (SPLIT_K, "split_k", replace(SPLIT_K, deterministic=True), "custom"),
    (NZ, "nz_splitk", replace(NZ, m=64), "msd"),
    (NZ, "nz_splitk", replace(NZ, m=256), "nz_splitk"),
    (NZ, "nz_splitk", replace(NZ, m=257), "custom"),
    (NZ, "nz_splitk", replace(NZ, n=4080), "custom"),
    (NZ, "nz_splitk", replace(NZ, k=8192, n=13750), "nz_splitk"),
    (NZ, "nz_splitk", replace(NZ, k=8192, n=13750, has_bias=True), "custom"),
    (NZ, "nz_splitk", replace(NZ, deterministic=True), "custom"),
]  # fmt: skip


def test_each_predicate_decides(subtests: pytest.Subtests) -> None:
    for traits, template, near, other in FALLS:
        with subtests.test(near=near):
            assert choose(traits, CHIPS[24]).template == template
            assert choose(near, CHIPS[24]).template == other


WHY = [
    (call(16, 4096, 11008),
     "per-channel int8 with m = 16 <= 64, k and n multiples of 32"),
    (GROUP, "int4 in groups of 128 with m = 16 <= 16"),
    (replace(GROUP, deterministic=True),
     "int4 in groups of 128 with m = 16 <= 16, msd_group being ruled out"),
    (SPLIT_K, "(m, k, n) = (24, 12288, 7808) is one of its four shapes"),
    (NZ, "per-channel FRACTAL_NZ weight with 65 <= m = 65 <= 256"),
    (call(16, 32, 16), "per-channel int8 with m = 16 that no other kernel takes"),
    (call(96, 4096, 64, "tB", "i64"), "antiquant_scale is int64"),
]  # fmt: skip


@pytest.mark.parametrize(("traits", "reason"), WHY)
def test_the_reason_is_one_line(traits: CallTraits, reason: str) -> None:
    assert choose(traits, CHIPS[24]).reason == reason


def test_310p_has_one_kernel() -> None:
    choice = choose(call(4, 2048, 4096, "nz", "tB"), ONLY_310P)
    assert (choice.template, choice.form) == ("weight_nz", "")
    assert choice.reason == "the only kernel of Atlas inference"


def test_multicore_takes_as_much_of_k_as_fits_the_buffer() -> None:
    forms = [choose(call(8, k, 8640), CHIPS[20]).form for k in (13696, 13696 + 32)]
    assert forms == ["multicore", "split_k"]


# ---- asked for ----

FORCED = [
    (call(16, 4096, 4096), "custom", "nd"),
    (call(65, 4096, 4096), "msd", "multicore"),
    (call(65, 4096, 4096, "int4", "tB"), "msd", "split_k"),
    (call(1, 4096, 4096, "int4", "g128"), "msd", "per_group"),
    (call(8, 4096, 4096, "g64"), "msd_group", ""),
    (call(8, 640, 640, "bf16", "g64", "offset"), "split_k", ""),
    (call(8, 4000, 4000, "nz", "tB"), "nz_splitk", ""),
    (call(8, 4096, 4096, "tB", "i64"), "fixpipe", ""),
]


@pytest.mark.parametrize(("traits", "template", "form"), FORCED)
def test_a_policy_can_be_overruled(traits: CallTraits, template: str, form: str) -> None:
    choice = choose(traits, CHIPS[24], template)
    assert (choice.template, choice.form) == (template, form)
    assert choice.reason == "asked for"


HARD = [
    (call(8, 64, 64, "tA"), "msd", "x is not transposed"),
    (call(8, 64, 64, "quant"), "msd", "quant_scale is None"),
    (call(8, 64, 64, "tensor"), "msd", "scales are per channel or per group"),
    (call(8, 64, 48), "msd", "k and n are multiples of 32"),
    (call(8, 64, 64, "int4"), "msd", "weight is transposed"),
    (call(8, 64, 64, "int4", "tB", "nz"), "msd", "weight is ND"),
    (call(8, 128, 64, "g64"), "msd", "weight is int4"),
    (call(8, 128, 64, "int4", "g64", "tB"), "msd", "weight is not transposed"),
    (call(8, 128, 64, "int4", "g32"), "msd", "antiquant_group_size is 64 or 128"),
    (call(9, 128, 64, "int4", "g64"), "msd", "m <= antiquant_group_size / 8 = 8"),
    (call(8, 96, 64, "int4", "g64"), "msd", "k is a multiple of antiquant_group_size"),
    (call(8, 128, 96, "int4", "g64"), "msd", "n is a multiple of 64"),
    (call(8, 128, 64, "int4", "g64", "det"), "msd_group",
     "deterministic is False, for it adds atomically"),
    (call(8, 128, 64, "int4", "g64", "tB"), "msd_group", "weight is not transposed"),
    (call(8, 128, 64), "msd_group", "antiquant_group_size is 64 for int8"),
    (call(8, 256, 64, "g128"), "msd_group", "antiquant_group_size is 64 for int8"),
    (call(8, 256, 64, "int4", "g32"), "msd_group", "antiquant_group_size is 64 or 128 for int4"),
    (call(9, 128, 64, "g64"), "msd_group", "m <= antiquant_group_size / 8 = 8"),
    (call(8, 14016, 64, "g64"), "msd_group", "k <= 13952"),
    (call(8, 128, 2048 * 24 + 64, "g64"), "msd_group", "n <= 2048 x 24 cube cores"),
    (call(8, 160, 64, "g64"), "msd_group", "k is a multiple of antiquant_group_size"),
    (call(8, 128, 96, "g64"), "msd_group", "n is a multiple of 64"),
    (call(9, 13952, 2048 * 24, "int4", "g128"), "msd_group",
     "its 708608 bytes fit into L1, 524032"),
    (call(8, 13952, 2048 * 24, "g64"), "msd_group",
     "its 708608 bytes fit into L1, 524032"),
    (replace(SPLIT_K, x="float16"), "split_k", "x is bfloat16"),
    (replace(SPLIT_K, weight="int4"), "split_k", "weight is int8"),
    (replace(SPLIT_K, is_nz=True), "split_k", "weight is ND"),
    (replace(SPLIT_K, trans_weight=True), "split_k", "weight is not transposed"),
    (replace(SPLIT_K, group_size=128), "split_k", "antiquant_group_size is 64"),
    (replace(SPLIT_K, has_offset=False), "split_k", "antiquant_offset is given"),
    (replace(SPLIT_K, has_bias=True), "split_k", "bias is None"),
    (replace(SPLIT_K, m=33), "split_k", "m <= 32"),
    (replace(SPLIT_K, n=7840), "split_k", "k and n are multiples of 64"),
    (replace(NZ, is_nz=False), "nz_splitk", "weight is FRACTAL_NZ and transposed"),
    (replace(NZ, scaling="tensor"), "nz_splitk", "scales are per channel"),
    (replace(NZ, deterministic=True), "nz_splitk",
     "deterministic is False, for it adds atomically"),
    (call(8, 128, 64, "i64", "tB"), "custom", "antiquant_scale is a float"),
    (call(8, 128, 64, "int4", "nz", "g32"), "custom", "antiquant_group_size is 64 or 128"),
    (call(8, 96, 64, "int4", "nz", "g64"), "custom", "k is a multiple of antiquant_group_size"),
    (call(8, 128, 64, "int4", "nz", "g64", "tB"), "custom", "weight is not transposed"),
    (call(8, 128, 64, "tB"), "fixpipe", "antiquant_scale is int64"),
    (call(97, 128, 64, "tB", "i64"), "fixpipe", "m <= 96"),
    (call(8, 96, 64, "tB", "i64"), "fixpipe", "k and n are multiples of 64"),
    (call(8, 128, 64, "i64"), "fixpipe", "weight is int8 and transposed"),
    (call(8, 128, 64, "tB", "tA", "i64"), "fixpipe", "x is not transposed"),
    (call(8, 128, 64, "tB", "i64", "bf16"), "fixpipe", "x and output are float16"),
    (call(8, 128, 64, "tB", "i64", "tensor"), "fixpipe", "scales are per channel"),
]  # fmt: skip
OP = "npu_weight_quant_batchmatmul"
REMEDY = "leave it out to get the vendor's choice"


def assert_refused(
    traits: CallTraits, chip: Any, template: str | None, text: str, code: Code
) -> None:
    message = f"{OP}: {text} [{code.value}]"
    with pytest.raises(OpError, match="^" + re.escape(message) + "$") as caught:
        choose(traits, chip, template)
    assert caught.value.code is code


def test_a_need_cannot_be_overruled(subtests: pytest.Subtests) -> None:
    for traits, template, need in HARD:
        with subtests.test(need):
            text = f"template {template!r} can run only if {need}; {REMEDY}"
            assert_refused(traits, CHIPS[24], template, text, Code.INVALID_PARAMETER)


def test_each_line_has_its_own_templates() -> None:
    text = (
        "template must be split_k, msd_group, msd, nz_splitk, custom or fixpipe on "
        f"Atlas A2 and Atlas A3, not 'weight_nz'; {REMEDY}"
    )
    assert_refused(CHANNEL, CHIPS[24], "weight_nz", text, Code.INVALID_PARAMETER)
    text = f"template must be weight_nz on Atlas inference, not 'custom'; {REMEDY}"
    assert_refused(CHANNEL, ONLY_310P, "custom", text, Code.INVALID_PARAMETER)


@pytest.mark.parametrize("words", [(), ("nz",), ("tB",)])
def test_310p_takes_nothing_but_a_transposed_fractal_weight(words: tuple[str, ...]) -> None:
    text = (
        "no kernel takes the call, the last one, weight_nz, only if weight is FRACTAL_NZ and "
        "transposed; change that"
    )
    assert_refused(call(4, 64, 64, *words), ONLY_310P, None, text, Code.UNSUPPORTED)


# ---- cores along k ----


@pytest.mark.parametrize(
    ("traits", "aic", "step", "cores"),
    [
        # The vendor's block dim 22 is two parts of n times eleven of k.
        (call(1, 11008, 4096, "int4", "g128"), 24, 1024, 11),
        (call(1, 4096, 22016, "int4", "g128"), 24, 2048, 2),
        (call(1, 12288, 1792, "g64"), 20, 640, 20),
        (call(80, 4096, 1536, "nz", "tB"), 20, 1024, 4),
        (call(100, 1344, 128, "nz", "tB"), 20, 1024, 2),
        (call(65, 1000, 64, "nz", "tB"), 24, 1024, 1),
        (call(65, 40960, 64, "nz", "tB"), 24, 2048, 20),
    ],
)
def test_cores_share_k(traits: CallTraits, aic: int, step: int, cores: int) -> None:
    assert (k_step(traits, aic), k_cores(traits, aic)) == (step, cores)
