"""The example of LinearWeightQuant's document in numpy, and its kernels compared.

Prints which kernel ran and why, which others could have run, the time of each and its error; draws
when each pipe of one group of cores was busy:

    python examples/weight_quant.py [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import npusim
from npusim.reports.subject import longest_us
from npusim.reports.timeline import timeline

CARD = "Atlas A2"
OP = "npu_weight_quant_batchmatmul"


def document() -> None:
    """Eager mode as printed: int8 out, quant_scale packed, the weight transposed by its view."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8192, 320)).astype(np.float16)
    weight = rng.standard_normal((320, 256)).astype(np.int8)
    scale, offset = rng.standard_normal((2, 1, 256)).astype(np.float16)
    quant_scale, quant_offset = rng.standard_normal((2, 1, 256)).astype(np.float32)
    packed = npusim.run("npu_trans_quant_param", quant_scale, quant_offset, device=CARD).output
    run = npusim.run(OP, x, weight, scale, offset, packed, device=CARD)
    print(f"{run}\n  {run.template}: {run.reason}\n")


def kernels() -> dict[str, npusim.Run]:
    """Kernels that can multiply a few rows, on the same numbers."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((16, 512)).astype(np.float16)
    weight = rng.integers(-128, 128, (512, 1024)).astype(np.int8)
    scale = rng.uniform(0.001, 0.005, 1024).astype(np.float16)
    exact = x.astype(np.float64) @ (weight * scale.astype(np.float64))
    fractals = npusim.run("npu_format_cast", weight.T.copy(), "FRACTAL_NZ", device=CARD).output
    calls = {"msd": weight, "custom": weight, "nz_splitk": fractals.T}
    runs = {
        template: npusim.run(OP, x, held, scale, template=template, device=CARD)
        for template, held in calls.items()
    }
    runs["matmul, fp16"] = npusim.run("matmul", x, weight * scale, device=CARD)
    print(f"{'(16, 512) x (512, 1024)':24} {'time':>8}  largest error / largest value")
    for name, run in runs.items():
        error = np.abs(run.output.astype(np.float64) - exact).max() / np.abs(exact).max()
        print(f"{name:24} {run.time_us:5.2f} us  {error:.1e}")
    return runs


def main(folder: Path) -> None:
    """Run everything and draw into *folder*."""
    document()
    runs = kernels()
    figure = Figure((10, 8), layout="constrained")
    plots = figure.subplots(2)
    shown = "msd", "custom"
    # On one scale: what takes longer is longer.
    end_us = longest_us([runs[template] for template in shown])
    for ax, template in zip(plots, shown, strict=True):
        timeline(runs[template], cores=(0, 1), end_us=end_us, ax=ax)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "weight_quant.png", dpi=100)
    print(f"\nwhen each pipe was busy: {folder / 'weight_quant.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out"))
