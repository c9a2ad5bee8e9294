"""Recipes of what computes element by element, reduces, copies and picks rows."""

from __future__ import annotations

from math import prod

from drawing import Arguments, Draw, recipe

from npusim.ops.families.elementwise.expression import ONE
from npusim.ops.families.elementwise.expressions import EXPRESSIONS
from npusim.ops.families.elementwise.gradients import BACKWARD

__all__: list[str] = []

OF_ONE = (*(each.name for each in EXPRESSIONS.values() if each.parameters == ONE), "clone")
OF_TWO = (
    "add", "div", "eq", "ge", "gt", "le", "logical_and", "logical_or", "lt", "maximum", "minimum",
    "mul", "ne", "sub", "axpy", "where",
)  # fmt: skip
GRADIENTS = tuple(each.name for each in EXPRESSIONS.values() if BACKWARD in each.parameters)
INTEGERS = ("int8", "uint8", "int32", "int32", "int64", "bool")


def _element(draw: Draw) -> str:
    return draw.pick(*INTEGERS) if draw.chance(0.15) else draw.floating()


def _one(draw: Draw, shape: tuple[int, ...], dtype: str) -> object:
    if dtype == "bool":
        return draw.integers(shape, "uint8", 0, 2)
    if dtype in INTEGERS:
        return draw.integers(shape, dtype, 0 if dtype == "uint8" else -100, 100)
    return draw.numbers(shape, dtype, draw.pick(1, 40))


@recipe(*OF_ONE)
def of_one(draw: Draw) -> Arguments:
    return {"x": _one(draw, draw.shape(), _element(draw))}


@recipe(*GRADIENTS)
def gradient(draw: Draw) -> Arguments:
    shape, dtype = draw.shape(), draw.floating()
    return {"grad_output": _one(draw, shape, dtype), "x": _one(draw, shape, dtype)}


def _logical(draw: Draw, shape: tuple[int, ...]) -> object:
    return draw.integers(shape, "uint8", 0, 2)


@recipe("logical_not")
def of_truths(draw: Draw) -> Arguments:
    return {"x": _logical(draw, draw.shape())}


@recipe(*OF_TWO)
def of_two(draw: Draw) -> Arguments:
    shape, dtype = draw.shape(), _element(draw)
    x, other = _one(draw, shape, dtype), _second(draw, shape, dtype)
    if draw.chance(0.15) and len(shape) > 1:
        x = _one(draw, (shape[0], *[1] * (len(shape) - 1)), dtype)
        other = _one(draw, shape, dtype)
    return {"x": x, "other": other}


def _second(draw: Draw, shape: tuple[int, ...], dtype: str) -> object:
    """A number, a tensor alike, or one whose shape is broadcast."""
    match draw.integer(0, 4):
        case 0:
            return draw.pick(2.0, 0.5, -1.25, 3, 0.1)
        case 1:
            own = tuple(1 if draw.chance(0.4) else size for size in shape)
            return _one(draw, own[draw.integer(0, len(own) - 1) :], dtype)
        case 2 if dtype in ("float16", "bfloat16", "float32") and draw.chance(0.5):
            return _one(draw, shape, "float32" if dtype != "float32" else draw.half())
        case _:
            return _one(draw, shape, dtype)


@recipe("logical_and", "logical_or")
def of_two_truths(draw: Draw) -> Arguments:
    shape = draw.shape()
    return {"x": _logical(draw, shape), "other": _logical(draw, shape)}


@recipe("axpy")
def axpy(draw: Draw) -> Arguments:
    alpha = {} if draw.chance(0.2) else {"alpha": draw.pick(2.5, -1, 0.1, 2)}
    return of_two(draw) | alpha


@recipe("where")
def where(draw: Draw) -> Arguments:
    shape, dtype = draw.shape(), _element(draw)
    mask = draw.integers(shape, "uint8", 0, 2)
    return {
        "condition": mask,
        "x": _one(draw, shape, dtype),
        "other": draw.pick(1.5, _one(draw, shape, dtype)),
    }


@recipe("clamp")
def clamp(draw: Draw) -> Arguments:
    bounds = {"low": draw.pick(-1.0, None, 0), "high": draw.pick(3.0, None, 2)}
    return {"x": _one(draw, draw.shape(), _element(draw)), **bounds}


@recipe("cast")
def cast(draw: Draw) -> Arguments:
    target = draw.pick("float16", "float32", "bfloat16", "int32", "int8", "uint8", "int64", "bool")
    return {"x": _one(draw, draw.shape(), _element(draw)), "dtype": target}


@recipe("fill")
def fill(draw: Draw) -> Arguments:
    return {"x": _one(draw, draw.shape(), _element(draw)), "value": draw.pick(1.5, 0, -3, 7)}


@recipe("pow")
def power(draw: Draw) -> Arguments:
    exponent = draw.pick(2.0, 0.5, 3, -1, -0.5, 1.7, 0, 1)
    return {"x": _one(draw, draw.shape(), _element(draw)), "exponent": exponent}


