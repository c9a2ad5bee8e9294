"""Cores with verbs: tiles, queues of tiles, and what the verbs write."""

from __future__ import annotations

import numpy as np
import pytest

import npusim
from npusim.data.dtypes import FLOAT16, FLOAT32, INT32
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel import Block, GmView, Kernel, VectorCore, bindings, repeat
from npusim.kernel.queues import ProgramError


def doubled(spec: DeviceSpec, x: TensorSpec) -> Kernel:
    """y = 2 x, a row at a time."""
    rows, columns = x.shape
    core = VectorCore("double", spec)
    x_in, y_out = core.vecin(x.element, columns, 2), core.vecout(x.element, columns, 2)
    core.claim_tails()

    def row(x: GmView, y: GmView) -> None:
        loaded, out = core.load(x_in, x), y_out.alloc()
        core.mul(out, loaded, 2.0)
        x_in.free(loaded)
        core.store(y_out, out, y)

    x_gm, y_gm = (GmView.of(name, x.element, rows, columns) for name in "xy")
    for index in range(rows):
        here = slice(index, index + 1)
        repeat(core, row, x_gm[here, :], y_gm[here, :])
    block = Block(0, core.kind, core.build(), bindings(x_gm, y_gm))
    return Kernel("double", (block,), {"x": x}, {"y": x})


@pytest.mark.parametrize("device", ["ascend910b2", "ascend310p3"])
def test_a_kernel_of_verbs_runs_on_both_kinds_of_chip(device: str) -> None:
    x = np.arange(3 * 40, dtype=np.float16).reshape(3, 40)

    found = npusim.run(doubled, x, device=device).output

    np.testing.assert_array_equal(found, 2 * x)


def test_a_verb_writes_a_barrier_and_an_independent_block_only_one(tiny: DeviceSpec) -> None:
    core = VectorCore("verbs", tiny, "aiv")
    a, b = core.tile(FLOAT32, 8), core.tile(FLOAT32, 8)
    core.add(a, a, 1.0)
    with core.independent():
        core.exp(a, a)
        with core.independent():
            core.sqrt(b, b)

    assert str(core.build()).splitlines() == [
        "vector   adds ub[0:32] float32 <- ub[0:32] float32, 1.0",
        "vector   barrier vector",
        "vector   exp ub[0:32] float32 <- ub[0:32] float32",
        "vector   sqrt ub[32:64] float32 <- ub[32:64] float32",
        "vector   barrier vector",
    ]


def test_a_cast_rounds_to_nearest_even(tiny: DeviceSpec, tiny_2002: DeviceSpec) -> None:
    modes = []
    for spec in (tiny, tiny_2002):
        core = VectorCore("cast", spec)
        wide, half = core.tile(FLOAT32, 8), core.tile(FLOAT16, 8)
        core.cast(wide, half)
        core.cast(half, wide)
        core.cast(wide.as_dtype(INT32), wide)
        modes.append([line.split()[1] for line in str(core.build()).splitlines()[::2]])

    assert modes == [
        ["cast.none", "cast.rint", "cast.rint"],
        ["cast.none", "cast.none", "cast.rint"],
    ]


def test_a_tile_is_cut_like_an_array_and_ends_where_it_ends(tiny: DeviceSpec) -> None:
    tile = VectorCore("tile", tiny, "aiv").tile(FLOAT32, 16)

    assert (tile[8:].offset_bytes, tile[8:].count, tile[:4].count) == (32, 8, 4)
    with pytest.raises(
        ValueError,
        match=r"^isa\.Local\.at: elements \[8, 24\) must lie in \[0, 16\); ask for less$",
    ):
        tile[8:24]
    with pytest.raises(
        ValueError,
        match=r"^isa\.Local: a slice must have no step, not 2; take it out, and give the operand "
        r"strides$",
    ):
        tile[::2]


def test_a_queue_takes_its_own_tiles_alone(tiny: DeviceSpec) -> None:
    core = VectorCore("queue", tiny, "aiv")
    queue, other = core.vecin(FLOAT32, 8), core.tile(FLOAT32, 8)

    with pytest.raises(
        ProgramError,
        match=r"^TileQueue: a tile must begin where one of its queue does, at byte 0 of ub, not at "
        r"32; pass what alloc or deque of this queue returned$",
    ):
        queue.enque(other)


def test_a_core_that_stores_claims_its_tails_first(tiny: DeviceSpec) -> None:
    core = VectorCore("store", tiny, "aiv")
    queue = core.vecout(FLOAT32, 8)

    with pytest.raises(
        ProgramError,
        match=r"^store: a core that stores must claim what the tails of rows need, but has not; "
        r"call claim_tails\(\) behind its other claims$",
    ):
        core.store(queue, queue.alloc(), GmView.vector("y", FLOAT32, 8))


def test_a_data_copy_is_between_global_memory_and_a_buffer(tiny: DeviceSpec) -> None:
    core = VectorCore("copy", tiny, "aiv")
    tile = core.tile(FLOAT32, 8)

    with pytest.raises(
        TypeError,
        match=r"^copy: data_copy must have one operand in global memory and one in a buffer, not "
        r"ub\[0:32\] float32 and ub\[0:32\] float32; use copy within a buffer$",
    ):
        core.data_copy(tile, tile)
