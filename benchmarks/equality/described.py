"""Calls as plain data, so that two checkouts run the same ones: from JSON to objects of npusim.

Only the public names of npusim are used here, since each checkout brings its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["Call", "Drawn", "drawn", "made", "read", "text_of", "written"]

Array = NDArray[Any]
SPECIAL = np.array([
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-45, 0.5, -0.5, 1.5, 2.5, -2.5, 7.5, -8.5, 126.5,
    127.5, -128.5, -129.0, 254.5, 255.5, 65504.0, 7e4, 2147483520.0, 3e9, -3e9, 3e38,
])  # fmt: skip
"""NaN, infinities, zeros, subnormals, ties, and the edges of int4, int8, uint8, fp16 and int32."""

SCALE_BITS, INT8_BIT, OFFSET_SHIFT = 0xFFFFE000, 1 << 46, 37
"""Where a word of npu_trans_quant_param has its scale, what asks for int8, and the offset."""


@dataclass(frozen=True)
class Drawn:
    """A tensor: its shape and type, and the seed that its values follow from."""

    shape: tuple[int, ...]
    dtype: str
    layout: str = "ND"
    transposed: bool = False
    """Whether the last two dimensions of *shape* lie in memory the other way round."""
    how: str = "normal"
    """How its values are drawn, a name of :data:`HOW`; `spec`: it has none."""
    seed: int = 0
    low: float = 0
    high: float = 1
    """The spread of floats, or the range of integers without its end."""
    listed: tuple[int, ...] = ()
    """The values of how="listed"."""


@dataclass(frozen=True)
class Call:
    """An operator, its arguments, and the options of the run."""

    name: str
    """The operator and which of its calls, `npu_swiglu:17`."""
    operator: str
    arguments: dict[str, Any]
    options: dict[str, Any]


# ---- values ----


def _normal(rng: np.random.Generator, drawn: Drawn) -> Array:
    return drawn.low + drawn.high * rng.normal(0, 1, drawn.shape)


def _blocks(rng: np.random.Generator, drawn: Drawn) -> Array:
    """One value for each row, in all of its columns."""
    values = drawn.low + drawn.high * rng.normal(0, 1, (*drawn.shape[:-1], 1))
    return np.broadcast_to(values, drawn.shape)


def _special(rng: np.random.Generator, drawn: Drawn) -> Array:
    """A fifth of the elements are special."""
    values = rng.normal(0, drawn.high, drawn.shape)
    return np.where(rng.random(drawn.shape) < 0.2, rng.choice(SPECIAL, drawn.shape), values)


def _rows(rng: np.random.Generator, drawn: Drawn) -> Array:
    """Rows of all magnitudes, some full of ties, a few zero or with one special value."""
    shape = drawn.shape
    rows = (*shape[:-1], 1)
    values = rng.normal(0, 1, shape) * 2.0 ** rng.integers(-30, 16, rows)
    halves = rng.integers(-254, 254, shape, endpoint=True) / 2
    kind = rng.integers(0, 10, rows)
    values = np.where(kind < 3, halves, np.where(kind == 3, 0.0, values))
    place = np.arange(shape[-1]) == rng.integers(0, max(1, shape[-1]), rows)
    return np.where(place & (kind > 7), rng.choice(SPECIAL, rows), values)


def _integers(rng: np.random.Generator, drawn: Drawn) -> Array:
    dtype = np.uint64 if drawn.dtype == "uint64" else np.int64
    return rng.integers(int(drawn.low), int(drawn.high), drawn.shape, dtype=dtype)


def _permutation(rng: np.random.Generator, drawn: Drawn) -> Array:
    """The first of a permutation of the integers below *high*."""
    return rng.permutation(int(drawn.high))[: int(np.prod(drawn.shape))].reshape(drawn.shape)


def _chance(rng: np.random.Generator, drawn: Drawn) -> Array:
    return rng.random(drawn.shape) < drawn.high


def _packed(rng: np.random.Generator, drawn: Drawn) -> Array:
    """Words of npu_trans_quant_param: a scale around *high*; with *low* 1 an offset for int8."""
    scale = np.abs(drawn.high * rng.normal(1, 0.3, drawn.shape)).astype(np.float32)
    words = scale.view(np.uint32).astype(np.int64) & SCALE_BITS
    if drawn.low:
        words |= INT8_BIT | rng.integers(0, 1 << 9, drawn.shape) << OFFSET_SHIFT
    return words


def _causal(_: np.random.Generator, drawn: Drawn) -> Array:
    return np.triu(np.ones(drawn.shape, np.int8), 1)


def _listed(_: np.random.Generator, drawn: Drawn) -> Array:
    return np.array(drawn.listed, np.int64).reshape(drawn.shape)


HOW: dict[str, Callable[[np.random.Generator, Drawn], Array]] = {
    "normal": _normal,
    "blocks": _blocks,
    "special": _special,
    "rows": _rows,
    "integers": _integers,
    "permutation": _permutation,
    "chance": _chance,
    "packed": _packed,
    "causal": _causal,
    "listed": _listed,
}
"""A way to draw values -> the function that does it."""


def _array(drawn: Drawn) -> Array:
    values = np.asarray(HOW[drawn.how](np.random.default_rng(drawn.seed), drawn))
    kind = ml_dtypes.bfloat16 if drawn.dtype == "bfloat16" else np.dtype(drawn.dtype)
    with np.errstate(all="ignore"):
        return np.asarray(values.astype(kind))


def _tensor(drawn: Drawn) -> Any:
    """An array, a Tensor for FRACTAL_NZ, or the TensorSpec where values were not asked for."""
    import npusim

    if drawn.how == "spec":
        shape = drawn.shape
        if drawn.transposed:
            shape = (*shape[:-2], *shape[:-3:-1])
        spec = npusim.TensorSpec(shape, drawn.dtype, drawn.layout)
        return spec.T if drawn.transposed else spec
    array = _array(drawn)
    if drawn.layout != "ND":
        return npusim.Tensor.of(array, drawn.layout, drawn.transposed)
    if drawn.transposed:
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    return array


def drawn(shape: tuple[int, ...], dtype: str, layout: str = "ND", **more: Any) -> Any:
    """The tensor that :func:`text_of` names so."""
    return _tensor(Drawn(shape, dtype, layout, **more))


def made(value: Any) -> Any:
    """An argument as :func:`npusim.run` takes it."""
    if isinstance(value, Drawn):
        return _tensor(value)
    if isinstance(value, list | tuple):
        return type(value)(made(part) for part in value)
    return value


# ---- JSON ----

PLAIN = asdict(Drawn((), ""))
"""What a tensor is unless its description differs."""


def _to_json(value: Any) -> Any:
    if isinstance(value, Drawn):
        own = {name: part for name, part in asdict(value).items() if part != PLAIN[name]}
        return {"tensor": own}
    if isinstance(value, tuple):
        return {"tuple": [_to_json(part) for part in value]}
    if isinstance(value, list):
        return [_to_json(part) for part in value]
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict) and "tensor" in value:
        drawn = Drawn(**(PLAIN | value["tensor"]))
        return replace(drawn, shape=tuple(drawn.shape), listed=tuple(drawn.listed))
    if isinstance(value, dict):
        return tuple(_from_json(part) for part in value["tuple"])
    if isinstance(value, list):
        return [_from_json(part) for part in value]
    return value


def written(call: Call) -> str:
    """*call* as a line of JSON, the same for equal calls."""
    arguments = {name: _to_json(value) for name, value in call.arguments.items()}
    options = {name: _to_json(value) for name, value in call.options.items()}
    return json.dumps([call.name, call.operator, arguments, options])


def read(line: str) -> Call:
    """The call that :func:`written` wrote as *line*."""
    name, operator, arguments, options = json.loads(line)
    return Call(
        name,
        operator,
        {word: _from_json(value) for word, value in arguments.items()},
        {word: _from_json(value) for word, value in options.items()},
    )


# ---- text ----


def text_of(call: Call) -> str:
    """*call* as it would be typed, with `drawn(...)` for tensors of random values."""
    words = [repr(call.operator)]
    both = call.arguments | call.options
    words += [f"{name}={_text(value)}" for name, value in both.items()]
    return f"npusim.run({', '.join(words)})"


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        inside = ", ".join(_text(part) for part in value)
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if not isinstance(value, Drawn):
        return repr(value)
    words = [repr(value.shape), repr(value.dtype)]
    words += [repr(value.layout)] if value.layout != "ND" else []
    words += ["transposed=True"] if value.transposed else []
    if value.how == "spec":
        return f"npusim.TensorSpec({', '.join(words)})"
    if value.how == "listed":
        return f"np.array({list(value.listed)}, {value.dtype!r}).reshape({value.shape})"
    words += [f"how={value.how!r}", f"seed={value.seed}", f"low={value.low}", f"high={value.high}"]
    return f"drawn({', '.join(words)})"