@recipe("npu_gelu")
def gelu(draw: Draw) -> Arguments:
    how = draw.pick("none", "tanh")
    return {"x": _one(draw, draw.shape(), draw.floating()), "approximate": how}


@recipe("broadcast_to")
def broadcast_to(draw: Draw) -> Arguments:
    shape = draw.shape()
    own = tuple(1 if draw.chance(0.5) else size for size in shape)
    own = own[draw.integer(0, len(own) - 1) if draw.chance(0.3) else 0 :]
    return {"x": _one(draw, own, _element(draw)), "shape": shape}


# ---- along an axis ----


@recipe("amax", "argmax", "sum", "mean", "softmax", "log_softmax")
def reduction(draw: Draw) -> Arguments:
    """Rows short and long, columns, and rows that are cut into segments."""
    shape = draw.shape(1, 4)
    if draw.chance(0.15):
        shape = (draw.integer(1, 4), draw.integer(3000, 30000))
    dim = draw.integer(-len(shape), len(shape) - 1) if draw.chance(0.6) else -1
    if draw.chance(0.1):
        shape, dim = (draw.integer(1000, 4000), draw.integer(1, 16)), 0
    dtype = draw.pick("int32", "int64") if draw.chance(0.08) else draw.floating()
    return {"x": _one(draw, shape, dtype), "dim": dim}


@recipe("narrow")
def narrow(draw: Draw) -> Arguments:
    shape = draw.shape()
    dim = draw.integer(-len(shape), len(shape) - 1)
    start = draw.integer(0, shape[dim] - 1)
    length = draw.integer(1, shape[dim] - start)
    return {"x": _one(draw, shape, _element(draw)), "dim": dim, "start": start, "length": length}


@recipe("permute")
def permute(draw: Draw) -> Arguments:
    shape = draw.shape(2, 4)
    dims = tuple(int(dim) for dim in draw.rng.permutation(len(shape)))
    return {"x": _one(draw, shape, _element(draw)), "dims": dims}


@recipe("concat")
def concat(draw: Draw) -> Arguments:
    shape, dtype = draw.shape(), _element(draw)
    dim = draw.integer(-len(shape), len(shape) - 1)
    tensors = []
    for _ in range(draw.integer(1, 5)):
        own = list(shape)
        own[dim] = draw.size(40)
        tensors.append(_one(draw, tuple(own), dtype))
    return {"tensors": tensors, "dim": dim}


@recipe("embedding")
def embedding(draw: Draw) -> Arguments:
    rows = draw.integer(5000, 20000) if draw.chance(0.4) else draw.size(200)
    columns = draw.in_turn(8, draw.size(60), 32, draw.size(400), 16)
    columns = min(columns, max(1, 300_000 // rows))
    if draw.only_times and draw.chance(0.25):
        rows, columns = 2, draw.integer(50000, 70000)
    # Each index is a separate piece of work: a few hundred show all that many do.
    count = draw.pick(draw.integer(1, 60), draw.integer(1, 400))
    shape = draw.pick((count,), (draw.integer(1, 4), -(-count // 4)))
    index = _indices(draw, shape, rows)
    return {"weight": _one(draw, (rows, columns), _element(draw)), "indices": index}


def _indices(draw: Draw, shape: tuple[int, ...], end: int) -> object:
    write = draw.known if draw.chance(0.6) else draw.tensor
    return write(shape, draw.pick("int32", "int64"), "integers", low=0, high=end)


@recipe("index_select")
def index_select(draw: Draw) -> Arguments:
    shape = draw.shape(1, 3)
    if draw.chance(0.5):
        shape = (*shape[:-1], 16 * draw.integer(1, 20))
    dim = draw.integer(-len(shape), len(shape) - 1)
    index = _indices(draw, (draw.integer(1, 60),), shape[dim])
    return {"x": _one(draw, shape, _element(draw)), "dim": dim, "index": index}


@recipe("npu_scatter_nd_update")
def scatter_nd_update(draw: Draw) -> Arguments:
    depth = draw.integer(1, 3)
    before = tuple(draw.size(24) for _ in range(depth))
    if draw.only_times and draw.chance(0.2):
        before = (2**24,)
    row = draw.shape(1, 2, 64)
    rows = prod(before)
    count = draw.integer(1, min(rows, 200))
    dtype, kind = draw.floating(), draw.pick("int32", "int64")
    flat = draw.rng.choice(rows, count, replace=False) if rows <= 2**20 else range(count)
    places = [_unravelled(int(place), before) for place in flat]
    indices = draw.listed(places, kind)
    if draw.only_times:
        indices = draw.tensor((count, len(before)), kind)
    return {
        "self": draw.numbers((*before, *row), dtype),
        "indices": indices,
        "updates": draw.numbers((count, *row), dtype),
    }


def _unravelled(place: int, shape: tuple[int, ...]) -> list[int]:
    found = []
    for size in reversed(shape):
        found.append(place % size)
        place //= size
    return found[::-1]
