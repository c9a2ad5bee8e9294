"""Calls of the scalar unit: elements that it reads and writes."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.ascendc.calls.table import Chip, Table, local, place
from npusim.ascendc.recording import GlobalOperand, LocalOperand, Number
from npusim.isa import (
    MicroOp,
    ScalarAlu,
    ScalarLoad,
    ScalarLoadGlobal,
    ScalarStore,
    ScalarStoreGlobal,
)

__all__ = ["CALLS", "READ_TILING"]

READ_TILING = "ReadTiling"
VALUE = "value"
"""The register of an element that is read or written."""


def _get(_: Chip, src: LocalOperand) -> Iterator[MicroOp]:
    yield ScalarLoad(VALUE, local(src, 1))


def _set(_: Chip, dst: LocalOperand, number: Number) -> Iterator[MicroOp]:
    yield ScalarAlu("add", VALUE, number.bits)
    yield ScalarStore(local(dst, 1), VALUE)


def _get_global(_: Chip, src: GlobalOperand) -> Iterator[MicroOp]:
    yield ScalarLoadGlobal(VALUE, place(src.dtype.nbytes(1)), src.dtype)


def _set_global(_: Chip, dst: GlobalOperand, number: Number) -> Iterator[MicroOp]:
    yield ScalarAlu("add", VALUE, number.bits)
    yield ScalarStoreGlobal(place(dst.dtype.nbytes(1)), VALUE, dst.dtype)


def _read_tiling(_: Chip) -> Iterator[MicroOp]:
    """The launch as a whole takes longer for it."""
    yield from ()


CALLS: Table = {
    "GetGlobalValue": _get_global,
    "GetValue": _get,
    READ_TILING: _read_tiling,
    "SetGlobalValue": _set_global,
    "SetValue": _set,
}
