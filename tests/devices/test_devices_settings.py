"""Numbers of a chip changed for a what-if: values, units, and every refusal, message by message."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from commands import npusim_says, refused
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim import TensorSpec, devices
from npusim.devices import SettingError, changed
from npusim.devices.schema import DeviceSpec

A2 = devices.load("ascend910b2")
READ = "gm.read_bytes_per_s"
CALL = ("-i", "input=spec:4096x4096:float16", "-i", "scales=spec:1:float32", "-a", "dtype=qint8")


@pytest.mark.parametrize(
    ("key", "value", "number"),
    [
        (READ, "x2", 2 * A2.gm.read_bytes_per_s),
        (READ, "X0.5", A2.gm.read_bytes_per_s / 2),
        (READ, "3.2e12", 3.2e12),
        (READ, 3.2e12, 3.2e12),
        (READ, "3_200_000_000_000", 3.2e12),
        (READ, "3.2TB/s", 3.2e12),
        (READ, "800 GB/s", 8e11),
        (READ, "3.2e12bytes/s", 3.2e12),
        ("l2.capacity_bytes", "96MiB", 96 << 20),
        ("cores.aic.clock_hz", "1.65GHz", 1_650_000_000),
        ("cores.aic.count", "x0.5", 12),
        ("launch.base_us", "1500ns", 1.5),
        ("sync.set_flag_cycles", "7 cycles", 7),
        ("cube.k_per_cycle.int8", "x2", 2 * A2.cube.k_per_cycle["int8"]),
    ],
)
def test_a_number_is_scaled_or_replaced(key: str, value: str | float, number: float) -> None:
    found = changed(A2, {key: value})
    node = found.model_dump()
    for name in key.split("."):
        node = node[name]
    assert node == number
    assert type(node) is type(number) or isinstance(node, float)
    before = A2.model_dump(exclude={"sources", "name", "aliases"})
    after = found.model_dump(exclude={"sources", "name", "aliases"})
    assert (
        sum(1 for one, other in zip(leaves(before), leaves(after), strict=True) if one != other)
        == 1
    )


def leaves(tree: object) -> list[object]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    return [tree]


def test_a_changed_chip_says_that_it_is() -> None:
    found = changed(A2, {READ: "x2"})
    assert (found.name, found.aliases) == ("ascend910b2 (changed)", ())
    assert found.sources[READ] == ("set to x2 for a what-if, 1545120000000 before", "assumed")
    assert changed(found, {READ: "x2"}).name == found.name
    assert changed(A2, {}) is A2
    assert A2.gm.read_bytes_per_s == 1545.12e9


def test_a_long_name_stays_one() -> None:
    long = A2.model_copy(update={"name": "n" * 64})
    assert changed(long, {READ: "x2"}).name == "n" * 54 + " (changed)"


@given(st.fractions(min_value="0.1", max_value=8, max_denominator=1000))
def test_a_factor_rounds_once(factor: Fraction) -> None:
    number = Fraction(round(factor * 1000), 1000)
    text = f"x{number.numerator / number.denominator:.3f}"
    expected = Fraction(text[1:]) * Fraction(A2.gm.write_bytes_per_s)
    assert changed(A2, {"gm.write_bytes_per_s": text}).gm.write_bytes_per_s == float(expected)


LISTED = "a key must name a number that `npusim devices show` lists for ascend910b2, not "


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            *(READ, "1600"),
            f"{READ} must lie in [1e8, 1e14] bytes/s (memories move 4 GB/s to 7 TB/s), not 1600; "
            "1600 looks like GB/s: write 1.6e12",
        ),
        (
            *(READ, "2GHz"),
            f"{READ} must be in bytes/s, MB/s, GB/s or TB/s, not in 'GHz'; "
            f"write for example {READ}=1545120000000bytes/s",
        ),
        (
            *(READ, "3.2tb/s"),
            f"{READ} must be in bytes/s, MB/s, GB/s or TB/s, not in 'tb/s'; did you mean TB/s?",
        ),
        (
            *(READ, "3e12B/s"),
            f"{READ} must be in bytes/s, MB/s, GB/s or TB/s, not in 'B/s'; "
            f"write for example {READ}=1545120000000bytes/s",
        ),
        (
            *("cores.aic.count", "12 cycles"),
            "cores.aic.count must be in cores, not in 'cycles'; "
            "write for example cores.aic.count=24cores",
        ),
        (
            *(READ, "fast"),
            f"{READ} must be a factor such as x2, or a number of bytes/s, not 'fast'; "
            f"write for example {READ}=1545120000000",
        ),
        (
            *(READ, True),
            f"{READ} must be a factor such as x2, or a number of bytes/s, not True; "
            f"write for example {READ}=1545120000000",
        ),
        (READ, float("nan"), f"{READ} must be a finite number, not nan; write one"),
        (
            *(READ, "x1e999"),
            f"{READ} must lie in [1e8, 1e14] bytes/s (memories move 4 GB/s to 7 TB/s), not a "
            "number of very many digits; give a number in this range, in bytes/s",
        ),
        (
            *("cores.aic.count", "x0.3"),
            "cores.aic.count must be a whole number, not 7.2; write it without fraction and quotes",
        ),
        (
            *("cores.aiv.ub_bytes", "x2"),
            "cores.aiv.ub_bytes must be groups x banks_per_group x bank_bytes = 196608, "
            "not 393216; make banks and buffer agree",
        ),
        ("gm.read_byt_per_s", "x2", f"{LISTED}'gm.read_byt_per_s'; did you mean {READ}?"),
        ("read_bytes_per_s", "x2", f"{LISTED}'read_bytes_per_s'; did you mean {READ} or "
         "l2.read_bytes_per_s?"),
        ("cube", "x2", f"{LISTED}'cube'; did you mean cube.m or cube.n or cube.k_per_cycle.int4 or "
         "cube.k_per_cycle.int8?"),
        ("gm.read", "x2", f"{LISTED}'gm.read'; did you mean {READ} or gm.read_latency_ns?"),
        ("name", "x2", f"{LISTED}'name'; take one of those"),
        ("gm.bus", "shared", f"{LISTED}'gm.bus'; take one of those"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_refused(key: str, value: str | float, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        changed(A2, {key: value})
    assert str(caught.value) == f"set: {message}"


# ---- the command line ----


def test_a_wider_link_moves_the_time() -> None:
    spec = changed(A2, {READ: "x2"})
    x, scales = TensorSpec((4096, 4096), "float16"), TensorSpec((1,), "float32")
    plain, wider = (
        npusim.run("npu_quantize", x, scales, None, "qint8", device=chip).time_us
        for chip in (A2, spec)
    )
    assert plain is not None
    assert wider is not None
    assert wider < plain
    code, out, err = npusim_says("run", "npu_quantize", "-d", "A2", *CALL, "--set", f"{READ}=x2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[1] == "chip      Atlas A2 (ascend910b2 (changed))"
    assert lines[2] == f"set       {READ}=x2"
    assert lines[4].startswith(f"time      {wider:.2f} us = ")


def test_a_chip_is_shown_and_asked_with_the_change() -> None:
    code, out, _ = npusim_says("devices", "show", "A2", "--sources", "--set", f"{READ}=3.2TB/s")
    assert code == 0
    row = "assumed       set to 3.2TB/s for a what-if, 1545120000000 before"
    assert [line.split(None, 3)[1:] for line in out.splitlines() if "what-if" in line] == [
        ["3.2", "TB/s", row]
    ]
    words = ("explain", "npu_quantize", "-d", "A2", *CALL, "--json")
    plans = [
        json.loads(npusim_says(*words, *more).out)["call"]["plan"]
        for more in ((), ("--set", "cores.aiv.count=24"))
    ]
    assert [plan["block_dim"] for plan in plans] == [48, 24]


def test_settings_are_keys_and_values_and_come_once() -> None:
    words = ("run", "npu_quantize", "-d", "A2", *CALL)
    refused(
        *(2, f"run: --set must be KEY=VALUE, not 'x2'; write for example --set {READ}=x2"),
        *(*words, "--set", "x2"),
    )
    refused(
        *(2, f"run: --set {READ} must come once; drop one of them"),
        *(*words, "--set", f"{READ}=x2", "--set", f"{READ}=x3"),
    )
    refused(
        *(1, f"set: {LISTED}'gm.read_byt_per_s'; did you mean {READ}?"),
        *(*words, "--set", "gm.read_byt_per_s=x2"),
    )


def test_every_number_of_every_architecture_can_be_set() -> None:
    for name in ("ascend310p3", "ascend910b2"):
        spec = devices.load(name)
        for key in spec.sources:
            node: object = spec.model_dump()
            for part in key.split("."):
                node = node.get(part) if isinstance(node, dict) else None
            if isinstance(node, int | float):
                again = changed(spec, {key: "x1"})
                assert isinstance(again, DeviceSpec)
                assert again.model_dump(exclude={"name", "aliases", "sources"}) == spec.model_dump(
                    exclude={"name", "aliases", "sources"}
                )
