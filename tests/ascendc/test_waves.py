"""More blocks than a chip has cores: each core runs several, one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from sources import CHIPS, kernels

import npusim
from npusim.check.hazards import DeadlockError
from npusim.devices import load
from npusim.isa import Load

N = 64
DRAWS = np.random.default_rng(37)


@pytest.mark.parametrize("device", CHIPS)
def test_every_block_runs(device: str) -> None:
    x = np.abs(DRAWS.standard_normal((101, N))).astype(np.float32)
    z = np.zeros_like(x)
    run = kernels("values.cpp").by_largest[101](x, z, device=device)
    expected = x * (np.float32(1) / x.max(axis=1, keepdims=True))
    expected[:, 0] = x.max(axis=1)
    np.testing.assert_array_equal(z, expected)
    assert run.trace is not None
    kind = run.trace.lanes[0].kind
    cores = load(device).cores[kind].count
    assert len(run.trace.lanes) == cores
    loads = [sum(isinstance(op, Load) for op in lane.program.ops) for lane in run.trace.lanes]
    assert loads == [len(range(core, 101, cores)) for core in range(cores)]


def test_engines_agree_and_a_wave_takes_its_time() -> None:
    cycles = {}
    for blocks in (48, 49, 96):
        x = np.ones((blocks, N), np.float32)
        launch = kernels("values.cpp").by_largest[blocks]
        traces = [
            npusim.run(launch, x, np.zeros_like(x), device="Atlas A2", engine=engine).trace
            for engine in ("simpy", "compiled")
        ]
        (cycles[blocks],) = {trace.cycles for trace in traces if trace}
    assert 1.5 * cycles[48] < cycles[49] <= cycles[96] < 2.1 * cycles[48]


def test_mixed_groups_take_the_same_turns() -> None:
    blocks, own, n, k = 30, 16, 32, 32
    a, b = (
        DRAWS.integers(-3, 4, shape).astype(np.float16) for shape in ((2 * blocks * own, k), (k, n))
    )
    c = np.zeros((len(a), n), np.float32)
    run = kernels("matmul.cpp").halves_each[blocks](a, b, c, *c.shape, k, device="Atlas A2")
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))
    assert run.trace is not None
    assert len(run.trace.lanes) == 24 * 3


def test_blocks_that_wait_for_all_others() -> None:
    x = np.zeros((49, N), np.int32)
    with pytest.raises(DeadlockError) as caught:
        kernels("values.cpp").rotate[49](x, x.copy(), x.copy(), device="Atlas A2")
    assert str(caught.value) == (
        "rotate: blocks that wait for all others must run at once, but 49 are started, of which "
        "ascend910b2 runs 48; start at most 48"
    )
