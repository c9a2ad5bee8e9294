"""The commands `decode-scale`, `compare` and `explain`: what they print, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import npusim_says, refused

from npusim import ops

# ---- decode-scale ----


def test_a_word_is_taken_apart() -> None:
    answer = npusim_says("decode-scale", "0x4000_3F80_0000")
    assert answer == (
        0,
        "int64          70369809530880\n"
        "hex            0x000040003F800000\n"
        "bits 31 to 13  0011111110000000000: scale 1\n"
        "bits 45 to 37  000000000: offset 0\n"
        "bit 46         1: 8-bit results are signed\n"
        "bits 12 to 0   0000000000000: cut off; the scale may have been up to 1.00097644, "
        "0.000975 of it lost\n",
        "",
    )
    assert npusim_says("decode-scale", "70369809530880") == answer


def test_bits_that_are_not_read_are_told() -> None:
    _, out, _ = npusim_says("decode-scale", "0x8000_0000_3F80_0001")
    assert "bit 46         0: 8-bit results are unsigned\n" in out
    assert (
        "bits 12 to 0   0000000000001: not read; with them the scale would be 1.00000012, "
        "1.19e-07 of it lost\n"
    ) in out
    assert "other bits     0x8000000000000000: npu_trans_quant_param sets none\n" in out


@pytest.mark.parametrize("word", ["0x7FC00000", "0x7F800001", "0x7F800000"])
def test_a_scale_need_not_be_a_number(word: str) -> None:
    code, out, err = npusim_says("decode-scale", word)
    assert (code, err) == (0, "")
    assert "scale nan" in out or "scale inf" in out
    found = json.loads(npusim_says("decode-scale", word, "--json").out)
    assert found["scale"] in ("nan", "inf")


def test_scale_and_offset_are_packed() -> None:
    assert npusim_says("decode-scale", "--encode", "0.1,-3").out == (
        "given          scale 0.100000001 as fp32, offset -3, round_mode 0\n"
        "error          -2.44156e-05, -0.000244 of the scale\n"
        "int64          140326208323584\n"
        "hex            0x00007FA03DCCC000\n"
        "bits 31 to 13  0011110111001100110: scale 0.0999755859\n"
        "bits 45 to 37  111111101: offset -3\n"
        "bit 46         1: 8-bit results are signed\n"
    )
    found = json.loads(npusim_says("decode-scale", "-e", "0.1", "--round-mode", "1", "--json").out)
    assert (found["round_mode"], found["given_offset"]) == (1, None)
    assert found["scale"] == float(np.uint32(0x3DCCC000).view(np.float32))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "a word or --encode must be given, and one only; write one"),
        (("1", "-e", "1"), "a word or --encode must be given, and one only; write one"),
        (("one",), "a word must be a whole number, not 'one'; write for example 70369809530880 or "
                   "0x4000_3F80_0000"),
        (("1" * 5000,), "a word must fit into 64 bits, not have 5000 digits; check it"),
        (("-e", "1,2,3"), "--encode must be SCALE or SCALE,OFFSET, finite numbers, not '1,2,3'; "
                          "write for example 0.1,-3"),
        (("-e", "nan"), "--encode must be SCALE or SCALE,OFFSET, finite numbers, not 'nan'; "
                        "write for example 0.1,-3"),
    ],
)  # fmt: skip
def test_wrong_words_are_refused(words: tuple[str, ...], message: str) -> None:
    refused(2, f"decode-scale: {message}", "decode-scale", *(words or ("--json",)))


# ---- compare ----


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    names = str(tmp_path / "a.npy"), str(tmp_path / "b.npy")
    np.save(names[0], np.float16([[1, 2], [3, np.nan]]))
    np.save(names[1], np.float16([[1, 2], [4, 1]]))
    return names


def test_measures_bear_the_names_of_the_vendors_tools(files: tuple[str, str]) -> None:
    assert npusim_says("compare", *files) == (
        1,
        "arrays                     float16 (2, 2): 2 of 4 differ, 1 of them not finite\n"
        "Cosine                     0.991460134\n"
        "MaxAbsErr                  1\n"
        "MaxRelativeErr             0.25\n"
        "MeanAbsoluteError          0.333333\n"
        "RootMeanSquareError        0.57735\n"
        "RelativeEuclideanDistance  0.218218\n"
        "max ulps                   512\n"
        "Accuracy Reached or Not    No\n"
        "\n"
        "index     A     B   absolute   relative   ulps\n"
        "──────────────────────────────────────────────\n"
        "1,1     nan   1.0\n"
        "1,0     3.0   4.0          1       0.25    512\n",
        "",
    )


def test_json_is_the_same(files: tuple[str, str]) -> None:
    code, out, err = npusim_says("compare", *files, "--json")
    assert (code, err) == (1, "")
    found = json.loads(out)
    assert (found["max_ulps"], found["accuracy_reached"]) == (512, False)
    assert found["worst"][0] == {"index": [1, 1], "a": "nan", "b": 1.0, "ulps": None}


def test_arrays_that_agree_are_a_yes(files: tuple[str, str]) -> None:
    code, out, _ = npusim_says("compare", files[1], files[1])
    assert code == 0
    assert "Accuracy Reached or Not    Yes\n" in out
    assert "index" not in out


def test_the_rest_of_many_is_counted() -> None:
    code, out, _ = npusim_says("compare", "arange:40", "zeros:40")
    assert code == 1
    assert out.endswith("and 29 more\n")


def test_two_types_have_no_ulps() -> None:
    _, out, _ = npusim_says("compare", "ones:2:float16", "ones:2")
    assert "arrays                     float16 and float32 (2,): 0 of 2 differ\n" in out
    assert "undefined for two types" in out


def test_both_sides_need_values(files: tuple[str, str]) -> None:
    refused(
        2,
        "compare: both sides must have values, not spec:2x2; name a file",
        *("compare", files[0], "spec:2x2"),
    )


# ---- explain ----

CALL = ("-i", "x=spec:4x64:float16")


def test_without_a_call_the_document_is_shown() -> None:
    code, out, err = npusim_says("explain", "npu_dynamic_quant")
    assert (code, err) == (0, "")
    assert out.startswith("npu_dynamic_quant(x, *, ")
    assert "    M = max|v| over the last dimension\n" in out
    assert "Sources: ops-nn@e5c3fa9" in out
    assert out.endswith("With -i and -a it explains a call.\n")
    assert set(json.loads(npusim_says("explain", "npu_dynamic_quant", "--json").out)) == {
        "op", "summary", "formula", "notes", "support",
    }  # fmt: skip


def test_a_call_is_explained_for_each_product_line() -> None:
    code, out, err = npusim_says("explain", "npu_dynamic_quant", "-d", "Atlas A2", *CALL)
    assert (code, err) == (0, "")
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert lines["Atlas inference"].split()[2:] == ["taken", "x", "float16", "as", "ND"]
    assert lines["Atlas A2"].split()[2:6] == ["taken", "x", "float16,", "bfloat16"]
    assert lines["chip"].split() == ["chip", "ascend910b2"]
    assert "in   x" in out
    assert "float16 (4, 64)" in lines["in"]
    assert "template" in lines
    assert "tiling block_dim" in lines


def test_what_is_launched_first_is_named() -> None:
    product = ("explain", "npu_quant_matmul", "-d", "Atlas A2", "-i", "x1=spec:16x64:int8")
    product += ("-i", "x2=spec:64x32:int8")
    code, out, err = npusim_says(*product, "-i", "scale=spec:32:float32")
    assert (code, err) == (0, "")
    assert "\nlaunched first" in out
    assert out.partition("launched first")[2].split()[0] == "npu_trans_quant_param"
    assert "launched first" not in npusim_says(*product, "-i", "scale=spec:32:int64").out


def test_a_refused_call_is_explained_too() -> None:
    packed = (*CALL, "-a", "dst_type=quint4x2")
    code, out, err = npusim_says("explain", "npu_dynamic_quant", "-d", "Atlas 300I Pro", *packed)
    assert (code, err) == (0, "")
    assert "\nrefused  npu_dynamic_quant: " in out
    assert "tiling" not in out


def test_an_explanation_as_json() -> None:
    words = ("explain", "npu_dynamic_quant", *CALL, "--json")
    found = json.loads(npusim_says(*words).out)
    assert found["call"]["lines"][1]["dtypes"] == {"x": ["float16", "bfloat16"]}
    assert found["call"]["outputs"]["output"]["shape"] == [4, 64]


def test_what_is_missing_is_told_in_its_own_name() -> None:
    refused(
        2,
        "explain: scales of npu_quantize must be given; add for example -i scales=randn:8x16",
        *("explain", "npu_quantize", "-i", "input=spec:8x64"),
    )


def test_a_custom_kernel_is_run_and_not_explained(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def add(spec, x): ...\n", encoding="utf-8")
    refused(
        2,
        "explain: OP must be an operator, one of " + ", ".join(ops.names()) + ", not the kernel "
        f"{file}:add; use npusim run for your own kernel",
        *("explain", f"{file}:add"),
    )
