"""Changes of templates, of scales, and of the attributes of a custom kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npusim import ops
from npusim.data.tensor import TensorSpec
from npusim.reports import bounds, style
from npusim.run.advice.change import Change
from npusim.run.result import Call, Result, without_values

__all__ = ["TEMPLATE", "attributes", "launches", "scales", "templates"]

TEMPLATE = "template"
"""Topic of changes that only npusim accepts: a card chooses the kernel itself."""
FLOATS = ("float16", "bfloat16", "float32")


def templates(run: Result, call: Call) -> Iterator[Change]:
    """Other kernels of the vendor, if the operator has several."""
    for name in call.operator.templates:
        if name != run.template:
            yield Change(
                text=f"the vendor's rules choose {run.template}, and {name} could run too",
                change=f"template={name!r}: npusim takes it, while a card follows its own rules",
                arguments={"template": name},
                topic=TEMPLATE,
            )


def launches(run: Result, call: Call) -> Iterator[Change]:
    """Passing the results of kernels launched before the operator's own, computed once."""
    made: dict[str, TensorSpec] = {}
    ways = []
    for earlier in run.earlier:
        given = [value for value in earlier.arguments.values() if isinstance(value, TensorSpec)]
        names = [
            name
            for name, value in call.arguments.items()
            if name not in made and given and without_values(value) == given[0]
        ]
        output = without_values(earlier.output)
        if names and isinstance(output, TensorSpec):
            made[names[0]] = output
            ways.append(f"{names[0]} = {_written(earlier, names[0])}")
    if made:
        took = sum(earlier.time_us or 0.0 for earlier in run.earlier)
        first = " and ".join(dict.fromkeys(earlier.op for earlier in run.earlier))
        kinds = " and ".join(f"{name} in {call.arguments[name].dtype}" for name in made)
        count = len(run.earlier)
        extra = "an extra launch" if count == 1 else f"{count} extra launches"
        yield Change(
            text=f"{extra} of {first} before each call, for {kinds}, "
            f"take{'s' if count == 1 else ''} {style.time_named(took)}",
            change=f"{'; '.join(ways)} once, when the model is loaded, and pass that",
            code=tuple(way.replace(" = ", " = torch_npu.", 1) for way in ways),
            arguments=dict(made),
            topic="launches",
            once=tuple((earlier.op, earlier.arguments) for earlier in run.earlier),
        )


def _written(earlier: Result, name: str) -> str:
    """The call of *earlier* on tensor *name*, without the arguments that it adds itself."""
    _, *others = ops.signature(ops.load(earlier.op)).parameters.values()
    given = ((each.name, earlier.arguments[each.name], each.default) for each in others)
    plain = [
        f", {other}={value!r}"
        for other, value, default in given
        if isinstance(value, str | int | float) and value != default
    ]
    return f"{earlier.op}({name}{''.join(plain)})"


def scales(_: Result, call: Call) -> Iterator[Change]:
    """Another float type for scales, if the contract allows one."""
    for name, value in call.arguments.items():
        if "scale" in name and isinstance(value, TensorSpec) and value.dtype in FLOATS:
            for dtype in FLOATS:
                if dtype != value.dtype:
                    yield Change(
                        text=f"the tensor {name} is {value.dtype}",
                        change=f"pass {name} as {dtype}, with the precision of that",
                        code=(f"{name} = {name}.to(torch.{dtype})",),
                        arguments={name: replace(value, dtype=dtype)},
                        topic=f"type of {name}",
                    )


def attributes(run: Result, _: Call) -> Iterator[Change]:
    """Integer attributes of a custom kernel, such as the depth of its queues."""
    if not run.is_own_kernel:
        return
    why = _longest_wait(run)
    for name, value in run.arguments.items():
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            for other in sorted({value + 1, 2 * value, value // 2} - {0, value}):
                yield Change(
                    text=why or f"its {name} is {value}",
                    change=f"{name}={other} in place of {value}",
                    arguments={name: other},
                    topic=name,
                )


def _longest_wait(run: Result) -> str:
    """The pipe that waits longest for a flag, and for what."""
    waits = [row for row in bounds.rows(run) if row.cause == "flag" and ": " in row.reason]
    if not waits:
        return ""
    row = max(waits, key=lambda row: row.share)
    src, _, carried = row.reason.partition(": ")
    return (
        f"{row.pipe} of {row.kind} waits for {carried} {style.percent(row.share)} of the time, "
        f"which {src} has to give"
    )
