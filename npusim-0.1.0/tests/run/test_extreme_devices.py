"""Every chip that a file may describe runs, or is refused in our words: no traceback, no hang."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import npusim
from npusim import OpError, TensorSpec, devices
from npusim.devices.problems import range_at
from npusim.devices.ranges import Within
from npusim.devices.schema import DeviceSpec

LIMIT_S = 30.0
"""A hundred times what a call takes on a busy machine."""
TOO_SMALL = re.compile(
    r"\w+: its (kernel, tiled as the vendor tiles it, must fit \w+, but .*; give the chip larger "
    r"buffers or more events|tiles of .* must fit .*; give the chip (a larger one|larger ones))"
    r" \[361001\]$"
)
X, WEIGHT = TensorSpec((33, 64), "float16"), TensorSpec((64, 48), "float16")
LEFT, RIGHT = TensorSpec((33, 64), "int8"), TensorSpec((64, 48), "int8")
ONE, ROW = TensorSpec((1,), "float32"), TensorSpec((48,), "float32")
CALLS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("npu_quantize", (X, ONE, None, "qint8")),
    ("npu_format_cast", (X, "FRACTAL_NZ")),
    ("matmul", (X, WEIGHT)),
    ("npu_quant_matmul", (LEFT, RIGHT, ONE)),
    ("npu_weight_quant_batchmatmul", (X, RIGHT, TensorSpec((1, 48), "float16"))),
)
CHIPS = ("ascend310p3", "ascend910b2", "ascend910_9391")
# Numbers that must fit others are drawn together with these.
TOGETHER = ("ub_bytes", "groups", "banks_per_group", "bank_bytes", "line_bytes", "sector_bytes",
            "event_ids", "reserved_event_ids")  # fmt: skip
FIXED = ("repeat_bytes", "store_granule_bytes", "load_granule_bytes")


def numbers(tree: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, node in tree.items():
        if isinstance(node, dict):
            yield from numbers(node, (*above, name))
        elif isinstance(node, int | float) and name not in (*TOGETHER, *FIXED):
            yield (*above, name)


KEYS = {chip: tuple(numbers(devices.load(chip).model_dump(exclude={"sources"}))) for chip in CHIPS}


def within(key: tuple[str, ...]) -> Within:
    found = range_at(key)
    assert found is not None
    return found


@st.composite
def changes(draw: st.DrawFn, chip: str) -> dict[tuple[str, ...], float]:
    """Some numbers of *chip* at the ends of their ranges, or a tenth or ten times what they are."""
    found: dict[tuple[str, ...], float] = {}
    for key in draw(st.lists(st.sampled_from(KEYS[chip]), max_size=8, unique=True)):
        ends = within(key)
        value: Any = devices.load(chip)
        for name in key:
            value = value[name] if isinstance(value, dict) else getattr(value, name)
        scaled = (value / 10, value * 10)
        room = [each for each in scaled if ends.low <= each <= ends.high]
        number = draw(st.sampled_from([ends.low, ends.high, *room]))
        found[key] = float(max(ends.low, int(number))) if isinstance(value, int) else number
    if draw(st.booleans()):
        banks = draw(
            st.sampled_from([(1, 1, 16384), (16, 3, 1024), (1024, 128, 32), (4, 1, 2**20)])
        )
        for name, number in zip(("groups", "banks_per_group", "bank_bytes"), banks, strict=True):
            found["banks", name] = number
        for kind in ("aiv",) if chip != "ascend310p3" else ("ai_core", "vector_core"):
            found["cores", kind, "ub_bytes"] = banks[0] * banks[1] * banks[2]
    if draw(st.booleans()):
        sector, lines = draw(st.sampled_from([(8, 1), (8, 1024), (8192, 1), (1000, 3), (32, 4)]))
        found["transfer", "sector_bytes"], found["l2", "line_bytes"] = sector, sector * lines
    if draw(st.booleans()):
        events, kept = draw(st.sampled_from([(1, 0), (2, 1), (1024, 0), (1024, 1023)]))
        found["sync", "event_ids"], found["sync", "reserved_event_ids"] = events, kept
    return found


def written(chip: str, changed: dict[tuple[str, ...], float]) -> str:
    lines = [f'extends = "{chip}"', 'name = "extreme"']
    for key, value in changed.items():
        number = f'{{ value = {value!r}, source = "drawn", confidence = "assumed" }}'
        lines.append(f"{'.'.join(key)} = {number}")
    return "\n".join(lines)


@pytest.mark.parametrize("chip", CHIPS)
def test_chips_run_or_are_refused(chip: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("chip") / "extreme.toml"
    ended: list[str] = []

    @draws(30)
    @given(changed=changes(chip), call=st.sampled_from(CALLS))
    def run(changed: dict[tuple[str, ...], float], call: tuple[str, tuple[Any, ...]]) -> None:
        ended.append(outcome(file, written(chip, changed), *call))
        assert ended[-1] in ("ran", "too small")

    run()
    # Most are no worse than slow or fast, so that the draw says something.
    assert ended.count("ran") > len(ended) / 2


def outcome(file: Path, text: str, op: str, arguments: tuple[Any, ...]) -> str:
    file.write_text(text, encoding="utf-8")
    try:
        spec = devices.load(file)
    except devices.DeviceError:
        return "no chip"
    began = time.monotonic()
    try:
        run = npusim.run(op, *arguments, device=spec)
    except OpError as error:
        return "too small" if TOO_SMALL.match(str(error)) else f"refused: {error}"
    finally:
        assert time.monotonic() - began < LIMIT_S
    assert 0 < run.time_us < 1e12
    assert isfinite(run.time_us)
    return "ran"


@pytest.mark.nightly
def test_the_ends_of_every_range_run_or_are_refused(tmp_path: Path) -> None:
    """One number after the other; those of paths and of vector classes are alike."""
    tried = 0
    for chip in CHIPS[:2]:
        for key in KEYS[chip]:
            if {"paths", "classes"} & set(key) and key[-2] not in ("gm_to_ub", "gm_to_l1", "add"):
                continue
            ends = within(key)
            for value in {ends.low, ends.high}:
                tried += 1
                call = CALLS[tried % len(CALLS)]
                text = written(chip, {key: value})
                assert outcome(tmp_path / "chip.toml", text, *call) in ("ran", "too small")
    assert tried > 200


SLOWEST = (
    # The link moves less than a byte in a thousand cycles, a line of it less in a million.
    ("ascend910b2", "cores.aic.clock_hz=2e10 l2.same_line_ns=100000 l2.read_bytes_per_s=1e8 "
     "gm.read_bytes_per_s=1e8 gm.write_bytes_per_s=1e8 l2.write_bytes_per_s=1e8"),
    # A cycle of the vector cores is a thousand of the others.
    ("ascend310p3", "cores.ai_core.clock_hz=2e10 cores.vector_core.clock_hz=2e7 "
     "cores.vector_core.paths.gm_to_ub.bytes_per_cycle=0.5 "
     "cores.vector_core.paths.l2_to_ub.bytes_per_cycle=0.5"),
    ("ascend310p3", "cores.ai_core.clock_hz=2e7 cores.vector_core.clock_hz=2e10 "
     "cores.vector_core.paths.gm_to_ub.bytes_per_cycle=8192 cores.vector_core.count=1024"),
)  # fmt: skip


@pytest.mark.parametrize(("chip", "changed"), SLOWEST)
def test_the_slowest_of_chips_end(chip: str, changed: str, tmp_path: Path) -> None:
    pairs = (pair.split("=") for pair in changed.split())
    numbers = {tuple(key.split(".")): float(value) for key, value in pairs}
    for op, arguments in CALLS[:2]:
        text = written(chip, numbers)
        assert outcome(tmp_path / "chip.toml", text, op, arguments) == "ran"


# ---- what a chip that extends nothing may leave out ----

LEFT_OUT = {
    "cores.aiv.ub_bytes": (
        "cores.aiv.ub_bytes must be given, not left out; "
        'write { value = ..., source = "...", confidence = "..." }'
    ),
    "cores.aic.l0c_bytes": "cores.aic.l0c_bytes must be given, not left out; write { value = ",
    "vector.classes.add": (
        "classes must be all of add, mul, max, adds, muls, maxs, div, cast, duplicate, broadcast, "
        "reduce, block_reduce, logic, select, copy, muladd, transcendental, ln, "
        "sqrt, rsqrt, compare, gather, transpose, sort, merge, gather_mask, not lack add; add "
        "them, or take them from a shipped chip with extends"
    ),
    "cores.aiv": "cores must be aic and aiv on arch 2201, not aic; rename the tables",
}
WRONG = {
    "series": (
        "Atlas inference",
        "series must be Atlas A2 or Atlas A3 on arch 2201, not Atlas inference; change one of them",
    ),
    "cores.aiv.pipes": (
        ("scalar", "mte2", "mte3"),
        "cores.aiv.pipes must be scalar, vector, mte2, mte3, not scalar, mte2, mte3; write these",
    ),
}


def parts(key: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The data of a chip, the table of it in which *key* stands, and the last name of *key*."""
    data = devices.load("ascend910b2").model_dump(exclude={"sources"})
    table = data
    *above, last = key.split(".")
    for name in above:
        table = table[name]
    return data, table, last


