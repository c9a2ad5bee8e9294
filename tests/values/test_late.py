"""Products that wait for others come out as those that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cube import CubeBench, nd2nz

import npusim
from npusim.data.dtypes import INT8, INT32, dtype_named
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, Global, Load, LoadData, Local, Mmad, Store
from npusim.values.buffers import UNWRITTEN, Buffers
from npusim.values.late import MOST_ROWS, Late, Place
from npusim.values.matrices import Factor, Panels, address_of
from npusim.values.semantics import Memory, State, run

CHIPS = ("ascend910b2", "ascend910_9391", "ascend310p3")
SHAPES = ((700, 600, 900), (129, 2100, 257), (1, 64, 1000), (2048, 48, 33))


@pytest.mark.sample(4)
@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("output", ["float16", "int8", "int32"])
def test_waiting_changes_no_value(output: str, shape: tuple[int, int, int], device: str) -> None:
    if output == "int32" and device == "ascend310p3":
        pytest.skip("int32 does not come out on this chip")
    m, k, n = shape
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (m, k), np.int8), rng.integers(-128, 128, (k, n), np.int8)
    scale = np.ones(1) if output == "int32" else rng.random(n) / 100
    args: tuple[Any, ...] = "npu_quant_matmul", a, b, scale.astype(np.float32)
    found, expected = (
        npusim.run(*args, output_dtype=output, device=device, timing=False, byte_exact=alone).output
        for alone in (False, True)
    )
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_few_rows_wait_and_keep_their_values(rows: int, dtype: str, rng: Any) -> None:
    """Two rows of the other factor have bits that float64 loses next to the rest."""
    a, b = (rng.standard_normal(shape) for shape in ((rows, 600), (600, 700)))
    b[40:42] *= 2.0**-24
    args = "matmul", *(x.astype(np.dtype(dtype_named(dtype).numpy)) for x in (a, b))
    found, expected = (
        npusim.run(*args, device="ascend910b2", timing=False, byte_exact=alone).output
        for alone in (False, True)
    )
    assert found.tobytes() == expected.tobytes()


# ---- by hand ----

LEFT, RIGHT = Local("l0a", 0, INT8, 512), Local("l0b", 0, INT8, 1024)
L1 = Local("l1", 0, INT8, 512)
SUM = Local("l0c", 0, INT32, 256)


def product(bench: CubeBench, row: int, to: int, rows: int = 16) -> None:
    """Rows *row* on of x, `(32, 32)`, times y, `(32, 16)`, to row *to* of z, `(64, 16)`."""
    bench.run(
        nd2nz(L1, "x", (16, 32), 16, 32 * row),
        LoadData(LEFT, L1, 16, 0, 0, 16, 32),
        nd2nz(Local("l1", 512, INT8, 1024), "y", (32, 16), 32),
        LoadData(RIGHT, Local("l1", 512, INT8, 1024), 32, 0, 0, 32, 16, True),
        Mmad(SUM, LEFT, RIGHT, 16, 16, 32),
        Fixpipe(Global("z", 64 * to, 64, rows, 64), SUM, rows, 16, 16, INT32),
    )


@pytest.fixture
def bench(tiny: DeviceSpec, rng: np.random.Generator) -> CubeBench:
    x, y = rng.integers(-128, 128, (32, 32), np.int8), rng.integers(-128, 128, (32, 16), np.int8)
    bench = CubeBench(tiny, False, x=x, y=y)
    bench.state.memories["z"] = Memory(np.zeros(4096, np.uint8), is_late=True)
    bench.state.late = Late(bench.state.panels)
    return bench


def matrix(bench: CubeBench, name: str, dtype: Any, columns: int) -> np.ndarray:
    return bench.state.memories[name].data.view(dtype).reshape(-1, columns)


def test_a_product_waits_and_has_what_its_operands_and_its_sum_were(bench: CubeBench) -> None:
    z, late = matrix(bench, "z", np.int32, 16), bench.state.late
    assert late is not None
    product(bench, 0, 0)
    product(bench, 16, 16)
    assert not z.any()
    late.flush()
    expected = matrix(bench, "x", np.int8, 32).astype(int) @ matrix(bench, "y", np.int8, 16)
    np.testing.assert_array_equal(z[:32], expected)
    assert not z[32:].any()


def test_the_last_of_two_that_write_the_same_bytes_stays(bench: CubeBench) -> None:
    z, late = matrix(bench, "z", np.int32, 16), bench.state.late
    assert late is not None
    product(bench, 16, 8)
    product(bench, 0, 0)
    late.flush()
    expected = matrix(bench, "x", np.int8, 32).astype(int) @ matrix(bench, "y", np.int8, 16)
    np.testing.assert_array_equal(z[:16], expected[:16])
    np.testing.assert_array_equal(z[16:24], expected[24:32])


def test_writes_come_after_what_waits(bench: CubeBench) -> None:
    z, late = matrix(bench, "z", np.int32, 16), bench.state.late
    assert late is not None
    product(bench, 0, 0)
    # A part of a tile does not wait.
    product(bench, 16, 4, rows=8)
    late.flush()
    expected = matrix(bench, "x", np.int8, 32).astype(int) @ matrix(bench, "y", np.int8, 16)
    np.testing.assert_array_equal(z[:4], expected[:4])
    np.testing.assert_array_equal(z[4:12], expected[16:24])
    np.testing.assert_array_equal(z[12:16], expected[12:16])


@pytest.mark.parametrize("bases", [(), (0, 128)])
@pytest.mark.parametrize("what", ["load", "store"])
def test_what_waits_is_there_for_another_core(
    bench: CubeBench, tiny: DeviceSpec, what: str, bases: tuple[int, ...]
) -> None:
    """Two rows, or those of two cores side by side."""
    product(bench, 0, 0)
    memory = replace(bench.state.memories["z"], bases=bases)
    buffers = Buffers(tiny.cores["aiv"], lanes=len(bases) or None)
    rows, here = Global("z", 64, 64, 2, 64), Local("ub", 0, INT32, 32)
    op = Load(here, rows, 64) if what == "load" else Store(rows, here, pitch_bytes=64)
    run([op], State(buffers, {"z": memory}, late=bench.state.late))
    expected = matrix(bench, "x", np.int8, 32)[:16].astype(int) @ matrix(bench, "y", np.int8, 16)
    of_it = [1, 2, 3, 4] if bases else [1, 2]
    if what == "load":
        np.testing.assert_array_equal(buffers.read(here).reshape(-1, 16), expected[of_it])
    else:
        expected[of_it] = np.full(1, UNWRITTEN, np.uint8).repeat(4).view(np.int32)
    np.testing.assert_array_equal(matrix(bench, "z", np.int32, 16)[:16], expected)


def test_what_waits_is_there_for_the_cube(bench: CubeBench) -> None:
    product(bench, 0, 0)
    bench.run(nd2nz(L1, "z", (8, 32), 8))
    assert matrix(bench, "z", np.int32, 16)[:16].any()


def test_what_is_read_or_written_by_others_does_not_wait(bench: CubeBench) -> None:
    bench.state.memories["z"] = Memory(np.zeros(4096, np.uint8))
    product(bench, 0, 0)
    assert matrix(bench, "z", np.int32, 16)[:16].any()


def test_a_place_is_rows_of_a_matrix_or_none() -> None:
    data = np.zeros(0, np.uint8)
    assert Place.of(Global("z", 100, 20, 3, 64), data, 60) == (id(data), 64, 2, 5, 32, 52)
    assert Place.of(Global("z", 100, 20, 1, 0), data, 60) is None
    assert Place.of(Global("z", 50, 20, 3, 64), data, 0) is None


def test_products_of_the_same_columns_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.ones((3 * MOST_ROWS, 4), np.int8), np.ones((4, 2), np.int8)
    seen: list[int] = []
    late = Late(Panels())

    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        seen.append(len(a))
        return (a @ b).astype(np.int32)

    monkeypatch.setattr("npusim.values.late.int_product", multiply)
    step, place = MOST_ROWS // 2, Place(0, 8, 0, 1, 0, 8)
    for row in (2 * step, 0, 5 * step, step, 4 * step):
        left = Factor(x[row : row + step], address_of(x[row:]))
        at = place._replace(top=row, bottom=row + step)
        late.add(at, left, Factor(y, address_of(y)), lambda _: None)
    late.flush()
    assert seen == [MOST_ROWS, MOST_ROWS, step]
