"""What holds for every operator, shown on a call of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import CALLS
from chips import THREE

from npusim import OpError, TensorSpec, devices, ops, run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SEEN = {"group_index", "group_list", "expert_idx"}
"""Operands whose values say which rows belong together, which a kernel's time depends on."""
TIED = ("packed", "attention, latent keys")
"""Calls with elements that cannot be drawn one by one: latent keys are the values, too."""


def taken_by(op: str, given: dict[str, Any]) -> str:
    """The first of three chips that takes the call."""
    for device in THREE:
        try:
            ops.load(op).check(devices.load(device), **given)
        except OpError:
            continue
        return device
    raise AssertionError(f"{op}: no chip takes {given}")


@pytest.mark.parametrize("call", CALLS)
def test_shapes_alone_take_the_time_of_values(call: str) -> None:
    op, given = CALLS[call]
    seen = {*SEEN, *ops.load(op).value_dependent_inputs}
    bare = given | {
        name: TensorSpec(value.shape, value.dtype.name)
        for name, value in given.items()
        if isinstance(value, np.ndarray) and name not in seen
    }
    device = taken_by(op, given)
    # Whoever writes into an operand is stopped.
    locked = {name: read_only(value) for name, value in given.items()}
    whole, timed = (run(op, **each, device=device) for each in (locked, bare))
    assert timed.cycles == whole.cycles
    for name, output in timed.outputs.items():
        found = np.asarray(whole.outputs[name])
        assert (output.shape, str(output.dtype)) == (found.shape, str(found.dtype))


def read_only(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


@pytest.mark.parametrize("call", [call for call in CALLS if call not in TIED])
def test_views_with_gaps_give_what_their_copies_give(call: str, rng: np.random.Generator) -> None:
    op, given = CALLS[call]
    copies = given | {
        name: rng.choice([0.5, 1.0, 2.0], value.shape).astype(value.dtype)
        for name, value in given.items()
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
    }
    views = {
        name: with_gaps(value) if isinstance(value, np.ndarray) else value
        for name, value in copies.items()
    }
    device = taken_by(op, given)
    wanted, found = (run(op, **each, device=device, timing=False) for each in (copies, views))
    for name, output in wanted.outputs.items():
        assert np.asarray(found.outputs[name]).tobytes() == np.asarray(output).tobytes()


def with_gaps(value: np.ndarray) -> np.ndarray:
    """Every other element, backwards along each axis, of an array full of other numbers."""
    around = np.full([2 * size for size in value.shape], 7, value.dtype)
    view = around[tuple([slice(None, None, -2)] * value.ndim)]
    view[...] = value
    return view
