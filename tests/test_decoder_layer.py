"""The example of a decoder layer: close to float64, each kernel in its place, nothing untold."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim import OpError

PATH = Path(__file__).parent.parent / "examples" / "decoder_layer.py"


@pytest.fixture(scope="module")
def example() -> Any:
    found = importlib.util.spec_from_file_location("decoder_layer", PATH)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


HEADS = ["narrow"] * 3 + ["npu_apply_rotary_pos_emb"]
ATTENTION = "npu_fused_infer_attention_score"
NORM, ACTIVATION = "npu_add_rms_norm", "npu_swiglu"
PAGES = {"Atlas 300I Pro": "npu_reshape_and_cache"}


def chain(device: str, product: list[str]) -> list[str]:
    """The kernels of a layer whose products are of these."""
    attention = [*HEADS, PAGES.get(device, "npu_scatter_pa_kv_cache"), ATTENTION]
    return [*(NORM, *product, *attention, *product), *(NORM, *product, ACTIVATION, *product)]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("device", "kind", "product", "most"),
    [
        # A sum of k numbers of eight bits of mantissa, of 127 steps, and of 7 steps.
        ("Atlas A2", "bf16", ["matmul"], 0.005),
        ("Atlas A3", "W8A8", ["npu_dynamic_quant", "npu_quant_matmul"], 0.02),
        ("Atlas A2", "W4A16", ["npu_weight_quant_batchmatmul"], 0.1),
        ("Atlas 300I Pro", "fp16", ["matmul"], 0.001),
        ("Atlas 300I Pro", "W8A8", ["npu_quantize", "npu_quant_matmul"], 0.02),
    ],
)
def test_a_small_layer_is_close_to_float64(
    example: Any, device: str, kind: str, product: list[str], most: float
) -> None:
    real = "float16" if device == "Atlas 300I Pro" else "bfloat16"
    layer = example.Layer(device, kind, example.SMALL, example.drawn(example.SMALL, real))
    assert 0 < example.error_of(layer) < most
    assert [kernel.name for kernel in layer.kernels] == chain(device, product)
    missing = [kernel.name for kernel in layer.kernels if kernel.time_us is None]
    assert missing == ([ATTENTION] if device == "Atlas 300I Pro" else [])
    assert {kernel.work for kernel in layer.kernels} <= example.WORK.keys()


def test_the_layer_in_float64_sees_every_tensor(example: Any) -> None:
    given = example.drawn(example.SMALL, "bfloat16")
    right = example.exact(example.SMALL, given)
    for name in ("cos", "keys", "values", "first norm", "second norm", "QKV", "O", "down"):
        other = given | {name: given[name] * np.float32(1.5)}
        assert not np.allclose(example.exact(example.SMALL, other), right)


def test_time_alone_runs_the_same_kernels(example: Any) -> None:
    values, times = example.drawn(example.SMALL, "bfloat16"), None
    for given in (values, example.described(example.SMALL, "bfloat16")):
        layer = example.Layer("Atlas A2", "W8A8", example.SMALL, given)
        layer.output()
        found = [(kernel.name, kernel.time_us) for kernel in layer.kernels]
        assert times in (None, found)
        times = found


def test_what_a_chip_lacks_is_reported(
    example: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(example, "QWEN_7B", example.SMALL)
    example.main("Atlas 300I Pro", tmp_path)
    printed = capsys.readouterr().out
    heading = r"^(\w+) on Atlas 300I Pro: \S+ from float64 when small"
    assert re.findall(heading, printed, re.MULTILINE) == ["fp16", "W8A8"]
    assert re.findall(r"(\d+ of \d+) kernels timed", printed) == ["12 of 13", "16 of 17"]
    assert re.search(rf"^{ATTENTION} +not timed  attention +none measured$", printed, re.MULTILINE)
    assert "W4A16: npu_convert_weight_to_int4pack: the chip must be of Atlas A2" in printed
    assert (tmp_path / "decoder_layer.png").stat().st_size > 10_000


def test_a_refusal_is_the_operators_own(example: Any) -> None:
    layer = example.Layer("Atlas A2", "bf16", example.SMALL, {})
    with pytest.raises(OpError, match="x1 must be given"):
        layer.kernel("norms", NORM, None, None, None)


@pytest.mark.nightly
def test_the_readme_times(example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example.main("Atlas A2", tmp_path)
    printed = capsys.readouterr().out
    assert re.findall(r"(\d+ of \d+) kernels timed", printed) == [
        "13 of 13",
        "17 of 17",
        "13 of 13",
    ]
    shares = [int(share) for share in re.findall(r"^  products .*?(\d+) %$", printed, re.MULTILINE)]
    assert len(shares) == 3
    assert all(50 < share < 90 for share in shares)
    assert (tmp_path / "decoder_layer.png").stat().st_size > 10_000
