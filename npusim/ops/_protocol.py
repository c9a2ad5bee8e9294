"""What every operator consists of: a checked problem, a plan, and the functions around them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from npusim.data.dtypes import DTYPES, Array
from npusim.data.tensor import Operand, Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops._torch import TorchFunction

__all__ = ["Operator", "Plan", "Problem", "in_own_terms", "present", "signature"]

ORACLE_ONLY = ("spec", "cube_order")
"""Parameters of a reference that the torch_npu function does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A checked call; an operator's own adds what its kernel reads off it."""

    inputs: tuple[Operand, ...]
    """The tensors that the kernel gets, each by the name that programs use, its own constants too.
    """
    outputs: dict[str, TensorSpec]
    """What comes out, by the names that programs use; the first is `output`, unless it bears the
    name of an input: such a one is that input, which the kernel writes to in place."""

    @property
    def output(self) -> TensorSpec:
        """The first of the outputs."""
        return next(iter(self.outputs.values()))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute, so that no kernel runs."""
        return self.output.size == 0

    @property
    def updated(self) -> dict[str, Operand]:
        """The inputs that the kernel writes to in place, by name."""
        return {each.name: each for each in self.inputs if each.name in self.outputs}


def present(*operands: Operand | None) -> tuple[Operand, ...]:
    """The *operands* that were given, in order."""
    return tuple(operand for operand in operands if operand is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A problem split over cores and buffers; an operator's own adds the sizes of its tiles."""

    block_dim: int
    """Cores that are started, idle ones included; a cube core and the vector cores of its group
    count as one."""
    template: str | None = None
    """Which of the vendor's kernels runs, where the operator has several."""
    reason: str | None = None
    """Why that one was chosen."""
    is_mix: bool = False
    """Whether vector cores start beside the cube cores."""
    reads_tiling: bool = True
    """Whether the kernel reads its sizes from global memory when it starts."""
    workspaces: dict[str, int] = field(default_factory=dict)
    """Tensors in global memory through which cores exchange data: name -> bytes."""


EarlierCall = tuple[str, dict[str, Any]]
"""An operator and its arguments."""


KernelType = str | Callable[[DeviceSpec, Any, Any], str]
"""What CANN calls a kernel, or what finds it for a chip, a problem and its plan."""


def _no_tile(_: DeviceSpec, __: Any) -> Plan | None:
    return None


def _nothing_first(_: Any, __: dict[str, Any]) -> tuple[EarlierCall, ...]:
    return ()


