"""Every number of a device file has a range and a unit, and slips of unit are named as such."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

from npusim import devices
from npusim.devices import schema
from npusim.devices.ranges import Within
from npusim.devices.schema import DeviceSpec

CHIPS = ("ascend310p3", "ascend910b2", "ascend910_9391")
UNITS = {
    "_hz": "Hz", "_bytes": "bytes", "_cycles": "cycles", "_ns": "ns", "_us": "us",
    "_bytes_per_s": "bytes/s", "bytes_per_cycle": "bytes/cycle",
    "cycles_per_repeat_16bit": "cycles/repeat", "cycles_per_repeat_32bit": "cycles/repeat",
}  # fmt: skip
"""End of a name -> the unit that it says."""
FIXED = (
    "vector.block_bytes", "vector.repeat_bytes",
    "transfer.store_granule_bytes", "transfer.load_granule_bytes",
)  # fmt: skip
"""The block of the instruction set, its parts, and a repeat, which is eight blocks."""
# Platform files of CANN and PyPTO: chips that do not ship, for which a file may well be written.
OTHERS = {
    "cores.aic.count": (1, 2, 32),
    "cores.aic.clock_hz": (500_000_000, 680_000_000, 1_224_000_000, 1_650_000_000),
    "l2.capacity_bytes": (4 << 20, 8 << 20, 32 << 20, 128 << 20),
    "gm.capacity_bytes": (32 << 30, 96 << 30, 144 << 30),
    "gm.read_bytes_per_s": (4e9, 91e9, 1.02e12, 4e12),
    "cores.aiv.ub_bytes": (253_952,),
    "cores.aic.bt_bytes": (4096,),
    "cores.aic.fb_bytes": (6144,),
    "banks.bank_bytes": (16_384,),
    "cube.k_per_cycle.float32": (1, 4),
}

SLIPS = {
    "cores.aiv.clock_hz = 1800": (
        "must lie in [2e7, 2e10] Hz (cores run at 0.5 to 1.85 GHz), not 1800; "
        "1800 looks like MHz: write 1.8e9"
    ),
    "cores.aiv.clock_hz = 2": (
        "must lie in [2e7, 2e10] Hz (cores run at 0.5 to 1.85 GHz), not 2; "
        "2 looks like GHz: write 2e9"
    ),
    "cores.aiv.clock_hz = 1.85": (
        "must be a whole number, not 1.85; 1.85 looks like GHz: write 1.85e9"
    ),
    "cores.aiv.clock_hz = 1_850_000": (
        "must lie in [2e7, 2e10] Hz (cores run at 0.5 to 1.85 GHz), not 1850000; "
        "1850000 looks like kHz: write 1.85e9"
    ),
    "gm.read_bytes_per_s = 1600.0": (
        "must lie in [1e8, 1e14] bytes/s (memories move 4 GB/s to 7 TB/s), not 1600.0; "
        "1600.0 looks like GB/s: write 1.6e12"
    ),
    "gm.write_bytes_per_s = 1.6": (
        "must lie in [1e8, 1e14] bytes/s (memories move 4 GB/s to 7 TB/s), not 1.6; "
        "1.6 looks like TB/s: write 1.6e12"
    ),
    "l2.read_bytes_per_s = 5000.0": (
        "must lie in [1e8, 1e14] bytes/s (memories move 4 GB/s to 7 TB/s), not 5000.0; "
        "5000.0 looks like GB/s: write 5e12"
    ),
    "l2.capacity_bytes = 192": (
        "must lie in [262144, 8589934592] bytes (L2s are 4 to 192 MiB), not 192; "
        "192 looks like MiB: write 201326592"
    ),
    "gm.capacity_bytes = 64": (
        "must lie in [1e9, 4e12] bytes (chips have 24 to 155 GB), not 64; "
        "64 looks like GiB: write 68719476736"
    ),
    "cores.aiv.ub_bytes = 192": (
        "must lie in [16384, 4194304] bytes (unified buffers are 192 to 256 KiB), not 192; "
        "192 looks like KiB: write 196608"
    ),
    "cores.aiv.ub_bytes = 32": (
        "must lie in [16384, 4194304] bytes (unified buffers are 192 to 256 KiB), not 32; "
        "32 looks like KiB: write 32768"
    ),
    "launch.base_us = 200000": (
        "must lie in [0, 10000] us (parts of a launch take up to 5 us, of a collective 110), "
        "not 200000; 200000 looks like ns: write 200"
    ),
    "gm.read_latency_ns = 192800": (
        "must lie in [0, 100000] ns (memories answer within 0.3 us), not 192800; "
        "192800 looks like ps: write 192.8"
    ),
    "gm.read_latency_ns = 1e300": (
        "must lie in [0, 100000] ns (memories answer within 0.3 us), not 1e+300; "
        "give a number in this range, in ns"
    ),
    "cores.aiv.paths.gm_to_ub.bytes_per_cycle = 0.0001": (
        "must lie in [0.5, 8192] bytes/cycle (ports of a core move 8 to 512 bytes a cycle), "
        "not 0.0001; give a number in this range, in bytes/cycle"
    ),
    "l2.aliased_bytes = 1_000_000_000": (
        "must lie in [0, 16777216] bytes (strides of 32768 bytes are known), not 1000000000; "
        "give a number in this range, in bytes"
    ),
    "l2.line_bytes = 100_000_000_000_000_000_000": (
        "must lie in [8, 8192] bytes (lines and sectors are 128 to 512 bytes), "
        "not 100000000000000000000; give a number in this range, in bytes"
    ),
    "cores.aiv.count = 1e9": (
        "must lie in [1, 1024] cores (chips have 1 to 64 of a kind), not 1000000000; "
        "give a number in this range, in cores"
    ),
    f"cores.aiv.count = 0x{'f' * 4000}": (
        "must lie in [1, 1024] cores (chips have 1 to 64 of a kind), not a number of very many "
        "digits; give a number in this range, in cores"
    ),
    f"gm.read_bytes_per_s = 1{'0' * 400}": (
        "must lie in [1e8, 1e14] bytes/s (memories move 4 GB/s to 7 TB/s), not a number of very "
        "many digits; give a number in this range, in bytes/s"
    ),
    "vector.block_bytes = 64": (
        "must be 32 bytes, the block of every vector and copy instruction, not 64; write 32"
    ),
    "transfer.load_granule_bytes = 32": (
        "must be 1 on arch 2201, whose copies move bytes, not 32; write 1"
    ),
    "banks.bank_bytes = 1000": (
        "must be a multiple of vector.block_bytes = 32, not 1000; change it"
    ),
}


# ---- every number has a range ----


def fields(model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """Every field of the tables below *model*, with its type and what is annotated to it."""
    for name, kind in get_type_hints(model, include_extras=True).items():
        if name != "model_config":
            yield name, kind
            for part in parts(kind):
                if isinstance(part, type) and issubclass(part, BaseModel):
                    yield from fields(part)


def parts(kind: Any) -> Iterator[Any]:
    yield kind
    for part in get_args(kind):
        yield from parts(part)


def ranges(kind: Any) -> list[Within]:
    return [part for part in parts(kind) if isinstance(part, Within)]


def test_every_number_of_the_schema_has_a_range_a_unit_and_a_reason() -> None:
    numbers = 0
    for name, kind in fields(DeviceSpec):
        tables = [part for part in parts(kind) if isinstance(part, type)]
        if not {int, float} & set(tables):
            continue
        (within,) = ranges(kind)
        numbers += 1
        assert 0 <= within.low <= within.high < 1e30
        assert within.unit
        assert len(within.why) > 10
        said = [unit for end, unit in UNITS.items() if name.endswith(end)]
        assert not said or within.unit in said, name
        # Only these shapes are read where a number and a table differ.
        assert get_origin(kind) is not None or kind in (int, float)
    assert numbers > 55


def test_pydantic_holds_every_number_to_it() -> None:
    found = 0

    def walk(node: Any) -> None:
        nonlocal found
        if isinstance(node, dict):
            if node.get("type") in ("integer", "number"):
                assert {"minimum", "maximum"} <= set(node)
                found += 1
            for below in node.values():
                walk(below)
        elif isinstance(node, list):
            for below in node:
                walk(below)

    walk(DeviceSpec.model_json_schema())
    assert found > 55


def test_a_field_without_a_range_would_be_found() -> None:
    class Careless(BaseModel):
        speed: int

    ((_, kind),) = fields(Careless)
    assert ranges(kind) == []


# ---- the ranges leave room ----


def numbers(tree: dict[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    for name, node in tree.items():
        if isinstance(node, dict):
            yield from numbers(node, f"{above}{name}.")
        elif isinstance(node, int | float):
            yield f"{above}{name}", node


def range_at(key: str) -> Within:
    kind: Any = DeviceSpec
    for name in key.split("."):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = get_type_hints(kind, include_extras=True)[name]
        else:
            kind = get_args(kind)[1]
        if get_origin(kind) in (Union, UnionType):
            kind = get_args(kind)[0]
    (within,) = ranges(kind)
    return within


@pytest.mark.sample(4)
@pytest.mark.parametrize("chip", devices.names())
def test_ten_times_and_a_tenth_of_every_number_is_a_what_if(chip: str) -> None:
    spec = devices.load(chip).model_dump(exclude={"sources"})
    others = [(key, value) for key, values in OTHERS.items() for value in values]
    for key, value in [*numbers(spec), *others]:
        if key in FIXED:
            continue
        within = range_at(key)
        tenth = max(1, value // 10) if isinstance(value, int) and value else value / 10
        assert within.low <= tenth
        assert value * 10 <= within.high


@pytest.mark.parametrize("factor", [10, 0.1])
def test_a_what_if_of_that_size_loads(factor: float, tmp_path: Path) -> None:
    """Whole numbers may be written with a point and an exponent."""
    file = tmp_path / "chip.toml"
    for chip in CHIPS:
        spec = devices.load(chip)
        first = schema.CORE_KINDS[spec.arch][0]
        for key, value in (
            (f"cores.{first}.clock_hz", spec.clock_hz),
            (f"cores.{first}.count", spec.cores[first].count),
            ("gm.read_bytes_per_s", spec.gm.read_bytes_per_s),
            ("l2.capacity_bytes", spec.l2.capacity_bytes),
            ("gm.read_latency_ns", spec.gm.read_latency_ns),
            ("launch.base_us", spec.launch.base_us),
        ):
            number = (
                value * factor if isinstance(value, float) else float(max(1, int(value * factor)))
            )
            file.write_text(changed(chip, f"{key} = {number!r}"), encoding="utf-8")
            tree: Any = devices.load(file)
            for name in key.split("."):
                tree = tree[name] if isinstance(tree, dict) else getattr(tree, name)
            assert tree == number
            assert type(tree) is type(value)


def changed(chip: str, line: str) -> str:
    """A file that extends *chip* by one number, the *line* `key = value`."""
    key, _, value = line.partition(" = ")
    number = f'{{ value = {value}, source = "what if", confidence = "assumed" }}'
    return f'extends = "{chip}"\nname = "mine"\n{key} = {number}\n'


# ---- slips ----


@pytest.mark.parametrize("line", SLIPS, ids=lambda line: line[:50])
def test_a_slip_is_refused_with_what_was_meant(line: str, tmp_path: Path) -> None:
    file = tmp_path / "chip.toml"
    file.write_text(changed("ascend910b2", line), encoding="utf-8")
    message = f"devices: chip.toml: {line.partition(' = ')[0]}: {SLIPS[line]}"
    with pytest.raises(devices.DeviceError, match=f"^{re.escape(message)}$"):
        devices.load(file)


def test_what_a_message_says_to_write_loads(tmp_path: Path) -> None:
    file = tmp_path / "chip.toml"
    tried = 0
    for line, told in SLIPS.items():
        write = re.search(r": write (\S+)$", told)
        if write is None or "ub_bytes" in line:  # whose banks would have to follow
            continue
        tried += 1
        file.write_text(
            changed("ascend910b2", f"{line.partition(' = ')[0]} = {write[1]}"), encoding="utf-8"
        )
        assert devices.load(file).name == "mine"
    assert tried > 8
