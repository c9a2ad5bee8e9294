"""Kinds of work: the purpose of an operator, whichever of its kernels runs.

They allow a comparison of runs with different operators: a product of floats with one of int8.
"""

from __future__ import annotations

__all__ = ["COLORS", "WORKS", "work_of"]

# Okabe and Ito, "Color Universal Design" (2008), and lighter or darker ones of these; Paul Tol's
# indigo.
COLORS = {
    "matrix products": "#D55E00",
    "attention": "#E69F00",
    "experts": "#0072B2",
    "norms": "#009E73",
    "rotary embedding": "#CC79A7",
    "activations": "#56B4E9",
    "quantising": "#F0E442",
    "caches": "#8C6BB1",
    "lookups": "#A6761D",
    "reductions": "#66C2A5",
    "elementwise": "#B3B3B3",
    "copies and casts": "#7F7F7F",
    "communication": "#2F4B7C",
    "own kernels": "#C9A0DC",
}
"""Kind of work -> its colour, in the order of pictures."""
WORKS = tuple(COLORS)

_PARTS = {
    "hcom": "communication",
    "Matmul": "matrix products",
    "Moe": "experts",
    "attention": "attention",
    "matmul": "matrix products",
    "moe": "experts",
    "rms_norm": "norms",
    "rope": "rotary embedding",
    "rotary": "rotary embedding",
    "swiglu": "activations",
    "gelu": "activations",
    "quant": "quantising",
    "cache": "caches",
}
"""A part of the name of an operator -> its kind of work; the first match counts."""
_NAMES = {
    "activations": (
        *("relu", "sigmoid", "silu", "tanh"),
        *("sigmoid_backward", "silu_backward", "tanh_backward"),
    ),
    "caches": ("npu_scatter_nd_update",),
    "lookups": ("embedding", "index_select"),
    "reductions": ("amax", "argmax", "log_softmax", "mean", "softmax", "sum"),
    "communication": (
        *("all_gather", "all_reduce", "all_to_all", "broadcast", "combine", "dispatch"),
        "reduce_scatter",
    ),
    "elementwise": (
        *("abs", "add", "axpy", "clamp", "div", "exp", "log", "maximum", "minimum", "mul", "neg"),
        *("reciprocal", "rsqrt", "sqrt", "sub", "where", "eq", "ge", "gt", "le", "lt", "ne"),
        *("logical_and", "logical_not", "logical_or", "pow"),
    ),
    "copies and casts": (
        *("broadcast_to", "cast", "clone", "concat", "fill", "narrow", "permute"),
        *("npu_format_cast", "npu_convert_weight_to_int4pack"),
    ),
}
_KNOWN = {name: work for work, names in _NAMES.items() for name in names}


def work_of(op: str) -> str:
    """The kind of work of operator *op*; "own kernels" for an operator that is not npusim's.

    >>> work_of("npu_quant_matmul"), work_of("npu_dynamic_quant"), work_of("mul")
    ('matrix products', 'quantising', 'elementwise')
    """
    if op in _KNOWN:
        return _KNOWN[op]
    return next((work for part, work in _PARTS.items() if part in op), "own kernels")
