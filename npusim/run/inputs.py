"""Tensors described in a few words: files, generators, and shapes without values.

.. code-block:: text

    FILE.npy   FILE.npy:bfloat16                          an array that numpy saved
    randn:8192x4096:bfloat16:seed=1   rand:12             normal numbers, numbers from 0 to 1
    zeros:8x16:int8   ones:12   full:12:float16:value=3   arange:2x6:int32
    randint:64:int8:low=-8:high=8:seed=2                  integers in [low, high)
    values:4:int64:of=128,256,384,512                     the integers given
    spec:8192x8192:float16                                shape and type only: for time alone
    none                                                  an optional tensor that is left out

A shape is its sizes joined by x, or `scalar`; the type is float32 and the seed 0 unless given. All
except files accept a memory order: layout=FRACTAL_NZ, and transposed=true if the last two
dimensions of the given shape are swapped in memory.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from math import prod
from pathlib import Path

import numpy as np

from npusim.data.dtypes import BUFFER_DTYPES, FLOAT32, INT64, UINT64, Array, DType, dtype_named
from npusim.data.errors import shown
from npusim.data.files import opened
from npusim.data.tensor import LAYOUTS, Tensor, TensorSpec

__all__ = ["FileError", "InputError", "Value", "parse"]

MAX_BYTES = 2**40
"""Limit for the size of a generated tensor."""
MAGIC = b"\x93NUMPY"
"""The first bytes of every .npy file (numpy.lib.format)."""

Value = Array | Tensor | TensorSpec | None
Options = dict[str, str]
Generator = Callable[[tuple[int, ...], DType, Options], Array]


class InputError(ValueError):
    """A text does not follow the syntax of inputs."""


class FileError(ValueError):
    """A file cannot be read as an array."""


def parse(text: str) -> Value:
    """The tensor described by *text*; raises InputError, or FileError for errors in a file.

    >>> parse("full:2x3:int8:value=7")
    array([[7, 7, 7],
           [7, 7, 7]], dtype=int8)
    >>> parse("spec:8192x8192:half")
    TensorSpec(shape=(8192, 8192), dtype='float16', layout='ND', transposed=False)
    """
    if text == "none":
        return None
    file = re.fullmatch(r"(.*\.npy)(?::(\w*))?", text, re.DOTALL)
    if file:
        return _read(Path(file[1]), file[2])
    kind, *words = text.split(":")
    if kind != "spec" and kind not in GENERATORS:
        raise _unknown(kind, text)
    shape, dtype, options = _words(kind, words)
    layout, transposed = _lie(kind, shape, options)
    if kind == "spec":
        return TensorSpec(shape, dtype.name, layout, transposed)
    # numpy also multiplies the sizes next to a zero.
    nbytes = prod(max(size, 1) for size in shape) * dtype.numpy.itemsize
    if nbytes > MAX_BYTES:
        raise InputError(
            f"inputs: {kind} must make at most {MAX_BYTES} bytes, not {nbytes}; "
            f"use spec:{words[0]}:{dtype.name} to ask for time only"
        )
    array = GENERATORS[kind][0](shape, dtype, options)
    if layout == "ND" and not transposed:
        return array
    tensor = Tensor.of(array, layout, transposed)
    return tensor.numpy() if layout == "ND" else tensor


# ---- words ----

_SHAPE = r"[0-9]{1,18}(x[0-9]{1,18}){0,63}"


def _unknown(kind: str, text: str) -> InputError:
    """The error for *text*, which begins with *kind*."""
    if re.fullmatch(_SHAPE, kind):
        return InputError(
            f"inputs: a value must begin with where its elements come from, not {shown(text)}, a "
            f"shape alone; write spec:{text} for the time only, or randn:{text}"
        )
    known = ["FILE.npy", *GENERATORS, "spec", "none"]
    near = get_close_matches(kind, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "for example randn:8x16:float16"
    return InputError(
        f"inputs: a value must begin with one of {', '.join(known)}, not {shown(text)}; {hint}"
    )


def _words(kind: str, words: list[str]) -> tuple[tuple[int, ...], DType, Options]:
    """Shape, type and options of a generator or a spec."""
    names = (*(() if kind == "spec" else GENERATORS[kind][1]), "layout", "transposed")
    shape = _shape(kind, words[0] if words else "")
    dtype, options = FLOAT32, {}
    for place, word in enumerate(words[1:]):
        name, equals, value = word.partition("=")
        if not equals and place == 0:
            dtype = _dtype(word)
        elif not equals or name not in names or name in options:
            allowed = "".join(f", {name}=..." for name in names)
            raise InputError(
                f"inputs: {kind} must be followed by a shape, a dtype{allowed} and no more, "
                f"not {shown(word)}; correct it"
            )
        else:
            options[name] = value
    return shape, dtype, options


def _lie(kind: str, shape: tuple[int, ...], options: Options) -> tuple[str, bool]:
    """Layout, and whether it is transposed."""
    layout, transposed = options.get("layout", "ND"), options.get("transposed", "false")
    for name, word, known in (
        ("layout", layout, LAYOUTS),
        ("transposed", transposed, ("false", "true")),
    ):
        if word not in known:
            raise InputError(
                f"inputs: {name} must be {' or '.join(known)}, not {shown(word)}; use one of these"
            )
    if len(shape) < 2 and (layout, transposed) != ("ND", "false"):
        raise InputError(
            f"inputs: {kind} must have at least two dimensions to be transposed or in FRACTAL_NZ, "
            f"not shape {shape}; write for example {kind}:8x16"
        )
    return layout, transposed == "true"


def _shape(kind: str, word: str) -> tuple[int, ...]:
    if word == "scalar":
        return ()
    if not re.fullmatch(_SHAPE, word):
        raise InputError(
            f"inputs: {kind} must have a shape of sizes joined by x, not {shown(word)}; "
            f"write for example {kind}:8x16, or {kind}:scalar"
        )
    return tuple(int(size) for size in word.split("x"))


def _dtype(word: str) -> DType:
    try:
        return dtype_named(word)
    except ValueError:
        known = [dtype.name for dtype in BUFFER_DTYPES]
        near = get_close_matches(word, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "use one of these"
        raise InputError(
            f"inputs: a dtype must be one of {', '.join(known)}, not {shown(word)}; {hint}"
        ) from None


def _whole(options: Options, name: str, default: int, least: int) -> int:
    word = options.get(name, str(default))
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", word) or int(word) < least:
        bound = f" >= {least}" if least == 0 else ""
        raise InputError(
            f"inputs: {name} must be a whole number{bound}, not {shown(word)}; "
            f"write for example {name}=8"
        )
    return int(word)


def _limits(dtype: DType) -> tuple[int, int]:
    least = 0 if dtype.name.startswith("u") else -(2 ** (dtype.bits - 1))
    return least, least + 2**dtype.bits - 1


def _fits(what: str, low: int, high: int, dtype: DType) -> None:
    """Refuse integers in [*low*, *high*] that an integer *dtype* cannot represent."""
    lowest, highest = _limits(dtype)
    if not lowest <= low <= high <= highest:
        came = f"{low}" if low == high else f"{low} to {high}"
        raise InputError(
            f"inputs: {what} must lie in [{lowest}, {highest}] for {dtype.name}, not {came}; "
            f"choose another dtype, or other values"
        )


# ---- generators ----


def _rounded(values: Array, dtype: DType) -> Array:
    with np.errstate(over="ignore"):  # a number too large for float16 becomes infinite
        return np.asarray(values.astype(dtype.numpy))


def _random(kind: str) -> Generator:
    def generate(shape: tuple[int, ...], dtype: DType, options: Options) -> Array:
        if not dtype.is_float:
            raise InputError(
                f"inputs: {kind} must have a dtype of floats, not {dtype.name}; use randint"
            )
        source = np.random.default_rng(_whole(options, "seed", 0, 0))
        draw = source.standard_normal if kind == "randn" else source.random
        return _rounded(np.asarray(draw(shape, np.float32)), dtype)

    return generate


def _randint(shape: tuple[int, ...], dtype: DType, options: Options) -> Array:
    """Random integers in [low, high), as in numpy and torch."""
    low = _whole(options, "low", 0, -(2**63))
    if "high" not in options:
        raise InputError("inputs: randint must say high=..., which it stays below; add it")
    high = _whole(options, "high", 0, -(2**63))
    if low >= high:
        raise InputError(f"inputs: high must be above low = {low}, not {high}; raise it")
    drawn = UINT64 if dtype is UINT64 else INT64
    _fits("low to high - 1", low, high - 1, drawn if dtype.is_float else dtype)
    source = np.random.default_rng(_whole(options, "seed", 0, 0))
    kind = np.uint64 if drawn is UINT64 else np.int64
    return _rounded(source.integers(low, high, shape, kind), dtype)


def _full(shape: tuple[int, ...], dtype: DType, options: Options) -> Array:
    if "value" not in options:
        raise InputError("inputs: full must say value=..., which it repeats; add it")
    if not dtype.is_float:
        value = _whole(options, "value", 0, -(2**63))
        _fits("value", value, value, dtype)
        return np.full(shape, value, dtype.numpy)
    try:
        number = float(options["value"])
    except ValueError:
        raise InputError(
            f"inputs: value must be a number, not {shown(options['value'])}; "
            f"write for example value=3"
        ) from None
    if math.isinf(number) and "inf" not in options["value"].lower():
        raise InputError(
            f"inputs: value must be at most {sys.float_info.max:.6g}, not {options['value'][:40]}; "
            f"write a smaller one, or value=inf"
        )
    with np.errstate(over="ignore"):
        return np.full(shape, np.float64(number).astype(dtype.numpy))


def _values(shape: tuple[int, ...], dtype: DType, options: Options) -> Array:
    """The numbers given, in row-major order."""
    words = options.get("of", "").split(",")
    if len(words) != prod(shape) or not all(re.fullmatch(r"[+-]?[0-9]{1,18}", w) for w in words):
        raise InputError(
            f"inputs: values must say of=..., {prod(shape)} whole numbers with commas between "
            f"them, not {shown(options.get('of'))}; write for example values:2:int64:of=128,256"
        )
    numbers = [int(word) for word in words]
    if not dtype.is_float:
        _fits("values", min(numbers), max(numbers), dtype)
    return _rounded(np.array(numbers, np.int64).reshape(shape), dtype)


def _constant(number: int) -> Generator:
    return lambda shape, dtype, _: np.full(shape, number, dtype.numpy)


def _arange(shape: tuple[int, ...], dtype: DType, _: Options) -> Array:
    """0, 1, 2, ... in row-major order."""
    if not dtype.is_float:
        _fits("arange's numbers", 0, max(prod(shape) - 1, 0), dtype)
    return _rounded(np.arange(prod(shape)).reshape(shape), dtype)


GENERATORS: dict[str, tuple[Generator, tuple[str, ...]]] = {
    "randn": (_random("randn"), ("seed",)),
    "rand": (_random("rand"), ("seed",)),
    "randint": (_randint, ("low", "high", "seed")),
    "zeros": (_constant(0), ()),
    "ones": (_constant(1), ()),
    "full": (_full, ("value",)),
    "arange": (_arange, ()),
    "values": (_values, ("of",)),
}
"""Name -> the function that makes the array, and the options that it accepts."""


# ---- files ----


def _read(path: Path, hint: str | None) -> Array:
    """Read an array; *hint* is the element type if numpy saved only its width."""
    hinted = _dtype(hint) if hint is not None else None
    who = f"inputs: {path}"
    saved = _saved(path)
    dtype = saved.dtype
    if dtype.kind == "V" and dtype.names is None:
        # numpy saves types of ml_dtypes as raw bytes of their width.
        if hinted is None:
            raise FileError(
                f"{who}: must say what its elements of {dtype.itemsize} bytes are, for numpy saved "
                f"them without a type; write {path.name}:bfloat16 if they are that"
            )
        if hinted.numpy.itemsize != dtype.itemsize:
            raise FileError(
                f"{who}: must be read as a type of {dtype.itemsize} bytes, not {hinted.name} of "
                f"{hinted.numpy.itemsize}; name another"
            )
        return np.array(saved).view(hinted.numpy)
    if hinted is not None and hinted.numpy != dtype.newbyteorder("="):
        raise FileError(
            f"{who}: must be read as what it holds, {dtype}, not {hinted.name}; "
            f"leave :{hint} out, or convert the file"
        )
    return np.array(saved, dtype.newbyteorder("="))


def _saved(path: Path) -> Array:
    """The array in a file, before its data is read, so that a header cannot claim too much."""
    who = f"inputs: {path}"
    try:
        with opened(path) as file:
            magic = file.read(len(MAGIC))
        if magic != MAGIC:
            raise FileError(
                f"{who}: must be an array that numpy saved, not some other file; "
                f"write it with numpy.save"
            )
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError as error:
        raise FileError(
            f"{who}: must be a file that can be read, but: {error.strerror}; check the path"
        ) from None
    except FileError:
        raise
    except ValueError as error:
        if "Python objects" in str(error):
            raise FileError(
                f"{who}: must hold numbers, not Python objects; convert it with astype"
            ) from None
        raise FileError(
            f"{who}: must be whole, but is cut short or damaged; write it again with numpy.save"
        ) from None
