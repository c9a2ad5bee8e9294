"""The eleven examples of the operators' documents, as scripts that hold the same calls.

Where a document prints its inputs, `torch.randn` draws those instead, and the outputs must be what
the document prints.
"""

from __future__ import annotations

import re
import runpy
import warnings
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import printed
import pytest
from simulated_card import torch, torch_npu

import npusim
import npusim.torch
from npusim.torch.clock import clock

DOCUMENTS = Path(__file__).parent / "documents"
A2, A3, INFERENCE = "ascend910b2", "ascend910_9391", "ascend310p3"
SCALES, OFFSETS = zip(*printed.WORDS.values(), strict=True)

Play = Callable[..., dict[str, Any]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs an example on a card, drawing *numbers* first; gives the script's names."""

    def run(name: str, device: str = A2, numbers: tuple[Any, ...] = ()) -> dict[str, Any]:
        npusim.torch.install(device=device)
        torch.manual_seed(20260801)
        waiting = list(numbers)
        draw = torch.randn

        def fed(*size: Any, dtype: Any = None, **options: Any) -> Any:
            if not waiting:
                return draw(*size, dtype=dtype, **options)
            shape = size[0] if isinstance(size[0], tuple) else size
            given = torch.tensor(waiting.pop(0), dtype=torch.float64).flatten()
            assert given.numel() == prod(shape)
            return given.reshape(shape).to(dtype or torch.float32)

        monkeypatch.setattr(torch, "randn", fed)
        names = runpy.run_path(str(DOCUMENTS / f"{name}.py"))
        assert not waiting
        assert names["output"].device == torch.device("npu:0")
        return names

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENABLE_ACLNN", "false")
    yield run
    torch._dynamo.reset()


def expected_product(names: dict[str, Any]) -> Any:
    """int8 by the fixpipe: the scale cut to 19 bits, limits before the offset and after it."""
    x1, x2, bias = (names[key].numpy().astype(np.int64) for key in ("x1", "x2", "bias"))
    total = (x1 @ x2 + bias).astype(np.float32)
    bits = names["scale"].numpy().view(np.uint32) & np.uint32(0xFFFFE000)
    scaled = np.clip(np.rint(total * bits.view(np.float32)), -256, 255)
    return np.clip(scaled + np.rint(names["offset"].numpy()), -128, 127)


def expected_linear(names: dict[str, Any]) -> Any:
    """The formula in float64, which differs from the chip by its roundings."""
    x, weight, scale, offset, last_scale, last_offset = (
        names[key].cpu().double().numpy()
        for key in (
            *("x", "weight", "antiquantscale", "antiquantoffset"),
            *("quantscale", "quantoffset"),
        )
    )
    scaled = np.clip(x @ ((weight + offset) * scale) * last_scale, -256, 255)
    return np.clip(np.rint(scaled) + np.rint(last_offset), -128, 127)


@pytest.mark.parametrize("device", [A2, A3, INFERENCE])
def test_npu_trans_quant_param(play: Play, device: str) -> None:
    """The document prints no inputs: what its words hold packs to them."""
    output = play("trans_quant_param_eager", device, (SCALES, OFFSETS))["output"]
    assert output.dtype == torch.int64
    assert output.shape == torch.Size([16])
    assert output.tolist() == list(printed.WORDS)


@pytest.mark.sample(1)
@pytest.mark.parametrize("device", [A2, A3, INFERENCE])
def test_npu_trans_quant_param_in_a_graph(
    play: Play, capsys: pytest.CaptureFixture[str], device: str
) -> None:
    names = play("trans_quant_param_graph", device)
    output = names["output"]
    assert (output.shape, output.dtype) == (torch.Size([15, 1, 128]), torch.int8)
    assert capsys.readouterr().out.startswith("torch.Size([15, 1, 128])\ntensor([[[")
    np.testing.assert_array_equal(output.cpu().numpy(), expected_product(names))
    assert torch.equal(output, names["cpu_model"](*names["inputs"]))


@pytest.mark.parametrize("device", [A2, A3])
def test_npu_quantize_bfloat16(play: Play, device: str) -> None:
    output = play("quantize_bfloat16", device, (printed.BFLOAT16_X,))["output"]
    assert (output.dtype, output.tolist()) == (torch.int8, [[[0] * 12]])


@pytest.mark.parametrize("device", [INFERENCE, A2, A3])
def test_npu_quantize_float32(play: Play, device: str) -> None:
    output = play("quantize_float32", device, (printed.FLOAT32_X,))["output"]
    assert (output.dtype, output.tolist()) == (torch.int8, printed.FLOAT32_OUTPUT)


@pytest.mark.parametrize("device", [A2, INFERENCE])
def test_npu_quantize_in_a_graph(play: Play, tmp_path: Path, device: str) -> None:
    names = play("quantize_graph", device, (printed.FLOAT16_X,))
    assert names["output"].tolist() == printed.FLOAT16_OUTPUT
    (dump,) = tmp_path.glob("dynamo_optimized_graph_*_rank_0_pid_*_ts_*.pbtxt")
    assert "torch.ops.npu.npu_quantize.default" in dump.read_text()


GROUPS = (printed.GROUP_X, printed.GROUP_SCALE, printed.GROUP_OFFSET)


@pytest.mark.parametrize("device", [A2, A3])
@pytest.mark.parametrize("name", ["group_quant_eager", "group_quant_graph"])
def test_npu_group_quant(play: Play, name: str, device: str) -> None:
    output = play(name, device, GROUPS)["output"]
    assert (output.dtype, output.tolist()) == (torch.int8, printed.GROUP_OUTPUT)


def test_linear_weight_quant(play: Play) -> None:
    names = play("linear_weight_quant_eager")
    output = names["output"]
    assert (output.shape, output.dtype) == (torch.Size([8192, 256]), torch.int8)
    away = np.abs(output.cpu().numpy() - expected_linear(names))
    assert away.max() <= 1
    assert away.mean() < 0.01


IS_TAKEN = (
    r"^npu_weight_quant_batchmatmul: the document takes quant_scale with ND weights only, "
    r"but its own example passes it with a FRACTAL_NZ one; it is taken$"
)
IN_GRAPHS_ONLY = (
    r"^npu_weight_quant_batchmatmul: the document of LinearWeightQuant takes weights in "
    r"FRACTAL_NZ in graph mode only; it is taken; compile with torchair's backend, or leave the "
    r"weight in ND$"
)


def test_linear_weight_quant_in_a_graph(play: Play) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        names = play("linear_weight_quant_graph")
    assert [warning.category for warning in told] == [npusim.DocumentWarning]
    assert re.match(IS_TAKEN, str(told[0].message))
    # The script's own line, not one of npusim or torch.
    assert told[0].filename.endswith("linear_weight_quant_graph.py")
    output = names["output"]
    assert (output.shape, output.dtype) == (torch.Size([8192, 256]), torch.int8)
    assert torch_npu.get_npu_format(names["eager"].weight) == 29
    away = np.abs(output.cpu().numpy() - expected_linear(names))
    assert away.max() <= 2
    assert away.mean() < 0.05
    with (
        pytest.warns(npusim.DocumentWarning, match=IS_TAKEN),
        pytest.warns(npusim.DocumentWarning, match=IN_GRAPHS_ONLY),
    ):
        assert torch.equal(output, names["eager"](names["x"]))


def test_every_example_takes_simulated_time(play: Play) -> None:
    before = clock.now_us, clock.launches
    play("group_quant_eager")
    assert clock.launches == before[1] + 1
    assert clock.now_us > before[0]