@pytest.mark.parametrize("key", LEFT_OUT)
def test_what_every_kernel_needs_must_be_stated(key: str) -> None:
    data, table, last = parts(key)
    del table[last]
    buffer = last.removesuffix("_bytes")
    for name in [name for name in table.get("paths", ()) if buffer in name.split("_to_")]:
        del table["paths"][name]
    with pytest.raises(ValidationError, match=re.escape(LEFT_OUT[key])):
        DeviceSpec.model_validate(data)


@pytest.mark.parametrize("key", WRONG)
def test_cores_are_those_of_the_architecture(key: str) -> None:
    data, table, last = parts(key)
    table[last], message = WRONG[key]
    if "pipes" in key:
        for path in [name for name, path in table["paths"].items() if path["pipe"] == "vector"]:
            del table["paths"][path]
    with pytest.raises(ValidationError, match=re.escape(message)):
        DeviceSpec.model_validate(data)


@pytest.mark.parametrize("way", ["gm_to_ub", "l2_to_ub", "ub_to_gm", "ub_to_l2"])
def test_a_path_that_is_left_out_is_missed_where_it_is_taken(way: str) -> None:
    data, table, last = parts(f"cores.aiv.paths.{way}")
    del table[last]
    with pytest.raises(OpError, match=f"a copy must go a way that aiv has, one of .*{way}"):
        npusim.run(*CALLS[0][:1], *CALLS[0][1], device=DeviceSpec.model_validate(data))


