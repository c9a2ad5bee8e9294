"""Several changes of a call together: whether they still save time in combination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from npusim.data.tensor import TensorSpec
from npusim.run.advice.piece import MIN_GAIN, Advice
from npusim.run.result import Call

__all__ = ["merged", "together"]


def together(call: Call, changes: Sequence[Advice]) -> Advice | None:
    """Those *changes*, best first, that each save time on top of the previous ones; None below two.

    Each is simulated once, so the number of trials is less than that of *changes*.
    """
    if not changes:
        return None
    kept, arguments, now_us = [changes[0]], changes[0].arguments, changes[0].after_us
    for each in changes[1:]:
        try:
            both = _with(call, arguments, each.arguments)
        except ValueError:
            continue
        after = call.timed(both)
        if after is None or after.time_us is None or after.time_us > now_us * (1 - MIN_GAIN):
            continue
        kept, arguments, now_us = [*kept, each], both, after.time_us
    if len(kept) < 2:
        return None
    count = "both" if len(kept) == 2 else f"all {len(kept)}"
    listed = "; ".join(f"({number}) {each.change}" for number, each in enumerate(kept, 1))
    made = [each.once_us for each in kept if each.once_us is not None]
    return Advice(
        text=f"{count} changes add up",
        change=f"{count} together: {listed}",
        before_us=kept[0].before_us,
        after_us=now_us,
        kind="change",
        arguments=arguments,
        code=tuple(line for each in kept for line in each.code),
        once_us=sum(made) if made else None,
    )


def _with(call: Call, some: dict[str, object], more: dict[str, object]) -> dict[str, object]:
    """The arguments of both changes of *call*; raises ValueError if they exclude each other."""
    found = dict(some)
    for name, value in more.items():
        found[name] = merged(call.arguments[name], some[name], value) if name in some else value
    return found


def merged(before: Any, one: Any, other: Any) -> Any:
    """*before* with the differences of *one* and those of *other*.

    Tensors are merged by their fields, shapes and lists by their elements. Raises ValueError if
    both change the same in different ways.

    >>> weight, cast = TensorSpec((1000, 50), "int8"), TensorSpec((1000, 50), "int8", "FRACTAL_NZ")
    >>> merged(weight, cast, TensorSpec((1024, 50), "int8"))
    TensorSpec(shape=(1024, 50), dtype='int8', layout='FRACTAL_NZ', transposed=False)
    """
    if one in (before, other):
        return other
    if other == before:
        return one
    three = before, one, other
    if all(isinstance(each, TensorSpec) for each in three):
        names = [field.name for field in fields(before)]
        return replace(before, **{
            name: merged(*(getattr(each, name) for each in three)) for name in names
        })  # fmt: skip
    kind = type(before)
    if kind in (list, tuple) and all(type(each) is kind for each in three):
        return kind(merged(*parts) for parts in zip(*three, strict=True))
    raise ValueError(f"advice: one change must leave what another one sets, not {one} and {other}")
