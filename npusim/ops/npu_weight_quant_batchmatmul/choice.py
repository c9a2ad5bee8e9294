"""Which of the vendor's kernels takes a call, and why.

Each kernel, or *template*, has needs without which it cannot run, and a policy that says when it is
preferred; the first template whose needs and policy hold is taken. A caller who names a template
overrides the policies, never the needs.

Sources: ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_host/op_tiling, the registry for the
order and one tiling file per template for its predicate. The vendor's predicates mix needs with
policy; which are needs is our reading of what the kernels load, where they store it, and what they
write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from npusim.data.errors import Code, OpError
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.ops._digits import EIGHT_BITS, FOUR_BITS, Scheme
from npusim.ops._kernel_choice import require_able, require_named

OP = "npu_weight_quant_batchmatmul"
Template = Literal["split_k", "msd_group", "msd", "nz_splitk", "custom", "fixpipe", "weight_nz"]
"""In the order in which they are tried; 310P has weight_nz only, A2 and A3 all the others."""


@dataclass(frozen=True, slots=True)
class CallTraits:
    """The properties of a call on which the choice depends: x `(m, k)`, weight `(k, n)`."""

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


def k_step(f: CallTraits, aic: int) -> int:
    """k of a cube core in msd_group and nz_splitk, with *aic* cube cores."""
    if f.scaling == "group":
        return align_up(ceil_div(f.k, aic // ceil_div(f.n, 2048)), f.group_size)
    blocks = min(ceil_div(align_up(f.k, 32), 1024), aic)
    return align_up(ceil_div(align_up(f.k, 32), blocks), 1024)


def k_cores(f: CallTraits, aic: int) -> int:
    """The number of cores that share k in msd_group and nz_splitk."""
    return ceil_div(f.k, k_step(f, aic))


MAX_BLOCK_K, MAX_BLOCKS = 12288, 6
"""For msd split_k."""


def block_k(f: CallTraits) -> int:
    """k that one largest magnitude scales in msd split_k (*_msd_tiling.cpp)."""
    unit = 64 if not f.trans_weight else 512 if f.weight == "int8" else 1024
    first = 4 if f.k // f.n >= 30 and not f.trans_weight else 1
    depths = [align_up(ceil_div(f.k, blocks), unit) for blocks in range(first, MAX_BLOCKS + 1)]
    return next((depth for depth in depths if depth <= MAX_BLOCK_K), depths[-1])


def scheme_of(f: CallTraits) -> Scheme:
    """Digits have the type of the weight, because the cube multiplies one by the other."""
    return EIGHT_BITS if f.weight == "int8" else FOUR_BITS


@dataclass(frozen=True, slots=True)
class Choice:
    """A template, its form if it has several, and one line that says why."""

    template: Template
    form: str
    """msd: multicore, multicore_hp, split_k or per_group; custom: nd or nz; else empty."""
    reason: str


def choose(f: CallTraits, spec: DeviceSpec, template: object = None) -> Choice:
    """Choose like the vendor, or take *template*; raises OpError if none of these can run."""
    every = get_args(Template)
    own: tuple[Template, ...] = every[-1:] if spec.arch == "2002" else every[:-1]
    require_named(OP, template, own, arch=spec.arch)
    missing = ""
    for name in own:
        if name == template:
            require_able(OP, name, unmet(name, f, spec))
            return Choice(name, _form(name, f), "asked for")
        missing = next(unmet(name, f, spec), "")
        if template is None and not missing and (reason := _preference(name, f)):
            return Choice(name, _form(name, f), reason)
    raise OpError(
        Code.UNSUPPORTED,
        f"{OP}: no kernel takes the call, the last one, {own[-1]}, only if {missing}; change that",
    )


# ---- policies ----

SPLIT_K_SHAPES = {
    (24, 12288, 1792),
    (24, 12288, 7808),
    (24, 3904, 12288),
    (24, 1536, 12288),
}
"""(m, k, n) for which the vendor wrote the split_k template."""
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


def _preference(template: Template, f: CallTraits) -> str:
    """Why the vendor would take *template* if its needs are met; empty if it would not."""
    grouped = f"{f.weight} in groups of {f.group_size} with m = {f.m} <= {f.group_size // 8}"
    is_whole = f.k % 64 == 0 and f.n % 64 == 0
    match template:
        case "split_k" if (f.m, f.k, f.n) in SPLIT_K_SHAPES:
            return f"(m, k, n) = {(f.m, f.k, f.n)} is one of its four shapes"
        case "msd_group" if f.weight == "int4" or (f.k, f.n) in MSD_GROUP_INT8_SHAPES:
            return grouped
        case "msd" if f.scaling == "group":
            return f"{grouped}, msd_group being ruled out"
        case "msd" if f.m <= 64 and (f.weight == "int8" or f.n >= 2 * f.m):
            return f"per-channel {f.weight} with m = {f.m} <= 64, k and n multiples of 32"
        case "nz_splitk" if 65 <= f.m <= 256 and (
            is_whole or (f.k, f.n, f.has_bias) in NZ_SPLITK_SHAPES
        ):
            return f"per-channel FRACTAL_NZ weight with 65 <= m = {f.m} <= 256"
        case "custom":
            return f"per-{f.scaling} {f.weight} with m = {f.m} that no other kernel takes"
        case "fixpipe":
            return "antiquant_scale is int64"
        case "weight_nz":
            return "the only kernel of Atlas inference"
    return ""


def _form(template: Template, f: CallTraits) -> str:
    """The kernel among those of *template*; empty if there is only one."""
    if template == "custom":
        return "nz" if f.is_nz else "nd"
    if template != "msd":
        return ""
    if f.scaling == "group":
        return "per_group"
    # 13 bytes per column of x must fit the unified buffer in multicore's first stage.
    if f.weight == "int4" or f.k > 13696 or f.n > 32000:
        return "split_k"
    precise = (f.m, f.k, f.n) == (36, 8192, 1280) and not f.has_bias and f.trans_weight
    return "multicore_hp" if precise else "multicore"


# ---- needs ----


def unmet(template: Template, f: CallTraits, spec: DeviceSpec) -> Iterator[str]:
    """The needs of *template* that the call does not meet, in words."""
    if template == "weight_nz":
        rows = [(f.is_nz and f.trans_weight, "weight is FRACTAL_NZ and transposed")]
    elif template == "fixpipe":
        rows = _fixpipe_needs(f)
    else:
        rows = [(not f.is_packed, "antiquant_scale is a float")]
        if template != "custom":
            rows += [
                (not f.trans_x, "x is not transposed"),
                (not f.has_quant, "quant_scale is None"),
            ]
        if template not in ("custom", "msd"):
            rows.append((not f.deterministic, "deterministic is False, for it adds atomically"))
        rows += _OWN_NEEDS[template](f, spec)
    return (text for holds, text in rows if not holds)


Needs = list[tuple[bool, str]]


def _split_k_needs(f: CallTraits, _: DeviceSpec) -> Needs:
    return [
        (f.x == "bfloat16", "x is bfloat16"),
        (f.weight == "int8", "weight is int8"),
        (not f.is_nz, "weight is ND"),
        (not f.trans_weight, "weight is not transposed"),
        (f.scaling == "group" and f.group_size == 64, "antiquant_group_size is 64"),
        (f.has_offset, "antiquant_offset is given"),
        (not f.has_bias, "bias is None"),
        # 1024 columns of m fp32 rows fill the accumulator, L0C.
        (f.m <= 32, "m <= 32"),
        (f.k % 64 == 0 and f.n % 64 == 0, "k and n are multiples of 64"),
    ]


def _msd_group_needs(f: CallTraits, spec: DeviceSpec) -> Needs:
    aic = spec.cores["aic"]
    sizes = (64,) if f.weight == "int8" else (64, 128)
    texts = " or ".join(map(str, sizes))
    rows = [
        (not f.trans_weight, "weight is not transposed"),
        (f.group_size in sizes, f"antiquant_group_size is {texts} for {f.weight}"),
        (f.m <= f.group_size / 8, f"m <= antiquant_group_size / 8 = {f.group_size / 8:g}"),
        (f.k <= 13952, "k <= 13952"),
        (f.n <= 2048 * aic.count, f"n <= 2048 x {aic.count} cube cores"),
        (f.group_size > 0 and f.k % f.group_size == 0, "k is a multiple of antiquant_group_size"),
        (f.n % 64 == 0, "n is a multiple of 64"),
    ]
    if all(holds for holds, _ in rows):
        # A for all k of one core, and a double-buffered 2048 x group tile of B; the vendor only
        # checks this for int4, since the shapes listed for int8 all fit.
        a = align_up(4 * f.m, 32) // 2 if f.weight == "int4" else align_up(2 * f.m, 32)
        b = 2048 * f.group_size * (1 if f.weight == "int4" else 2)
        l1_bytes, room = k_step(f, aic.count) * a + b, aic.usable_bytes("l1")
        rows.append((l1_bytes <= room, f"its {l1_bytes} bytes fit into L1, {room}"))
    return rows


def _msd_needs(f: CallTraits, _: DeviceSpec) -> Needs:
    if f.scaling == "channel":
        rows = [(f.k % 32 == 0 and f.n % 32 == 0, "k and n are multiples of 32")]
        if f.weight == "int4":
            rows += [
                (f.trans_weight, "weight is transposed"),
                (not f.is_nz, "weight is ND"),
            ]
        return rows
    return [
        (f.scaling == "group", "scales are per channel or per group"),
        (f.weight == "int4", "weight is int4"),
        (not f.trans_weight, "weight is not transposed"),
        (f.group_size in (64, 128), "antiquant_group_size is 64 or 128"),
        (f.m <= f.group_size / 8, f"m <= antiquant_group_size / 8 = {f.group_size / 8:g}"),
        (f.group_size > 0 and f.k % f.group_size == 0, "k is a multiple of antiquant_group_size"),
        (f.n % 64 == 0, "n is a multiple of 64"),
    ]


def _nz_splitk_needs(f: CallTraits, _: DeviceSpec) -> Needs:
    return [
        (f.scaling == "channel", "scales are per channel"),
        (f.is_nz and f.trans_weight, "weight is FRACTAL_NZ and transposed"),
    ]


def _custom_needs(f: CallTraits, _: DeviceSpec) -> Needs:
    if not (f.is_nz and f.scaling == "group"):
        return []
    return [
        (f.group_size in (64, 128), "antiquant_group_size is 64 or 128"),
        (f.k % f.group_size == 0, "k is a multiple of antiquant_group_size"),
        (f.k % 64 == 0 or f.n % 64 == 0, "k or n is a multiple of 64"),
        (not f.trans_weight, "weight is not transposed"),
    ]


def _fixpipe_needs(f: CallTraits) -> Needs:
    return [
        (f.is_packed, "antiquant_scale is int64"),
        (f.x == "float16" and not f.has_quant, "x and output are float16"),
        (f.weight == "int8" and f.trans_weight, "weight is int8 and transposed"),
        (not f.trans_x, "x is not transposed"),
        (f.scaling == "channel", "scales are per channel"),
        (f.m <= 96, "m <= 96"),
        (f.k % 64 == 0 and f.n % 64 == 0, "k and n are multiples of 64"),
    ]


_OWN_NEEDS: dict[str, Callable[[CallTraits, DeviceSpec], Needs]] = {
    "split_k": _split_k_needs,
    "msd_group": _msd_group_needs,
    "msd": _msd_needs,
    "nz_splitk": _nz_splitk_needs,
    "custom": _custom_needs,
}
