"""How fast torch_npu scripts run on a simulated card, as ratios of two things measured in one run.

(i) an elementwise operation of plain torch on a small npu tensor, against the same on the CPU;
(j) an operator through torch_npu, against npusim.run on the same data;
(k) a decode step of 32 layers of a 7B, by shapes alone: a further one against the first, as
    transformers has it and with torch_npu's operators;
(l) what is npusim's of a launch that was made before: its key, where it is found, and its row in a
    record, against a sum of two small tensors on the CPU;
(m) processor time of a prefill of 512 tokens and of a decode step behind it, of Qwen3-32B with all
    64 layers by shapes alone, as transformers has it, for the first time and again, against the
    same on torch's meta device; and the peak memory of a separate process that does it.
(n) operations of plain torch on small npu tensors that were launched before, in processor time,
    against a sum of two small tensors on the CPU.

It needs the extra `npusim[torch]`, and for (k) and (m) `npusim[models]`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import npusim
import npusim.torch

npusim.torch.install(device="ascend910b2")

import torch  # noqa: E402
import torch_npu  # noqa: E402

from npusim.torch import card, kernels  # noqa: E402

REPEATS, ROUNDS = 2000, 7
SHAPES = ((16, 64), (1024, 1024))


def fastest(repeats: int, *works: Callable[[], Any]) -> list[float]:
    """Seconds a run of each work, in the fastest of a few rounds taken in turn."""
    best = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for index, work in enumerate(works):
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            best[index] = min(best[index], (time.perf_counter() - start) / repeats)
    return best


def elementwise() -> None:
    """(i)"""
    on_cpu = torch.rand(16, 16)
    on_npu = on_cpu.npu()
    ours, theirs = fastest(REPEATS, lambda: on_npu * on_npu, lambda: on_cpu * on_cpu)
    print(
        f"(i) x * x of 16 x 16 on npu:0           {ours / theirs:.1f} x the same on the CPU  "
        f"({ours * 1e6:.1f} us : {theirs * 1e6:.1f} us)"
    )


def again() -> None:
    """(n)"""
    small, rows, half = (
        torch.rand(16, 16),
        torch.rand(16, 16).npu(),
        torch.rand(64, 64).half().npu(),
    )
    turned = half.t()
    works: dict[str, Callable[[], Any]] = {
        "x * x of 16 x 16": lambda: rows * rows,
        "softmax of 16 x 16": lambda: rows.softmax(-1),
        "a transposed copy of 64 x 64": lambda: turned.contiguous(),
        "a product of 64 x 64 x 64": lambda: half @ half,
        "cos of 16 x 16, on the host": lambda: rows.cos(),
    }
    for name, work in works.items():
        ours, sums = fastest(200, work, lambda: small + small)
        print(
            f"(n) again, {name:29} {ours / sums:.1f} x a sum of 16 x 16 on the CPU  "
            f"({ours * 1e6:.1f} us : {sums * 1e6:.1f} us)"
        )


def operator(shape: tuple[int, int]) -> None:
    """(j)"""
    x, scales = torch.randn(shape).half(), torch.rand(shape[1]).half()
    on_npu = x.npu(), scales.npu(), None, torch.qint8, -1, False
    plain = x.numpy(), scales.numpy(), None, "qint8", -1, False
    ours, theirs = fastest(
        20 if shape == SHAPES[0] else 3,
        lambda: torch_npu.npu_quantize(*on_npu),
        lambda: npusim.run("npu_quantize", *plain, device="ascend910b2"),
    )
    size = " x ".join(map(str, shape))
    print(
        f"(j) npu_quantize fp16 {size:<17} {ours / theirs:.2f} x npusim.run  "
        f"({ours * 1e3:.1f} ms : {theirs * 1e3:.1f} ms)"
    )


@torch.inference_mode()
def decode_step(kind: str) -> None:
    """(k)"""
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    import tiny_models
    from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig

    # Those of Llama-2-7B.
    config = LlamaConfig(num_hidden_layers=32, hidden_size=4096, intermediate_size=11008)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model = model.to_empty(device="npu")
    if kind != tiny_models.AS_IT_STANDS:
        model = tiny_models.for_card(model, kind, None)
    words = torch.zeros(16, 1, dtype=torch.int64, device="npu")
    shape = 16, config.num_key_value_heads, 1023, config.head_dim
    seconds = []
    for _ in range(3):
        cache, past = DynamicCache(config=config), words.new_empty(shape, dtype=torch.bfloat16)
        for layer in range(config.num_hidden_layers):
            cache.update(past, past, layer)
        start = time.process_time()
        with torch.no_grad():  # as `generate` has it
            model(words, past_key_values=cache)
        seconds.append(time.process_time() - start)
    first, again = seconds[0], min(seconds[1:])
    print(
        f"(k) decode step of a 7B, {kind:<12} {again / first:.2f} x the first one  "
        f"({again:.2f} s : {first:.1f} s of the processor)"
    )


@torch.inference_mode()
def known_launches() -> None:
    """(l)"""
    rows = torch.empty(16, 5120, dtype=torch.bfloat16, device="npu")
    query = torch.empty(1, 64, 1, 128, dtype=torch.bfloat16, device="npu")
    cache = torch.empty(1, 8, 512, 128, dtype=torch.bfloat16, device="npu")
    heads = {"num_heads": 64, "num_key_value_heads": 8, "scale": 0.1, "input_layout": "BNSD"}
    calls: dict[str, dict[str, Any]] = {
        "mul": {"x": rows, "other": rows},
        "npu_fused_infer_attention_score": {"query": query, "key": cache, "value": cache, **heads},
    }
    small = torch.rand(16, 16)
    for name, given in calls.items():
        kernels.launch(name, given)

        def again(name: str = name, given: dict[str, Any] = given) -> None:
            assert card.again((name, kernels.described_all(name, given))) is not None

        with npusim.torch.record(name):
            ours, sums = fastest(100, again, lambda: small + small)
        print(
            f"(l) again, {name:32} {ours / sums:.1f} x a sum of 16 x 16 on the CPU  "
            f"({ours * 1e6:.1f} us : {sums * 1e6:.1f} us)"
        )


def whole_model() -> None:
    """(m)"""
    words = [sys.executable, __file__]
    found = {}
    for device in ("npu", "meta"):
        done = subprocess.run([*words, device], check=True, capture_output=True, text=True)
        found[device] = [float(word) for word in done.stdout.split()]
    *seconds, peak_mib = found["npu"]
    prefill, decode = found["meta"][1], found["meta"][3]
    for name, own, theirs in zip(
        ("prefill of 512, first", "prefill of 512, again", "decode, first", "decode, again"),
        seconds,
        (prefill, prefill, decode, decode),
        strict=True,
    ):
        print(
            f"(m) Qwen3-32B, {name:22} {own / theirs:5.2f} x on the meta device  "
            f"({own:.2f} s : {theirs:.2f} s of the processor, {peak_mib:.0f} MiB)"
        )


@torch.inference_mode()
def report_steps(device: str) -> None:
    """Print processor seconds of two prefills and two decode steps on *device*, and the peak."""
    from transformers import AutoModelForCausalLM, DynamicCache, Qwen3Config

    npusim.torch.install(device="ascend910b2", values=False)
    # That of Qwen3-32B, by its config.json.
    config = Qwen3Config(
        hidden_size=5120,
        intermediate_size=25600,
        num_hidden_layers=64,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        max_position_embeddings=40960,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model = model.to_empty(device=device)
    seconds = []
    for tokens, past in ((512, 0), (512, 0), (1, 511), (1, 511)):
        cache = DynamicCache(config=config)
        shape = 1, config.num_key_value_heads, past, config.head_dim
        states = torch.empty(shape, dtype=torch.bfloat16, device=device)
        for layer in range(config.num_hidden_layers if past else 0):
            cache.update(states, states, layer)
        words = torch.empty(1, tokens, dtype=torch.int64, device=device)
        start = time.process_time()
        model(words, past_key_values=cache, logits_to_keep=1)
        seconds.append(time.process_time() - start)
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    print(*seconds, int(peak.split()[1]) / 1024)


def main() -> None:
    elementwise()
    again()
    for shape in SHAPES:
        operator(shape)
    if find_spec("transformers") is None:
        print("(k) and (m) left out: there is no transformers; pip install 'npusim[models]'")
        return
    npusim.torch.install(device="ascend910b2", values=False)
    for kind in ("as it stands", "bf16", "W8A8"):
        decode_step(kind)
    known_launches()
    whole_model()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        report_steps(sys.argv[1])
    else:
        main()
