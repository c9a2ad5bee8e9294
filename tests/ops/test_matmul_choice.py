"""Which of the vendor's kernels takes a product: each rule, and what each kernel needs."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from npusim import Code, OpError, devices
from npusim.ops.matmul.choice import Template, choose
from npusim.ops.matmul.traits import CallTraits

B2 = devices.load("ascend910b2")


def call(m: int, k: int, n: int, *words: str, **more: Any) -> CallTraits:
    """A call in words: bf16, tA, tB, nz, bias."""
    meaning: dict[str, dict[str, Any]] = {
        "bf16": {"element": "bfloat16"},
        "tA": {"trans_x1": True},
        "tB": {"trans_x2": True},
        "nz": {"is_nz": True},
        "bias": {"has_bias": True},
        "wide": {"is_wide": True},
    }
    for word in words:
        more |= meaning[word]
    return CallTraits(m, k, n, **more)


@pytest.mark.parametrize(
    ("asked", "template"),
    [
        # Many rows, little k, and ragged columns, or listed ones.
        (call(12288, 128, 48), "bl1_aligned_output"),
        (call(12287, 128, 48), "nd2nz"),
        (call(12288, 136, 48), "nd2nz"),
        (call(12288, 8, 12), "nd2nz"),
        (call(12288, 128, 48, "tA"), "base"),
        (call(4112, 256, 96), "bl1_full_load"),
        (call(4096, 256, 96), "base"),
        (call(8192, 272, 96), "nd2nz"),
        (call(8192, 256, 112), "base"),
        # Up to 256 rows, k and n from 6144 on: only longer ones if x2 is turned.
        (call(256, 6144, 6144), "al1_split_k"),
        (call(272, 6144, 6144), "base"),
        (call(256, 6144, 16384), "base"),
        (call(256, 9216, 16384), "al1_split_k"),
        (call(256, 20480, 65408, "bf16"), "al1_split_k"),
        (call(256, 6144, 6144, "nz"), "v2"),
        (call(256, 9216, 9344, "tB", "bias"), "al1_split_k"),
        (call(256, 9216, 9216, "tB"), "v2"),
        (call(256, 9088, 9344, "tB"), "v2"),
        (call(256, 20480, 32896, "tB"), "v2"),
        (call(256, 12288, 12288, "tA"), "nd2nz"),
        # FRACTAL_NZ: MatMulV3 from 1024 of m, k and n on.
        (call(1024, 1024, 1024, "nz"), "base"),
        (call(1023, 4096, 4096, "nz"), "v2"),
        (call(4096, 4096, 1023, "nz", "tB"), "v2"),
        # k from 27392 on and from twice m and n on; rectangles that occupy 7 of 10 cores.
        (call(4096, 27392, 6144, "bf16"), "single_core_split_k"),
        (call(4096, 27264, 6144, "bf16"), "base"),
        (call(4096, 27392, 13824, "bf16"), "base"),
        (call(2048, 27392, 2048, "bf16"), "deterministic_split_k"),
        # 40 % of the cores, or 640 columns a core with n from 896 to 2048.
        (call(4096, 65536, 1024, "bf16"), "deterministic_split_k"),
        (call(5120, 65536, 1152, "bf16"), "deterministic_split_k"),
        (call(9000, 65536, 1152, "bf16"), "single_core_split_k"),
        # Large outputs of a short k: the vendor's own tiling of 4096 cubed is that of base.
        (call(4096, 4096, 4096), "base"),
        (call(4096, 4096, 4096, "tB"), "v2"),
        # fp16 from eight times m and n on: turned x1 with m of 8192, turned x2 of whole 32 KiB.
        (call(1280, 16384, 2048, "tB"), "v2"),
        (call(2048, 16384, 2048, "tB"), "v2"),
        # Few blocks and k from 24 chunks on, unless only x2 is turned.
        (call(128, 9216, 384), "deterministic_split_k"),
        (call(128, 9088, 384), "base"),
        (call(128, 9216, 384, "bf16"), "base"),
        (call(128, 9216, 384, "tB"), "v2"),
        (call(128, 9216, 384, "tA", "tB"), "deterministic_split_k"),
        (call(512, 9216, 384), "base"),
        # Few rows and columns of a turned x1.
        (call(128, 1024, 128, "tA"), "deterministic_split_k"),
        (call(64, 999, 64, "tA"), "base"),
        (call(272, 4608, 64, "tA"), "nd2nz"),
        (call(64, 4609, 64, "tA"), "base"),
        # FRACTAL_NZ: less than 50 times as long as wide, unless k is from 27392 on.
        (call(128, 9216, 384, "nz"), "deterministic_split_k"),
        (call(5, 9216, 384, "nz"), "v2"),
        (call(5, 32768, 384, "nz"), "deterministic_split_k"),
        (call(4096, 61440, 8192, "nz"), "single_core_split_k"),
        # Ragged rows of what lies in ND.
        (call(512, 1040, 1024), "nd2nz"),
        (call(1009, 1024, 1024), "base"),
        (call(512, 1024, 1040), "nd2nz"),
        (call(512, 1024, 1040, "tB"), "v2"),
        (call(512, 1024, 1040, "nz"), "v2"),
        # Short rows of 32 to 256 and 384 bytes are good, unless there are very many.
        (call(512, 192, 48), "base"),
        (call(512, 208, 48), "nd2nz"),
        (call(8193, 192, 48), "nd2nz"),
        (call(8193, 16, 16), "base"),
        (call(40000, 65536, 128, "bf16"), "nd2nz"),
        # Rows of x2 in the same banks.
        (call(4096, 6656, 16384), "nd2nz"),
        (call(4096, 6400, 16384), "base"),
        (call(4000, 6656, 16384), "base"),
        # Sums in float32: MatMulV3, whose kernels of all of k store them.
        (call(512, 1024, 1024, "tB", "wide"), "base"),
        (call(1023, 4096, 4096, "nz", "wide"), "base"),
        (call(4112, 256, 96, "wide"), "bl1_full_load"),
        (call(256, 6144, 6144, "wide"), "base"),
        (call(128, 9216, 384, "wide"), "base"),
        (call(512, 1024, 1040, "tB", "wide"), "base"),
        (call(512, 1040, 1024, "tB", "wide"), "nd2nz"),
        # Several matrices never.
        (call(128, 9216, 384, matrices=2), "v2"),
    ],
)  # fmt: skip
def test_which_template_is_taken(asked: CallTraits, template: str) -> None:
    assert choose(asked, B2).template == template


def test_a_reason_is_given() -> None:
    reasons = [
        choose(asked, B2).reason
        for asked in (call(4096, 27392, 6144, "bf16"), call(128, 9216, 384))
    ]
    assert reasons == [
        "k = 27392 is cut, and the cores share m = 4096 and n = 6144",
        "k = 9216 is long, and m = 128 and n = 384 occupy few cores",
    ]


@pytest.mark.parametrize(
    ("asked", "template", "need"),
    [
        (call(8, 8, 8, matrices=2), name, "x2 is one matrix, and x1 is one or lies as (..., m, k)")
        for name in get_args(Template)
        if name not in ("v2", "base")
    ]
    + [
        (asked, "nd2nz", "rows of x1 or x2 in ND are ragged: no multiples of 256 bytes")
        for asked in (call(1009, 1024, 1024), call(5, 128, 1040, "nz"))
    ]
    + [
        (call(64, 257, 64), "bl1_full_load", "k <= 256"),
        (call(64, 64, 256), "bl1_aligned_output", "n < 256"),
        (call(257, 64, 64), "al1_split_k", "m <= 256"),
        (call(16, 64, 64, "tA"), "al1_split_k", "x1 is not transposed"),
    ],
)
def test_a_template_that_cannot_run_is_refused(asked: CallTraits, template: str, need: str) -> None:
    text = (
        f"matmul: template '{template}' can run only if {need}; "
        f"leave it out to get the vendor's choice [161002]"
    )
    with pytest.raises(OpError, match=f"^{re.escape(text)}$") as caught:
        choose(asked, B2, template)
    assert caught.value.code is Code.INVALID_PARAMETER


def test_a_chip_of_20_cores_sends_large_turned_products_to_matmul_v3() -> None:
    b4 = devices.load("ascend910b4")
    large = call(4096, 1024, 1024, "tB")
    choice = choose(large, b4)
    assert choice.template == "base"
    assert choice.reason == "none of m, k and n is below 1024, on 20 cores"
    assert choose(large, B2).template == "v2"
    assert choose(call(1023, 1024, 4096, "tB"), b4).template == "v2"
    assert choose(call(4096, 1024, 1024, "tB", "tA"), b4).template == "v2"
