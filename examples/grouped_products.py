"""A layer of experts in int8: rows quantised by group, packed scales, and grouped products.

The rows, scales and groups are those that the document of npu_group_quant prints; the packed scales
have the shape that the document of npu_trans_quant_param gives for grouped products, a row of n for
each of g groups. Prints how many int8 values agree with the document, and the time of each kernel:

    python examples/grouped_products.py
"""

import numpy as np

import npusim

CARD = "Atlas A2"
# torch_npu-npu_group_quant.md, its example: x, scale, group_index, offset, and what it prints.
X = """
 1.0029 -1.2373  1.0107 -0.2681    0.5791  0.1101  1.0059 -0.9658   -1.7637  1.7588 -1.3193  0.3989
 1.3262  0.4854  1.9551  0.9697   -0.8770 -1.8828  2.1777 -0.0050    0.4722  0.5605  0.8267 -0.9810
"""
SCALES = """
-0.2710 -0.9381  0.2850 -1.1230    0.5217 -0.7233 -0.1730 -0.1245
-1.5433 -0.9129 -2.2095  1.7371   -0.8253  0.3973  0.1430  0.3885
"""
ENDS, OFFSET = (1, 4, 6, 6), -1.1658
PRINTED = "-1 0 -1 -1  -1 -1 -1 -1  -2 -2 -1 -1  0 -2 -2 -1  0 1 -6 -1  -2 -2 -3 -3"
COLUMNS = 16


def numbers(text: str, *shape: int) -> np.ndarray:
    """The numbers of *text* as float32 of *shape*."""
    return np.array(text.split(), np.float32).reshape(shape)


def main() -> None:
    """Run the three operators, one after the other."""
    x, scales = numbers(X, 6, 4).astype(np.float16), numbers(SCALES, 4, 4)
    ends, offset = np.array(ENDS, np.int32), np.float32([OFFSET])
    quantised = npusim.run(
        "npu_group_quant", x, scales, ends, offset=offset, dst_dtype="qint8", device=CARD
    )
    printed = numbers(PRINTED, 6, 4).astype(np.int8)
    same = int((quantised.output == printed).sum())
    print(f"npu_group_quant: {same} of {printed.size} values are those that the document prints")

    rng = np.random.default_rng(0)
    weight = rng.integers(-128, 128, (4, 4, COLUMNS)).astype(np.int8)
    words = npusim.run(
        "npu_trans_quant_param", rng.random((4, COLUMNS), np.float32) / 10, device=CARD
    )
    grouped = npusim.run(
        "npu_grouped_matmul",
        [quantised.output],
        [weight],
        scale=[words.output],
        group_list=ends.astype(np.int64),
        group_type=0,
        split_item=3,
        device=CARD,
    )
    for run in (quantised, words, grouped):
        print(f"{run.op}: {run.output.dtype} {run.output.shape}, {run.time_us:.2f} us")
    print(grouped.output)


if __name__ == "__main__":
    main()
