"""What a reader is told about a device file that does not describe a device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npusim import devices

HEAD = 'extends = "ascend910b2"\nname = "my_chip"\n'
WRITE = 'write { value = ..., source = "...", confidence = "..." }'
NUMBER = '{{ value = {}, source = "a guess", confidence = "assumed" }}'.format
PATH = f"bytes_per_cycle = {NUMBER(1)}\nstartup_cycles = {NUMBER(1)}\n"
WORDS = "vendor file, vendor doc, vendor tool, measured, paper, calibrated, inferred, assumed"
PIPES = "'scalar', 'vector', 'cube', 'mte1', 'mte2', 'mte3' or 'fixpipe'"
CLASSES = (
    "'add', 'mul', 'max', 'adds', 'muls', 'maxs', 'div', 'cast', 'duplicate', 'broadcast', "
    "'reduce', 'block_reduce', 'logic', 'select', 'copy', 'muladd', 'transcendental', "
    "'ln', 'sqrt', 'rsqrt', 'compare', 'gather', 'transpose', 'sort', 'merge' or 'gather_mask'"
)

# What stands below the head of a file -> what is said about it.
NUMBERS = {
    f"[gm]\ncapacity_bytes = {NUMBER(-1)}": (
        "gm.capacity_bytes: must lie in [1e9, 4e12] bytes (chips have 24 to 155 GB), not -1; "
        "give a number in this range, in bytes"
    ),
    f"[gm]\nread_bytes_per_s = {NUMBER('0.0')}": (
        "gm.read_bytes_per_s: must lie in [1e8, 1e14] bytes/s (memories move 4 GB/s to 7 TB/s), "
        "not 0.0; give a number in this range, in bytes/s"
    ),
    f"[gm]\nread_latency_ns = {NUMBER(-0.5)}": (
        "gm.read_latency_ns: must lie in [0, 100000] ns (memories answer within 0.3 us), not -0.5; "
        "give a number in this range, in ns"
    ),
    f"[gm]\nread_bytes_per_s = {NUMBER('inf')}": (
        "gm.read_bytes_per_s: must be a finite number, not inf; write one"
    ),
    f"[gm]\nread_latency_ns = {NUMBER('nan')}": (
        "gm.read_latency_ns: must be a finite number, not nan; write one"
    ),
    f"[gm]\ncapacity_bytes = {NUMBER(2.5)}": (
        "gm.capacity_bytes: must be a whole number, not 2.5; "
        "2.5 looks like TiB: write 2748779069440"
    ),
    f"[gm]\ncapacity_bytes = {NUMBER(8589934592.5)}": (
        "gm.capacity_bytes: must be a whole number, not 8589934592.5; "
        "write it without fraction and quotes"
    ),
    f"[gm]\ncapacity_bytes = {NUMBER('true')}": (
        "gm.capacity_bytes: must be a whole number, not true; write it without fraction and quotes"
    ),
    '[gm]\ncapacity_bytes = "big"': (
        "gm.capacity_bytes: must be a whole number, not 'big'; write it without fraction and quotes"
    ),
    "[gm.capacity_bytes]\nbig = 3": (
        "gm.capacity_bytes: must be a whole number, not a table; "
        "write it without fraction and quotes"
    ),
    f"[gm]\nread_bytes_per_s = {NUMBER(chr(34) + 'fast' + chr(34))}": (
        "gm.read_bytes_per_s: must be a number, not 'fast'; write it without quotes"
    ),
}
SOURCES = {
    "[gm]\ncapacity_bytes = 5": (
        f"gm.capacity_bytes: must have value, source and confidence, not 5 alone; {WRITE}"
    ),
    "[cube.k_per_cycle]\nfloat8 = 32": (
        f"cube.k_per_cycle.float8: must have value, source and confidence, not 32 alone; {WRITE}"
    ),
    "[gm]\ncapacity_bytes = { value = 5 }": (
        f"gm.capacity_bytes: must have value, source and confidence, not value; {WRITE}"
    ),
    '[gm]\ncapacity_bytes = { value = 5, source = "x" }': (
        f"gm.capacity_bytes: must have value, source and confidence, not value, source; {WRITE}"
    ),
    '[gm]\ncapacity_bytes = { source = "x", confidence = "assumed" }': (
        "gm.capacity_bytes: must have value, source and confidence, "
        f"not source, confidence; {WRITE}"
    ),
    '[gm]\ncapacity_bytes = { value = 5, source = "x", confidence = "assumed", unit = "B" }': (
        "gm.capacity_bytes: must have value, source and confidence, "
        f"not value, source, confidence, unit; {WRITE}"
    ),
    '[gm]\ncapacity_bytes = { value = 5, source = "x", confidence = "sure" }': (
        f"gm.capacity_bytes: confidence must be one of {WORDS}, not 'sure'; "
        "take the word that fits the source"
    ),
    '[gm]\ncapacity_bytes = { value = 5, source = " ", confidence = "assumed" }': (
        "gm.capacity_bytes: source must say where the number comes from, not ' '; write a text"
    ),
    '[gm]\ncapacity_bytes = { value = 5, source = "book: p. 5", confidence = "assumed" }': (
        "gm.capacity_bytes: source must start with a key of [sources] (ini, doc, doc_cube, "
        "doc_vec, ex, hia, pto, tri, leg, rows, split, cat, alg, cost, plan, msm, hccl, prof) "
        "or with no key at all, "
        "not 'book'; "
        "add the key to [sources] or leave the colon out"
    ),
    "sources = 5": "sources: must be a table, not 5; start it with [sources]",
    "[sources]\nbook = 5": "sources.book: must be a string, not 5; put it in quotes",
}
SHAPES = {
    "gm = 5": ("gm: must be a table, not 5; put its entries under a heading in square brackets"),
    "[[gm]]\nbig = 3": (
        "gm: must be a table, not a list; put its entries under a heading in square brackets"
    ),
    "[cores.aiv]\npaths = 3": (
        "cores.aiv.paths: must be a table, not 3; "
        "put its entries under a heading in square brackets"
    ),
    'aliases = "x"': "aliases: must be a list, not 'x'; put it in square brackets",
    "aliases = [5]": "aliases.0: must be a string, not 5; put it in quotes",
    "half_overflow = 3": (
        "half_overflow: must be 'inf_nan' or 'saturate', not 3; take one of these"
    ),
    'arch = "3510"': "arch: must be '2002' or '2201', not '3510'; take one of these",
    '[cores.aiv]\npipes = ["vector", "mte9"]': (
        f"cores.aiv.pipes.1: must be {PIPES}, not 'mte9'; take one of these"
    ),
    "colour = 5": (
        "colour: must be one of extends, name, series, arch, aliases, half_overflow, cores, gm, "
        "l2, transfer, cube, vector, banks, scalar, sync, launch, links, sources, not colour; "
        "rename or drop it"
    ),
    f"[sync]\nset_flags_cycles = {NUMBER(1)}": (
        "sync.set_flags_cycles: must be one of set_flag_cycles, wait_flag_cycles, "
        "barrier_cycles, event_ids, reserved_event_ids, cross_core_cycles, not set_flags_cycles; "
        "did you mean set_flag_cycles?"
    ),
    f"[vector.classes.spread]\nhead_cycles = {NUMBER(1)}": (
        f"vector.classes.spread: must be {CLASSES}, not 'spread'; take one of these"
    ),
    f"[cores.aix]\ncount = {NUMBER(1)}": (
        "cores.aix: must be one of ai_core, vector_core, aic, aiv, not aix; rename the table"
    ),
    f'[cores.aiv.paths.ub_to_ub]\npipe = "vector"\nbytes_per_cycle = {NUMBER(1)}': (
        f"cores.aiv.paths.ub_to_ub.startup_cycles: must be given; {WRITE}"
    ),
}
JOINT = {
    'arch = "2002"': (
        "cores: must be ai_core and vector_core on arch 2002, not aic and aiv; rename the tables"
    ),
    f"[l2]\nline_bytes = {NUMBER(100)}": (
        "l2.line_bytes: must be a multiple of transfer.sector_bytes = 128, not 100; "
        "change one of them"
    ),
    f"[vector]\nrepeat_bytes = {NUMBER(100)}": (
        "vector.repeat_bytes: must be a multiple of vector.block_bytes = 32, not 100; "
        "change one of them"
    ),
    f"[cores.aiv]\nub_bytes = {NUMBER(262144)}": (
        "cores.aiv.ub_bytes: must be groups x banks_per_group x bank_bytes = 196608, "
        "not 262144; make banks and buffer agree"
    ),
    f"[cores.aic]\nl1_bytes = {NUMBER(65536)}\nl1_reserved_bytes = {NUMBER(65536)}": (
        "cores.aic.l1_reserved_bytes: must be less than l1_bytes = 65536, not 65536; "
        "make it smaller"
    ),
    f"[sync]\nreserved_event_ids = {NUMBER(8)}": (
        "sync.reserved_event_ids: must be less than sync.event_ids = 8, not 8; make it smaller"
    ),
    f'[cores.aiv.paths.gm_to_moon]\npipe = "mte2"\n{PATH}': (
        "cores.aiv.paths.gm_to_moon: must be named <from>_to_<to> with memories out of "
        "gm, l2, l1, l0a, l0b, l0c, ub, bt, fb; rename it"
    ),
    '[cores.aiv.paths.gm_to_ub]\npipe = "cube"': (
        "cores.aiv.paths.gm_to_ub.pipe: must be one of the core's pipes scalar, vector, mte2, "
        "mte3, not cube; add the pipe or move the path"
    ),
    f'[cores.aiv.paths.gm_to_l1]\npipe = "mte2"\n{PATH}': (
        "cores.aiv.paths.gm_to_l1: must end in buffers that the core has, not in l1; "
        "give l1_bytes or drop the path"
    ),
}


@pytest.fixture
def chip(tmp_path: Path) -> Path:
    return tmp_path / "my_chip.toml"


def refuses(chip: Path, *lines: str) -> None:
    message = "\n".join(f"devices: {line}" for line in lines)
    with pytest.raises(devices.DeviceError, match=f"^{re.escape(message)}$"):
        devices.load(chip)


def test_wrong_entries_are_named(chip: Path, subtests: pytest.Subtests) -> None:
    for body in [*NUMBERS, *SOURCES, *SHAPES, *JOINT]:
        with subtests.test(body):
            chip.write_text(HEAD + body, encoding="utf-8")
            refuses(chip, f"my_chip.toml: {(NUMBERS | SOURCES | SHAPES | JOINT)[body]}")


def test_each_problem_has_its_line(chip: Path) -> None:
    body = f"[gm]\ncapacity_bytes = {NUMBER(0)}\n[l2]\nfoo = 5\nline_bytes = 3\n"
    chip.write_text(HEAD + body, encoding="utf-8")
    refuses(
        chip,
        "my_chip.toml: l2.line_bytes: must have value, source and confidence, not 3 alone; "
        f"{WRITE}",
        "my_chip.toml: gm.capacity_bytes: must lie in [1e9, 4e12] bytes (chips have 24 to 155 GB), "
        "not 0; give a number in this range, in bytes",
        "my_chip.toml: l2.foo: must be one of fills, capacity_bytes, line_bytes, read_bytes_per_s, "
        "write_bytes_per_s, read_latency_ns, write_latency_ns, row_ns, ways, "
        "same_line_ns, aliased_bytes, aliased_speed, not foo; rename or drop it",
    )


def test_a_chip_that_extends_nothing_gives_everything_itself(chip: Path) -> None:
    chip.write_text('name = "my_chip"', encoding="utf-8")
    tables = ["cores", "gm", "l2", "transfer", "cube", "vector", "banks", "scalar", "sync"]
    refuses(
        chip,
        *(
            f"my_chip.toml: {key}: must be given; add it"
            for key in ("series", "arch", "half_overflow")
        ),
        *(
            f"my_chip.toml: {table}: must be given; "
            "add the table, or take it from a shipped chip with extends"
            for table in (*tables, "launch", "links")
        ),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extends = "ascend910b2"', "name: must be given; add it"),
        (
            'extends = "ascend910b8"\nname = "my_chip"',
            "extends: no device 'ascend910b8'; did you mean ascend910b4? "
            f"known: {devices.listing()}; "
            "for your own file give its path, which ends in .toml",
        ),
        (
            'extends = 5\nname = "my_chip"',
            "extends: must be a string, not 5; put a name or a path there",
        ),
        (
            'name = "my_chip"\narch =\n',
            "must be TOML, but: Invalid value (at line 2, column 7); fix that place",
        ),
    ],
)
def test_a_file_needs_a_name_and_a_base(chip: Path, text: str, message: str) -> None:
    chip.write_text(text, encoding="utf-8")
    refuses(chip, f"my_chip.toml: {message}")


def test_a_problem_of_a_base_is_told_with_the_name_of_the_base(chip: Path) -> None:
    base = chip.with_name("base.toml")
    base.write_text(f"{HEAD}[l2]\nline_bytes = {NUMBER(0)}", encoding="utf-8")
    chip.write_text('extends = "./base.toml"\nname = "my_chip"', encoding="utf-8")
    refuses(
        chip,
        "base.toml: l2.line_bytes: must lie in [8, 8192] bytes (lines and sectors are 128 to 512 "
        "bytes), not 0; give a number in this range, in bytes",
    )


# ---- extends ----


def test_files_do_not_extend_each_other_in_a_circle(chip: Path) -> None:
    chip.write_text('extends = "base.toml"\nname = "my_chip"', encoding="utf-8")
    chip.with_name("base.toml").write_text('extends = "./my_chip.toml"', encoding="utf-8")
    refuses(
        chip,
        "base.toml: extends: must not lead back, but my_chip.toml -> base.toml -> my_chip.toml; "
        "take the line out of one of them",
    )


# ---- files ----


def test_a_missing_file_is_told_with_its_path(chip: Path) -> None:
    refuses(
        chip,
        "my_chip.toml: must be a file that can be read, but: No such file or directory; "
        f"check the path {str(chip)!r}",
    )


def test_a_folder_is_no_file(chip: Path) -> None:
    chip.mkdir()
    refuses(
        chip,
        "my_chip.toml: must be a file that can be read, but: Is a directory; "
        f"check the path {str(chip)!r}",
    )


def test_what_is_not_utf_8_is_told_with_its_line(chip: Path) -> None:
    chip.write_bytes(b'name = "my_chip"\narch = "\xff"\n')
    refuses(chip, "my_chip.toml: line 2: must be UTF-8, not byte 0xff; save the file as UTF-8")
