"""What a call returns shows itself in a notebook: as a picture, or as little text."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import npusim
from npusim import TensorSpec, devices

MOST_BYTES = 3000
PROFILE = Path(npusim.__file__).parents[1] / "examples" / "profile"
QWEN = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
    "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "num_hidden_layers": 28, "vocab_size": 151936,
    "max_position_embeddings": 40960,
}  # fmt: skip
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def run() -> npusim.Run:
    spec = TensorSpec((16, 5120), "int8"), TensorSpec((5120, 25600), "int8")
    scale = TensorSpec((25600,), "float32")
    return npusim.run("npu_quant_matmul", *spec, scale, output_dtype="float16", device="A2")


def test_a_picture_is_shown(run: npusim.Run) -> None:
    assert run.timeline()._repr_png_().startswith(PNG)
    assert "<svg" in run._repr_html_()


def test_text_is_short(run: npusim.Run, subtests: pytest.Subtests) -> None:
    rows = {"x": TensorSpec((64, 4096), "float16")}
    shown = {
        "run": run,
        "critical path": run.critical_path(),
        "advice": run.advice(),
        "accuracy": run.accuracy,
        "trace": run.trace,
        "device": devices.load("A2"),
        "sweep": npusim.sweep("npu_dynamic_quant", rows, device=["A2", "310P"], jobs=1),
    }
    steps = npusim.models.load(QWEN)
    shown["model"] = steps
    shown["step"] = step = steps.step(device="A2")
    shown["decode"] = step.decode
    shown["steps"] = npusim.models.sweep(steps, {"batch": [1]}, device="A2")
    shown["profile"] = profile = npusim.profile.read(PROFILE)
    shown["comparison"] = profile.compare("910B3", jobs=1)
    for name, each in shown.items():
        with subtests.test(name):
            assert 0 < len(repr(each).encode()) <= MOST_BYTES


def test_a_sweep_is_a_picture_with_which_is_the_fastest_where() -> None:
    sweep = npusim.sweep("npu_dynamic_quant", lambda m: {"x": TensorSpec((m, 4096), "float16")},
                         {"m": [1, 16]}, device=["A2", "310P"], jobs=1)  # fmt: skip
    shown = sweep._repr_html_()
    assert shown.startswith("<p>&lt;sweep of npu_dynamic_quant over device, m: 4 cells&gt;</p>")
    assert "is the fastest at" in shown
    assert "<svg" in shown


def test_a_step_and_a_comparison_begin_with_their_times() -> None:
    step = npusim.models.load(QWEN).step(device="A2")
    head, decode, prefill, memory = repr(step).splitlines()
    assert head == "step of Qwen3ForCausalLM, float, on 1 x ascend910b2, vllm-ascend"
    assert decode.startswith(f"  TPOT {step.tpot_us / 1e3:.2f} ms ± ")
    assert prefill.startswith(f"  TTFT {step.ttft_us / 1e3:.2f} ms ± ")
    assert memory == f"  memory: {step.memory}"
    found = npusim.profile.read(PROFILE).compare("910B3", jobs=1)
    first, *_, slow = repr(found).splitlines()
    assert first == "11 kernels on ascend910b3: 462.2 us in 484.2 us"
    assert slow.startswith("  2.01 x MatMulV2 16,4096;256,384,16,16: waiting: ")


def test_a_notebook_shows_how_far_a_sweep_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Handle:
        def update(self, line: dict[str, str], *, raw: bool) -> None:
            assert raw
            said.append(line["text/plain"])

    def display(line: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        said.append(line["text/plain"])
        return Handle()

    python, parts = ModuleType("IPython"), ModuleType("IPython.display")
    vars(python)["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    vars(parts)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", parts)
    rows = {"x": TensorSpec((64, 4096), "float16")}
    npusim.sweep("npu_dynamic_quant", rows, device=["A2", "310P"], jobs=1)
    assert said == [f"sweep: {done} of 2 cells" for done in (0, 1, 2)]
    vars(python)["get_ipython"] = lambda: object()
    npusim.sweep("npu_dynamic_quant", rows, device="A2", jobs=1)
    assert len(said) == 3


def test_a_critical_path_begins_with_what_takes_longest(run: npusim.Run) -> None:
    first, longest, *_ = repr(run.critical_path()).splitlines()
    path = run.critical_path()
    part = path.parts[0]
    assert first == f"critical path of {path.us:.2f} us, {len(path.steps)} steps"
    assert longest == (
        f"  {part.us:9.2f} us {part.share:6.1%}  nd2nz on mte2 of aic, {part.micro_ops} micro-ops, "
        "mostly ND-to-NZ conversion"
    )
