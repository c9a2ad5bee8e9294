"""npu_quantize on the inputs of its own document, on an Atlas inference card and on Atlas A2.

Prints the int8 values, how many of them agree with the document, and the time; draws when each pipe
was busy:

    python examples/quantize.py [FOLDER]
"""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from matplotlib.figure import Figure

import npusim
from npusim.reports.timeline import timeline

# torch_npu-npu_quantize.md, the example for the Atlas inference series: input and printed output.
X_310P = """
-7.7834e-01 -1.0473e+00 -1.1155e+00  1.2233e+00 -1.2271e+00 -2.5612e+00
-1.8274e-01  2.8293e+00  1.9029e-01 -1.9333e+00 -4.9270e-01 -1.0650e+00
-8.9416e-01  3.1869e-02 -5.8144e-01 -4.9477e-01  9.7323e-02 -3.8681e-01
 2.1969e-03 -6.3244e-01  7.1591e-01 -1.8587e-01 -1.3381e+00 -2.6253e-01
 1.8462e-02  1.2397e-01 -9.0656e-01 -9.9280e-01 -4.4235e-02  1.0623e+00
-9.8437e-02  1.2941e+00  1.0805e+00 -1.7269e-01 -9.9205e-02 -6.1429e-01
 1.3678e+00 -2.7348e-01 -4.1354e-01 -9.4638e-01  4.2792e-01  8.0462e-01
 9.3584e-01  6.3704e-01  1.1269e+00 -1.5329e+00  5.8572e-01 -1.3966e+00
 3.5882e-01  8.7029e-01 -1.3176e+00  1.1601e+00 -3.6984e-01  7.3642e-01
-1.0755e+00  6.6557e-01  3.1149e+00 -6.8776e-01 -1.0913e+00  4.4962e-01
-1.2505e+00  1.5474e+00 -7.4332e-02 -1.6657e+00  1.3275e+00  5.8914e-02
 8.4287e-01 -1.7109e+00  1.8256e-01  3.2937e-01  2.4875e+00  1.3921e+00
"""
OUT_310P = """
-2 -3 -3 4 -4 -8 -1 8 1 -6 -1 -3   -3 0 -2 -1 0 -1 0 -2 2 -1 -4 -1   0 0 -3 -3 0 3 0 4 3 -1 0 -2
4 -1 -1 -3 1 2 3 2 3 -5 2 -4   1 3 -4 3 -1 2 -3 2 9 -2 -3 1   -4 5 0 -5 4 0 3 -5 1 1 7 4
"""
# The same document, the example for Atlas A2.
X_A2 = """
0.9609 1.3281 -0.6172 0.5469 -1.1797 -1.1719 -0.7422 0.9727 -0.9062 -0.0815 -0.8047 1.0703
"""
OUT_A2 = "0 0 0 0 0 0 0 0 0 0 0 0"

EXAMPLES = {
    "Atlas 300I Pro": (X_310P, (2, 3, 12), np.float32, 3.0, OUT_310P),
    "Atlas A2": (X_A2, (1, 1, 12), ml_dtypes.bfloat16, 0.1, OUT_A2),
}


def main(folder: Path) -> None:
    """Run both examples and draw them into *folder*."""
    figure = Figure((10, 9), layout="constrained")
    plots = figure.subplots(len(EXAMPLES))
    for ax, (card, example) in zip(plots, EXAMPLES.items(), strict=True):
        text, shape, dtype, scale, printed = example
        x = np.array(text.split(), np.float32).astype(dtype).reshape(shape)
        scales = np.full(12, scale, dtype)
        run = npusim.run("npu_quantize", x, scales, None, "qint8", -1, False, device=card)
        document = np.array(printed.split(), np.int8).reshape(shape)
        print(f"{card} ({run.device.name}): input {shape} {x.dtype}, scales {scale}")
        print(run.output)
        same = int((run.output == document).sum())
        print(f"{same} of {document.size} values are those that the document prints")
        print(f"{run.time_us:.2f} us, of which the slowest core takes {run.cycles} cycles\n")
        timeline(run, ax=ax)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "timeline.png", dpi=100)
    print(f"when each pipe was busy: {folder / 'timeline.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out"))
