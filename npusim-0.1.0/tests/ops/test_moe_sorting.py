"""Sorting of any number of keys: what the routing operators share, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim import TensorSpec, run
from npusim.data.dtypes import FLOAT32, INT32
from npusim.kernel import GmView, Kernel, Step, VectorCore
from npusim.kernel.sequences import count_up
from npusim.ops._sorting import Sorter, padded

A2 = "ascend910b2"
KEYS = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1, 1, 2, -3, 1e-40, 3e38])


def sorting(each: int | None) -> Any:
    """A kernel that sorts x `(n,)` in lists of *each*, and gives keys and places."""

    def sort(spec: Any, x: TensorSpec) -> Kernel:
        core, count = VectorCore("sort", spec), x.shape[0]
        keys, places, found = (core.tile(dtype, count) for dtype in (FLOAT32, INT32, FLOAT32))
        sorter = Sorter(core, count)
        views = {name: GmView.vector(name, FLOAT32, count) for name in ("x", "keys")}
        views["places"] = GmView.vector("places", INT32, count)

        def write() -> None:
            core.data_copy(keys, views["x"].operand)
            count_up(core, places)
            core.sync("mte2", "vector")
            lists = sorter.sort(keys, places, each)
            for (start, length), first in zip(lists, range(0, count, each or count), strict=True):
                assert isinstance(start, int)
                sorter.take_keys(found.at(first, length), start)
                sorter.take_indices(places.at(first, length), start)
            core.sync("vector", "mte3")
            core.data_copy(views["keys"].operand, found)
            core.data_copy(views["places"].operand, places)

        blocks = core.launch(Step(write, (), np.zeros(1, np.int64)))
        outputs = {"keys": x, "places": TensorSpec((count,), "int32")}
        return Kernel("sort", blocks, {"x": x}, outputs)

    return sort


@pytest.mark.parametrize(
    ("count", "each"),
    # One list, two, four and five; 17 and 65 leave one over in a round; several lists apart.
    [(32, None), (64, None), (128, None), (160, None), (544, None), (2080, None), (480, 160),
     (256, 32), (384, 64)],
)  # fmt: skip
def test_keys_are_sorted_and_equal_ones_keep_their_order(count: int, each: int | None) -> None:
    rng = np.random.default_rng(count)
    x = rng.choice(np.concatenate([KEYS, np.float32(rng.normal(size=20))]), count)
    found = run(sorting(each), x, device=A2)
    ranks = np.where(np.isnan(x), np.inf, x)
    lists = np.split(np.arange(count), count // (each or count))
    order = np.concatenate([part[np.lexsort((part, -ranks[part], ~np.isnan(x[part])))]
                            for part in lists])  # fmt: skip
    np.testing.assert_array_equal(found.outputs["places"], order)
    np.testing.assert_array_equal(np.asarray(found.outputs["keys"]), x[order])


def test_what_is_sorted_is_filled_up() -> None:
    assert [padded(count) for count in (1, 32, 33)] == [32, 32, 64]
