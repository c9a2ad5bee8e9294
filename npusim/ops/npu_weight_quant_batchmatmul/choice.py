"""Which of the vendor's kernels takes a call, and why.

Each kernel, or *template*, has needs without which it cannot run, and a policy that says when it
is preferred; the first template whose needs and policy hold is taken. A caller who names a template
overrules the policies, never the needs. Sources: ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2/op_host/op_tiling, the registry for the order and one tiling file a
template for its predicate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from npusim.data.errors import Code, OpError, shown
from npusim.devices.schema import DeviceSpec
from npusim.ops.npu_weight_quant_batchmatmul.needs import Template, unmet
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits, Chip

__all__ = ["Choice", "choose"]

OP = "npu_weight_quant_batchmatmul"


@dataclass(frozen=True, slots=True)
class Choice:
    """A template, its form where it has several, and one line that says why."""

    template: Template
    form: str
    """msd: multicore, multicore_hp, split_k or per_group; custom: nd or nz; else empty."""
    reason: str


def choose(
    traits: CallTraits, spec: DeviceSpec | None = None, template: str | None = None
) -> Choice:
    """Choose as the vendor does, or take *template*; raises OpError if nothing, or not it, can."""
    chip = Chip.of(spec)
    own = _templates(chip)
    if template is not None:
        if template not in own:
            line = "Atlas inference" if chip.arch == "2002" else "Atlas A2 and Atlas A3"
            raise OpError(
                Code.INVALID_PARAMETER,
                f"{OP}: template must be one of {', '.join(own)} on {line}, not {shown(template)}; "
                f"leave it out to get the vendor's choice",
            )
        for need in unmet(template, traits, chip):
            raise OpError(
                Code.INVALID_PARAMETER,
                f"{OP}: template {template!r} can run only if {need}; "
                f"leave it out to get the vendor's choice",
            )
        return _chosen(template, traits, "asked for")
    missing = ""
    for name in own:
        missing = next(unmet(name, traits, chip), "")
        if not missing and _preferred(name, traits):
            return _chosen(name, traits, _reason(name, traits))
    raise OpError(
        Code.UNSUPPORTED,
        f"{OP}: no kernel takes the call, the last one, {own[-1]}, only if {missing}; change that",
    )


def _templates(chip: Chip) -> tuple[Template, ...]:
    every: tuple[Template, ...] = get_args(Template)
    return every[-1:] if chip.arch == "2002" else every[:-1]


def _chosen(template: Template, traits: CallTraits, reason: str) -> Choice:
    form = ""
    if template == "msd":
        form = _msd_form(traits)
    elif template == "custom":
        form = "nz" if traits.is_nz else "nd"
    return Choice(template, form, reason)


# ---- policies ----

SPLIT_K_SHAPES = {
    (24, 12288, 1792),
    (24, 12288, 7808),
    (24, 3904, 12288),
    (24, 1536, 12288),
}
"""(m, k, n) for which the vendor made the split_k template."""
MSD_GROUP_INT8_SHAPES = {shape[1:] for shape in SPLIT_K_SHAPES}
"""(k, n) for which int8 groups go to msd_group, whatever m is."""
NZ_SPLITK_SHAPES = {
    (8192, 13750, False),
    (6144, 20708, False),
    (8192, 16032, False),
    (3696, 8192, False),
    (8192, 7392, True),
}
"""(k, n, has bias) that nz_splitk takes without k and n being multiples of 64."""


def _preferred(template: Template, f: CallTraits) -> bool:
    """Whether the vendor would take *template*, its needs being fulfilled."""
    match template:
        case "split_k":
            return (f.m, f.k, f.n) in SPLIT_K_SHAPES
        case "msd_group":
            return f.weight == "int4" or (f.k, f.n) in MSD_GROUP_INT8_SHAPES
        case "msd":
            few = f.m <= 64 and (f.weight == "int8" or f.n >= 2 * f.m)
            return f.scaling == "group" or few
        case "nz_splitk":
            whole = f.k % 64 == 0 and f.n % 64 == 0
            return 65 <= f.m <= 256 and (whole or (f.k, f.n, f.has_bias) in NZ_SPLITK_SHAPES)
    return True


def _msd_form(f: CallTraits) -> str:
    if f.scaling == "group":
        return "per_group"
    # 13 bytes a column of x must fit the unified buffer in multicore's first stage.
    if f.weight == "int4" or f.k > 13696 or f.n > 32000:
        return "split_k"
    precise = (f.m, f.k, f.n) == (36, 8192, 1280) and not f.has_bias and f.trans_weight
    return "multicore_hp" if precise else "multicore"


def _reason(template: Template, f: CallTraits) -> str:
    grouped = f"{f.weight} in groups of {f.group_size}"
    match template:
        case "split_k":
            return f"(m, k, n) = {(f.m, f.k, f.n)} is one of its four shapes"
        case "msd_group":
            return f"{grouped} with m = {f.m} <= {f.group_size // 8}"
        case "msd" if f.scaling == "group":
            return f"{grouped} with m = {f.m} <= {f.group_size // 8}, msd_group being ruled out"
        case "msd":
            return f"per-channel {f.weight} with m = {f.m} <= 64, k and n multiples of 32"
        case "nz_splitk":
            return f"per-channel FRACTAL_NZ weight with 65 <= m = {f.m} <= 256"
        case "fixpipe":
            return "antiquant_scale is int64"
        case "weight_nz":
            return "the only kernel of Atlas inference"
    return f"per-{f.scaling} {f.weight} with m = {f.m} that no other kernel takes"
