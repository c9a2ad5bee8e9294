"""The example that plans a model: its sums, its memory, what it prints and what it refuses."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from consoles import ROOT

EXAMPLES = ROOT / "examples"
A2, INFERENCE = "Atlas A2", "Atlas 300I Pro"
GIB = 1 << 30


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """It imports its neighbour, as a script does."""
    monkeypatch.syspath_prepend(EXAMPLES)
    found = importlib.util.spec_from_file_location("plan_a_model", EXAMPLES / "plan_a_model.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "plan_a_model", module)
    found.loader.exec_module(module)
    return module


def tiny(example: Any, model: Any, **changes: Any) -> Any:
    """*model* with three small layers."""
    sizes = {"hidden": 512, "heads": 4, "kv_heads": 2, "intermediate": 768}
    layer = example.Size(**sizes, tokens=4, context=40)
    return replace(model, layer=layer, layers=3, words=1024, **changes)


def test_weights_and_caches_take_what_the_models_are_known_for(example: Any) -> None:
    small, large = example.MODELS
    # 7.62 and 32.76 billion numbers (their model cards), of which norms and biases are not counted.
    assert small.weight_bytes("bf16") == pytest.approx(2 * 7.62e9, rel=1e-3)
    assert large.weight_bytes("bf16") == pytest.approx(2 * 32.76e9, rel=1e-3)
    tables = 4 * large.words * 5120
    layers = large.weight_bytes("bf16") - tables
    assert large.weight_bytes("W8A8") - tables == pytest.approx(layers / 2, rel=1e-3)
    # Four bits and, of 128 of them, a scale of 16.
    assert large.weight_bytes("W4A16") - tables == layers * (4 + 16 / 128) / 16
    # Two of 64 layers times 8 heads of 128 numbers of two bytes, in pages of 128 tokens.
    assert large.cache_bytes(16, 1000) == 2 * 64 * 16 * 1024 * 8 * 128 * 2


def test_a_card_that_is_too_small_is_reported(example: Any) -> None:
    _, large = example.MODELS
    load = example.Load(batch=16, context=1024, prompt=512)
    cards = {
        (device, kind): example.Plan(large, device, kind, load, {}).cards()
        for device, kind in ((A2, "bf16"), (A2, "W8A8"), (INFERENCE, "fp16"), (INFERENCE, "W8A8"))
    }
    assert cards == {
        (A2, "bf16"): 2,
        (A2, "W8A8"): 1,
        (INFERENCE, "fp16"): 3,
        (INFERENCE, "W8A8"): 2,
    }


NORMS = {"Qwen2.5-7B": 0, "Qwen3-32B": 2}
"""Model -> norms of heads in a layer."""


NO_INT4 = (
    "npu_weight_quant_batchmatmul: weight must be int8 on Atlas inference, not int32; pass its "
    "elements, which int32 holds packed, as int8 [161002]"
)


@pytest.mark.sample(4)
@pytest.mark.parametrize("device", [A2, INFERENCE])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_a_step_adds_up(example: Any, device: str, place: int, step: str) -> None:
    model = tiny(example, example.MODELS[place])
    load = example.Load(batch=4, context=40, prompt=32)
    size = load.sizes(model)[step]
    assert (size.requests, size.tokens) == {"decode": (4, 4), "prefill": (1, 32)}[step]
    real, kind = ("float16", "fp16") if device == INFERENCE else ("bfloat16", "bf16")
    layer = example.Step(device, kind, size, example.described(size, real))
    layer.model = model
    ends = layer.ends()
    assert [kernel.name for kernel in ends] == ["embedding", "npu_rms_norm", "matmul"]
    layer.output()
    names = [kernel.name for kernel in layer.kernels]
    assert names.count("npu_rms_norm") == NORMS[model.name]
    attention = [kernel.name for kernel in layer.kernels if kernel.work == "attention"]
    later = ["add"] if step == "prefill" else []
    assert attention == (
        ["matmul", "mul", *later, "softmax", "matmul"]
        if device == INFERENCE
        else ["npu_fused_infer_attention_score"]
    )
    total = 3 * example.total_us(layer.kernels) + example.total_us(ends)
    plan = example.planned(model, device, kind, load)
    assert sum(plan.works_us[step].values()) == pytest.approx(total)
    assert plan.per_s(step) == pytest.approx(1e6 * size.tokens / total)


def test_all_plans_are_printed_and_drawn(
    example: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(example, "MODELS", tuple(tiny(example, each) for each in example.MODELS))
    load = ["--batch", "2", "--context", "40", "--prompt", "32"]
    example.main([*load, "--device", A2, "--device", INFERENCE, "-o", str(tmp_path / "new")])
    title, _, *lines = capsys.readouterr().out.splitlines()
    assert title == "2 requests of 40 tokens decoded together, a prompt of 32 read alone"
    row = r"(\S+) +(Atlas \S+(?: Pro)?) +(\w+) +[\d,]+ /s +\d+ % +\d+ % +[\d,]+ /s +0\.0 \+ 0\.0"
    rows = [found.groups() for line in lines if (found := re.fullmatch(row, line))]
    assert rows == [
        (model.name, device, kind)
        for model in example.MODELS
        for device, kinds in ((A2, ("bf16", "W8A8", "W4A16")), (INFERENCE, ("fp16", "W8A8")))
        for kind in kinds
    ]
    assert lines[len(rows) :] == [
        *(f"{model.name}, {INFERENCE}, W4A16: {NO_INT4}" for model in example.MODELS),
        f"picture: {tmp_path / 'new' / 'plan_a_model.png'}",
    ]
    assert (tmp_path / "new" / "plan_a_model.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--batch", "0"], "--batch must be from 1 to 256, not 0; pass a number of these"),
        (["--context", "32769"], "--context must be from 1 to 32768, not 32769; pass a number of "
                                 "these"),
        (["--prompt", "-3"], "--prompt must be from 1 to 32768, not -3; pass a number of these"),
        (["--batch", "many"], "argument --batch: invalid int value: 'many'"),
        (["-o", __file__], f"--out must be a folder, not the file {__file__}; name another one"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    example: Any, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        example.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].partition(": error: ")[2] == told


def test_an_unknown_chip_is_refused(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        example.main(["--device", "Atlas A9"])
    assert "error: " in capsys.readouterr().err


@pytest.mark.nightly
def test_the_readme_shows_what_it_prints(
    example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    pattern = r"^`python examples/plan_a_model.py (.*?)` draws.*?^```text\n(.*?)^```"
    shown = re.search(pattern, text, re.DOTALL | re.MULTILINE)
    assert shown is not None
    example.main([*shown[1].split(), "-o", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    # Behind the table stand refusals and the picture.
    printed = "".join(f"{line}\n" for line in lines if not re.match(r"\S+, |picture: ", line))
    if pytestconfig.getoption("--update-golden"):
        readme.write_text(text.replace(shown[2], printed), encoding="utf-8")
        return
    assert printed == shown[2]
