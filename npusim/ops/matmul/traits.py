"""What the choice of a kernel looks at, in a call and in a chip."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.devices.schema import DeviceSpec

__all__ = ["CallTraits", "Chip"]


@dataclass(frozen=True, slots=True)
class CallTraits:
    """What the choice looks at in a call: x1 `(m, k)`, x2 `(k, n)`."""

    m: int
    k: int
    n: int
    element: str = "float16"
    """float16, bfloat16 or float32."""
    matrices: int = 1
    """How many matrices the output has."""
    trans_x1: bool = False
    """Whether x1 lies as (k, m)."""
    trans_x2: bool = False
    """Whether x2 lies as (n, k)."""
    is_nz: bool = False
    """Whether x2 is FRACTAL_NZ."""
    has_bias: bool = False
    is_wide: bool = False
    """Whether sums of 16-bit numbers come out as float32."""

    @property
    def is_single(self) -> bool:
        """Whether the matrices are of float32."""
        return self.element == "float32"


@dataclass(frozen=True, slots=True)
class Chip:
    """What the choice looks at in a device."""

    arch: str = "2201"
    aic: int = 24
    l1_bytes: int = 524288

    @staticmethod
    def of(spec: DeviceSpec | None) -> Chip:
        """Those of *spec*; None is an Atlas A2 with 24 cube cores."""
        if spec is None:
            return Chip()
        if spec.arch == "2002":
            return Chip("2002")
        core = spec.cores["aic"]
        return Chip(spec.arch, core.count, core.l1_bytes or 0)
