"""Calls of operators: right ones, of which some arguments are then exchanged for others."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from outcome import Case

import npusim
from npusim import Tensor, TensorSpec, devices, ops
from npusim.data.dtypes import DTYPES

sys.path.append(str(Path(__file__).parents[1] / "equality"))
from described import Drawn, made
from drawing import DEVICES, RECIPES, Draw

__all__ = ["call"]

for family in (
    "attention",
    "elementwise",
    "experts",
    "products",
    "quantising",
    "routing",
    "weights",
):
    importlib.import_module(family)  # which fills RECIPES
Rng = np.random.Generator
NAMES = tuple(dtype.name for dtype in DTYPES)
SIZES = (1, 2, 3, 8, 16, 17, 31, 32, 33, 40, 64, 96, 128, 200, 256, 512)
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 48, 64, 2**31, 2**63, -(2**70), 0.5, float("nan"), float("inf"),
    "", "int8", "qint8", "quint8", "int32", "quint4x2", "float16", "nd", "\x1b[31m", "$x_1$", b"x",
    [], [1, 2], (), (1,), {}, {"a": 1}, object, np.float16, np.dtype("int8"), np.float32(1.5),
    np.int64(7), np.array(3), np.zeros(0, np.float16), np.zeros((2, 0)), np.array(["a"]),
    np.array([None]), np.ones((2, 2), complex), lambda: None,
)  # fmt: skip
NAMES_OF_DEVICES: tuple[Any, ...] = (
    "", " ", "Ascend", "ascend310b", "A2", "910B3", "310p", "Atlas A2", "a/b", "./none.toml", "..",
    "\x1b[2J", "x" * 5000, None, 7, 1.5, b"ascend910b2", [], "$a$", "\0",
)  # fmt: skip


def call(rng: Rng) -> Case:
    """A call of one operator on one chip, right in most of its arguments."""
    op = str(rng.choice(ops.names()))
    arguments = right(rng, op)
    for _ in range(rng.choice([0, 0, 1, 1, 1, 2, 3])):
        name = str(rng.choice([*ops.signature(ops.load(op)).parameters]))
        if rng.random() < 0.1:
            arguments.pop(name, None)
        else:
            arguments[name] = other(rng, arguments.get(name))
    options = _options(rng)
    text = f"run({op!r}, **{_text(arguments)}, **{_text(options)})"
    return Case(text, lambda: _run(op, arguments, options))


def _run(op: str, arguments: dict[str, Any], options: dict[str, Any]) -> None:
    """Run the call; its values must be those of the operator's reference."""
    result = npusim.run(op, **arguments, **options)
    if any(isinstance(output, TensorSpec) for output in result.outputs.values()):
        return
    operator = ops.load(op)
    bound = ops.signature(operator).bind(**arguments)
    bound.apply_defaults()
    # An oracle whose result depends on them takes the chip and the cube's order too.
    own = inspect.signature(operator.reference).parameters
    chosen = {"spec": result.device, "cube_order": _order_of(options)}
    extra = {name: value for name, value in chosen.items() if name in own}
    wanted = operator.reference(**ops.normalize(operator, dict(bound.arguments)), **extra)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, reference in zip(result.outputs.values(), wanted, strict=True):
        ours, theirs = _bytes(got), _bytes(reference)
        if ours != theirs:
            raise AssertionError(f"{op}: values differ from those of its reference")


def _order_of(options: dict[str, Any]) -> str:
    """The order in which the cube adds up, as the run had it."""
    return str(options.get("cube_order", "k16"))


def _bytes(values: Any) -> bytes:
    array = values.storage if isinstance(values, Tensor) else np.asarray(values)
    return bytes(np.ascontiguousarray(array).tobytes())


def _options(rng: Rng) -> dict[str, Any]:
    options: dict[str, Any] = {"device": str(rng.choice(devices.names()))}
    if rng.random() < 0.05:
        options["device"] = NAMES_OF_DEVICES[rng.integers(len(NAMES_OF_DEVICES))]
    choices: dict[str, tuple[Any, ...]] = {
        "l2": ("cold", "warm", "repeat", ("x",), (), "again", None, 1, [], np.array(["cold"])),
        "values": (True, False, 0, None),
        "timing": (True, False, "yes"),
        "every_core": (True, False, None),
        "byte_exact": (True, False),
        "cube_order": ("k16", "k8", None, 3, np.array(["k16"])),
    }
    for name, values in choices.items():
        if rng.random() < 0.1:
            options[name] = values[rng.integers(len(values))]
    return options


def right(rng: Rng, op: str) -> dict[str, Any]:
    """Arguments that *op* takes on a chip, by its recipe among the calls that benchmarks/equality
    compares."""
    device = str(rng.choice(DEVICES))
    draw = Draw(rng, int(rng.integers(1000)), device, only_times=bool(rng.random() < 0.5))
    return {name: made(_finite(value)) for name, value in RECIPES[op](draw).items()}


def _finite(value: Any) -> Any:
    """*value*, drawn without infinities and NaN: references do not saturate as Atlas inference
    does."""
    if isinstance(value, list | tuple):
        return type(value)(map(_finite, value))
    is_special = isinstance(value, Drawn) and value.how in ("special", "rows")
    return replace(value, how="normal") if is_special else value


def tensor_of(rng: Rng, shape: tuple[int, ...], dtype: str, layout: str = "ND") -> Any:
    """A tensor of random numbers, or its shape alone; now and then a transposed one."""
    if rng.random() < 0.5:
        spec = TensorSpec(shape, dtype, layout)  # type: ignore[arg-type]
        return spec.T if rng.random() < 0.1 and len(shape) > 1 else spec
    numbers = rng.normal(0, 40, shape)
    with np.errstate(all="ignore"):
        array = numbers.astype(TensorSpec(shape, dtype).element.numpy)
    if layout == "FRACTAL_NZ":
        return Tensor.of(array, "FRACTAL_NZ")
    if rng.random() < 0.1 and len(shape) > 1:
        return np.ascontiguousarray(array.T).T
    return array


def other(rng: Rng, value: Any) -> Any:
    """Something in place of *value*: a little different, or of quite another kind."""
    if not isinstance(value, np.ndarray | Tensor | TensorSpec) or rng.random() < 0.3:
        if rng.random() < 0.3:
            shape = tuple(int(size) for size in rng.choice((0, *SIZES), rng.integers(0, 4)))
            return tensor_of(rng, shape, str(rng.choice(NAMES)))
        return ODD_VALUES[rng.integers(len(ODD_VALUES))]
    spec = value if isinstance(value, TensorSpec) else None
    shape, dtype = list(value.shape), str(rng.choice(NAMES))
    if spec is not None and rng.random() < 0.5:
        dtype = spec.dtype
    if shape and rng.random() < 0.6:
        shape[rng.integers(len(shape))] = int(rng.choice((0, 1, *SIZES)))
    if rng.random() < 0.2:
        shape = [1, *shape] if rng.random() < 0.5 else shape[1:]
    layout = "FRACTAL_NZ" if rng.random() < 0.2 and len(shape) > 1 else "ND"
    try:
        return tensor_of(rng, tuple(shape), dtype, layout)
    except (ValueError, TypeError):
        # No such tensor can be made, which is not what is tried here.
        return None


def _text(arguments: dict[str, Any]) -> str:
    parts = [f"{name!r}: {_short(value)}" for name, value in arguments.items()]
    return "{" + ", ".join(parts) + "}"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<array {value.shape} {value.dtype}>"
    if isinstance(value, Tensor):
        return f"<{value.spec}>"
    return repr(value)[:200]
