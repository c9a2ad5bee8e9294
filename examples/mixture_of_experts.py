"""A layer of experts on Atlas A2: each token goes to some of them, and their outputs are added up.

The gate chooses experts, rows are sorted by expert and quantised on the way, each expert multiplies
its rows by two int8 weights with a SwiGLU between, and the results return to their tokens. Prints
the time of each kernel and the error of the layer; draws when each pipe of the routing kernels was
busy:

    python examples/mixture_of_experts.py [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import npusim
from npusim.reports.subject import longest_us
from npusim.reports.timeline import timeline

CARD = "Atlas A2"
TOKENS, WIDTH, INNER = 64, 512, 256
EXPERTS, CHOSEN = 16, 4
GATE = {"norm_type": 1, "k_group": 2, "group_count": 4, "group_select_mode": 1}
ROUTING = ("npu_moe_gating_top_k", "npu_moe_init_routing_v2", "npu_moe_finalize_routing")


def numbers() -> dict[str, np.ndarray]:
    """Tokens, what the gate thinks of them, and the weights of all experts."""
    rng = np.random.default_rng(0)
    return {
        "tokens": rng.standard_normal((TOKENS, WIDTH)).astype(np.float16),
        "scores": rng.standard_normal((TOKENS, EXPERTS)).astype(np.float32),
        "bias": rng.standard_normal(EXPERTS).astype(np.float32) / 4,
        "up": rng.integers(-127, 128, (EXPERTS, WIDTH, 2 * INNER)).astype(np.int8),
        "up_scale": rng.uniform(1e-4, 5e-4, (EXPERTS, 2 * INNER)).astype(np.float32),
        "down": rng.integers(-127, 128, (EXPERTS, INNER, WIDTH)).astype(np.int8),
        "down_scale": rng.uniform(1e-4, 5e-4, (EXPERTS, WIDTH)).astype(np.float32),
    }


def layer(given: dict[str, np.ndarray]) -> list[npusim.Run]:
    """The kernels of the layer, one after the other; the last one gives the answers."""
    runs: list[npusim.Run] = []

    def run(op: str, *args: object, **kwargs: object) -> list[np.ndarray]:
        runs.append(npusim.run(op, *args, device=CARD, **kwargs))
        return list(runs[-1].outputs.values())

    def expert(x: np.ndarray, name: str, ends: np.ndarray, scale: np.ndarray) -> np.ndarray:
        (y,) = run(
            "npu_grouped_matmul",
            [x],
            [given[name]],
            scale=[given[f"{name}_scale"]],
            per_token_scale=[scale],
            group_list=ends,
            split_item=3,
            group_type=0,
            output_dtype="float16",
        )
        return y

    weights, experts, _ = run(
        "npu_moe_gating_top_k", given["scores"], CHOSEN, bias=given["bias"], **GATE
    )
    rows, places, ends, scale = run(
        "npu_moe_init_routing_v2",
        given["tokens"],
        experts,
        expert_num=EXPERTS,
        expert_tokens_num_flag=True,
        quant_mode=1,
    )
    (half,) = run("npu_swiglu", expert(rows, "up", ends, scale))
    half, scale = run("npu_dynamic_quant", half)
    answers = expert(half, "down", ends, scale)
    weights = weights.astype(np.float16)
    run("npu_moe_finalize_routing", answers, None, None, None, weights, places, None, 2)
    return runs


def exact(given: dict[str, np.ndarray], experts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The same in float64, token by token, for the experts that the gate chose."""
    result = np.zeros((TOKENS, WIDTH))
    for token, choice in np.ndindex(TOKENS, CHOSEN):
        number = experts[token, choice]
        up = given["tokens"][token].astype(np.float64) @ (
            given["up"][number] * given["up_scale"][number].astype(np.float64)
        )
        left, right = up[:INNER], up[INNER:]
        half = left / (1 + np.exp(-left)) * right
        down = given["down"][number] * given["down_scale"][number].astype(np.float64)
        result[token] += weights[token, choice] * (half @ down)
    return result


def main(folder: Path) -> None:
    """Run the layer and draw into *folder*."""
    given = numbers()
    runs = layer(given)
    for run in runs:
        print(f"{run.op:26} {run.time_us:6.2f} us  {run.template or ''}")
    print(f"{'the layer':26} {sum(run.time_us for run in runs):6.2f} us")
    weights, experts, _ = runs[0].outputs.values()
    wanted = exact(given, experts, weights)
    error = np.abs(runs[-1].output.astype(np.float64) - wanted).max() / np.abs(wanted).max()
    print(f"largest error / largest value: {error:.1e}")
    shown = [run for run in runs if run.op in ROUTING]
    figure = Figure((10, 9), layout="constrained")
    plots = figure.subplots(len(shown))
    end_us = longest_us(shown)
    for ax, run in zip(plots, shown, strict=True):
        timeline(run, cores=(0, 1), end_us=end_us, ax=ax)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "mixture_of_experts.png", dpi=100)
    print(f"when each pipe was busy: {folder / 'mixture_of_experts.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out"))
