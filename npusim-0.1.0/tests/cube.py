"""One core with a cube on a bench: its buffers in sight, held as matrices or as bytes."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import INT4, DType, pack_int4
from npusim.data.layout import Layout
from npusim.devices.schema import DeviceSpec
from npusim.isa import Global, LoadNd2Nz, Local, MicroOp
from npusim.values.buffers import Buffers
from npusim.values.semantics import Memory, State, run

UNWRITTEN = 0x7B


class CubeBench:
    """One core's state; *tensors* are its global memory, under their names."""

    def __init__(
        self, spec: DeviceSpec, byte_exact: bool, kind: str = "aic", **tensors: np.ndarray
    ) -> None:
        self.state = State(Buffers(spec.cores[kind], byte_exact=byte_exact), {})
        for name, data in tensors.items():
            self.bind(name, data)

    def bind(self, name: str, data: np.ndarray, is_constant: bool = True) -> None:
        self.state.memories[name] = Memory(data.reshape(-1).view(np.uint8), 0, is_constant)

    def run(self, *ops: MicroOp) -> None:
        run(ops, self.state)

    def raw(self, buffer: str, start: int = 0, count: int | None = None) -> np.ndarray:
        """Bytes of *buffer*; looking at them ends all holding there."""
        raw = self.state.buffers.raw(buffer)
        return raw[start : None if count is None else start + count]

    def put(self, buffer: str, offset_bytes: int, values: np.ndarray) -> None:
        data = values.reshape(-1).view(np.uint8)
        self.raw(buffer)[offset_bytes : offset_bytes + data.size] = data

    def elements(self, local: Local) -> np.ndarray:
        return self.state.buffers.read(local)


def stored(matrix: np.ndarray, dtype: DType) -> np.ndarray:
    """The bytes of *matrix*, int4 packed."""
    data = pack_int4(matrix) if dtype is INT4 else np.ascontiguousarray(matrix).view(np.uint8)
    return data.reshape(-1)


def nd2nz(
    dst: Local, name: str, shape: tuple[int, int], dst_rows: int, offset_bytes: int = 0
) -> LoadNd2Nz:
    """The load of a whole matrix of *shape*, row after row in tensor *name*."""
    rows, columns = shape
    burst = dst.dtype.nbytes(columns)
    return LoadNd2Nz(dst, Global(name, offset_bytes, burst, rows, burst), dst_rows)


def placed(
    matrix: np.ndarray, dtype: DType, layout: Layout, fractal: tuple[int, int], filler: int
) -> np.ndarray:
    """The bytes of *matrix* in *layout*, put one element after the other; edges are *filler*."""
    rows, columns = matrix.shape
    down, across = -(-rows // fractal[0]), -(-columns // fractal[1])
    count = down * across * fractal[0] * fractal[1]
    if dtype is INT4:
        # Nibbles first: the pattern's own low and high one in turn.
        nibbles = np.tile(np.uint8([filler & 15, filler >> 4]), count // 2)
        for row, column in np.ndindex(rows, columns):
            at = layout.offset(row, column, (rows, columns), fractal)
            nibbles[at] = int(matrix[row, column]) & 15
        return nibbles[0::2] | nibbles[1::2] << 4
    elements = np.full(dtype.nbytes(count), filler, np.uint8).view(dtype.numpy)
    for row, column in np.ndindex(rows, columns):
        elements[layout.offset(row, column, (rows, columns), fractal)] = matrix[row, column]
    return elements.view(np.uint8)
