"""Operators of npusim on npu tensors: whether one takes a call, and its launch.

::

    if takes("add", {"x": x, "other": 1}):
        y = launch("add", {"x": x, "other": 1})        # an npu tensor; the clock has moved
    y = launched("add", {"x": x, "other": 1})          # both in one, or None

All know calls that were made before, of tensors of the same types, shapes and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from npusim import ops
from npusim.data.dtypes import Array
from npusim.data.errors import OpError
from npusim.run.memory_cache import key_of
from npusim.run.prepared import Prepared
from npusim.run.result import Output
from npusim.run.views import by_operand
from npusim.torch import card, formats, known
from npusim.torch.card import Said
from npusim.torch.clock import clock
from npusim.torch.relabel import memory_of, to_host, to_npu
from npusim.torch.values import argument, array_of, result

__all__ = [
    "Given",
    "arguments",
    "described",
    "described_all",
    "launch",
    "launched",
    "takes",
    "tensors_of",
]

Given = dict[str, Any]
"""Parameter of the operator -> a tensor on npu, a list of them, or the value of an attribute."""
GROUP_ENDS = "group_list"
"""What may be known where shapes alone are simulated, and then decides."""


def takes(name: str, given: Given) -> bool:
    """Whether operator *name* takes *given* on the card; a view counts as what it shows."""
    return _takes(name, given, described_all(name, given))


def _takes(name: str, given: Given, key: Said) -> bool:
    return card.known(("takes", name, key), lambda: _is_taken(name, given))


def _is_taken(name: str, given: Given) -> bool:
    try:
        ops.load(name).check(card.spec(), **arguments(name, given))
    except OpError:
        return False
    return True


def launch(name: str, given: Given) -> torch.Tensor:
    """The output of operator *name* on npu. Raises OpError where it does not take *given*."""
    key = described_all(name, given)
    done = card.again((name, key))
    return _outputs(name, given, key) if done is None else _on_npu(done.outputs, given)


def launched(name: str, given: Given) -> torch.Tensor | None:
    """The output of operator *name* on npu; None where it does not take *given*."""
    key = described_all(name, given)
    done = card.again((name, key))
    if done is not None:
        return _on_npu(done.outputs, given)
    return _outputs(name, given, key) if _takes(name, given, key) else None


class Repeats:
    """Kernels that an operation of torch launches for arguments of types and shapes seen before.

    Contract, types and tiling are those of the first call; what is left are values and the clock.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Hashable, _Repeat] = {}

    def run(
        self, call: Callable[..., torch.Tensor | None], args: tuple[Any, ...]
    ) -> torch.Tensor | None:
        """What *call* gives for *args*, by what an earlier call has found out if there was one."""
        key = _key(args)
        if key is None:
            return call(*args)
        again = self._known.get(key)
        if again is not None:
            return again.launch(args)
        before, launches = clock.kernels, list[_Launch]()
        _looking.append(launches)
        try:
            found = call(*args)
        finally:
            _looking.pop()
        if found is not None and clock.kernels == before + 1 and len(launches) == 1:
            repeat = _Repeat.of(*launches[0], found, args)
            if repeat is not None:
                if len(self._known) == MOST_REPEATS:
                    self._known.clear()
                self._known[key] = repeat
        return found


MOST_REPEATS = 4096
"""Calls of an operation that are found again."""


class _Repeat(NamedTuple):
    """One kernel for arguments of torch, of which some are its operands."""

    prepared: Prepared
    operands: tuple[tuple[str, int, _Part | None], ...]
    """Operands, the places of their tensors, and which parts of these they are, if not all."""
    shape: torch.Size
    """How torch sees the output; to the kernel a number has an axis, and a truth is a byte."""
    dtype: torch.dtype

    @classmethod
    def of(
        cls,
        given: Given,
        again: Prepared,
        own: torch.Tensor,
        found: torch.Tensor,
        args: tuple[Any, ...],
    ) -> _Repeat | None:
        """For a launch of *given*, whose output *own* torch sees as *found*; None where more lies
        between the two."""
        is_seen = found.data_ptr() == own.data_ptr() and found.nbytes == own.nbytes
        if not is_seen or not found.is_contiguous():
            return None
        operands = [_operand(name, x, args) for name, x in given.items() if _is_tensor(x)]
        if None in operands:
            return None
        # A number that was read from a tensor may be another one at the next call.
        read = {each[1] for each in operands if each is not None}
        if any(_is_tensor(arg) and place not in read for place, arg in enumerate(args)):
            return None
        return cls(
            again,
            tuple(each for each in operands if each is not None),
            found.shape,
            found.dtype,
        )

    def launch(self, args: tuple[Any, ...]) -> torch.Tensor:
        """What comes out for *args*."""
        arrays: dict[str, Array] = {}
        seen: torch.Tensor | None = None
        for name, place, part in self.operands:
            if args[place] is not seen:
                seen = args[place]
                tensor = memory_of(seen)
                whole = array_of(tensor)
            arrays[name] = whole if part is None else array_of(tensor.as_strided(*part))
        outputs = self.prepared.outputs(arrays)
        clock.kernel(self.prepared.run)
        found = result(outputs["output"])
        if found.dtype != self.dtype:
            found = found.view(self.dtype)
        return to_npu(found if found.shape == self.shape else found.view(self.shape))


