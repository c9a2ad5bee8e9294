"""Run an operator, or a kernel of one's own, on a simulated chip: check, tile, build, then play."""

from __future__ import annotations

import os
from typing import Any, get_args

import numpy as np

from npusim import chip, devices, ops
from npusim.chip import L2State, Progress
from npusim.data.dtypes import Array
from npusim.data.errors import Code, OpError, TrapError
from npusim.data.product import CubeOrder
from npusim.data.tensor import GlobalTensor, Tensor, TensorSpec, allocate
from npusim.devices.schema import DeviceSpec
from npusim.run import user_kernel
from npusim.run.result import Output, Run, without_values
from npusim.values.buffers import UNWRITTEN

__all__ = ["find", "run"]


def run(
    op: str | user_kernel.KernelFunction,
    *args: Any,
    device: str | os.PathLike[str] | DeviceSpec,
    values: bool = True,
    timing: bool = True,
    l2: L2State = "cold",
    every_core: bool = False,
    byte_exact: bool = False,
    cube_order: CubeOrder = "k16",
    progress: Progress | None = None,
    **kwargs: Any,
) -> Run:
    """Run operator *op* on *device*, with the parameters of the torch_npu function.

    *op* may also be a function that writes a kernel, or FILE.py:FUNCTION, with its own parameters.
    *args* and *kwargs* are numpy arrays, :class:`Tensor` in place of an array for FRACTAL_NZ, and
    plain attributes; a :class:`TensorSpec` in place of either asks for time only. *values* and
    *timing* turn either half off. *l2* says what lies in the L2 at launch: nothing ("cold"), inputs
    and outputs ("warm"), what an earlier run of the same left there ("repeat"), or the inputs named
    in a tuple. *every_core* on times each core on its own, which gives the same times more slowly;
    *byte_exact* on keeps every byte of L1 and L0, which gives the same values more slowly.
    *cube_order* is the model of fp16 and bf16 products: how many of them the cube adds up exactly
    before it rounds, 16 by default. *progress* is called with a stage, "values" or "time", and the
    share of it that is done.

    Raises OpError, with the code CANN would give, when the operator refuses its arguments or traps;
    ValueError for an unknown operator or device; TypeError for arguments it does not have.

    >>> x = np.array([[0.4, 1.5, -300.0]], np.float32)
    >>> run("npu_quantize", x, np.ones(1, np.float32), None, "qint8", device="ascend310p3").output
    array([[   0,    2, -128]], dtype=int8)
    """
    _check_choice("cube_order", cube_order, get_args(CubeOrder))
    operator, spec = find(op), devices.load(device)
    op = operator.name
    bound = _bind(operator, args, kwargs)
    problem = operator.check(spec, **bound)
    with_values = values and all(operand.array is not None for operand in problem.inputs)
    _check_l2(l2, problem)
    arguments = {name: without_values(value) for name, value in bound.items()}
    _check_capacity(op, problem, spec)
    plan = operator.plan(spec, problem)
    if plan is None:
        found = _without_kernel(operator, problem, bound, with_values)
        return Run(op, spec, arguments, l2, found, None, None, timing)
    blocks = operator.build(spec, problem, plan)
    orders = chip.verify(blocks, spec)
    tensors, trace = _place(problem, plan, with_values), None
    try:
        if with_values:
            model = chip.Model(cube_order, byte_exact)
            chip.compute(blocks, tensors, spec, orders, model, progress=progress)
        if timing:
            trace = chip.time(
                blocks, tensors, spec, l2=l2, every_core=every_core, progress=progress
            )
    except TrapError as trap:
        raise OpError(Code.AICORE_EXCEPTION, f"{op}: {trap}") from None
    return Run(op, spec, arguments, l2, _found(problem, tensors, with_values), plan, trace, timing)


