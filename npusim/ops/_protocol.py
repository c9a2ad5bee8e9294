"""The parts of every operator: a checked problem, a plan, and the functions around them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from npusim.data.arguments import Arguments
from npusim.data.dtypes import Array
from npusim.data.product import CubeOrder
from npusim.data.tensor import Operand, Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops._attributes import KindError, value_of
from npusim.ops._contract import Contract
from npusim.ops._oracle import Given
from npusim.ops._signature import Parameter, name_of, of_python, parameters_of, python_signature
from npusim.ops._support import Row, check_support
from npusim.ops._torch import TorchFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A checked call; subclasses add what the kernel derives from it."""

    inputs: tuple[Operand, ...]
    """The tensors that the kernel gets, by their names in programs, including its own constants.
    """
    outputs: dict[str, TensorSpec]
    """The outputs, by their names in programs; the first is `output`, unless it has the name of an
    input: it is then that input, which the kernel updates in place."""

    @property
    def output(self) -> TensorSpec:
        """The first output."""
        return next(iter(self.outputs.values()))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute, so that no kernel runs."""
        return self.output.size == 0

    @property
    def updated(self) -> dict[str, Operand]:
        """The inputs that the kernel writes to in place, by name."""
        return {each.name: each for each in self.inputs if each.name in self.outputs}


def contents(*tensors: Values) -> Hashable:
    """Each element of *tensors*."""
    return tuple([tuple(map(contents, x)) if isinstance(x, list) else _bytes(x) for x in tensors])


def _bytes(tensor: Array | Tensor | None) -> bytes | None:
    return None if tensor is None else np.asarray(tensor).tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Operands whose values a contract reads, and all that it finds out from them."""

    operands: tuple[str, ...]
    finds: Callable[..., Hashable] = contents
    """What it finds out from the tensors of these operands: an array, a list, or None."""
    converts: bool = False
    """Whether it may give the kernel other tensors of their names, which depend on nothing but what
    it *finds*."""


