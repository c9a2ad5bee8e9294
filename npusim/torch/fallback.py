"""The boxed fallback: operations without a simulated kernel run on torch's CPU kernels.

One boxed fallback serves every operation that has no kernel for the card. It relabels the npu
arguments as CPU tensors over the same memory, runs the operation, and relabels the new tensors
among the results. If a result is one of the arguments (in place, `out=`), the caller's own tensor
is returned.

An operation that a card would run as a kernel is counted by name as not timed. Views, allocations
and queries are not kernels. Operations that torch runs to print a tensor are not counted either.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch.utils._pytree import tree_leaves

from npusim.torch import (
    card,
    half_types,
    host,
    known,
    layer_norm,
    numbering,
    shapes,
    stepwise,
    timed,
)
from npusim.torch.clock import clock
from npusim.torch.errors import invalid_device, mixed_devices, not_modelled
from npusim.torch.host import indices
from npusim.torch.relabel import to_host, to_npu

__all__ = ["UNKNOWN", "HostOp", "fallback", "is_on_host", "on_host"]

CPU = torch.device("cpu")
PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.layout, complex})
"""Types of arguments that mean the same on the host."""

NUMBERS = frozenset({int, float, bool, complex})

CPU_INDICES = frozenset(
    f"aten::{name}"
    for name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
)
"""Operations that accept indices on the host together with npu tensors."""

WITH_HOST = frozenset(
    f"aten::_foreach_{name}" for name in ("copy_", "addcdiv", "addcdiv_", "addcmul", "addcmul_")
)
"""Operations on lists in which some tensors may be on the host: torch processes the list one tensor
at a time, and a tensor of factors is on the host."""

NO_KERNELS = frozenset(
    f"aten::{name}"
    for name in (
        *("_local_scalar_dense", "is_pinned", "is_set_to", "record_stream"),
        *("empty_like", "new_empty", "new_empty_strided", "set_", "resize_as_"),
    )
)
"""Operations that launch no kernel: they allocate, query a tensor, or read back a scalar."""

FILLS = frozenset(f"aten::{name}_" for name in ("fill", "zero", "random", "arange"))
"""In-place operations that overwrite every element of their tensor."""
UNKNOWN = object()
"""Returned instead of a result that depends on unknown values."""

P = ParamSpec("P")
R = TypeVar("R")

_on_host: list[str] = []
"""The functions under :func:`on_host` that are running, innermost last; usually none."""


def on_host(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap *function* so that its operations on npu tensors run on the host and take no time.

    torch's functions for printing tensors are wrapped this way.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        _on_host.append(function.__name__)
        try:
            return function(*args, **kwargs)
        finally:
            _on_host.pop()

    return run


def is_on_host() -> bool:
    """Whether a function wrapped by :func:`on_host` is running."""
    return bool(_on_host)


class _Lent:
    """An npu tensor, its CPU *alias*, and the alias's geometry and address before the call."""

    __slots__ = ("alias", "lay", "npu")

    def __init__(self, npu: torch.Tensor, alias: torch.Tensor) -> None:
        self.npu, self.alias, self.lay = npu, alias, _lay(alias)


