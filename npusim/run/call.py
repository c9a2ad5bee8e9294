"""Run an operator, or a kernel of one's own, on a simulated chip: check, tile, build, then play."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np

from npusim import chip, devices, ops
from npusim.chip import L2State, Progress
from npusim.data.dtypes import Array
from npusim.data.errors import Code, OpError, TrapError
from npusim.data.product import CubeOrder
from npusim.data.tensor import GlobalTensor, Tensor, TensorSpec, allocate
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.run import user_kernel as own
from npusim.trace import PipeCounter, Trace
from npusim.values.buffers import UNWRITTEN

__all__ = ["Output", "Run", "run"]

Output = Array | Tensor | TensorSpec
"""The values, or only their shape and type when a TensorSpec went in."""


@dataclass(frozen=True, eq=False)
class Run:
    """What came out, how long it took, and why."""

    op: str
    device: DeviceSpec
    arguments: dict[str, Any]
    """Parameter -> what was given; arrays and tensors as their TensorSpec."""
    l2: L2State
    outputs: dict[str, Output]
    """All that came out, by the names that programs use: operators call the first `output`."""
    plan: ops.Plan | None
    """How the work was split; None when no kernel ran."""
    trace: Trace | None
    """When each micro-op ran; None without timing, or when no kernel ran."""
    timed: bool
    """Whether time was asked for."""

    @property
    def output(self) -> Output | tuple[Output, ...]:
        """What the torch_npu function returns: one output, or a tuple of several."""
        found = tuple(self.outputs.values())
        return found if len(found) > 1 else found[0]

    @property
    def cycles(self) -> int | None:
        """Cycles of the slowest core, from its first micro-op to its last result."""
        if not self.timed:
            return None
        return self.trace.cycles if self.trace else 0

    @property
    def template(self) -> str | None:
        """Which of the vendor's kernels ran, where the operator has several."""
        return getattr(self.plan, "template", None)

    @property
    def reason(self) -> str | None:
        """Why that one was chosen."""
        return getattr(self.plan, "reason", None)

    @property
    def launch_us(self) -> float:
        """What starting and ending the kernel costs around the cores' own time."""
        if self.plan is None:
            return 0.0
        is_mix = getattr(self.plan, "is_mix", False)
        reads_tiling = getattr(self.plan, "reads_tiling", True)
        return self.device.launch.time_us(self.plan.block_dim, is_mix, reads_tiling)

    @property
    def time_us(self) -> float | None:
        """The profiler's Task Duration: launch, the slowest core, completion; host excluded."""
        if self.cycles is None:
            return None
        return self.launch_us + self.cycles / self.device.clock_hz * 1e6

    @property
    def counters(self) -> dict[int, dict[Pipe, PipeCounter]]:
        """Core -> pipe -> what it did."""
        return self.trace.counters() if self.trace else {}

    def to_json(self) -> dict[str, Any]:
        """Everything but the values and the spans, as plain numbers, strings and lists."""
        return {
            "op": self.op,
            "device": self.device.name,
            "arguments": {name: _plain(value) for name, value in self.arguments.items()},
            "l2": self.l2,
            "output": _plain(_described(self.output)),
            "template": self.template,
            "reason": self.reason,
            "plan": asdict(self.plan) if self.plan else None,  # type: ignore[call-overload]
            "time_us": self.time_us,
            "launch_us": self.launch_us,
            "cycles": self.cycles,
            "clock_hz": self.device.clock_hz,
            "gm_bytes": sum(len(lane.cores) * lane.gm_bytes for lane in self._lanes()),
            "l2_bytes": sum(len(lane.cores) * lane.l2_bytes for lane in self._lanes()),
            "counters": {
                str(core): {pipe: asdict(counter) for pipe, counter in pipes.items()}
                for core, pipes in self.counters.items()
            },
        }

    def _lanes(self) -> tuple[Any, ...]:
        return self.trace.lanes if self.trace else ()

    def _repr_html_(self) -> str:
        """What a notebook shows: the run in a line and, if it was timed, its timeline."""
        from npusim.reports.html import glimpse  # loads matplotlib, which a run does without

        return glimpse(repr(self), self if self.trace is not None else None)

    def __repr__(self) -> str:
        told = " and ".join(_told(_described(output)) for output in self.outputs.values())
        took = "not timed" if self.time_us is None else f"{self.time_us:.2f} us"
        return f"<{self.op} on {self.device.name}: {told}, {took}>"


def _told(spec: TensorSpec) -> str:
    return f"{spec.dtype} {spec.shape}" + ("" if spec.layout == "ND" else f" {spec.layout}")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, TensorSpec):
        plain = {"shape": list(value.shape), "dtype": value.dtype, "layout": value.layout}
        return plain | ({"transposed": True} if value.transposed else {})
    return value.item() if isinstance(value, np.generic) else value


