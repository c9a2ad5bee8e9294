"""What a launch of a torch script costs the processor, with values, in tiny models of transformers.

Each has two layers and random weights of bfloat16. It reports

* the first forward of a prompt of nine words on the card, which finds what later ones repeat;
* later forwards, each of other words, so that experts are chosen anew, and their ratio to those of
  plain torch on the CPU in the same process;
* the same of `generate` with four new words.

Seconds are the processor's, on one thread, the median of several; launches are the kernels that a
card would run, timed or not. With `--train` it reports a training step of a tiny Llama instead:
forward, backward, AdamW. It needs `npusim[models]`; names of models run these alone:

    nice .venv/bin/python benchmarks/tiny_models.py [--train] [NAME ...]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

BEGAN = time.process_time()
import torch  # noqa: E402

TORCH_SECONDS = time.process_time() - BEGAN
import npusim.torch  # noqa: E402

npusim.torch.install(device="ascend910b2")
IMPORT_SECONDS = time.process_time() - BEGAN - TORCH_SECONDS

import transformers  # noqa: E402

from npusim.run.memory_cache import forget  # noqa: E402
from npusim.torch.clock import clock  # noqa: E402

PROMPT, NEW_WORDS = 9, 4
FORWARDS, GENERATIONS, STEPS = 9, 3, 5
SIZE = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}
LOCAL_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
LATENT = {
    "moe_intermediate_size": 64,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "full_attention"],
}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {},
    "Qwen2": {},
    "Qwen3": {},
    "Gemma": {},
    "Gemma2": {},
    "Phi3": {"pad_token_id": 0},
    "Glm": {"pad_token_id": 0},
    "GPT2": {"vocab_size": 512, "n_embd": 128, "n_layer": 2, "n_head": 4},
    "GPTNeoX": {},
    "Bert": {},
    "Qwen2Moe": {**EXPERTS, "shared_expert_intermediate_size": 64},
    "Qwen3Moe": EXPERTS,
    "Mixtral": LOCAL_EXPERTS,
    "DeepseekV3": LATENT,
    "GptOss": LOCAL_EXPERTS,
    "Qwen3Next": {**EXPERTS, **LINEAR, "shared_expert_intermediate_size": 64},
}
"""Model -> what its configuration has besides `SIZE`."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor seconds of a piece of work, and the kernels that a card would run for it."""

    seconds: float
    launches: int

    @property
    def launch_us(self) -> float:
        """Microseconds of the processor for each launch."""
        return self.seconds / max(self.launches, 1) * 1e6


def cost(work: Callable[[], Any]) -> Cost:
    """Those of *work*."""
    before, start = _launches(), time.process_time()
    work()
    return Cost(time.process_time() - start, _launches() - before)


def typical(costs: Sequence[Cost]) -> Cost:
    """The median of *costs*."""
    return Cost(median(x.seconds for x in costs), round(median(x.launches for x in costs)))


def _launches() -> int:
    return clock.kernels + clock.not_timed.total()


def model_of(name: str) -> Any:
    """The tiny model *name*, on the CPU."""
    given = MODELS[name] if name == "GPT2" else SIZE | MODELS[name]
    config = getattr(transformers, f"{name}Config")(**given)
    torch.manual_seed(0)
    kind = "AutoModelForMaskedLM" if name == "Bert" else "AutoModelForCausalLM"
    return getattr(transformers, kind).from_config(config, dtype=torch.bfloat16).eval()


def prompt(number: int) -> torch.Tensor:
    """Some words, on the CPU: others for each *number*."""
    return torch.randint(SIZE["vocab_size"], (1, PROMPT), generator=torch.manual_seed(number))


def served(name: str) -> str:
    """A row of what *name* costs: its first forward, later ones, and generated words."""
    with torch.inference_mode():
        return _served(name)


def _served(name: str) -> str:
    forget()
    npusim.torch.install(device="ascend910b2")
    forwards, written = {}, {}
    for device in ("cpu", "npu"):
        model = model_of(name).to(device)
        prompts = [prompt(number).to(device) for number in range(FORWARDS + 1)]
        forwards[device] = [cost(partial(model, words)) for words in prompts]
        written[device] = [
            cost(partial(model.generate, words, max_new_tokens=NEW_WORDS, eos_token_id=None))
            for words in prompts[: GENERATIONS + 1 if name != "Bert" else 0]
        ]
    first, *later = forwards["npu"]
    again, plain = typical(later), typical(forwards["cpu"][1:])
    row = (
        f"{name:10} first {first.seconds:5.2f} s; then {again.seconds * 1e3:6.1f} ms of "
        f"{again.launches:3} launches, {again.launch_us:4.0f} us each, "
        f"{again.seconds / plain.seconds:5.1f} x the CPU"
    )
    if name == "Bert":
        return row
    again, plain = typical(written["npu"][1:]), typical(written["cpu"][1:])
    return f"{row}; generate {again.launch_us:4.0f} us each, {again.seconds / plain.seconds:5.1f} x"


def trained() -> list[str]:
    """Rows of what a training step of a tiny Llama costs, part by part."""
    found: dict[str, list[tuple[Cost, ...]]] = {}
    for device in ("cpu", "npu"):
        model, words = model_of("Llama").to(device).train(), prompt(0).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        found[device] = [_step(model, words, optimizer) for _ in range(STEPS + 1)]
    rows = []
    for part, on_npu, on_cpu in zip(
        ("forward", "backward", "AdamW"),
        *(zip(*found[device], strict=True) for device in ("npu", "cpu")),
        strict=True,
    ):
        again, plain = typical(on_npu[1:]), typical(on_cpu[1:])
        rows.append(
            f"Llama, {part:8} first {on_npu[0].seconds:5.2f} s; then {again.seconds * 1e3:6.1f} ms "
            f"of {again.launches:3} launches, {again.launch_us:4.0f} us each, "
            f"{again.seconds / plain.seconds:5.1f} x the CPU"
        )
    return rows


def _step(model: Any, words: torch.Tensor, optimizer: torch.optim.Optimizer) -> tuple[Cost, ...]:
    """Forward, backward and update."""
    losses: list[torch.Tensor] = []

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    forward = cost(lambda: losses.append(model(words, labels=words).loss))
    return forward, cost(losses[0].backward), cost(update)


def main() -> None:
    """Print a row for each model that is asked for."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("names", nargs="*", metavar="NAME", help="models; all without one")
    asked.add_argument("--train", action="store_true", help="a training step of Llama instead")
    given = asked.parse_args()
    torch.set_num_threads(1)
    print(
        f"import and install {IMPORT_SECONDS:.2f} s, "
        f"{IMPORT_SECONDS / TORCH_SECONDS:.2f} x import torch"
    )
    if given.train:
        print(*trained(), sep="\n")
        return
    for name in given.names or MODELS:
        print(served(name), flush=True)


if __name__ == "__main__":
    main()