def find(op: str | user_kernel.KernelFunction) -> ops.Operator:
    """What is to be run: the operator of that name, or a kernel of one's own.

    A kernel of one's own is a function, or FILE.py:FUNCTION. Raises ValueError for an unknown
    operator, KernelError for a kernel that cannot be found.
    """
    if not isinstance(op, str):
        return user_kernel.operator(op) if callable(op) else ops.load(op)
    is_in_a_file = ":" in op or op.endswith(".py")
    return user_kernel.operator(user_kernel.load(op)) if is_in_a_file else ops.load(op)


def _without_kernel(
    operator: ops.Operator, problem: ops.Problem, bound: dict[str, Any], with_values: bool
) -> dict[str, Output]:
    """The outputs where no kernel runs: there is nothing to do, or the host does it."""
    if problem.output.size == 0 or not with_values:
        return _found(problem, _allocated(problem, with_values), with_values)
    result = operator.reference(**bound)
    outputs = result if isinstance(result, tuple) else (result,)
    return dict(zip(problem.outputs, outputs, strict=True))


def _allocated(problem: ops.Problem, with_values: bool) -> list[GlobalTensor]:
    return [allocate(name, spec, with_values) for name, spec in problem.outputs.items()]


def _place(problem: ops.Problem, plan: ops.Plan, with_values: bool) -> list[GlobalTensor]:
    """Outputs, inputs and workspaces in global memory, in that order."""
    tensors = _allocated(problem, with_values)
    tensors += [operand.place() for operand in problem.inputs]
    for name, nbytes in plan.workspaces.items():
        # What nobody has written must show when somebody reads it.
        data = np.full(nbytes, UNWRITTEN, np.uint8) if with_values else None
        tensors.append(GlobalTensor(name, nbytes, data))
    return tensors


def _check_l2(l2: L2State, problem: ops.Problem) -> None:
    names = [operand.name for operand in problem.inputs]
    known = isinstance(l2, tuple) and set(l2) <= set(names)
    if not known and l2 not in ("cold", "warm", "repeat"):
        raise ValueError(
            f"run: l2 must be cold, warm, repeat or a tuple of inputs out of {', '.join(names)}, "
            f"not {l2!r}; use one of these"
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(
            f"run: {name} must be one of {', '.join(choices)}, not {value!r}; use one of these"
        )


def _bind(operator: ops.Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    op = operator.name
    signature = ops.signature(operator)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        bare = signature.replace(
            parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
            return_annotation=signature.empty,
        )
        raise TypeError(
            f"{op}: arguments must fit {op}{bare}, but: {error}; fix the call"
        ) from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _check_capacity(op: str, problem: ops.Problem, spec: DeviceSpec) -> None:
    sizes = {operand.name: operand.spec.nbytes for operand in problem.inputs}
    sizes |= {name: output.nbytes for name, output in problem.outputs.items()}
    total, capacity = sum(sizes.values()), spec.gm.capacity_bytes
    if total > capacity:
        listed = ", ".join(f"{name} {nbytes}" for name, nbytes in sizes.items())
        raise OpError(
            Code.OUT_OF_MEMORY,
            f"{op}: its tensors must fit into the {capacity} bytes of global memory of "
            f"{spec.name}, not take {total} ({listed}); split the call",
        )


def _found(
    problem: ops.Problem, tensors: list[GlobalTensor], with_values: bool
) -> dict[str, Output]:
    """The outputs, which come first among *tensors*, or only their specs."""
    specs = problem.outputs
    if not with_values:
        return dict(specs)
    return {tensor.name: _values(tensor, specs[tensor.name]) for tensor in tensors[: len(specs)]}


def _values(tensor: GlobalTensor, spec: TensorSpec) -> Array | Tensor:
    """The output as an array, or as a Tensor if it lies in fractals."""
    assert tensor.data is not None
    storage = tensor.data[: spec.nbytes].view(spec.element.numpy).reshape(spec.storage_shape)
    found = Tensor(spec, storage)
    return found.numpy() if spec.layout == "ND" else found
