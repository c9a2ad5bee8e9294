"""The input of an operator's oracle: the arguments of a call, by name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.product import CubeOrder
from npusim.devices.schema import DeviceSpec


def without_nan(found: Array) -> Array | None:
    """*found*, or None if it has a NaN, of whose bits an oracle says nothing."""
    is_float = found.dtype.kind in "fV"
    return None if is_float and np.isnan(found).any() else found


class Given:
    """The arguments of a call as attributes: `given.x`, `given.dim`, without gaps.

    Raises AttributeError for one that the operator does not have.
    """

    __slots__ = ("_arguments", "_op", "cube_order", "spec")

    def __init__(
        self,
        op: str,
        arguments: Mapping[str, object],
        spec: DeviceSpec | None = None,
        cube_order: CubeOrder = "k16",
    ) -> None:
        self._op = op
        self._arguments = arguments
        self.spec = spec
        """The chip; None is an Atlas A2."""
        self.cube_order = cube_order
        """The order in which the cube adds: in blocks of 16 along k, or of 8, 4, 1."""

    @property
    def arguments(self) -> Mapping[str, object]:
        """All arguments by name, as a check takes them."""
        return self._arguments

    def rounded(self, values: Array, dtype: np.dtype[Any]) -> Array:
        """fp32 *values* as *dtype*, to nearest, ties to even.

        On a chip without infinities in fp16 these become the largest number, and NaN becomes 0.
        """
        if values.dtype == dtype != np.float16:
            return values
        if dtype == np.float16 and self.spec is not None and self.spec.half_overflow == "saturate":
            largest = np.float32(np.finfo(np.float16).max)
            values = np.clip(np.where(np.isnan(values), np.float32(0), values), -largest, largest)
        with np.errstate(over="ignore"):
            return np.asarray(values.astype(dtype))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and pickling look up such names
            raise AttributeError(name)
        if name not in self._arguments:
            known = (*self._arguments, "spec", "cube_order")
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "add it to the signature"
            raise AttributeError(
                f"{self._op}: its oracle must read one of {', '.join(known)}, not {name}; {hint}"
            )
        return self._arguments[name]