def _no_build(_: DeviceSpec, __: Any, ___: Any) -> tuple[Block, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The declaration of an operator: its functions, and whether the chip has a kernel for it.

    Raises TypeError at definition where an operator of the chip has no kernel or no name for it, or
    one of the host has either, and where a function of torch has parameters that the operator does
    not have, or templates that no parameter names.
    """

    name: str
    """The torch_npu function's."""
    document: str
    """A sentence, the formula, and what is accepted."""
    kernel_type: KernelType = ""
    """CANN's kernel, by the name that the vendor's profilers list as its type."""
    check: Callable[..., Problem]
    """Holds a call, `(spec, **arguments)`, against the contract of a product line."""
    tile: Callable[[DeviceSpec, Any], Plan | None] = _no_tile
    """Splits a problem as the vendor's kernel does; None where there is nothing to do."""
    build: Callable[[DeviceSpec, Any, Any], tuple[Block, ...]] = _no_build
    """Writes the programs of a problem and its plan, one block a core."""
    earlier: Callable[[Any, dict[str, Any]], tuple[EarlierCall, ...]] = _nothing_first
    """What torch_npu launches first, for a problem and the call's arguments: kernels of their own,
    whose time a profiler lists apart and whose results `check` hands to the operator's kernel."""
    reference: Callable[..., Array | Tensor | tuple[Array | Tensor, ...]]
    """Computes the result on whole arrays in plain numpy. Its parameters are those of the torch_npu
    function, in its order, with its defaults; `spec` and `cube_order` are the oracle's own."""
    on_host: bool = False
    """Whether the reference's result is the result: the chip has no kernel for it, and it takes no
    time, since a Task Duration leaves the host out."""
    flags_may_stay_up: bool = False
    """Whether its kernel may end with flags between cores that were set and not awaited, because
    the vendor's kernel, whose order it follows, does. That counters start a launch at zero all the
    same is assumed: no public document says that a kernel must leave them so."""
    seen_by_kernel: tuple[str, ...] = ()
    """Operands whose values `tile` and `build` look at. Of all others they see the specs alone, so
    that calls which differ in nothing else share a kernel and its times."""
    templates: tuple[str, ...] = ()
    """What its parameter `template` may name, on one chip or another: the vendor's kernels."""
    torch: tuple[TorchFunction, ...] = ()
    """The functions of torch_npu that run it."""

    def __post_init__(self) -> None:
        self._check_kernel()
        self._check_templates()
        self._check_torch()

    def _check_kernel(self) -> None:
        missing = [
            name
            for name, is_missing in (
                ("tile", self.tile is _no_tile),
                ("build", self.build is _no_build),
            )
            if is_missing
        ]
        if self.on_host != (len(missing) == 2) or len(missing) == 1:
            have = "neither tile nor build" if self.on_host else "both tile and build"
            came = "lack " + " and ".join(missing) if missing else "have both"
            raise TypeError(
                f"{self.name}: an operator with on_host={self.on_host} must have {have}, not "
                f"{came}; declare what it is"
            )
        if bool(self.kernel_type) == self.on_host:
            must, came = ("no", "has one") if self.on_host else ("a", "has none")
            raise TypeError(
                f"{self.name}: an operator with on_host={self.on_host} must have {must} "
                f"kernel_type, but {came}; declare what CANN calls its kernel, if there is one"
            )

    def _check_templates(self) -> None:
        if self.templates and "template" not in signature(self).parameters:
            raise TypeError(
                f"{self.name}: an operator with templates must have a parameter template, not "
                f"{', '.join(signature(self).parameters)}; add it"
            )

    def _check_torch(self) -> None:
        known = list(signature(self).parameters) if self.torch else []
        for function in self.torch:
            unknown = [name for name in function.parameters if name not in known]
            if unknown:
                raise TypeError(
                    f"{self.name}: {function.name} must hand on parameters of the operator, "
                    f"{', '.join(known)}, not {', '.join(unknown)}; give them their names, or say "
                    f"that they are absent"
                )

    def plan(self, spec: DeviceSpec, problem: Problem) -> Plan | None:
        """How *problem* is split; None where no kernel runs: on the host, or without elements."""
        return None if problem.is_empty else self.tile(spec, problem)

    def type_of(self, spec: DeviceSpec, problem: Problem, plan: Plan) -> str:
        """What CANN calls the kernel that runs *problem* as *plan* splits it."""
        own = self.kernel_type
        return own if isinstance(own, str) else own(spec, problem, plan)


def signature(operator: Operator) -> inspect.Signature:
    """The parameters of the torch_npu function."""
    return _signature_of(operator.reference)


@lru_cache(maxsize=256)  # of all operators and some kernels of one's own; each call asks for one
def _signature_of(reference: Callable[..., Any]) -> inspect.Signature:
    whole = inspect.signature(reference)
    own = [p for p in whole.parameters.values() if p.name not in ORACLE_ONLY]
    return whole.replace(parameters=own)


def in_own_terms(operator: Operator, arguments: dict[str, Any]) -> dict[str, Any]:
    """*arguments* with their dtypes by the names that *operator* knows.

    A dtype may be given by its name, as `torch.dtype` or as numpy's, and by any of the names that
    torch_npu takes for it: `int8` for `qint8`.
    """
    found = dict(arguments)
    for function in operator.torch:
        for parameter, spellings in function.dtypes.items():
            name = function.names.get(parameter, parameter)
            if name in found:
                word = _dtype_word(found[name])
                found[name] = spellings.get(word, word) if isinstance(word, str) else word
    return found


def _dtype_word(value: Any) -> Any:
    """The name of a dtype of torch or of numpy; anything else as it is."""
    kind = type(value)
    # torch itself is not imported: npusim does without it.
    if (kind.__module__, kind.__name__) == ("torch", "dtype"):
        return str(value).removeprefix("torch.")
    if isinstance(value, np.dtype):
        return value.name
    return _OF_NUMPY.get(value, value) if kind is type else value


_OF_NUMPY = {dtype.numpy.type: dtype.name for dtype in DTYPES}
"""numpy.float16 and the like, the classes -> the names of their dtypes."""
