"""Kernels of C++ give what numpy gives, on each chip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sources import CHIPS, kernels, probe

import npusim

DRAWS = np.random.default_rng(7)


@pytest.mark.parametrize("device", CHIPS)
def test_add(device: str) -> None:
    x, y = DRAWS.standard_normal((2, 8 * 3 * 2048)).astype(np.float16)
    z = np.zeros_like(x)
    run = kernels("add.cpp").add_custom[8](x, y, z, x.size, device=device)
    np.testing.assert_array_equal(z, x + y)
    assert run.plan.block_dim == 8
    assert run.trace.cycles > 0


def test_template_arguments_are_given_by_name() -> None:
    x = np.arange(4096, dtype=np.int32)
    z = np.zeros_like(x)
    kernels("add.cpp")["add_any<int32_t>"][2](x, x, z, x.size, device="Atlas A2")
    np.testing.assert_array_equal(z, 2 * x)


def test_a_shape_in_place_of_an_array_asks_for_time_alone() -> None:
    spec = npusim.TensorSpec((4096,), "float16")
    launch = kernels("add.cpp").add_custom[2]
    timed = npusim.run(launch, spec, spec, spec, 4096, device="Atlas A2")
    x = np.ones(4096, np.float16)
    assert timed.time_us == npusim.run(launch, x, x, x, 4096, device="Atlas A2").time_us


@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
def test_types_that_no_operator_takes(dtype: type) -> None:
    x = np.arange(4096, dtype=dtype).reshape(2, 2048)
    z = np.zeros_like(x)
    launch = kernels("add.cpp")["add_any<int16_t>"][2]
    run = launch(x, x, z, x.size, device="Atlas A2")
    np.testing.assert_array_equal(z, 2 * x)
    assert run.outputs["z"].dtype == dtype
    spec = npusim.TensorSpec(x.shape, np.dtype(dtype).name)
    timed = npusim.run(launch, spec, spec, spec, x.size, device="Atlas A2")
    assert timed.outputs["z"] == spec


def test_types_that_npusim_has_no_tensors_of() -> None:
    x = np.arange(8192) % 3 == 0
    z = np.zeros_like(x)
    kernels("add.cpp")["add_any<int16_t>"][2](x, np.zeros_like(x), z, 4096, device="Atlas A2")
    np.testing.assert_array_equal(z, x)


def test_functions_of_a_float_are_of_floats(tmp_path: Path) -> None:
    """Rounded twice, and not once as 1 / sqrt of a double is."""
    x, z = np.zeros((2, 1024), np.float32)
    lines = "    float v = 1.5f;\n    Duplicate(b, 1 / sqrt(v), N);"
    probe(tmp_path, lines)[1](x, z, device="Atlas A2")
    expected = np.float32(1) / np.sqrt(np.float32(1.5))
    assert expected != np.float32(1 / np.sqrt(1.5))
    np.testing.assert_array_equal(z, expected)


def test_a_buffer_that_is_freed_can_be_filled_again(tmp_path: Path) -> None:
    """Whether or not it went through the queue, what used it is done before it is filled again."""
    x, z = DRAWS.standard_normal((2, 1024)).astype(np.float32)
    lines = """
    TQue<TPosition::VECIN, 1> own;
    pipe.InitBuffer(own, 1, 512 * sizeof(float));
    for (int i = 0; i < 2; ++i) {
        auto c = own.AllocTensor<float>();
        DataCopy(c, xGm[512 * i], 512);
        SetFlag<HardEvent::MTE2_V>(7);
        WaitFlag<HardEvent::MTE2_V>(7);
        Muls(b[512 * i], c, 3.0f, 512);
        own.FreeTensor(c);
    }
    """
    probe(tmp_path, lines)[1](x, z, device="Atlas A2")
    np.testing.assert_array_equal(z, 3 * x)
