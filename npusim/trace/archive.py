"""`trace.npz`: text and arrays in a zip file, read with limits on what is unpacked.

A zip file of a few megabytes can claim, or hold, thousands of times as much: the expected shape of
an array is known before it is read, and its header and size are checked against it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Self
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from npusim.data.dtypes import Array
from npusim.data.files import opened

__all__ = ["Archive", "DamageError", "save"]

MAX_BYTES = 1 << 32
"""Most bytes of all arrays together, unpacked: 178 million micro-ops."""
MAX_TEXT_BYTES = 1 << 28
"""Most bytes of the text: a thousand times that of the largest operators."""
MAX_HEADER_BYTES = 1 << 16
"""More than the header of an array in any version (numpy.lib.format)."""
ENCRYPTED = 1
"""Bit of a member's flags (PKWARE, APPNOTE 4.4.4)."""


class DamageError(ValueError):
    """A file of a run is not what was written; the message says why."""


def save(
    path: Path,
    texts: Mapping[str, bytes],
    arrays: Iterable[tuple[str, NDArray[np.int64]]],
    *,
    mark: bytes = b"",
) -> None:
    """Write *texts* and *arrays*, which are requested one by one, as numpy writes them.

    The file begins with *mark*, which readers of zip files skip. Raises ValueError for more than
    :class:`Archive` reads.
    """
    nbytes = 0
    with path.open("wb") as file:
        file.write(mark)
        with ZipFile(file, "w", ZIP_DEFLATED) as packed:
            for name, text in texts.items():
                _check_size("programs", len(text), MAX_TEXT_BYTES)
                _add(packed, name, np.frombuffer(text, np.uint8))
            for name, array in arrays:
                nbytes += array.nbytes
                _check_size("times", nbytes, MAX_BYTES)
                _add(packed, name, array)


def _check_size(what: str, nbytes: int, most_bytes: int) -> None:
    if nbytes > most_bytes:
        raise ValueError(
            f"record: the {what} of a stored run must have at most {most_bytes} bytes, not "
            f"{nbytes}; run it on smaller tensors, or without a folder"
        )


def _add(packed: ZipFile, name: str, array: Array) -> None:
    # Like numpy.savez_compressed, which needs all arrays in memory at once.
    with packed.open(f"{name}.npy", "w", force_zip64=True) as member:
        npy.write_array(member, array, allow_pickle=False)


class Archive:
    """The members of a zip file as numpy writes it, read by name with their expected shape."""

    def __init__(self, path: Path) -> None:
        # Closed by __exit__.
        self._file = opened(path)
        try:
            self._zip = ZipFile(self._file)
            self._members = {info.filename: info for info in self._zip.infolist()}
        except (BadZipFile, NotImplementedError, ValueError, EOFError) as error:
            self._file.close()
            raise DamageError("it is no whole zip file") from error
        self._left_bytes = MAX_BYTES

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()
        self._file.close()

    def hold(self, names: set[str]) -> None:
        """Raise DamageError unless the members are *names*, each once."""
        found = sorted(info.filename for info in self._zip.infolist())
        wanted = sorted(f"{name}.npy" for name in names)
        if found != wanted:
            odd = sorted(set(found) ^ set(wanted)) or found
            raise DamageError(f"it must hold {len(wanted)} arrays, and {odd[0]!r} is one too many "
                              f"or missing")  # fmt: skip

    def text(self, name: str, most_bytes: int = MAX_TEXT_BYTES) -> bytes:
        """The text called *name*, which must not exceed *most_bytes*."""
        info = self._info(name)
        most_bytes = min(most_bytes, MAX_TEXT_BYTES)
        if info.file_size > most_bytes + MAX_HEADER_BYTES:
            raise DamageError(f"{name} must have at most {most_bytes} bytes")
        content = self._content(info)
        dtype, shape, begin = self._header(name, content)
        if dtype != np.uint8 or shape != (len(content) - begin,):
            raise DamageError(f"{name} must be bytes, not {dtype} {shape}")
        return content[begin:]

    def array(self, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """The array called *name*, which must be int64 of *shape*."""
        info = self._info(name)
        nbytes = int(np.prod(shape, dtype=object)) * 8
        if not nbytes <= info.file_size <= nbytes + MAX_HEADER_BYTES:
            raise DamageError(f"{name} must be int64 {shape}, not {info.file_size} bytes")
        self._left_bytes -= nbytes
        if self._left_bytes < 0:
            raise DamageError(f"its arrays must have at most {MAX_BYTES} bytes")
        content = self._content(info)
        dtype, found, begin = self._header(name, content)
        if dtype != np.int64 or found != shape or len(content) - begin != nbytes:
            raise DamageError(f"{name} must be int64 {shape}, not {dtype} {found}")
        return np.frombuffer(content, np.int64, offset=begin).reshape(shape)

    def _info(self, name: str) -> ZipInfo:
        info = self._members.get(f"{name}.npy")
        if info is None:
            raise DamageError(f"it must hold {name}")
        if info.compress_type != ZIP_DEFLATED or info.flag_bits & ENCRYPTED:
            raise DamageError(f"{name} must be packed as numpy does it")
        return info

    def _content(self, info: ZipInfo) -> bytes:
        try:
            # Never more than the size in the directory, whatever is packed.
            content = self._zip.read(info)
        except (
            BadZipFile,
            zlib.error,
            EOFError,
            NotImplementedError,
            ValueError,
            OSError,
        ) as error:
            raise DamageError(f"{info.filename} cannot be unpacked") from error
        if len(content) != info.file_size:
            raise DamageError(f"{info.filename} is cut short")
        return content

    def _header(self, name: str, content: bytes) -> tuple[object, tuple[int, ...], int]:
        """Type, shape, and the offset of the data."""
        stream = BytesIO(content[:MAX_HEADER_BYTES])
        try:
            version = npy.read_magic(stream)
            if version != (1, 0):
                raise DamageError(f"{name} must be an array of numpy's format 1.0, not {version}")
            shape, fortran, dtype = npy.read_array_header_1_0(stream)
        except DamageError:
            raise
        except (ValueError, TypeError, SyntaxError, EOFError) as error:
            raise DamageError(f"{name} must be an array as numpy writes it") from error
        if fortran:
            raise DamageError(f"{name} must be in row-major order")
        return dtype, shape, stream.tell()
