"""Which card for which model: tokens a second of two models on three product lines, by weights.

Each model is given by its config.json and served by an engine: a step of decode for a batch of
requests, and the prefill of one prompt, with gaps between kernels and communication between cards:

    python examples/plan_a_model.py [--batch N] [--context N] [--prompt N] [--device NAME] [-o DIR]
"""

import argparse
from pathlib import Path

from matplotlib.figure import Figure

from npusim import models
from npusim.data.text import counted
from npusim.models.sweep import ModelRow
from npusim.reports import style
from npusim.reports.style import percent, size_named

DEVICES = ("Atlas A2", "Atlas A3", "Atlas 300I Pro")
QWEN_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
}
QWEN_32B = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 25600,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
MODELS = {"Qwen2.5-7B": (QWEN_7B, 1), "Qwen3-32B": (QWEN_32B, 4)}
"""Name -> the config.json, and the cards that share each layer."""
WEIGHTS = ("float", "w8a8")
LINE = "{:10} {:14} {:>5}  {:7} {:>10} {:>12} {:>6} {:>6} {:>14} {:>10}   {}"


def line(name: str, row: ModelRow) -> str:
    """What comes of one plan."""
    if row.step is None:
        return f"{name}, {row.device}, {row.variables['quant']}: {row.error}"
    step, decode = row.step, row.step.decode
    parts, memory = decode.parts, step.memory
    return LINE.format(
        *(name, row.device, step.asked.cards, row.variables["quant"]),
        *(f"{step.tpot_us / 1e3:.1f} ms", f"{decode.tokens_per_s:,.0f} /s"),
        *(percent(part.time_us / decode.time_us) for part in (parts.kernels, parts.gaps)),
        percent(parts.communication.time_us / decode.time_us),
        f"{step.ttft_us / 1e3:.0f} ms",
        size_named(memory.needed_bytes) + ("" if memory.fits else ", does not fit"),
    ).rstrip()


def main(words: list[str] | None = None) -> None:
    """Plan, print and draw."""
    parser = argparse.ArgumentParser(description="Plan which card a model runs on.")
    parser.add_argument("--batch", type=int, default=16, help="requests decoded together")
    parser.add_argument("--context", type=int, default=1024, help="tokens of each request")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt read alone")
    parser.add_argument("--device", action="append", help="a chip or product line; may be repeated")
    parser.add_argument("--engine", default="vllm-ascend-full", help="what serves the models")
    parser.add_argument("-o", "--out", type=Path, default=Path("out"), help="folder of the picture")
    asked = parser.parse_args(words)
    load = {name: getattr(asked, name) for name in ("batch", "context", "prompt", "engine")}
    print(
        LINE.format(
            *("model", "card", "cards", "weights", "TPOT", "decode", "kernels", "gaps"),
            *("communication", "TTFT", "memory of a card"),
        )
    )
    figure = Figure((10, 2 + 2 * len(MODELS)), layout="constrained")
    plots = figure.subplots(len(MODELS), sharex=True, squeeze=False)[:, 0]
    ends = []
    for (name, (config, tp)), ax in zip(MODELS.items(), plots, strict=True):
        model, device = models.load(config), asked.device or DEVICES
        try:
            found = models.sweep(model, {"quant": WEIGHTS}, device=device, tp=tp, **load)
        except ValueError as error:
            parser.error(str(error))
        print("\n".join(line(name, row) for row in found.rows))
        if len(found.bad) < len(found.rows):
            found.draw(ax=ax)
            cards = counted(tp, "card", "cards")
            style.title(ax, f"{name} on {cards}: time per output token")
            ends.append(ax.get_xlim()[1])
    if ends:
        ax.set_xlim(0, max(ends))  # of all of them, on one scale
    asked.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(asked.out / "plan_a_model.png", dpi=100)
    print(f"picture: {asked.out / 'plan_a_model.png'}")


if __name__ == "__main__":
    main()