def present(*operands: Operand | None) -> tuple[Operand, ...]:
    """The *operands* that were given, in order."""
    return tuple(operand for operand in operands if operand is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A problem split over cores and buffers; subclasses add the sizes of tiles."""

    block_dim: int
    """Cores that are started, including idle ones; a cube core and the vector cores of its group
    count as one."""
    template: str | None = None
    """The vendor's kernel that runs, if the operator has several."""
    reason: str | None = None
    """Why that template was chosen."""
    is_mix: bool = False
    """Whether vector cores start with the cube cores."""
    reads_tiling: int = True
    """How often the kernel reads its tiling from global memory at the start."""
    workspaces: dict[str, int] = field(default_factory=dict)
    """Workspace tensors in global memory through which cores exchange data: name -> bytes."""


Values = Array | Tensor | list[Any] | None
"""A tensor with values, a list of them, or an operand that is left out."""
EarlierCall = tuple[str, Arguments]
"""An operator and its arguments."""


KernelType = str | Callable[[DeviceSpec, Any, Any], str]
"""CANN's name of a kernel, or a function of chip, problem and plan that returns it."""


def _no_tile(_: DeviceSpec, __: object) -> Plan | None:
    return None


def _nothing_first(_: object, __: Arguments) -> tuple[EarlierCall, ...]:
    return ()


def _no_build(_: DeviceSpec, __: object, ___: object) -> tuple[Block, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The declaration of an operator: its functions, and whether the chip has a kernel for it.

    Its parameters are those of its first torch function, or of its *signature*. Raises TypeError at
    definition if it has neither, no oracle or no row of support, if a row does not match the
    parameters, if an operator of the chip has no kernel or no name for it, or one of the host has
    either, and if a torch function has parameters that the operator does not have.
    """

    name: str = ""
    """Name of the torch_npu function; by default that of its schema."""
    document: str
    """A sentence, the formula, and what is accepted."""
    signature: str | inspect.Signature = ""
    """The schema of an operator without a torch function, as in `"abs(Tensor x) -> Tensor"`."""
    extras: str = ""
    """Parameters that torch_npu does not have, in schema syntax: `"bool deterministic=False"`. They
    are keyword-only. That of `templates` is not included."""
    kernel_type: KernelType = ""
    """CANN's kernel, by the type name that the vendor's profilers list."""
    contract: Callable[[Contract], Problem]
    """Checks the arguments of a :class:`Contract` against each other; raises OpError."""
    support: tuple[Row, ...] = ()
    """Supported combinations: types, layouts, ranks, product lines, values of attributes."""
    rules: tuple[tuple[str, ...], ...] = ()
    """Further conditions that fit a table, its header and its lines, for documents."""
    elsewhere: str = "run on Atlas A2 or A3"
    """What to do on product lines without a row."""
    unsimulated: tuple[str, ...] = ()
    """Product lines without a row that do have a kernel."""
    tile: Callable[[DeviceSpec, Any], Plan | None] = _no_tile
    """Splits a problem as the vendor's kernel does; None if there is nothing to do."""
    build: Callable[[DeviceSpec, Any, Any], tuple[Block, ...]] = _no_build
    """Writes the programs of a problem and its plan, one block per core."""
    prologue: Callable[[Any, Arguments], tuple[EarlierCall, ...]] = _nothing_first
    """Kernels that torch_npu launches first, for a problem and the call's arguments: separate
    kernels that a profiler lists separately, and whose results `check` passes to the operator's
    kernel."""
    oracle: Callable[[Given], Array | Tensor | tuple[Array | Tensor, ...]]
    """Computes the result on whole arrays in plain numpy from the arguments of a
    :class:`Given`."""
    at_once: Callable[[Given, Any, Any], Array | tuple[Array, ...] | None] | None = None
    """Computes the bits of the oracle in a few calls of numpy, for calls that are made repeatedly,
    given their problem, without its arrays, and their plan; None if it does not apply to them.
    Without it, micro-ops compute the values."""
    on_host: bool = False
    """Whether the oracle gives the result: the chip has no kernel for it, and it takes no time,
    since a Task Duration excludes the host."""
    flags_may_stay_up: bool = False
    """Whether its kernel may end with flags between cores that were set and not waited for, because
    the vendor's kernel, whose order it follows, does. That counters still start each launch at zero
    is assumed: no public document says that a kernel must leave them so."""
    value_dependent_inputs: tuple[str, ...] = ()
    """Operands whose values `tile` and `build` read. For all others they see the specs only, so
    calls that differ in nothing else share a kernel and its times."""
    contract_reads: tuple[Reads, ...] = ()
    """The values that `contract` reads, other than those of `value_dependent_inputs`, to refuse a
    call or to compute what the kernel is given. Calls that differ in nothing else have the same
    plan, programs and times."""
    time_key: Callable[[DeviceSpec, Any, Any], Hashable] | None = None
    """For a problem and its plan: a key of the values of `value_dependent_inputs` that problems
    share whose kernels differ only in what takes no time, such as which row of a table is read.
    Calls with equal keys, and all else equal, may be timed as one. Without it, each value of these
    inputs is timed. `at_once` then computes every call, from the values given, not the problem."""
    templates: tuple[str, ...] = ()
    """Allowed values of its parameter `template`, on some chip: the vendor's kernels. An operator
    without any has no such parameter."""
    torch: tuple[TorchFunction, ...] = ()
    """The functions of torch_npu that run it."""

    def __post_init__(self) -> None:
        if not self.name:
            schema = self.torch[0].schema if self.torch else self.signature
            object.__setattr__(self, "name", name_of(schema) if isinstance(schema, str) else "")
        self._check_declared()
        self._check_kernel()
        self._check_torch()

    def _check_declared(self) -> None:
        """Raise TypeError if a mandatory part of the declaration is missing."""
        if not callable(self.oracle):
            raise TypeError(
                f"{self.name or 'operator'}: an operator must have an oracle, a function of what "
                f"is given, not {self.oracle!r}; write what it computes in plain numpy"
            )
        if not self.torch and not self.signature:
            raise TypeError(
                f"{self.name or 'operator'}: an operator must have a function of torch or a "
                f'signature, not neither; declare for example signature="abs(Tensor x) -> Tensor"'
            )
        check_support(self.name, self.support, () if self.is_custom else self.parameters)
        read = (name for each in self.contract_reads for name in each.operands)
        for name in (*self.value_dependent_inputs, *read):
            if name not in self._names:
                raise TypeError(
                    f"{self.name}: an operator must read the values of parameters, "
                    f"{', '.join(each.name for each in self.parameters)}, not of {name}; correct "
                    f"its value_dependent_inputs or contract_reads"
                )

        if self.time_key is not None and self.at_once is None:
            raise TypeError(
                f"{self.name}: an operator with a time_key must have an at_once, since its "
                f"programs serve other values than their own for times alone; declare one"
            )

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

    def _check_torch(self) -> None:
        known = [each.name for each in self.parameters]
        for function in self.torch:
            unknown = [name for name in function.parameters if name not in known]
            if unknown:
                raise TypeError(
                    f"{self.name}: {function.name} must hand on parameters of the operator, "
                    f"{', '.join(known)}, not {', '.join(unknown)}; give them their names, or say "
                    f"that they are absent"
                )

    @property
    def is_custom(self) -> bool:
        """Whether a user's function declares it, so that its rows do not describe its tensors."""
        return isinstance(self.signature, inspect.Signature)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of a call, in order: torch's first, then those that npusim adds."""
        if isinstance(self.signature, inspect.Signature):
            return tuple(map(of_python, self.signature.parameters.values()))
        of_torch = self.torch[0].declared if self.torch and not self.signature else ()
        template = "*, str? template=None" if self.templates else ""
        extras = f"*, {self.extras}" if self.extras else ""
        return of_torch + tuple(
            parameter
            for text in (self.signature, template, extras)
            for parameter in parameters_of(text)
        )

    @cached_property
    def python_signature(self) -> inspect.Signature:
        """The same for `inspect`."""
        if isinstance(self.signature, inspect.Signature):
            return self.signature
        return python_signature(self.parameters)

    @cached_property
    def converted(self) -> frozenset[str]:
        """The operands that `contract` may replace by others for the kernel."""
        of_each = (each.operands for each in self.contract_reads if each.converts)
        return frozenset(chain.from_iterable(of_each))

    def found(self, arguments: Mapping[str, Any]) -> tuple[Hashable, ...]:
        """All that `contract` finds out from the values that it reads of *arguments*."""
        return tuple(
            [each.finds(*map(arguments.__getitem__, each.operands)) for each in self.contract_reads]
        )

    @cached_property
    def attributes(self) -> tuple[Parameter, ...]:
        """The parameters that are not tensors."""
        return tuple(each for each in self.parameters if not each.is_tensor)

    @cached_property
    def spellings(self) -> Mapping[str, Mapping[str, str]]:
        """Parameter that is a dtype -> torch_npu's names for some of them -> the name here."""
        return {
            function.names.get(name, name): names
            for function in self.torch
            for name, names in function.dtypes.items()
        }

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(each.name for each in self.parameters)

    @cached_property
    def _tensors(self) -> tuple[str, ...]:
        if self.is_custom:
            return ()
        return tuple(each.name for each in self.parameters if each.is_tensor)

    def _bound(self, args: tuple[object, ...], kwargs: Arguments) -> Arguments:
        if not args and kwargs.keys() == self._names:
            return normalize(self, kwargs)  # in the form of a run, which binds arguments itself
        bound = self.python_signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return normalize(self, bound.arguments)

    def check(self, /, spec: DeviceSpec, *args: object, **kwargs: object) -> Problem:
        """Check a call against the contract on the product line of *spec*; raises OpError."""
        arguments = self._bound(args, kwargs)
        return self._checked(Contract(self.name, spec, arguments=arguments, support=self.support))

    def checked(self, contract: Contract) -> Problem:
        """Check the arguments of *contract* against what is supported; raises OpError."""
        return self._checked(replace(contract, support=self.support))

    def _checked(self, contract: Contract) -> Problem:
        contract.require_series(self.elsewhere, self.unsimulated)
        contract.require_types(self.attributes)
        problem = self.contract(contract)
        contract.require_presence(self._tensors)
        return problem

    def reference(
        self,
        /,
        *args: object,
        spec: DeviceSpec | None = None,
        cube_order: CubeOrder = "k16",
        **kwargs: object,
    ) -> Any:
        """The oracle's result for a call; *spec* is the chip, None an Atlas A2."""
        return self.oracle(Given(self.name, self._bound(args, kwargs), spec, cube_order))

    def plan(self, spec: DeviceSpec, problem: Problem) -> Plan | None:
        """How *problem* is split; None if no kernel runs: on the host, or without elements."""
        return None if problem.is_empty else self.tile(spec, problem)

    def type_of(self, spec: DeviceSpec, problem: Problem, plan: Plan) -> str:
        """CANN's name of the kernel that runs *problem* as split by *plan*."""
        own = self.kernel_type
        return own if isinstance(own, str) else own(spec, problem, plan)


def signature(operator: Operator) -> inspect.Signature:
    """The parameters of *operator*: those of its torch_npu function and what npusim adds."""
    return operator.python_signature


def normalize(operator: Operator, arguments: Arguments) -> Arguments:
    """*arguments* with attributes converted to the types in the schema of *operator*.

    A dtype may be given by name, as `torch.dtype` or numpy's, and by any name that torch_npu
    accepts for it: `int8` for `qint8`. Values of other types are left for the contract to refuse.
    """
    found = dict(arguments)
    for parameter in operator.attributes:
        name = parameter.name
        if name in found:
            with suppress(KindError):
                found[name] = value_of(parameter, found[name])
    for name, spellings in operator.spellings.items():
        word = found.get(name)
        if isinstance(word, str):
            found[name] = spellings.get(word, word)
    return found
