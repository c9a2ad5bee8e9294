"""What the choice of a kernel looks at, in a call and in a chip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec

__all__ = [
    "CallTraits",
    "Chip",
    "k_cores",
    "k_step",
]


@dataclass(frozen=True, slots=True)
class CallTraits:
    """What the choice looks at in a call: x `(m, k)`, weight `(k, n)`."""

    m: int
    k: int
    n: int
    x: str = "float16"
    """float16 or bfloat16."""
    weight: str = "int8"
    """int8 or int4."""
    trans_x: bool = False
    trans_weight: bool = False
    is_nz: bool = False
    """Whether the weight is FRACTAL_NZ."""
    scaling: Literal["tensor", "channel", "group"] = "channel"
    group_size: int = 0
    has_offset: bool = False
    has_bias: bool = False
    has_quant: bool = False
    """Whether the output is int8."""
    is_packed: bool = False
    """Whether antiquant_scale is int64."""
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class Chip:
    """What the choice looks at in a device."""

    arch: str = "2201"
    aic: int = 24
    l1_bytes: int = 524032

    @staticmethod
    def of(spec: DeviceSpec | None) -> Chip:
        """Those of *spec*; None is an Atlas A2 with 24 cube cores."""
        if spec is None:
            return Chip()
        if spec.arch == "2002":
            return Chip("2002")
        core = spec.cores["aic"]
        return Chip(spec.arch, core.count, core.usable_bytes("l1"))


def k_step(f: CallTraits, aic: int) -> int:
    """How much of k a cube core takes in msd_group and nz_splitk, with *aic* cube cores."""
    if f.scaling == "group":
        return align_up(ceil_div(f.k, aic // ceil_div(f.n, 2048)), f.group_size)
    blocks = min(ceil_div(align_up(f.k, 32), 1024), aic)
    return align_up(ceil_div(align_up(f.k, 32), blocks), 1024)


def k_cores(f: CallTraits, aic: int) -> int:
    """How many cores share k in msd_group and nz_splitk."""
    return ceil_div(f.k, k_step(f, aic))
