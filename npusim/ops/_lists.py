"""Lists of tensors that a kernel gets as one: behind each other in global memory.

A kernel finds the tensors of a list by a table of their addresses. Here they lie as the allocator
places tensors of which each is made after the one before, and a program reaches each by its
distance from the first, so that tensors of one shape share what is written for them. That a kernel
takes no time to look an address up is assumed.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from npusim.data.tensor import Operand, TensorSpec, allocated_bytes

__all__ = ["joined", "starts"]


def starts(parts: tuple[Operand, ...]) -> tuple[int, ...]:
    """Bytes from the first of *parts* to each."""
    return tuple(accumulate((allocated_bytes(part.spec.nbytes) for part in parts[:-1]), initial=0))


def joined(name: str, parts: tuple[Operand, ...]) -> Operand:
    """*parts* as one operand called *name*: the only one as it is, several as their bytes."""
    if len(parts) == 1:
        return Operand(name, parts[0].spec, parts[0].array)
    first = starts(parts)
    nbytes = first[-1] + parts[-1].spec.nbytes
    whole = TensorSpec((nbytes,), "uint8")
    if any(part.array is None for part in parts):
        return Operand(name, whole)
    values = np.zeros(nbytes, np.uint8)
    for start, part in zip(first, parts, strict=True):
        data = part.place().data
        assert data is not None
        values[start : start + data.size] = data
    return Operand(name, whole, values)
