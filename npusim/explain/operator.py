"""What an operator computes, which product lines accept a call of it, and its tiling.

Nothing here is stated twice: the operator's own `check` decides what a product line accepts, and
its `tile` decides the tiling.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, fields, replace
from inspect import cleandoc
from types import MappingProxyType

import numpy as np

from npusim import devices, ops
from npusim.data.dtypes import DTYPES, INT4, INT32
from npusim.data.errors import OpError
from npusim.data.integers import ceil_div
from npusim.data.json import Json
from npusim.data.tensor import LAYOUTS, Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.run.views import copies_before

__all__ = ["Explanation", "Line", "explain", "formula"]

ONE_OF_EACH = MappingProxyType(
    {
        "Atlas inference": "ascend310p3",
        "Atlas A2": "ascend910b2",
        "Atlas A3": "ascend910_9391",
    }
)
"""Series -> the chip that represents it."""


@dataclass(frozen=True, slots=True)
class Line:
    """The verdict of a product line on a call."""

    series: str
    device: str
    refusal: str | None
    """The message of the operator; None if it accepts the call."""
    dtypes: dict[tuple[str, ...], tuple[str, ...]]
    """Tensor, or tensors with one type, -> the types they could have, all else unchanged."""
    layouts: dict[str, tuple[str, ...]]
    """Tensor of two or more dimensions -> the layouts it could have."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A call of *op* on *device*."""

    op: str
    device: str
    lines: tuple[Line, ...]
    """One for each product line."""
    kernel_inputs: dict[str, TensorSpec]
    """The inputs of the kernel after aclnn's casts and conversions; empty if it is refused."""
    outputs: dict[str, TensorSpec]
    template: str | None
    reason: str | None
    plan: Json | None
    """How the work is split; None if no kernel runs."""
    earlier: tuple[str, ...] = ()
    """Operators that torch_npu launches first, as separate kernels."""


def formula(op: str) -> tuple[str, str, str]:
    """The sentence, the formula and the notes of operator *op*, from its document."""
    whole = cleandoc(ops.load(op).document)
    caption, _, rest = whole.partition("\n")
    blocks: list[str] = []
    notes: list[str] = []
    is_block = False
    for line in rest.splitlines():
        if line == ".. code-block:: text":
            is_block = True
        elif is_block and line and not line.startswith(" "):
            is_block = False
            notes.append(line)
        else:
            (blocks if is_block else notes).append(line)
    return caption.removeprefix(f"{op}: "), _tidy(blocks, 4), _tidy(notes, 0)


def _tidy(lines: list[str], indent: int) -> str:
    """*lines* without their indent, and without empty lines at the ends or twice in a row."""
    kept: list[str] = []
    for line in lines:
        if line.strip() or (kept and kept[-1]):
            kept.append(line[indent:] if line[:indent].isspace() else line)
    return "\n".join(kept).strip("\n")


def explain(op: str, spec: DeviceSpec, arguments: dict[str, object]) -> Explanation:
    """Explain the call of *op* with *arguments* on *spec*."""
    operator = ops.load(op)
    arguments = ops.normalize(operator, arguments)
    lines = tuple(
        _line(operator, spec if spec.series == series else devices.load(name), arguments)
        for series, name in ONE_OF_EACH.items()
    )
    try:
        problem = _checked(operator, spec, arguments)
    except OpError:
        return Explanation(op, spec.name, lines, {}, {}, None, None, None)
    plan = operator.plan(spec, problem)
    earlier = _earlier(operator, spec, problem, arguments) if plan else ()
    return Explanation(
        op,
        spec.name,
        lines,
        {operand.name: operand.spec for operand in problem.inputs},
        problem.outputs,
        plan.template if plan else None,
        plan.reason if plan else None,
        _parts(plan) if plan else None,
        earlier,
    )


def _earlier(
    operator: ops.Operator, spec: DeviceSpec, problem: ops.Problem, arguments: dict[str, object]
) -> tuple[str, ...]:
    """The operators whose kernels are launched first."""
    calls = *copies_before(spec, problem, arguments), *operator.prologue(problem, arguments)
    return tuple(name for name, _ in calls)


def _parts(plan: ops.Plan) -> dict[str, object]:
    """Fields of *plan*, without the fields of every plan if they have their usual values."""
    usual = asdict(ops.Plan(block_dim=0, template=plan.template, reason=plan.reason))
    values = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return {
        name: _to_json(value)
        for name, value in values.items()
        if name not in usual or value != usual[name]
    }


def _to_json(value: object) -> object:
    """A number or a string unchanged, anything else as text."""
    return value if isinstance(value, int | float | str | None) else str(value)


def _checked(operator: ops.Operator, spec: DeviceSpec, arguments: dict[str, object]) -> ops.Problem:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return operator.check(spec, **arguments)


def _line(operator: ops.Operator, spec: DeviceSpec, arguments: dict[str, object]) -> Line:
    refusal = None
    try:
        _checked(operator, spec, arguments)
    except OpError as error:
        refusal = str(error)
    kinds = {name: kind for name, value in arguments.items() if (kind := _spec_of(value))}
    dtypes = {}
    for names in _alike(kinds):
        others = {
            dtype.name: {name: replace(kinds[name], dtype=dtype.name) for name in names}
            for dtype in DTYPES
        }
        if all(kinds[name].element is INT4 and kinds[name].shape for name in names):
            forms = {name: _packed(kinds[name]) for name in names}
            shapes = " and ".join(str(form.shape) for form in forms.values())
            others[f"int32 {shapes}, eight int4 each"] = forms
        dtypes[names] = _taken(operator, spec, arguments, others)
    layouts = {}
    for name, kind in kinds.items():
        if len(kind.shape) >= 2:
            others = {layout: {name: replace(kind, layout=layout)} for layout in LAYOUTS}
            layouts[name] = _taken(operator, spec, arguments, others)
    return Line(spec.series, spec.name, refusal, dtypes, layouts)


def _packed(kind: TensorSpec) -> TensorSpec:
    """int4 as operators accept it: eight in an int32, along the innermost dimension."""
    inside = len(kind.shape) - (2 if kind.transposed else 1)
    words = ceil_div(kind.shape[inside], 8)
    shape = (*kind.shape[:inside], words, *kind.shape[inside + 1 :])
    return replace(kind, shape=shape, dtype=INT32.name)


def _alike(kinds: dict[str, TensorSpec]) -> list[tuple[str, ...]]:
    """Each single tensor, and all tensors that share a type."""
    by_dtype: dict[str, tuple[str, ...]] = {}
    for name, kind in kinds.items():
        by_dtype[kind.dtype] = (*by_dtype.get(kind.dtype, ()), name)
    return [(name,) for name in kinds] + [names for names in by_dtype.values() if len(names) > 1]


def _spec_of(value: object) -> TensorSpec | None:
    if isinstance(value, np.ndarray):
        return TensorSpec(value.shape, value.dtype.name)
    if isinstance(value, Tensor):
        return value.spec
    return value if isinstance(value, TensorSpec) else None


def _taken(
    operator: ops.Operator,
    spec: DeviceSpec,
    arguments: dict[str, object],
    others: dict[str, dict[str, TensorSpec]],
) -> tuple[str, ...]:
    """Which of *others*, by name, the operator accepts in place of those of the call."""
    found = []
    for label, other in others.items():
        try:
            _checked(operator, spec, arguments | other)
        except OpError:
            continue
        found.append(label)
    return tuple(found)
