"""Limits of rooflines: made of numbers of the device file, and of nothing else."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from chips import THREE
from tiny import tiny_spec

import npusim
from npusim import TensorSpec
from npusim.devices import changed, load, names
from npusim.reports import limits, roofline
from npusim.reports.limits import Limit

F16 = "float16"
PRODUCT = "matmul", TensorSpec((1024, 1024), F16), TensorSpec((1024, 2048), F16)
MIX = (
    *("npu_weight_quant_batchmatmul", TensorSpec((16, 512), F16)),
    *(TensorSpec((512, 512), "int8"), TensorSpec((512,), F16)),
)


def test_a_path_is_what_all_cores_move_each_on_its_fastest() -> None:
    spec = tiny_spec()
    count, clock_hz = spec.cores["aiv"].count, spec.cores["aiv"].clock_hz

    assert limits.path(spec, ["gm_to_ub"]).per_s == 32 * count * clock_hz
    assert limits.path(spec, ["gm_to_ub", "l2_to_ub"]).per_s == 64 * count * clock_hz
    assert limits.path(spec, ["ub_to_nowhere"]) == Limit(())
    assert limits.path(spec, ["ub_to_nowhere"]).per_s == 0
    assert limits.cube(spec, "complex") == Limit(())


def test_units_do_what_their_cores_do_in_every_cycle() -> None:
    chip = load("ascend910b2")

    assert limits.cube(chip, F16).per_s == 2 * 16**3 * 24 * 1.8e9
    assert limits.vector(chip, 16).per_s == 128 * 48 * 1.8e9
    assert limits.vector_bytes(chip, 2).per_s == 2 * 256 * 48 * 1.8e9


@pytest.mark.parametrize("device", names())
def test_every_number_of_a_limit_stands_in_the_device_file(device: str) -> None:
    spec = load(device)
    tree = spec.model_dump()
    found = [
        limits.cube(spec, F16), limits.vector(spec, 16), limits.vector_bytes(spec, 2),
        limits.path(spec, ["gm_to_ub", "l2_to_ub"]),
    ]  # fmt: skip
    for term in (term for limit in found for term in limit.terms):
        for key, value in term.numbers:
            stated: Any = reduce(lambda table, name: table[name], key.split("."), tree)
            assert (key, value) == (key, stated)
            assert key in spec.sources


@pytest.mark.parametrize("l2", ["cold", "warm"])
@pytest.mark.parametrize("device", THREE)
def test_no_point_lies_above_its_roof(device: str, l2: Any) -> None:
    """Tiles that the L2 has come faster than the path from global memory alone could bring them."""
    op, *args = PRODUCT
    rows = roofline.rows(npusim.run(op, *args, device=device, l2=l2))

    assert {row.title for row in rows} > {"GM/L2", "Memory Unit(Cube)", "Pipeline(Cube)"}
    assert all(0 < row.share <= 1 for row in rows)


def test_bytes_that_the_l2_has_take_the_path_from_it() -> None:
    op, *args = PRODUCT
    chip = load("ascend910b2")
    rows = {row.name: row for row in roofline.rows(npusim.run(op, *args, device=chip))}

    keys = [key for key, _ in rows["gm_to_l1"].slanted.terms[0].numbers]
    assert keys[0] == "cores.aic.paths.l2_to_l1.bytes_per_cycle"
    assert rows["mte2"].slanted == rows["L1 write"].slanted == rows["gm_to_l1"].slanted


@pytest.mark.parametrize(
    ("key", "moved"),
    [
        ("gm.read_bytes_per_s", {"GM"}),
        ("l2.write_bytes_per_s", {"L2 write"}),
        ("cores.aic.paths.l1_to_l0b.bytes_per_cycle", {"L0B write", "l1_to_l0b"}),
    ],
)
def test_a_roof_moves_with_its_number_and_no_other_does(key: str, moved: set[str]) -> None:
    op, *args = MIX
    run = npusim.run(op, *args, device="ascend910b2")
    twice = replace(run, device=changed(run.device, {key: "x2"}))
    before, after = roofline.rows(run), roofline.rows(twice)

    for old, new in zip(before, after, strict=True):
        factor = 2 if old.name in moved else 1
        assert (new.name, new.bytes_per_s) == (old.name, factor * old.bytes_per_s)
        assert (new.flat, new.intensity, new.ops_per_s) == (old.flat, old.intensity, old.ops_per_s)
    assert moved <= {row.name for row in before}