_Part = tuple[torch.Size, tuple[int, ...], int]
"""Shape, strides, and where it begins."""


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _operand(
    name: str, x: torch.Tensor, args: tuple[Any, ...]
) -> tuple[str, int, _Part | None] | None:
    """Which of *args* operand *x* is, or a part of; None where it is of none."""
    for place, arg in enumerate(args):
        if x is arg:
            return name, place, None
    for place, arg in enumerate(args):
        if not _is_tensor(arg) or arg.dtype != x.dtype:
            continue
        begin = x.storage_offset() - arg.storage_offset()
        is_inside = begin >= 0 and begin + _reach(x) <= _reach(arg)
        if is_inside and x.untyped_storage()._cdata == arg.untyped_storage()._cdata:
            return name, place, (x.shape, x.stride(), begin)
    return None


def _reach(x: torch.Tensor) -> int:
    """Elements from the first of *x* to its last in memory."""
    steps = zip(x.shape, x.stride(), strict=True)
    return int(sum((size - 1) * stride for size, stride in steps)) + 1


def _key(args: tuple[Any, ...]) -> Hashable | None:
    """All that *args* say but for values; None where their first call says not enough of others."""
    if not card.is_repeatable() or not formats.are_all_plain():
        return None
    key: list[Hashable] = [card.number()]
    memories: set[int] = set()
    for arg in args:
        kind = type(arg)
        if isinstance(arg, torch.Tensor):
            if arg.is_cpu or arg.is_neg():
                return None
            # Which argument an operand is cannot be told of two that share memory.
            memory = arg.untyped_storage()._cdata
            if memory in memories:
                return None
            memories.add(memory)
            # What copies a view depends on where in its memory it begins.
            start = 0 if arg.is_contiguous() else arg.storage_offset()
            key.append((arg.dtype, arg.shape, arg.stride(), start))
        elif kind is list:
            if not all(type(part) is int for part in arg):
                return None
            key.append(tuple(arg))
        else:
            # Zeros of either sign are equal.
            key.append((kind, arg.hex() if kind is float else arg))
    return tuple(key)


_Launch = tuple[Given, Prepared, torch.Tensor]
_looking: list[list[_Launch]] = []
"""What each :class:`Repeats` that looks has seen of launches that can be made again."""


def _outputs(name: str, given: Given, key: Said) -> torch.Tensor:
    taken = arguments(name, given)
    again = card.prepared_again(name, key, taken)
    if again is None:
        return _on_npu(card.run(name, again_by=(name, key), **taken).outputs, given)
    arrays = {x: y for x, y in by_operand(taken).items() if isinstance(y, np.ndarray)}
    outputs = again.outputs(arrays)
    clock.kernel(again.run)
    found = _on_npu(outputs, given)
    if _looking and not _decisive(name):
        _looking[-1].append((given, again, found))
    return found


def _on_npu(outputs: Mapping[str, Output], given: Given) -> torch.Tensor:
    found = result(outputs["output"])
    x = given.get("x")
    if found.dtype == torch.uint8 and isinstance(x, torch.Tensor) and "dtype" not in given:
        # Bool is a byte to operators; what is not cast stays what it was.
        found = found.view(x.dtype) if x.dtype == torch.bool else found
    # Operators take a number's tensor as one of one element, and give such a one.
    if found.numel() == 1 and all(value.dim() == 0 for value in tensors_of(given)):
        found = found.reshape(())
    return to_npu(found)


def tensors_of(given: Given) -> list[torch.Tensor]:
    """The tensors of *given*, those of lists too."""
    found: list[torch.Tensor] = []
    for value in given.values():
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list):
            found += [part for part in value if isinstance(part, torch.Tensor)]
    return found


def arguments(name: str, given: Given) -> dict[str, object]:
    """*given* as operator *name* takes it."""
    return {key: _argument(name, key, value) for key, value in given.items()}


def _argument(op: str, name: str, value: object) -> object:
    if isinstance(value, torch.Tensor):
        if name == GROUP_ENDS and known.is_known(value):
            return to_host(value).numpy()
        return argument(op, name, to_host(value), formats.get(value))
    if isinstance(value, list):
        return [_argument(op, f"{name}[{place}]", part) for place, part in enumerate(value)]
    return value


def described_all(name: str, given: Given) -> Said:
    """All that *given* says but for the values on which the kernel of *name* does not depend."""
    seen = _decisive(name)
    shapes = tuple([(x, described(y)) for x, y in given.items()])
    return Said(shapes, tuple([_values(x, given.get(x)) for x in seen]) if seen else ())


@cache
def _decisive(name: str) -> tuple[str, ...]:
    """The arguments of operator *name* whose values its kernel depends on."""
    return ops.load(name).value_dependent_inputs


def _values(name: str, value: object) -> bytes:
    """The values of *value*, which is called *name*, as far as they are known."""
    if not isinstance(value, torch.Tensor) or not (
        card.computes_values() or (name == GROUP_ENDS and known.is_known(value))
    ):
        return b""
    return array_of(to_host(value)).tobytes()


def described(value: object) -> Hashable:
    """All that *value* says but for the values of tensors; raises TypeError as `key_of` does."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), formats.get(value)
    if kind is str or value is None:
        return value
    if kind is int or kind is bool:
        return kind, value
    if isinstance(value, list):
        return list, *map(described, value)
    if isinstance(value, tuple):
        return value
    return key_of(value)