def run(
    op: str | own.KernelFunction,
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
    *timing* turn either half off. *l2* says what lies in the L2 at launch: nothing ("cold"),
    inputs and outputs ("warm"), what an earlier run of the same left there ("repeat"), or the
    inputs named in a tuple.
    *every_core* on times each core on its own, which gives the same times more slowly;
    *byte_exact* on keeps every byte of L1 and L0, which gives the same values more slowly.
    *cube_order* is the model of fp16 and bf16 products: how many of them the cube adds up exactly
    before it rounds, 16 unless told otherwise. *progress* is called with a stage, "values" or
    "time", and the share of it that is done.

    Raises OpError, with the code CANN would give, when the operator refuses its arguments or traps;
    ValueError for an unknown operator or device; TypeError for arguments it does not have.

    >>> x = np.array([[0.4, 1.5, -300.0]], np.float32)
    >>> run("npu_quantize", x, np.ones(1, np.float32), None, "qint8", device="ascend310p3").output
    array([[   0,    2, -128]], dtype=int8)
    """
    _check_choice("cube_order", cube_order, get_args(CubeOrder))
    (operator, op), spec = own.find(op), devices.load(device)
    given = _bind(op, operator, args, kwargs)
    problem = operator.check(spec, **given)
    with_values = values and all(operand.array is not None for operand in problem.inputs)
    _check_l2(l2, problem)
    arguments = {name: _described(value) for name, value in given.items()}
    _check_capacity(op, problem, spec)
    has_kernel = problem.output.size > 0 and not ops.is_on_host(operator)
    plan = operator.tile(spec, problem) if has_kernel else None
    if plan is None:
        found = _without_kernel(operator, problem, given, with_values)
        return Run(op, spec, arguments, l2, found, None, None, timing)
    blocks = operator.build(spec, problem, plan)
    orders = chip.verify(blocks, spec)
    tensors = _place(problem, plan, with_values)
    trace = None
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


def _without_kernel(
    operator: ops.Operator, problem: ops.Problem, given: dict[str, Any], with_values: bool
) -> dict[str, Output]:
    """The outputs where no kernel runs: there is nothing to do, or the host does it."""
    if problem.output.size == 0 or not with_values:
        return _found(problem, _allocated(problem, with_values), with_values)
    made = operator.reference(**given)
    outputs = made if isinstance(made, tuple) else (made,)
    return dict(zip(ops.outputs(problem), outputs, strict=True))


def _allocated(problem: ops.Problem, with_values: bool) -> list[GlobalTensor]:
    specs = ops.outputs(problem).items()
    return [allocate(name, spec, with_values) for name, spec in specs]


def _place(problem: ops.Problem, plan: ops.Plan, with_values: bool) -> list[GlobalTensor]:
    """Outputs, inputs and workspaces in global memory, in that order."""
    tensors = _allocated(problem, with_values)
    tensors += [operand.place() for operand in problem.inputs]
    for name, nbytes in ops.workspaces(plan).items():
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


def _bind(
    op: str, operator: ops.Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    signature = ops.signature(operator)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        plain = signature.replace(
            parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
            return_annotation=signature.empty,
        )
        raise TypeError(
            f"{op}: arguments must fit {op}{plain}, but: {error}; fix the call"
        ) from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _check_capacity(op: str, problem: ops.Problem, spec: DeviceSpec) -> None:
    sizes = {operand.name: operand.spec.nbytes for operand in problem.inputs}
    sizes |= {name: output.nbytes for name, output in ops.outputs(problem).items()}
    total, capacity = sum(sizes.values()), spec.gm.capacity_bytes
    if total > capacity:
        listed = ", ".join(f"{name} {nbytes}" for name, nbytes in sizes.items())
        raise OpError(
            Code.OUT_OF_MEMORY,
            f"{op}: its tensors must fit into the {capacity} bytes of global memory of "
            f"{spec.name}, not take {total} ({listed}); split the call",
        )


def _described(value: Any) -> Any:
    """Arrays and tensors as their TensorSpec, also in tuples; the rest as it is."""
    if isinstance(value, tuple):
        return tuple(_described(part) for part in value)
    if isinstance(value, np.ndarray):
        return TensorSpec(value.shape, value.dtype.name)
    return value.spec if isinstance(value, Tensor) else value


def _found(
    problem: ops.Problem, tensors: list[GlobalTensor], with_values: bool
) -> dict[str, Output]:
    """The outputs, which come first among *tensors*, or only their specs."""
    specs = ops.outputs(problem)
    if not with_values:
        return dict(specs)
    return {tensor.name: _values(tensor, specs[tensor.name]) for tensor in tensors[: len(specs)]}


def _values(tensor: GlobalTensor, spec: TensorSpec) -> Array | Tensor:
    """The output as an array, or as a Tensor if it lies in fractals."""
    assert tensor.data is not None
    storage = tensor.data[: spec.nbytes].view(spec.element.numpy).reshape(spec.storage_shape)
    found = Tensor(spec, storage)
    return found.numpy() if spec.layout == "ND" else found
