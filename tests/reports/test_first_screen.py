"""The first screen of a page: what stands in large, where the time goes, what to change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import npusim
from npusim import TensorSpec, devices
from npusim.reports import first_screen
from npusim.run.page import recorded

CALL = TensorSpec((64, 4096), "float16"), TensorSpec((4096, 4096), "float16")


def screen(tmp_path: Path, op: str, *call: TensorSpec, **options: object) -> tuple[str, float]:
    run = npusim.run(op, *call, **{"device": "Atlas A2"} | options)  # type: ignore[arg-type]
    assert run.time_us is not None
    return first_screen.of_run(recorded(run, tmp_path / "run"), run.advice()), run.time_us


def tiles(text: str) -> list[tuple[str, str]]:
    return re.findall(r"<div><b>(.*?)</b>(.*?)</div>", text)


def test_tiles_are_shares_of_the_whole_time(tmp_path: Path) -> None:
    text, time_us = screen(tmp_path, "matmul", *CALL)
    chip = devices.load("Atlas A2")
    ops_per_s = 2 * 64 * 4096 * 4096 / (time_us * 1e-6)
    cubes = chip.cores["aic"]
    peak = 2 * 16 * 16 * 16 * cubes.count * cubes.clock_hz
    time, of_peak, of_bandwidth, error = tiles(text)
    assert time == (f"{time_us:.1f} us", "time of the call")
    assert of_peak == (
        f"{100 * ops_per_s / peak:.0f} %",
        f"of the float16 peak, {ops_per_s / 1e12:.4g} TFLOPS of {peak / 1e12:.4g} TFLOPS",
    )
    assert of_bandwidth[1].endswith("of 1.545 TB/s")
    assert re.fullmatch(r"± \d+ %", error[0])
    assert re.fullmatch(r"expected error in 9 of 10 cases, from \d+ measured kernels", error[1])


def test_twice_the_bandwidth_is_a_smaller_share(tmp_path: Path) -> None:
    shares = []
    for factor in ("x1", "x2"):
        chip = devices.changed(devices.load("Atlas A2"), {"gm.read_bytes_per_s": factor})
        text, _ = screen(tmp_path / factor, "matmul", *CALL, device=chip)
        shares.append(int(tiles(text)[2][0].removesuffix(" %")))
    assert shares[1] < 0.75 * shares[0]


def test_parts_of_the_bar_are_the_whole_time(tmp_path: Path) -> None:
    text, _ = screen(tmp_path, "npu_dynamic_quant", TensorSpec((64, 4096), "float16"))
    bar = text[text.index('<div class="stack">') : text.index("</div>", text.index("stack"))]
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", bar)]
    assert sum(widths) == pytest.approx(100, abs=0.01)


def test_changes_are_lines_of_a_script(tmp_path: Path) -> None:
    scaled = TensorSpec((16, 5120), "int8"), TensorSpec((5120, 25600), "int8")
    text, _ = screen(
        *(tmp_path, "npu_quant_matmul", *scaled, TensorSpec((25600,), "float32")),
        output_dtype="float16",
    )
    assert re.findall(r"<code>(.*?)</code>", text)[:2] == [
        "scale = torch_npu.npu_trans_quant_param(scale)",
        "x2 = torch_npu.npu_format_cast(x2.t().contiguous(), 29).t()",
    ]
    assert "Bound by npu_trans_quant_param, a kernel that runs before npu_quant_matmul: " in text


def test_a_kind_without_measured_kernels_has_no_error(tmp_path: Path) -> None:
    text, _ = screen(tmp_path, "exp", TensorSpec((64, 4096), "float16"), device="Atlas 300I Pro")
    assert tiles(text)[3] == (
        "unvalidated",
        "no public measurement of this operator on Atlas inference",
    )


def test_one_measured_kernel_is_a_rough_guide(tmp_path: Path) -> None:
    one = TensorSpec((1, 1), "float16")
    text, _ = screen(tmp_path, "matmul", one, one)
    assert re.fullmatch(r"of the float16 peak, [\d.]+ kFLOPS of [\d.]+ TFLOPS", tiles(text)[1][1])
    error = tiles(text)[3][1]
    assert error == "expected error in 9 of 10 cases, from only 1 measured kernel"


def test_every_cause_has_a_colour_of_its_own() -> None:
    assert len(set(first_screen.COLORS.values())) == len(first_screen.COLORS)
