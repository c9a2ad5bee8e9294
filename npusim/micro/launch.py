"""Runs a kernel without an operator, for its values or for its time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim import chip
from npusim.check.bounds import check_inside
from npusim.check.rules import check_blocks
from npusim.chip import L2State
from npusim.data.dtypes import Array
from npusim.data.tensor import GlobalTensor, Operand, TensorSpec, allocate
from npusim.devices.schema import DeviceSpec, ICache
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Program
from npusim.trace import Trace
from npusim.values.buffers import UNWRITTEN

__all__ = ["compute", "task_us", "time"]


def time(kernel: Kernel, spec: DeviceSpec, l2: L2State = "cold") -> Trace:
    """Time *kernel*.

    Raises RuleError, BoundsError, RaceError, DeadlockError or FlagError for an invalid program.
    """
    _verify(kernel, spec)
    tensors = _sizes(kernel)
    return chip.time(kernel.blocks, tensors, spec, l2=l2)


def task_us(
    kernel: Kernel,
    spec: DeviceSpec,
    trace: Trace,
    *,
    reads_tiling: bool = False,
    icache: ICache = "warm",
) -> float:
    """The profiler's Task Duration: launch, the slowest core, completion.

    *reads_tiling*: whether its cores read a tiling from global memory before they start.
    """
    split = kernel.block_dim, kernel.is_mix, reads_tiling
    launch_us = spec.launch_us(split, trace.code, icache)
    return launch_us + trace.cycles / spec.clock_hz * 1e6


def compute(kernel: Kernel, spec: DeviceSpec, **inputs: Array) -> dict[str, Array]:
    """The outputs of *kernel*, by name, for these *inputs*; raises ValueError if they do not fit.

    It is checked in the same way as by `time`.
    """
    orders = _verify(kernel, spec)
    given = {name: TensorSpec(array.shape, array.dtype.name) for name, array in inputs.items()}
    if given != kernel.inputs:
        raise ValueError(
            f"{kernel.name}: inputs must be {_listed(kernel.inputs)}, not {_listed(given)}; "
            f"pass these arrays"
        )
    outputs = {name: allocate(name, of, True) for name, of in kernel.outputs.items()}
    tensors = [Operand(name, given[name], array).place() for name, array in inputs.items()]
    for name, nbytes in kernel.workspaces.items():
        # Reading bytes that were never written must show.
        tensors.append(GlobalTensor(name, nbytes, np.full(nbytes, UNWRITTEN, np.uint8)))
    chip.compute(kernel.blocks, [*outputs.values(), *tensors], spec, orders)
    return {name: _values(outputs[name], of) for name, of in kernel.outputs.items()}


def _verify(kernel: Kernel, spec: DeviceSpec) -> dict[Program, Sequence[int]]:
    check_blocks(kernel.name, kernel.blocks)
    check_inside(kernel.blocks, _sizes(kernel))
    return chip.verify(kernel.blocks, spec)


def _sizes(kernel: Kernel) -> list[GlobalTensor]:
    """Its tensors without values."""
    sizes = {name: of.nbytes for name, of in _tensors(kernel).items()} | kernel.workspaces
    return [GlobalTensor(name, nbytes) for name, nbytes in sizes.items()]


def _tensors(kernel: Kernel) -> dict[str, TensorSpec]:
    return kernel.inputs | kernel.outputs


def _listed(tensors: dict[str, TensorSpec]) -> str:
    return ", ".join(f"{name} {of.dtype} {of.shape}" for name, of in tensors.items()) or "none"


def _values(tensor: GlobalTensor, of: TensorSpec) -> Array:
    assert tensor.data is not None
    flat = np.asarray(tensor.data[: of.nbytes])
    return flat.view(of.element.numpy).reshape(of.shape)
