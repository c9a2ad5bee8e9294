"""A custom kernel as an operator: a function that writes it for a chip and shapes.

.. code-block:: python

    def add(spec: DeviceSpec, x: TensorSpec, y: TensorSpec, tile: int = 4096) -> Kernel: ...

    npusim.run(add, x, y, device="Atlas A2")               # or npusim.run("my_kernel.py:add", ...)

It receives the chip and the shape, type and layout of each tensor, never values, and so writes the
same kernel for values and for times. Parameters with an annotation other than TensorSpec, or
with only a default, are attributes. Docs: docs/course/02_a_first_kernel.md.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, Signature
from pathlib import Path
from traceback import FrameSummary, extract_tb
from types import ModuleType
from typing import Any, cast

import numpy as np

from npusim.ascendc import ProgramLaunch, SourceLaunch
from npusim.check.bounds import check_inside
from npusim.check.rules import check_blocks
from npusim.data.arguments import is_masked
from npusim.data.dtypes import BUFFER_DTYPES, Array, dtype_of
from npusim.data.errors import shown
from npusim.data.tensor import GlobalTensor, Operand, Tensor, TensorSpec
from npusim.devices.names import whole
from npusim.devices.schema import DeviceSpec
from npusim.isa import global_operand, misfit, writes_global
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Block
from npusim.ops import Contract, Given, Operator, Plan, Problem, Row

__all__ = [
    "KernelError",
    "KernelFunction",
    "OwnKernel",
    "UserProblem",
    "load",
    "no_oracle",
    "operand_of",
    "operator",
]

KernelFunction = Callable[..., Kernel]
"""A function of a chip, its parameter `spec`, and of TensorSpecs and attributes, to a kernel."""
OwnKernel = KernelFunction | SourceLaunch | ProgramLaunch | Operator
"""What can run instead of an operator of npusim: a kernel in Python, or in C++."""
PACKAGE = Path(__file__).resolve().parents[1]


class KernelError(ValueError):
    """A custom kernel cannot be found, written or launched."""


# ---- files ----


def load(text: str) -> KernelFunction:
    """The function that *text*, `FILE.py:FUNCTION`, names; raises KernelError.

    Python executes the file, which can do whatever the user may do.
    """
    file, _, name = text.rpartition(":")
    if not file or not name:
        raise KernelError(
            f"kernel: one in a file must be FILE.py:FUNCTION, not {whole(text)}; "
            f"name the function that makes it"
        )
    path = Path(file)
    if not path.is_file():
        raise KernelError(
            f"kernel: {path} must be a file of Python, but there is none; check the path"
        )
    module = _module(path, path.stat().st_mtime_ns)
    found = vars(module).get(name)
    own = [
        other
        for other, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    if not callable(found):
        near = get_close_matches(name, own, n=1)
        hint = f"did you mean {near[0]}?" if near else "define it"
        raise KernelError(
            f"kernel: {file} must have the function {name}, but has {', '.join(own) or 'none'}; "
            f"{hint}"
        )
    return cast(KernelFunction, found)


@lru_cache(maxsize=16)
def _module(path: Path, _: int) -> ModuleType:
    """The module in *path*, executed again if it has changed; it can import its neighbours."""
    spec = spec_from_file_location(f"own_kernel_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise KernelError(f"kernel: {path} must be a file of Python; end its name in .py")
    module = module_from_spec(spec)
    # Dataclasses look up their module.
    sys.modules[spec.name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise KernelError(
            f"kernel: {path} must run as it stands, but {_describe(error, path)}; fix it"
        ) from error
    finally:
        sys.path.remove(folder)
    return module


def _describe(error: Exception, path: Path) -> str:
    """The error, and the line of *path* where it occurred."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if _same(frame, path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    where = f"line {line}" if line else "it"
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{where} raises {type(error).__name__}: {what}"


def _is_ours(error: Exception) -> bool:
    """Whether npusim itself raised *error*."""
    *_, last = extract_tb(error.__traceback__)
    return Path(last.filename).resolve().is_relative_to(PACKAGE)


def _same(frame: FrameSummary, path: Path) -> bool:
    return Path(frame.filename).resolve() == path.resolve()