def _lay(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


class HostOp:
    """One torch operation and the function that runs it on the host for npu tensors."""

    __slots__ = (
        "is_kernel",
        "is_mutable",
        "mixes",
        "name",
        "op",
        "outs",
        "run",
        "takes_host",
        "takes_numbers",
        "tensors",
    )

    def __init__(self, op: torch._ops.OpOverload, run: Callable[..., object] | None = None) -> None:
        schema = op._schema
        self.op, self.name = op, str(op)
        self.outs = [argument.name for argument in schema.arguments if argument.is_out]
        self.tensors = tuple(
            place
            for place, argument in enumerate(schema.arguments)
            if isinstance(argument.type, torch.TensorType) and not argument.kwarg_only
        )
        """Positions of the positional tensor arguments."""
        self.is_mutable = schema.is_mutable
        self.mixes = schema.name in CPU_INDICES
        self.takes_host = schema.name in WITH_HOST
        self.takes_numbers = stepwise.is_known(op)
        self.is_kernel = schema.name not in NO_KERNELS and not _is_view(schema)
        chosen = run or STAND_INS.get(self.name) or half_types.run_of(op)
        self.run = indices.taking_int32(schema, chosen)

    def __call__(self, *args: object, **kwargs: object) -> object:
        if not card.computes_values():
            return self._by_shapes(args, kwargs)
        call, found = self._computed(args, kwargs)
        if self.op is torch.ops.aten._local_scalar_dense.default:
            clock.wait()
        # Checked after the run, because a tensor passed as `out=` may have been empty before it.
        is_work = self.is_kernel and not _on_host and (call.has_work or _has_elements(found))
        self._passed(args, kwargs, found, is_work)
        return found

    def _computed(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[_Call, object]:
        """Run the operation on values; return the call and its result."""
        # A call's state is a plain object: closures that refer to themselves would keep every
        # tensor alive until the garbage collector runs.
        call = _Call(self)
        down = call.down
        low = [arg if type(arg) in PLAIN else down(arg) for arg in args]
        named = {key: arg if type(arg) in PLAIN else down(arg) for key, arg in kwargs.items()}
        has_only_indices = self.mixes and _only_indices(args, self.is_mutable)
        if call.has_host and call.lent and not (self.takes_host or has_only_indices):
            raise mixed_devices(self.name)
        run = self.run
        given = (low[place] for place in self.tensors if place < len(low))
        if not self.takes_numbers and any(type(each) in NUMBERS for each in given):
            # torch wraps a number as a tensor to choose the backend, but passes the bare number
            # on. The scalar overload computes the same result.
            run = self.op.overloadpacket
        try:
            if self.is_mutable:
                result = self._run_mutable(run, call, low, named)
            else:
                result = run(*low, **named)
        except RuntimeError as error:
            if half_types.is_lacking(error) and not self.is_mutable:
                result = half_types.in_float32(run, low, named)
            elif not str(error).startswith("Could not run"):
                raise
            else:
                raise not_modelled(
                    self.name,
                    "be run on npu, since torch has no kernel of that name for the CPU",
                    "move the tensors of what calls it with .cpu()",
                ) from None
        if self.is_mutable:
            call.give_back()
        return call, call.up(result)

    def decided(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """The result in a simulation of shapes alone, if every value that is read is known; else
        UNKNOWN."""
        written, read = self._parts(args, kwargs)
        if (read and not known.is_known(read)) or not all(map(known.is_backed, written)):
            return UNKNOWN
        if not (self._writes_all or known.is_known(written) or not written):
            return UNKNOWN
        if not shapes.is_small(self.op, args, kwargs):
            return UNKNOWN
        _, found = self._computed(args, kwargs)
        for tensor in _npu_tensors(found):
            known.own(tensor)
        known.learn(found)
        return found

    def _parts(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The npu tensors that the operation writes to, and those that it only reads."""
        parts: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
        for place, argument in enumerate(self.op._schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            info = argument.alias_info
            parts[0 if info is not None and info.is_write else 1].extend(_npu_tensors(value))
        return parts

    @property
    def _writes_all(self) -> bool:
        """Whether the operation overwrites every element of the tensors that it writes to."""
        return bool(self.outs) or self.op._schema.name in FILLS

    def _passed(
        self, args: tuple[object, ...], kwargs: dict[str, object], found: object, is_work: bool
    ) -> None:
        """Advance the clock by the time of its kernels, or count it as not timed if unknown."""
        if not is_work or not timed.ran(self.op._schema, args, kwargs, found):
            clock.host(self.name, is_work)

    def _by_shapes(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        found = self.decided(args, kwargs)
        if found is UNKNOWN:
            if self.op is torch.ops.aten._local_scalar_dense.default:
                shapes.refuse("the number in a tensor")
            run = self.op
            if any(type(args[place]) in NUMBERS for place in self.tensors if place < len(args)):
                run = self.op.overloadpacket
            found = shapes.run(run, _by_places(args) if self.mixes else args, kwargs)
            known.forget(self._parts(args, kwargs)[0])
            if self.op is torch.ops.aten.topk.default:
                _choose(args, found)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_free = not any(tensor.is_npu for tensor in tensors)
        is_work = is_free or _has_elements(tensors) or _has_elements(found)
        self._passed(args, kwargs, found, self.is_kernel and is_work and not _on_host)
        return found

    def _run_mutable(
        self,
        run: Callable[..., object],
        call: _Call,
        low: list[object],
        named: dict[str, object],
    ) -> object:
        call.renew_empty(named)
        try:
            return run(*low, **named)
        except RuntimeError as error:
            if "not resizable" not in str(error) or not self.outs:
                raise
        call.renew(named)
        return run(*low, **named)


class _Call:
    """The tensors of one call: the npu tensor of each CPU alias."""

    __slots__ = ("has_host", "lent", "op")

    def __init__(self, op: HostOp) -> None:
        self.op = op
        self.lent: dict[int, _Lent] = {}
        self.has_host = False

    @property
    def has_work(self) -> bool:
        """Whether any npu tensor of the call has elements, or the call has no npu tensor."""
        return not self.lent or any(lent.npu.numel() for lent in self.lent.values())

    def down(self, value: object) -> object:
        """Convert an argument for the host: npu tensors to CPU aliases, `npu` devices to `cpu`."""
        if isinstance(value, torch.Tensor):
            if not value.is_npu:
                self.has_host = self.has_host or (value.dim() > 0 and value.device == CPU)
                return value
            alias = to_host(value)
            self.lent[id(alias)] = _Lent(value, alias)
            return alias
        if isinstance(value, torch.device):
            if value.type != "npu":
                return value
            if not numbering.is_current(value.index):
                raise invalid_device(value)
            return CPU
        if isinstance(value, list | tuple):
            return [self.down(part) for part in value]
        return value

    def up(self, value: object) -> object:
        """Convert a result back: aliases to the caller's npu tensors, new tensors to npu."""
        if isinstance(value, torch.Tensor):
            lent = self.lent.get(id(value))
            if lent is not None:
                return lent.npu
            if value.device != CPU:
                return value
            if value.layout is not torch.strided or value.is_quantized:
                kind = value.dtype if value.is_quantized else f"layout {value.layout}"
                raise not_modelled(self.op.name, f"give a tensor of {kind}")
            return to_npu(value)
        if isinstance(value, list | tuple):
            return type(value)([self.up(part) for part in value])
        return value

    def renew_empty(self, named: dict[str, object]) -> None:
        """Replace empty outputs before the run: torch's composite functions pass outputs of size 0
        to be resized."""
        self._renew(named, lambda out: out.numel() == 0)

    def renew(self, named: dict[str, object]) -> None:
        """Replace all outputs: memory imported through DLPack cannot be resized."""
        self._renew(named, lambda _: True)

    def _renew(self, named: dict[str, object], wanted: Callable[[torch.Tensor], bool]) -> None:
        for name in self.op.outs:
            lent = self.lent.get(id(named.get(name)))
            if lent is not None and wanted(lent.alias):
                del self.lent[id(lent.alias)]
                named[name] = torch.empty(0, dtype=lent.alias.dtype)
                fresh = self.lent[id(named[name])] = _Lent(lent.npu, named[name])
                fresh.lay = ()

    def give_back(self) -> None:
        """Update, after the run, each npu tensor whose alias has changed its geometry or memory.

        If the memory is the same, the tensor keeps its storage, which other tensors may share.
        """
        for lent in self.lent.values():
            npu, alias = lent.npu, lent.alias
            if _lay(alias) == lent.lay:
                continue
            if lent.lay and alias.data_ptr() == lent.lay[0]:
                npu.as_strided_(alias.shape, alias.stride(), npu.storage_offset())
            else:
                npu.data = to_npu(alias)


def _has_elements(found: object) -> bool:
    """Whether any npu tensor in *found* has elements."""
    return any(
        leaf.is_npu and leaf.numel() > 0
        for leaf in tree_leaves(found)
        if isinstance(leaf, torch.Tensor)
    )


def _npu_tensors(found: object) -> list[torch.Tensor]:
    return [x for x in tree_leaves(found) if isinstance(x, torch.Tensor) and x.is_npu]


def _by_places(args: tuple[object, ...]) -> tuple[object, ...]:
    """The arguments of `index`, with each known mask replaced by the indices that it selects."""
    x, indices, *rest = args
    found: list[object] = []
    for index in indices if isinstance(indices, list | tuple) else ():
        if isinstance(index, torch.Tensor) and index.dtype == torch.bool and known.is_known(index):
            found += [to_npu(place.contiguous()) for place in to_host(index).nonzero().unbind(1)]
        else:
            found.append(index)
    return x, found, *rest


def _choose(args: tuple[object, ...], found: object) -> None:
    """Fill in the experts that a router chooses, drawn from the given distribution."""
    x, indices = args[0], _npu_tensors(found)[1]
    assert isinstance(x, torch.Tensor)
    is_last = len(args) < 3 or args[2] in (-1, x.dim() - 1)
    chosen = known.chosen(indices.shape, x.shape[-1]) if is_last and x.dim() else None
    if chosen is not None and known.is_backed(indices):
        to_host(indices).copy_(chosen)
        known.learn(indices)


def _is_view(schema: torch.FunctionSchema) -> bool:
    """Whether the result aliases an argument that the operation does not write to."""
    return any(
        each.alias_info is not None and not each.alias_info.is_write for each in schema.returns
    )


def _only_indices(args: tuple[object, ...], is_mutable: bool) -> bool:
    """Whether every tensor other than the indices (the second argument, a list) is on npu or has no
    dimensions; or whether the operation writes to the first argument and no such tensor is on npu.
    """
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if is_mutable and not any(tensor.is_npu for tensor in tensors):
        return True
    return all(tensor.is_npu or tensor.dim() == 0 for tensor in tensors)


def _count(x: torch.Tensor, bins: int = 100, low: float = 0, high: float = 0) -> torch.Tensor:
    """`histc`, also of integers and 16-bit floats. A card counts them in int32 (ops-math,
    histogram_v2)."""
    wide = x if x.dtype in (torch.float32, torch.float64) else x.double()
    return torch.histc(wide, bins, low, high).to(x.dtype)


def _add_relu(
    x: torch.Tensor, other: torch.Tensor, alpha: float = 1, out: torch.Tensor | None = None
) -> torch.Tensor:
    """relu of a sum, which the CPU does not implement for 16-bit floats."""
    found = torch.relu(torch.add(x, other, alpha=alpha))
    return found if out is None else out.resize_(found.shape).copy_(found)


def _add_relu_(x: torch.Tensor, other: torch.Tensor, alpha: float = 1) -> torch.Tensor:
    """:func:`_add_relu` in place."""
    return x.copy_(_add_relu(x, other, alpha))


STAND_INS: dict[str, Callable[..., object]] = {
    **{f"aten._add_relu.{kind}": _add_relu for kind in ("Tensor", "Scalar", "out")},
    **{f"aten._add_relu_.{kind}": _add_relu_ for kind in ("Tensor", "Scalar")},
    "aten.histc.default": _count,
    "aten.native_layer_norm.default": layer_norm.forward,
    "aten.native_layer_norm_backward.default": layer_norm.backward,
    **host.OF_TORCH,
}
"""Replacements for operations that a card supports for more types than the CPU, or defines
differently."""

_known: dict[torch._ops.OpOverload, HostOp] = {}


def fallback(op: object, *args: object, **kwargs: object) -> object:
    """Run *op* on the host."""
    host_op = _known.get(op)
    if host_op is None:
        host_op = _known[op] = HostOp(op)
    return host_op(*args, **kwargs)