def test_optional_numbers_may_be_left_out() -> None:
    for key in ("cores.aic.bt_bytes", "cube.k_per_cycle.int4", "cores.aiv.ub_reserved_bytes"):
        data, table, last = parts(key)
        del table[last]
        if key.endswith("bt_bytes"):
            del data["cores"]["aic"]["paths"]["l1_to_bt"]
        run = npusim.run(*CALLS[0][:1], *CALLS[0][1], device=DeviceSpec.model_validate(data))
        assert run.time_us > 0


# ---- what a chip is too small for ----

UB = {"banks.groups": 16, "banks.banks_per_group": 1, "banks.bank_bytes": 1024}
WEIGHTS = (
    TensorSpec((33, 1024), "float16"),
    TensorSpec((1024, 1024), "int8"),
    TensorSpec((1, 1024), "float16"),
)
SMALL: dict[str, tuple[dict[str, float], str, tuple[Any, ...], dict[str, Any], str]] = {
    "L0A": (
        {"cores.aic.l0a_bytes": 4096},
        "npu_quant_matmul",
        (LEFT, RIGHT, ROW),
        {"output_dtype": "float16", "pertoken_scale": TensorSpec((33,), "float32")},
        "its kernel, tiled as the vendor tiles it, must fit small, but a claim must fit into the "
        "1024 bytes of l0a that are left, not need 3072; "
        "give the chip larger buffers or more events",
    ),
    "UB of rows": (
        UB | {"cores.aiv.ub_bytes": 16384},
        "npu_format_cast",
        (TensorSpec((500, 700), "float16"), "FRACTAL_NZ"),
        {},
        "its tiles of 16 fractals must fit into the unified buffer of small, 16127 bytes, not need "
        "32768; give the chip a larger one",
    ),
    "UB of weights": (
        UB | {"cores.aiv.ub_bytes": 16384},
        "npu_weight_quant_batchmatmul",
        WEIGHTS,
        {"template": "custom"},
        "its tiles of 8 x 512 weights must fit into the unified buffer of small, 16128 bytes, not "
        "need more; give the chip a larger one",
    ),
    "L0A of weights": (
        {"cores.aic.l0a_bytes": 17000},
        "npu_weight_quant_batchmatmul",
        (WEIGHTS[0], WEIGHTS[1].T, TensorSpec((1, 1024), "int64")),
        {"template": "fixpipe"},
        "its tiles of 48 x 16 and 16 x 64 must fit twice into L0A and L0B of small, of which 616 "
        "and 64512 bytes are left next to weights, not need more; give the chip larger ones",
    ),
}


@pytest.mark.parametrize("what", SMALL)
def test_an_operator_says_what_a_chip_does_not_hold(what: str, tmp_path: Path) -> None:
    numbers, op, arguments, more, message = SMALL[what]
    text = written("ascend910b2", {tuple(key.split(".")): numbers[key] for key in numbers})
    file = tmp_path / "chip.toml"
    file.write_text(text.replace("extreme", "small"), encoding="utf-8")
    with pytest.raises(OpError, match=f"^{re.escape(f'{op}: {message} [361001]')}$"):
        npusim.run(op, *arguments, device=file, **more)
