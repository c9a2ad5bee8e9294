"""Changes of a weight, which is made once and used by many calls: its layout and its size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from npusim import ops
from npusim.data.arguments import Arguments
from npusim.data.integers import align_up
from npusim.data.tensor import LAYOUTS, TensorSpec
from npusim.reports import style
from npusim.reports.bounds import MIN_SHARE
from npusim.reports.causes import path_causes
from npusim.reports.path import path_of
from npusim.run.advice.change import Change, resized
from npusim.run.result import Call, Result

__all__ = ["layouts", "sizes"]

PRODUCTS = (
    *("matmul", "npu_grouped_matmul", "npu_grouped_matmul_swiglu_quant", "npu_quant_matmul"),
    *("npu_transpose_batchmatmul", "npu_weight_quant_batchmatmul"),
)
"""Operators whose first two parameters are activations and a weight."""
UNITS = (16, 32, 64, 128, 256, 512)
"""Multiples to which sizes are padded: fractals have 16 rows, lines of the L2 512 bytes."""
MOST_PADDING = 1 / 8
"""Most by which a size may grow: beyond that it is another problem."""
FRACTAL_NZ = 29
"""torch_npu's number of the layout (torch_npu.Format.FRACTAL_NZ)."""


def _operands(call: Call) -> tuple[str, str] | None:
    """The names of activations and weight."""
    if call.operator.name not in PRODUCTS:
        return None
    first, second, *_ = ops.signature(call.operator).parameters
    return first, second


def layouts(run: Result, call: Call) -> Iterator[Change]:
    """The weight in FRACTAL_NZ, or stored as its transpose."""
    names = _operands(call)
    if names is None:
        return
    weight = names[1]
    whole = call.arguments[weight]
    specs = whole if isinstance(whole, list | tuple) else [whole]
    if not specs or not all(isinstance(spec, TensorSpec) for spec in specs):
        return
    now = specs[0]
    for layout, turned in product(LAYOUTS, (False, True)):
        if (layout, turned) == (now.layout, now.transposed):
            continue
        others = [replace(spec, layout=layout, transposed=turned) for spec in specs]
        plain = [replace(spec.T if turned else spec, layout="ND") for spec in others]
        casts = tuple(("npu_format_cast", {"x": x, "acl_format": FRACTAL_NZ}) for x in plain)
        yield Change(
            text=_found(run, weight, now),
            change=_to_do(weight, now, layout, turned),
            code=() if specs is whole else _written(weight, now, layout, turned),
            arguments={weight: type(whole)(others) if specs is whole else others[0]},
            topic="layout",
            once=casts if layout not in ("ND", now.layout) else (),
        )


def _found(run: Result, weight: str, now: TensorSpec) -> str:
    """The layout of *weight*, and the share of the critical path spent on converting matrices."""
    name = "weight" if weight == "weight" else f"weight, {weight},"
    lies = f"the {name} lies in {now.layout}{', transposed' if now.transposed else ''}"
    parts = path_of(run).parts
    if now.layout != "ND":
        return lies
    if run.template == "nd2nz":
        took = sum(part.us for part in parts if part.kind in run.device.vector_kinds)
        who = "vector cores turn matrices into fractals first, which takes"
        return f"{lies}: {who} {style.time_named(took)} of the critical path" if took else lies
    if not any(part.name == "nd2nz" for part in parts):
        return lies
    turning = next((each for each in path_causes(run) if each.cause == "rows"), None)
    if turning is None or turning.path_share < MIN_SHARE:
        return f"{lies}: copies turn its rows into fractals on the way"
    return f"{lies}: {turning.words} takes {style.time_named(turning.path_us)} of the critical path"


def _to_do(weight: str, now: TensorSpec, layout: str, turned: bool) -> str:
    """How to bring *weight* into *layout*, *turned* if its transpose is stored."""
    ways = []
    if turned != now.transposed:
        way = "as (n, k) and pass its transpose" if turned else "as (k, n)"
        ways.append(f"store {weight} {way}")
    if layout != now.layout:
        cast = f"cast {'it' if ways else weight} by npu_format_cast({weight}, {FRACTAL_NZ})"
        ways.append(f"leave {weight} in ND" if layout == "ND" else cast)
    return f"{', and '.join(ways)}, once, when the model is loaded"


def _written(weight: str, now: TensorSpec, layout: str, turned: bool) -> tuple[str, ...]:
    """The line that does it; none if the weight was cast to another layout before.

    >>> _written("w", TensorSpec((64, 32), "int8"), "FRACTAL_NZ", True)
    ('w = torch_npu.npu_format_cast(w.t().contiguous(), 29).t()',)
    """
    if now.layout != "ND":
        return ()
    transpose = (".t()" if len(now.shape) == 2 else ".mT") if turned else ""
    stored = f"{weight}{transpose}" + ("" if turned == now.transposed else ".contiguous()")
    if layout != "ND":
        stored = f"torch_npu.npu_format_cast({stored}, {FRACTAL_NZ})"
    return (f"{weight} = {stored}{transpose}",)


def sizes(_: Result, call: Call) -> Iterator[Change]:
    """k or n padded with zeros to a multiple of what the chip moves and multiplies at once."""
    names = _operands(call)
    if names is None:
        return
    x, weight = (call.arguments[name] for name in names)
    if not (isinstance(x, TensorSpec) and isinstance(weight, TensorSpec)):
        return
    if min(len(x.shape), len(weight.shape)) < 2 or x.shape[-1] != weight.shape[-2]:
        return
    k, n = weight.shape[-2:]
    for size in _fuller(k):
        yield _padded("k", k, size, "both matrices with zeros", {
            names[0]: resized(x, -1, size), names[1]: resized(weight, -2, size)
        })  # fmt: skip
    others = {
        name: value
        for name, value in call.arguments.items()
        if name != names[0] and isinstance(value, TensorSpec) and value.shape[-1:] == (n,)
    }
    for size in _fuller(n):
        wider = {name: resized(value, -1, size) for name, value in others.items()}
        more = f"{', '.join(wider)}, and leave the last {size - n} columns out of the result"
        yield _padded("n", n, size, more, wider)


def _fuller(size: int) -> list[int]:
    found = dict.fromkeys(align_up(size, unit) for unit in UNITS)
    return [each for each in found if size < each <= size * (1 + MOST_PADDING)]


def _padded(name: str, size: int, fuller: int, how: str, arguments: Arguments) -> Change:
    unit = max(unit for unit in UNITS if fuller % unit == 0)
    return Change(
        text=f"{name} = {size} is no multiple of {unit}",
        change=f"fill {name} up to {fuller}: {how}",
        arguments=arguments,
        topic=f"size of {name}",
    )