# ---- as an operator ----


def operator(function: KernelFunction) -> Operator:
    """The operator that runs *function*.

    Raises KernelError unless each of its parameters can be passed by name.
    """
    kernel = UserKernel(function)
    return Operator(
        name=kernel.name,
        document=inspect.getdoc(function) or "",
        kernel_type=kernel.name,
        signature=kernel.signature,
        contract=kernel.check,
        support=(Row(),),
        tile=kernel.tile,
        build=kernel.build,
        oracle=no_oracle,
    )


def no_oracle(given: Given) -> Array:
    """Values come only from the kernel."""
    raise KernelError(
        f"kernel: a custom kernel must be run, not asked for its oracle ({given}); call npusim.run"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UserProblem(Problem):
    """A kernel with its operands."""

    kernel: Kernel
    reads_tiling: bool = False
    """Whether it reads its sizes from global memory at the start."""
    is_strict: bool = True
    """Whether harmless violations that the vendor's own kernels contain are refused.
    """


class UserKernel:
    """A function that writes a kernel, with the methods of an operator."""

    def __init__(self, function: KernelFunction) -> None:
        self.function = function
        is_named = inspect.isroutine(function) or inspect.isclass(function)
        self.name: str = function.__name__ if is_named else type(function).__name__
        _check_parameters(self.name, function)

    @property
    def signature(self) -> Signature:
        """The parameters of a call: those of the function without the chip."""
        whole = inspect.signature(self.function)
        kept = [each for each in whole.parameters.values() if each.name != "spec"]
        return whole.replace(parameters=kept)

    def check(self, contract: Contract) -> UserProblem:
        """Write the kernel, and check it against the tensors and the chip."""
        spec, arguments = contract.spec, contract.arguments
        operands = {
            name: operand_of(self.name, name, value)
            for name, value in arguments.items()
            if isinstance(value, np.ndarray | Tensor | TensorSpec)
        }
        described = {name: operand.spec for name, operand in operands.items()}
        try:
            kernel = self.function(spec=spec, **{**arguments, **described})
        except Exception as error:
            if isinstance(error, ValueError | RuntimeError) and _is_ours(error):
                raise  # its message is complete
            raise KernelError(
                f"{self.name}: the function must return a Kernel, but "
                f"{_describe(error, self._file())}; fix it"
            ) from error
        _check_kernel(self.name, kernel, described, spec)
        return UserProblem(inputs=tuple(operands.values()), outputs=kernel.outputs, kernel=kernel)

    def tile(self, _: DeviceSpec, problem: UserProblem) -> Plan:
        """What starts, and its workspaces."""
        kernel = problem.kernel
        return Plan(
            block_dim=kernel.block_dim,
            is_mix=kernel.is_mix,
            # Its sizes are known when it is written.
            reads_tiling=False,
            workspaces=kernel.workspaces,
        )

    def build(self, _: DeviceSpec, problem: UserProblem, __: Plan) -> tuple[Block, ...]:
        """The blocks are already written."""
        return problem.kernel.blocks

    def _file(self) -> Path:
        """The file of the function; an empty path for a callable object, which has no code."""
        if inspect.isfunction(self.function) or inspect.ismethod(self.function):
            return Path(self.function.__code__.co_filename)
        return Path()


def _check_parameters(name: str, function: KernelFunction) -> None:
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        raise KernelError(
            f"{name}: a kernel's function must be one of Python, not {shown(function)}; write for "
            f"example def {name}(spec, x, y)"
        ) from None
    nameable = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    if "spec" not in parameters or any(p.kind not in nameable for p in parameters.values()):
        raise KernelError(
            f"{name}: a kernel's function must take the chip as spec and everything else by "
            f"its own name, not ({', '.join(map(str, parameters.values()))}); write for "
            f"example {name}(spec, x, y)"
        )


def operand_of(who: str, name: str, value: Any) -> Operand:
    """The operand *name* of a kernel; raises KernelError for an unsupported array type."""
    match value:
        case TensorSpec():
            return Operand(name, value)
        case Tensor():
            is_plain = value.layout == "ND"
            return Operand(name, value.spec, value.numpy() if is_plain else value.storage)
        case _:
            dtype = dtype_of(value)
            if dtype is None or is_masked(value):
                known = ", ".join(dtype.name for dtype in BUFFER_DTYPES)
                what = "a masked array" if dtype is not None else value.dtype
                raise KernelError(
                    f"{who}: {name} must be an array of {known}, not {what}; convert it"
                )
            return Operand(name, TensorSpec(value.shape, dtype.name), value)


# ---- what can be launched ----


def _check_kernel(
    who: str, kernel: object, described: dict[str, TensorSpec], spec: DeviceSpec
) -> None:
    if not isinstance(kernel, Kernel):
        raise KernelError(
            f"{who}: the function must return a Kernel, not {type(kernel).__name__}; "
            f"write return Kernel(name, blocks, inputs, outputs)"
        )
    wrong = misfit(kernel)
    if wrong is not None:
        raise KernelError(f"{who}: Kernel.{wrong}")
    check_blocks(who, kernel.blocks)
    if kernel.inputs != described:
        raise KernelError(
            f"{who}: Kernel.inputs must be the tensors given, {_listed(described)}, not "
            f"{_listed(kernel.inputs)}; pass them on"
        )
    if not kernel.outputs or not kernel.blocks:
        lacking = "output" if not kernel.outputs else "block"
        raise KernelError(f"{who}: a Kernel must have one {lacking} at least, not none; add one")
    names = [*kernel.inputs, *kernel.outputs, *kernel.workspaces]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise KernelError(f"{who}: {twice[0]} must name one tensor, not several; rename one")
    _check_cores(who, kernel, spec)
    sizes = {name: of.nbytes for name, of in (kernel.inputs | kernel.outputs).items()}
    sizes |= kernel.workspaces
    for block in kernel.blocks:
        _check_bindings(who, block, sizes)
        _check_stores(who, block, kernel)
    check_inside(kernel.blocks, [GlobalTensor(name, size) for name, size in sizes.items()])


def _check_cores(who: str, kernel: Kernel, spec: DeviceSpec) -> None:
    kinds = [block.kind for block in kernel.blocks]
    cores = [block.core for block in kernel.blocks]
    for kind in dict.fromkeys(kinds):
        count = spec.cores[kind].count if kind in spec.cores else 0
        if kinds.count(kind) > count:
            have = ", ".join(f"{core.count} {known}" for known, core in spec.cores.items())
            raise KernelError(
                f"{who}: blocks must fit on the cores of {spec.name}, {have}, not be "
                f"{kinds.count(kind)} {kind}; give a core more work, or use another kind"
            )
    twice = sorted({core for core in cores if cores.count(core) > 1})
    if twice:
        raise KernelError(
            f"{who}: each block must have its own core, but core {twice[0]} has several; "
            f"number them"
        )


def _check_bindings(who: str, block: Block, sizes: dict[str, int]) -> None:
    places = (global_operand(op) for ops in block.program.bodies for op in ops)
    used = dict.fromkeys(place.name for place in places if place is not None)
    for name in used:
        bound = block.bindings.get(name)
        if bound is None or bound.tensor not in sizes:
            came = "nothing" if bound is None else bound.tensor
            raise KernelError(
                f"{who}: core {block.core} must bind {name} to one of {', '.join(sizes)}, not to "
                f"{came}; add it to the block's bindings"
            )


def _check_stores(who: str, block: Block, kernel: Kernel) -> None:
    """Raise KernelError if *block* stores to an input, which belongs to the caller."""
    ops = (op for body in block.program.bodies for op in body)
    for op in ops:
        place = global_operand(op)
        if place is None or not writes_global(op):
            continue
        tensor = block.bindings[place.name].tensor
        if tensor in kernel.inputs:
            raise KernelError(
                f"{who}: a kernel must leave its inputs as they are, but core {block.core} writes "
                f"{tensor} by {op}; list a tensor among Kernel.outputs and bind {place.name} to it"
            )


def _listed(tensors: dict[str, TensorSpec]) -> str:
    words = (f"{name} {of.dtype} {of.shape} {of.layout}" for name, of in tensors.items())
    return ", ".join(words) or "none"
