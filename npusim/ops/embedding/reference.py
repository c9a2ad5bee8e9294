"""embedding on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array

__all__ = ["reference"]


def reference(
    weight: Array,
    indices: Array,
    padding_idx: int = -1,  # noqa: ARG001
    scale_grad_by_freq: bool = False,  # noqa: ARG001
    sparse: bool = False,  # noqa: ARG001
) -> Array:
    """Rows of *weight* `(rows, width)`, one for each of *indices*: `(*indices.shape, width)`.

    The others are about gradients.
    """
    return np.take(weight, indices, axis=0)
