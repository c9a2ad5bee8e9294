"""Calls of the vector unit against numpy: the number of each is its case in kernels/vector.cpp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sources import CHIPS, kernels, probe

from npusim.ascendc import AscendCError
from npusim.data.dtypes import Array

N = 512
DRAWS = np.random.default_rng(3)


def partly(values: Array, *where: slice | Array) -> Array:
    """Zeros, but for *values* there."""
    found = np.zeros(N, values.dtype)
    for each in where:
        found[each] = values[each]
    return found


def first(*values: Array | float, of: Array) -> Array:
    """Zeros behind *values*."""
    found = np.zeros(N, of.dtype)
    joined = np.concatenate([np.atleast_1d(np.asarray(x, of.dtype)) for x in values])
    found[: joined.size] = joined
    return found


def tree(values: Array) -> Array:
    """Neighbours first, then neighbours of these."""
    while values.shape[-1] > 1:
        values = values[..., ::2] + values[..., 1::2]
    return values[..., 0]


def repeats(x: Array) -> Array:
    return x.reshape(-1, 256 // x.itemsize)


def in_turn(values: Array) -> Array:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def index_bits(x: Array) -> Array:
    """The number of the largest, as bits of the type."""
    return np.array([x.argmax()], f"u{x.itemsize}").view(x.dtype)


def strips(x: Array) -> Array:
    """Every second repeat of the result is a repeat of x."""
    found = np.zeros_like(repeats(x))
    found[::2] = repeats(x)[: len(found) // 2]
    return found.reshape(-1)


def blocks(x: Array) -> Array:
    return x.reshape(-1, 32 // x.itemsize)


CASES: dict[int, Callable[[Array, Array], Array]] = {
    0: lambda x, y: x - y,
    1: lambda x, y: np.where(repeats(x).cumsum(1) * 0 + half(x), repeats(x * y), 0).reshape(-1),
    2: lambda x, y: partly(np.maximum(x, y), np.arange(1, N, 2)),
    3: lambda x, _: partly(x + x.dtype.type(1.5), slice(100)),
    4: lambda x, _: partly(x * x.dtype.type(-2), slice(2 * 256 // x.itemsize)),
    5: lambda x, _: np.abs(x),
    6: lambda x, y: partly(x + y, slice(100)),
    7: lambda x, _: first(in_turn(repeats(x)), of=x),
    8: lambda x, _: first(x.max(), index_bits(x), of=x),
    10: lambda x, _: first(tree(repeats(x)), of=x),
    11: lambda x, _: first(blocks(x).min(1), of=x),
    12: lambda x, y: np.minimum(x, y),
    13: lambda x, _: np.where(x >= 0, x, x.dtype.type(-1)),
    14: lambda x, _: first(np.repeat(x[:8], 32 // x.itemsize), of=x),
    15: lambda x, _: strips(x),
    16: lambda x, _: first(np.concatenate(blocks(x)[[0, 1, 4, 5, 8, 9, 12, 13]]), of=x),
    17: lambda x, _: x * x.dtype.type(3),
    18: lambda x, y: x * y,
    19: lambda x, _: first(np.full(5, 7), of=x),
    20: lambda x, _: first(x[::2] + x[1::2], of=x),
    21: lambda x, _: some_pairs(x),
    22: lambda x, _: first(tree(repeats(x)), of=x),
    23: lambda x, _: first(blocks(x)[:10:2].reshape(-1), of=x),
}


def some_pairs(x: Array) -> Array:
    """Sums of pairs of lanes 0 to 2 and 60 to 62 of two repeats, every second repeat of sums."""
    found = np.zeros_like(x)
    lanes = 256 // x.itemsize
    for repeat in range(2):
        own, to = x[repeat * lanes :], found[repeat * lanes :]
        to[:2] = own[0] + own[1], own[2]
        to[30:32] = own[60] + own[61], own[62]
    return found


def half(x: Array) -> Array:
    """The first half of each repeat."""
    return np.arange(256 // x.itemsize) < 128 // x.itemsize


@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("name", ["float", "half"])
def test_vector_calls(name: str, device: str) -> None:
    dtype = {"float": np.float32, "half": np.float16}[name]
    kernel = kernels("vector.cpp")[f"vector_calls<{name}>"][1]
    x, y = DRAWS.standard_normal((2, N)).astype(dtype)
    wrong = {}
    for which, expected in CASES.items():
        z = np.zeros_like(x)
        try:
            kernel(x, y, z, which, device=device)
        except ValueError as error:
            wrong[which] = str(error)
            continue
        if not np.array_equal(z.view(f"u{z.itemsize}"), expected(x, y).view(f"u{z.itemsize}")):
            wrong[which] = f"{z[:8]} not {expected(x, y)[:8]}"
    assert wrong == {}


@pytest.mark.parametrize("device", CHIPS)
def test_order_of_a_sum(device: str) -> None:
    x = DRAWS.standard_normal(N).astype(np.float32)
    z = np.zeros_like(x)
    kernels("vector.cpp")["vector_calls<float>"][1](x, x, z, 9, device=device)
    of_repeats = tree(repeats(x))
    # A2 and A3 add one repeat after the other, 310P as a tree again (ReduceSum.md).
    assert z[0] == (tree(of_repeats) if device == "ascend310p3" else in_turn(of_repeats))


def test_copies_count_the_elements_of_each_repeat(tmp_path: Path) -> None:
    """In counter mode all blocks of a repeat are a block stride apart, however many they are."""
    x, z = np.zeros((2, 1024), np.float32)
    x[:] = np.arange(1024)
    lines = """
    Duplicate(b, -1.0f, N);
    PipeBarrier<PIPE_V>();
    SetMaskCount();
    SetVectorMask<float, MaskMode::COUNTER>(140);
    Copy<float, false>(b, a, MASK_PLACEHOLDER, 1, {1, 5, 0, 0});
    SetVectorMask<float, MaskMode::COUNTER>(100);
    Copy<float, false>(b[256], a, MASK_PLACEHOLDER, 2, {1, 1, 20, 30});
    SetMaskNorm();
    ResetMask();
    """
    probe(tmp_path, lines)[1](x, z, device="Atlas A2")
    expected = np.full(1024, -1, np.float32)
    expected[:140] = x.reshape(-1, 8)[: 5 * 18 : 5].reshape(-1)[:140]
    expected[256:356], expected[416:516] = x[:100], x[240:340]
    np.testing.assert_array_equal(z, expected)


def test_a_gather_begins_at_any_element(tmp_path: Path) -> None:
    x, z = np.zeros((2, 1024), np.float32)
    x[:] = np.arange(1024)
    lines = """
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, N * sizeof(int32_t));
    auto places = buffer.Get<int32_t>();
    CreateVecIndex(places, 0, N / 2);
    Muls(places, places, 8, N / 2);
    auto offsets = places.ReinterpretCast<uint32_t>();
    Gather(b, a, offsets, 4, N / 2);
    Gather(b[N / 2], a, offsets, 0, N / 2);
    """
    probe(tmp_path, lines)[1](x, z, device="Atlas A2")
    np.testing.assert_array_equal(z, np.concatenate([x[1::2], x[::2]]))


def test_a_gather_of_what_begins_within_a_block(tmp_path: Path) -> None:
    x, z = np.zeros((2, 1024), np.float32)
    lines = "    Gather(b, a[1], a.ReinterpretCast<uint32_t>(), 0, 64);"
    with pytest.raises(AscendCError) as caught:
        probe(tmp_path, lines)[1](x, z, device="Atlas A2")
    assert str(caught.value) == (
        "probe: Gather: src must start at a multiple of 32 bytes, not at 4; say by srcBaseAddr "
        "where it begins (line 19 of probe.cpp)"
    )


@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("repeats", [1, 2, 6])
def test_repeats_of_a_few_elements_are_as_far_apart_as_they_say(
    tmp_path: Path, device: str, repeats: int
) -> None:
    x, z = np.zeros((2, 1024), np.float32)
    x[:] = np.arange(1024)
    lines = f"""
    Duplicate(b, 0.0f, N);
    PipeBarrier<PIPE_V>();
    Add(b, a, a[512], 6, {repeats}, {{1, 1, 1, 10, 9, 3}});
    uint64_t odd[] = {{0xa, 0}};
    Muls(b[896], a, 2.0f, odd, {repeats}, {{1, 1, 1, 5}});
    """
    probe(tmp_path, lines)[1](x, z, device=device)
    expected = np.zeros_like(x)
    for repeat in range(repeats):
        to, first, second = 80 * repeat, 72 * repeat, 512 + 24 * repeat
        expected[to : to + 6] = x[first : first + 6] + x[second : second + 6]
        for lane in (1, 3):
            expected[896 + 8 * repeat + lane] = 2 * x[40 * repeat + lane]
    np.testing.assert_array_equal(z, expected)
