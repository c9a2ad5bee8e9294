"""Products on the cube: where k begins, and what the unit flag makes of its flags."""

from __future__ import annotations

import re

import pytest

from npusim import chip
from npusim.data.dtypes import FLOAT16, FLOAT32, INT8
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, LoadNd2Nz, MicroOp, Mmad
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.matmul import BaseTile, GmFeed, Matmul
from npusim.kernel.matrices import GmMatrix
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.queues import ProgramError
from npusim.kernel.views import GmView

K = 5 * 32
"""Pieces of 32 in L0; of 64 of a, 32 of b in L1."""
TILE = BaseTile(16, 32, 32, steps_a=2, steps_b=1)


def product_on(spec: DeviceSpec, *, unit_flag: bool = False) -> Matmul:
    a = GmMatrix("a", INT8, 16, K, k_is_first=False)
    b = GmMatrix("b", INT8, 32, K, k_is_first=False)
    return Matmul(CubeCore("kernel", spec), TILE, a, b, K, unit_flag=unit_flag)


def ops(cube: Matmul, *, first_k: int = 0, products: int = 1) -> tuple[MicroOp, ...]:
    y = GmView.of("y", cube.dtype, 16 * products, 32)
    for index in range(products):
        sums = cube.multiply(16, 32, K, first_k=first_k)
        cube.fixpipe(y[16 * index : 16 * (index + 1), :], sums)
    return cube.core.build().ops


@pytest.mark.parametrize(("core", "pieces_a"), [(0, (0, 64, 128)), (4, (64, 128, 0))])
def test_each_core_begins_elsewhere(tiny: DeviceSpec, core: int, pieces_a: tuple[int, ...]) -> None:
    cube = product_on(tiny)
    # Three pieces of a, the last one half as long, so core 4 begins with the second.
    first_k = cube.stagger(core, K)
    assert first_k == pieces_a[0]
    loads = [op.src for op in ops(cube, first_k=first_k) if isinstance(op, LoadNd2Nz)]
    lengths = {0: 64, 64: 64, 128: 32}
    assert [(x.offset_bytes, x.burst_bytes) for x in loads if x.name == "a"] == [
        (k, lengths[k]) for k in pieces_a
    ]
    in_order = [k + step for k in pieces_a for step in range(0, lengths[k], 32)]
    assert [x.offset_bytes for x in loads if x.name == "b"] == in_order


def test_only_the_first_step_starts_the_sums_wherever_it_is(tiny: DeviceSpec) -> None:
    products = [op for op in ops(product_on(tiny), first_k=64) if isinstance(op, Mmad)]
    assert [op.init for op in products] == ["zero", *["accumulate"] * 4]


def test_what_the_fixpipe_writes_begins_at_zero(tiny: DeviceSpec) -> None:
    class Computed(GmFeed):
        producer = "fixpipe"

    core = CubeCore("kernel", tiny)
    a = Computed(core, GmMatrix("a", FLOAT16, 16, 64, k_is_first=False))
    b = GmMatrix("b", FLOAT16, 16, 64, k_is_first=False)
    cube = Matmul(core, BaseTile(16, 16, 32), a, b, 64)
    message = (
        "kernel: a product of what the fixpipe writes to L1 must begin at k = 0, not at 32; "
        "leave first_k out"
    )
    with pytest.raises(ProgramError, match=f"^{re.escape(message)}$"):
        cube.multiply(16, 16, 64, first_k=32)
    assert cube.dtype is FLOAT32


def test_the_unit_flag_is_on_all_that_touches_l0c_and_races_with_nothing(tiny: DeviceSpec) -> None:
    found = ops(product_on(tiny, unit_flag=True), products=3)
    assert all(op.unit_flag for op in found if isinstance(op, Mmad | Fixpipe))
    bound = {name: Binding(name) for name in ("a", "b", "y")}
    blocks = (Block(0, "aic", Program("kernel", found), bound),)
    # In program order: the values are those without a unit flag.
    assert list(chip.verify(blocks, tiny).values()) == [range(len(found))]
