"""Kernels of a training step: losses, gradients of rows, and optimizers.

A kernel on a list of tensors processes all of them in one launch (ops-nn@e5c3fa9
foreach/foreach_utils). Gradients of softmax and of norms make passes over rows like the forward
kernels (CANN 8.1.RC1, softmax_grad.py, log_softmax_grad.py, layer_norm_grad_v3). NLLLoss reads the
target of a row, and then the element at that index (nll_loss.py there). ApplyAdamWV2 uses fewer
cores than an elementwise kernel, and other tiles, which is not modelled (optim/apply_adam_w_v2).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from npusim.torch.works.call import HALF, Call, Rule, Works, axis_of, bits_of, cast
from npusim.torch.works.passes import Pass, RowPasses
from npusim.torch.works.rows import RowMoves, ScalarMoves
from npusim.torch.works.sorts import RowSort
from npusim.torch.works.streams import Stream
from npusim.torch.works.work import Work

__all__ = ["FOREACH", "adam", "loss", "loss_backward", "of_layer_norm", "of_rows", "of_table"]


# ---- losses ----


def loss(call: Call, kernel: str) -> Works:
    """NLLLoss: the scalar unit reads a target and an element of each row; a Fill replaces a missing
    weight."""
    x, target, weight = call.args[:3]
    classes = x.shape[min(1, x.dim() - 1)]
    return [*_weights(x, weight, classes), _picked(kernel, x, target)]


def loss_backward(call: Call, kernel: str) -> Works:
    """NLLLossGrad: writes zeros, then one element of each row."""
    x, target, weight = call.args[1:4]
    zeros = Stream(kernel="ZerosLike", elements=x.numel(), loads=(), stores=(bits_of(x),))
    classes = x.shape[min(1, x.dim() - 1)]
    return [*_weights(x, weight, classes), zeros, _picked(kernel, x, target)]


def _weights(x: torch.Tensor, weight: torch.Tensor | None, classes: int) -> list[Work]:
    if weight is not None:
        return []
    return [Stream(kernel="Fill", elements=classes, loads=(), stores=(bits_of(x),))]


def _picked(kernel: str, x: torch.Tensor, target: torch.Tensor) -> Work:
    count = max(1, target.numel())
    return ScalarMoves(
        kernel=kernel,
        count=count,
        bits=bits_of(x),
        table=x.numel(),
        rows=count,
        index_bits=bits_of(target),
    )


# ---- gradients of rows ----


def of_rows(*passes: Pass) -> Rule:
    """The gradient of a kernel on rows, from the gradient of its output and the output."""

    def rule(call: Call, kernel: str) -> Works:
        grad, y, dim = call.args[:3]
        before, columns, behind = axis_of(y, dim)
        work = RowPasses(
            kernel=kernel,
            rows=before * behind,
            columns=columns,
            bits=bits_of(grad),
            others=(bits_of(y),),
            passes=passes,
            stores=(bits_of(call.outputs[0]),),
        )
        return [work]

    return rule


SOFTMAX = Pass(("mul",)), Pass(("sub", "mul"), reduces=False)
LOG_SOFTMAX = Pass(), Pass(("exp", "mul", "sub"), reduces=False)
NORMED = Pass(("sub", "mul", "mul")), Pass(("mul",)), Pass(("mul",) * 5, reduces=False)


def of_layer_norm(call: Call, kernel: str) -> Works:
    """LayerNormGradV3: two sums for each row, its gradient, and sums over all rows."""
    grad, x, shape = call.args[:3]
    columns = prod(shape)
    bits = bits_of(x)
    work = RowPasses(
        kernel=kernel,
        rows=x.numel() // max(1, columns),
        columns=columns,
        bits=bits,
        others=(bits_of(grad),),
        passes=NORMED,
        parameters=(bits,),
        stores=(bits,),
    )
    return [work]


def of_table(call: Call, kernel: str) -> Works:
    """EmbeddingDenseGradV2: adds each row of the gradient to a row of the table's gradient.

    Indices become int32, and are sorted if rows are long or many; small or few 16-bit rows are
    added as float32 between casts (ops-nn@e5c3fa9 aclnn_embedding_dense_backward.cpp).
    """
    grad, indices, rows = call.args[:3]
    width, count = grad.shape[-1], max(1, indices.numel())
    half_bytes = 2 * (grad.numel() + rows * width)
    is_small = (
        half_bytes < WIDENED_BYTES
        or count < WIDENED_ROWS
        or bool(call.value(4, "scale_grad_by_freq"))
    )
    is_wide = grad.dtype in HALF and is_small
    bits = 32 if is_wide else bits_of(grad)
    works: list[Work] = [cast(grad.numel(), bits_of(grad), bits)] if is_wide else []
    if bits_of(indices) != 32:
        works.append(cast(count, bits_of(indices), 32))
    if width > UNSORTED_WIDTH or rows > UNSORTED_ROWS:
        if count > 1:
            works.append(RowSort(kernel="Sort", rows=1, columns=count, bits=32, kept=count))
        works.append(Stream(kernel="ZerosLike", elements=rows * width, loads=(), stores=(bits,)))
    moves = RowMoves(
        kernel=kernel,
        rows=count,
        row_bytes=width * bits // 8,
        table_rows=rows,
        index_bits=32,
        adds=True,
    )
    return [*works, moves, *([cast(rows * width, bits, bits_of(grad))] if is_wide else [])]


WIDENED_BYTES, WIDENED_ROWS = 100 << 20, 512
"""A 16-bit gradient is cast if it and that of the table have fewer bytes, or it has fewer rows."""
UNSORTED_WIDTH, UNSORTED_ROWS = 512, 1 << 24
"""Largest rows, and most rows of a table, for which the indices stay unsorted."""


# ---- lists of tensors ----


def _bits(tensors: Sequence[torch.Tensor]) -> int:
    return max(map(bits_of, tensors))


def _listed(*steps: str) -> Rule:
    """One launch for all tensors of a list; the second operand is a list, scalars or a scalar."""

    def rule(call: Call, kernel: str) -> Works:
        lists = [list(each) for each in call.args if _is_tensors(each)]
        if len({x.dtype for each in lists for x in each}) != 1:
            return None
        second = call.value(1, "scalar")
        how = "List" if _is_tensors(second) else "ScalarList" if _is_many(second) else "Scalar"
        is_unary = len(call.args) < 2 and not call.kwargs
        work = Stream(
            kernel=kernel if is_unary else f"{kernel}{how}",
            elements=sum(x.numel() for x in lists[0]),
            loads=tuple(map(_bits, lists)),
            stores=(_bits(call.outputs),),
            steps=steps,
        )
        return [work]

    return rule


def _is_tensors(value: Any) -> bool:
    is_list = isinstance(value, list | tuple) and bool(value)
    return is_list and all(isinstance(x, torch.Tensor) for x in value)


def _is_many(value: object) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, torch.Tensor) and value.dim() > 0)


def _norms(call: Call, kernel: str) -> Works:
    """ForeachNorm: one scalar for each tensor."""
    tensors = call.args[0]
    work = RowPasses(
        kernel=kernel,
        rows=len(tensors),
        columns=max(1, sum(x.numel() for x in tensors) // len(tensors)),
        bits=_bits(tensors),
        passes=(Pass(("abs", "mul")),),
        numbers=(_bits(call.outputs),),
    )
    return [work]


ADAM = ("mul", "mul", "sub", "mul", "add", "mul", "mul", "mul", "add", "sqrt", "mul", "add", "div",
        "mul", "sub")  # fmt: skip


def adam(call: Call, kernel: str) -> Works:
    """ApplyAdamWV2 for each parameter, each after a kernel that subtracts one from the step."""
    works: list[Work] = []
    for parameter, grad in zip(call.args[0], call.args[1], strict=True):
        own, of_grad = bits_of(parameter), bits_of(grad)
        works.append(Stream(kernel="Sub", elements=1, loads=(32,), stores=(32,), steps=("sub",)))
        works.append(
            Stream(
                kernel=kernel,
                elements=parameter.numel(),
                loads=(own, of_grad, own, own),
                stores=(own, own, own),
                steps=ADAM,
            )
        )
    return works


def unscaled(call: Call, kernel: str) -> Works:
    """ForeachNonFiniteCheckAndUnscale: a list is scaled, and checked for non-finite values."""
    tensors = call.args[0]
    bits = _bits(tensors)
    count = sum(x.numel() for x in tensors)
    return [Stream(kernel=kernel, elements=count, loads=(bits,), stores=(bits,), steps=UNSCALED)]


UNSCALED = ("mul", "max", "min")

FOREACH: dict[str, tuple[str, Rule]] = {
    **{
        f"_foreach_{name}": (f"Foreach{kernel}", _listed(*steps))
        for name, kernel, steps in (
            ("add", "Add", ("mul", "add")),
            ("sub", "Sub", ("mul", "sub")),
            ("mul", "Mul", ("mul",)),
            ("div", "Div", ("div",)),
            ("pow", "Pow", ("ln", "mul", "exp")),
            ("maximum", "Maximum", ("max",)),
            ("minimum", "Minimum", ("min",)),
            ("clamp_max", "Minimum", ("min",)),
            ("clamp_min", "Maximum", ("max",)),
            ("addcmul", "Addcmul", ("mul", "mul", "add")),
            ("addcdiv", "Addcdiv", ("div", "mul", "add")),
            ("lerp", "Lerp", ("sub", "mul", "add")),
            ("sqrt", "Sqrt", ("sqrt",)),
            ("rsqrt", "Rsqrt", ("sqrt", "div")),
            ("reciprocal", "Reciprocal", ("div",)),
            ("neg", "Neg", ("mul",)),
            ("abs", "Abs", ("abs",)),
            ("exp", "Exp", ("exp",)),
            ("log", "Log", ("ln",)),
            ("sigmoid", "Sigmoid", ("mul", "exp", "add", "div")),
            ("tanh", "Tanh", ("exp", "add", "mul", "div")),
            ("sign", "Sign", ("min", "max")),
            ("zero", "ZeroInplace", ()),
            ("copy", "Copy", ()),
        )
    },
    "_foreach_norm": ("ForeachNorm", _norms),
}
"""Operation on lists of tensors -> its kernel, without the suffix for the kind of the second
operand, and its rule."""
