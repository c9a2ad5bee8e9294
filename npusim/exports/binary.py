"""`visualize_data.bin`, which MindStudio Insight opens for its source, timeline and details pages.

.. code-block:: text

    block  u64 bytes of content and padding, u8 type, u8 padding, u8 version, u8 0x5A
           4096 bytes of path, NUL-padded and not part of the size: only for source text
           content, padded to 4 bytes

Sources: Ascend/msopprof, csrc/common/visualize.{h,cpp}; Ascend/msinsight, SourceFileParser.cpp.
What is not simulated, such as registers, is left out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from npusim.data.json import Json
from npusim.exports.listing import Line, Listing
from npusim.exports.names import Place, lane_of
from npusim.exports.tally import Tally

__all__ = ["CODE", "FILES", "INSTRUCTIONS", "MAX_BYTES", "TRACE", "write"]

CODE, TRACE, FILES, INSTRUCTIONS = 1, 2, 3, 4
"""Types of blocks."""
MARK = 0x5A
PATH_BYTES = 4096
MAX_BYTES = 100 << 20
"""Insight does not read larger blocks of JSON; these are left out."""
CHUNK_BYTES = 1 << 20
HIDDEN, INTEGER, TEXT = 0, 1, 3
"""The form in which Insight shows a column."""


def write(
    path: Path,
    trace: Path,
    listing: Listing,
    tallies: list[Tally],
    places: dict[int, Place],
    details: Sequence[tuple[str, int, Json]],
) -> list[str]:
    """Write *path* with the trace of all cores, and *details*: names, types and contents of further
    blocks. Returns the parts that were too large.
    """
    cores = _cores(tallies, places)
    blocks: list[tuple[str, int, Iterable[bytes]]] = [
        ("source", CODE, (text.encode() for text in listing.source())),
        ("timeline", TRACE, _pieces(trace)),
        ("lines", FILES, _files(listing, cores)),
        ("instructions", INSTRUCTIONS, _instructions(listing, cores)),
        *((name, kind, [json.dumps(content).encode()]) for name, kind, content in details),
    ]
    left_out = []
    with path.open("wb") as file:
        for name, kind, content in blocks:
            if not _block(file, kind, content, listing.name):
                left_out.append(name)
    return left_out


def _block(file: BinaryIO, kind: int, content: Iterable[bytes], source: str) -> bool:
    """Append a block; if it is too large, restore the file and return False."""
    begin = file.tell()
    file.write(bytes(12))
    if kind == CODE:
        file.write(source.encode().ljust(PATH_BYTES, b"\0"))
    size = 0
    for piece in content:
        size += len(piece)
        if size > MAX_BYTES and kind != CODE:
            file.seek(begin)
            file.truncate()
            return False
        file.write(piece)
    padding = -size % 4
    file.write(bytes(padding))
    file.seek(begin)
    # The mapping of instructions to inlined code has version 0.
    version = 0 if kind == INSTRUCTIONS else MARK
    file.write(struct.pack("<QBBBB", size + padding, kind, padding, version, MARK))
    file.seek(0, 2)
    return True


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


Cores = list[tuple[str, Tally]]


def _cores(tallies: list[Tally], places: dict[int, Place]) -> Cores:
    found = ((places[core], tally) for tally in tallies for core in tally.lane.cores)
    return [(place.name, tally) for place, tally in sorted(found, key=lambda pair: pair[0].order)]


def _measures(line: Line, cores: Cores) -> dict[str, list[int]]:
    """The columns that files and instructions have in common, core by core in order."""
    index = line.number - 1
    counts = [int(tally.calls[index]) for _, tally in cores]
    return {
        "Cycles": [int(tally.lasted[index]) for _, tally in cores],
        "Instructions Executed": counts,
        "Process Bytes": [line.nbytes * count for count in counts],
    }


def _listed(rows: Iterator[object], start: str, end: str) -> Iterator[bytes]:
    yield start.encode()
    for number, row in enumerate(rows):
        yield ("," * bool(number) + json.dumps(row, separators=(",", ":"))).encode()
    yield end.encode()


def _files(listing: Listing, cores: Cores) -> Iterator[bytes]:
    kinds = {
        "Address Range": HIDDEN,
        "Cycles": INTEGER,
        "Instructions Executed": INTEGER,
        "Line": INTEGER,
        "Process Bytes": INTEGER,
    }
    head = {"Cores": [name for name, _ in cores], "Files Dtype": {"Lines": kinds}}
    start = json.dumps(head)[:-1] + f',"Files":[{{"Source":{json.dumps(listing.name)},"Lines":['
    rows = (
        {"Line": line.number, "Address Range": [[line.address] * 2]} | _measures(line, cores)
        for line in listing.lines
    )
    return _listed(rows, start, "]}]}")


def _instructions(listing: Listing, cores: Cores) -> Iterator[bytes]:
    kinds = {
        "Address": TEXT,
        "AscendC Inner Code": TEXT,
        "Source": TEXT,
        "Pipe": TEXT,
        "Cycles": INTEGER,
        "Instructions Executed": INTEGER,
        "Process Bytes": INTEGER,
    }
    head = {"Cores": [name for name, _ in cores], "Instructions Dtype": {"Instructions": kinds}}
    rows = (
        {
            "Address": line.address,
            "AscendC Inner Code": listing.code(line),
            "Source": line.text,
            "Pipe": lane_of(line),
        }
        | _measures(line, cores)
        for line in listing.lines
    )
    return _listed(rows, json.dumps(head)[:-1] + ',"Instructions":[', "]}")
