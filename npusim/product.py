"""Stub."""

from typing import Any, Literal

import numpy as np

CubeOrder = Literal["k16", "k8", "k4", "k1"]


def int_product(a: Any, b: Any) -> Any:
    return np.rint(a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)


def accumulate_int(start: Any, product: Any) -> Any:
    return np.clip(start.astype(np.int64) + product, -(2**31), 2**31 - 1).astype(np.int32)


def float_product(a: Any, b: Any, start: Any, order: Any = "k16") -> Any:
    acc = np.broadcast_to(start, (a.shape[0], b.shape[1])).astype(np.float32)
    a, b = a.astype(np.float64), b.astype(np.float64)
    w = int(order[1:])
    for k in range(0, a.shape[1], w):
        acc = (acc + a[:, k : k + w] @ b[k : k + w]).astype(np.float32)
    return acc
