"""Translate each call of the API to micro-ops, depending on its arguments.

A table has a function for each name; a call that is not in it is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable

from npusim.ascendc.calls import (
    arranging,
    copies,
    cube,
    reductions,
    scalars,
    selection,
    sync,
    vector,
)
from npusim.ascendc.calls.table import Chip, Table, buffer_of
from npusim.ascendc.errors import AscendCError
from npusim.ascendc.recording import Called, LocalOperand
from npusim.data.integers import align_up
from npusim.isa import BLOCK_BYTES, MicroOp, reads, writes

__all__ = ["Chip", "micro_ops"]

CALLS: Table = {
    **arranging.CALLS,
    **copies.CALLS,
    **cube.CALLS,
    **reductions.CALLS,
    **scalars.CALLS,
    **selection.CALLS,
    **sync.CALLS,
    **vector.CALLS,
}


def micro_ops(called: Called, chip: Chip) -> tuple[MicroOp, ...]:
    """The micro-ops of a call, whose operands in global memory start at offset 0.

    Raises AscendCError if no core can do the call.
    """
    made = CALLS.get(called.name)
    if made is None:
        raise AscendCError(f"{called.name} must be a call that npusim simulates; it is not yet")
    if called.name in cube.CALLS and not chip.has_cube:
        return ()  # the compiler removes such calls from the code of vector cores
    found: Iterable[MicroOp] = made(chip, *called.arguments)
    ops = tuple(found)
    if called.name in cube.CALLS:
        return ops  # these access whole fractals, even if a tensor ends within one
    for operand in called.arguments:
        if isinstance(operand, LocalOperand) and operand.size:
            _check_room(called.name, operand, ops)
    return ops


def _check_room(name: str, operand: LocalOperand, ops: Iterable[MicroOp]) -> None:
    """Raise AscendCError if an access that starts at *operand* ends beyond its buffer."""
    room = align_up(operand.size * operand.dtype.bits // 8, BLOCK_BYTES)
    buffer, begin = buffer_of(operand), operand.address_bytes
    for op in ops:
        for local in (*reads(op), *writes(op)):
            if local.buffer == buffer and local.offset_bytes == begin:
                nbytes = local.end_bytes - begin
                if nbytes > room:
                    raise AscendCError(
                        f"{name} must stay within the {room} bytes of its tensor from byte "
                        f"{begin} of {buffer} on, not touch {nbytes}; pass a larger one, or fewer "
                        f"elements"
                    )
