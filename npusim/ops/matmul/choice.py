"""Which of the vendor's kernels takes a call, and why.

=====================  =============================================================================
template               what it does
=====================  =============================================================================
bl1_aligned_output     MatMulV3: x2 stays in L1, vector cores write the ragged rows of the output
al1_split_k            MatMulV3: few rows, of which L1 holds long chunks of k, summed in memory
bl1_full_load          MatMulV3: x2 stays in L1
single_core_split_k    MatMulV3: each core sums up chunks of k in global memory, in fp32
deterministic_split_k  MatMulV3: cores share k, vector cores add their sums in the cores' order
v2                     MatMulV2: blocks of the output, all of k summed in L0C
nd2nz                  MatMulV3: base, when vector cores have turned operands into FRACTAL_NZ
base                   MatMulV3's base kernel: the same with tiles of its own
=====================  =============================================================================

Sources: ops-nn@e5c3fa9 matmul/mat_mul_v3, op_api/aclnn_matmul.cpp for MatMulV2 or MatMulV3, a
question that it hands to a closed library for most shapes. Assumed there, as the kernels of the
measured products are called: x2 that lies as (n, k) in ND goes to MatMulV2, and so does FRACTAL_NZ
where one of m, k and n is below 1024 (production lists of vllm-ascend on Atlas A3 have MatMulV2 at
608 and 768, and MatMulV3 from 1600 on); all else goes to MatMulV3. So does what is to give float32,
by the published rule; that its kernels which cut k are not taken then is assumed. That it takes
matrices of float32 is assumed, too: of MatMulV2 no tiles for them are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from npusim.data.errors import Code, OpError, shown
from npusim.devices.schema import DeviceSpec
from npusim.ops.matmul.needs import unmet
from npusim.ops.matmul.preferences import preferred
from npusim.ops.matmul.traits import CallTraits, Chip

__all__ = ["Choice", "Template", "choose"]

Template = Literal[
    "bl1_aligned_output",
    "al1_split_k",
    "bl1_full_load",
    "single_core_split_k",
    "deterministic_split_k",
    "v2",
    "nd2nz",
    "base",
]
"""By the names that callers use, in the order in which the vendor asks."""


LARGE = 1024
"""m, k and n from which on MatMulV3 takes an x2 in FRACTAL_NZ."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A template, and one line that says why."""

    template: Template
    reason: str


def choose(
    traits: CallTraits, spec: DeviceSpec | None = None, template: str | None = None
) -> Choice:
    """Choose as the vendor does, or take *template*; raises OpError if it cannot run."""
    chip = Chip.of(spec)
    own = _templates(chip)
    if template is not None:
        for name in own:
            if name == template:
                return _asked_for(name, traits, chip)
        line = "Atlas inference" if chip.arch == "2002" else "Atlas A2 and Atlas A3"
        raise OpError(
            Code.INVALID_PARAMETER,
            f"matmul: template must be one of {', '.join(own)} on {line}, not {shown(template)}; "
            f"leave it out to get the vendor's choice",
        )
    able = (name for name in own if not any(unmet(name, traits, chip)))
    reasons = ((name, _reason(name, traits, chip)) for name in able)
    return next(Choice(name, reason) for name, reason in reasons if reason is not None)


def _asked_for(template: Template, traits: CallTraits, chip: Chip) -> Choice:
    for need in unmet(template, traits, chip):
        raise OpError(
            Code.INVALID_PARAMETER,
            f"matmul: template {template!r} can run only if {need}; "
            f"leave it out to get the vendor's choice",
        )
    return Choice(template, "asked for")


def _templates(chip: Chip) -> tuple[Template, ...]:
    every: tuple[Template, ...] = get_args(Template)
    return ("base",) if chip.arch == "2002" else every


def _reason(template: Template, f: CallTraits, chip: Chip) -> str | None:
    """Why the vendor takes *template*, of which those before did not take the call; or None."""
    match template:
        case "v2":
            return _reason_for_v2(f)
        case "base" if chip.arch == "2002":
            return "the only kernel of Atlas inference"
        case "base":
            return _reason_for_base(f)
    return preferred(template, f, chip)


def _reason_for_base(f: CallTraits) -> str:
    if f.is_wide or f.is_single:
        return "the output is float32"
    return "x2 is FRACTAL_NZ" if f.is_nz else "x2 lies as (k, n)"


def _reason_for_v2(f: CallTraits) -> str | None:
    if f.is_wide:
        return None
    least = min(f.m, f.k, f.n)
    if f.is_nz:
        small = f"x2 is FRACTAL_NZ, and the least of m, k and n, {least}, is below {LARGE}"
        return small if least < LARGE else None
    return "x2 lies as (n, k)" if f.trans_x2 else None
