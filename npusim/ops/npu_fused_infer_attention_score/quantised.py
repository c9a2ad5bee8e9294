"""Keys and values of int8, and what they are multiplied by.

op-plugin@517f2e7 and torch_npu 2.14.0, the operator's document: `antiquant_scale` for both, or
`key_antiquant_scale` and `value_antiquant_scale`. Assumed: that these have the shape of a half of
`antiquant_scale`, with or without its first axis.
"""

from __future__ import annotations

from typing import Any, Literal

from npusim.data.dtypes import FLOAT32, INT8
from npusim.data.errors import Code
from npusim.data.tensor import Operand
from npusim.ops._attention.description import Antiquant, Attention, Scales
from npusim.ops._contract import Contract, listed

__all__ = ["BOTH", "OPTIONS", "antiquant_of", "check_call", "scale_operands"]

OP = "npu_fused_infer_attention_score"
BOTH, APART = "antiquant_scale", ("key_antiquant_scale", "value_antiquant_scale")
OFFSETS = ("antiquant_offset", "key_antiquant_offset", "value_antiquant_offset")
MODES = {BOTH: "antiquant_mode"} | {f"{x}_{BOTH}": f"{x}_antiquant_mode" for x in ("key", "value")}
"""Scale -> the parameter that says what has one."""
OPTIONS = (BOTH, *APART, *OFFSETS, *MODES.values())
"""The parameters of whole numbers; all but offsets are simulated."""
LAYOUTS = ("BSH", "BSND", "BNSD")
UNIT = 32
"""Columns of a head, and tokens of a block, are multiples of it (the document)."""


def scale_operands(contract: Contract, options: dict[str, Any], query: Operand) -> list[Operand]:
    """The scales of *options*, each checked by itself: one for both, two, or none."""
    names = [name for name in (BOTH, *APART) if options.get(name) is not None]
    for name, of_mode in MODES.items():
        if of_mode in options and name not in names:
            given = contract.integer(of_mode, options[of_mode])
            contract.require(
                given == 0, f"{of_mode} must be 0 without {name}, not {given}; pass {name} too"
            )
    if not names:
        return []
    contract.require(
        names in ([BOTH], [*APART]),
        f"{BOTH} must be given alone, or {listed(APART, 'and')} together, not "
        f"{listed(tuple(names), 'and')}; leave the others out, or pass what is missing",
    )
    # npu_incre_flash_attention has no modes.
    modes = {name: contract.integer(MODES[name], options.get(MODES[name], 0)) for name in names}
    for name, mode in modes.items():
        contract.require(
            mode in (0, 1),
            f"{MODES[name]} must be 0, one scale or one for each column, or 1, one for each token, "
            f"not {mode}: others are not simulated; choose one of these",
            Code.UNSUPPORTED,
        )
    if len(names) == 2:
        contract.require(
            tuple(modes.values()) != (1, 0),
            "value_antiquant_mode must be 1 with key_antiquant_mode 1, not 0; pass a scale for "
            "each token",
        )
    found = []
    for name, mode in modes.items():
        element = FLOAT32 if mode else query.element
        when = f" with{_mode(options, name)} a query of {query.spec.dtype}"
        found.append(contract.operand(name, options[name], (element,), when))
    return found


def antiquant_of(
    contract: Contract, scales: list[Operand], options: dict[str, Any], a: Attention
) -> Antiquant | None:
    """What *scales* multiply, in the call *a*; None without any."""
    if not scales:
        return None
    requests, room = a.requests, a.longest_kv
    if a.paging is not None:
        room = a.paging.width * a.paging.block_size
    wanted = _shapes(a, requests, room)
    sides = [_side(contract, each, options, wanted, a) for each in scales]
    if len(sides) == 2:
        return Antiquant(INT8, *sides)
    # Those of values follow those of keys.
    (both,) = sides
    half = scales[0].spec.size // 2
    later = Scales(both.name, both.dtype, both.per, half, both.tokens)
    return Antiquant(INT8, both, later)


def _shapes(a: Attention, requests: int, room: int) -> dict[str, tuple[int, ...]]:
    heads, size = a.kv_heads, a.head_size
    inner = a.layout.partition("_")[0]
    channels = {"BNSD": (heads, 1, size), "BSND": (heads, size)}.get(inner, (heads * size,))
    return {"tensor": (), "channel": channels, "token": (requests, room)}


def _mode(options: dict[str, Any], scale: str) -> str:
    """What the mode of *scale* is, where the operator has it, before something else."""
    mode = MODES[scale]
    return f" {mode} {int(options[mode])} and" if mode in options else ""


def _side(
    contract: Contract,
    scale: Operand,
    options: dict[str, Any],
    wanted: dict[str, tuple[int, ...]],
    a: Attention,
) -> Scales:
    """What *scale* is for, by its mode and its shape."""
    kinds: tuple[Literal["tensor", "channel", "token"], ...] = ("tensor", "channel")
    if options.get(MODES[scale.name]):
        kinds = ("token",)
    shapes: dict[tuple[int, ...], Literal["tensor", "channel", "token"]] = {}
    for kind in kinds:
        each = wanted[kind]
        shapes[(2 if scale.name == BOTH else 1, *each)] = kind
        if scale.name != BOTH and each:
            shapes[each] = kind
    contract.require(
        scale.shape in shapes,
        f"{scale.name} must have shape {listed(tuple(map(str, shapes)))} with"
        f"{_mode(options, scale.name)} input_layout {a.layout}, not {scale.shape}; reshape it",
    )
    tokens = wanted["token"][1]
    return Scales(scale.name, scale.element, shapes[scale.shape], 0, tokens)


def check_call(contract: Contract, a: Attention) -> None:
    """Refuse what keys of int8 are not simulated with."""
    page = a.paging
    contract.require(
        a.layout in LAYOUTS,
        f"input_layout must be {listed(LAYOUTS)} with key of int8, not {a.layout}: other kernels "
        f"take others, and are not simulated; transpose query",
        Code.UNSUPPORTED,
    )
    contract.require(
        a.longest_query == 1,
        f"query must have one token a request with key of int8, not {a.longest_query}: the kernel "
        f"that takes more is not simulated; pass key and value of {a.element.name}, and no scales, "
        f"to {OP}",
        Code.UNSUPPORTED,
    )
    contract.require(
        not a.has_mask,
        "atten_mask must be None with key of int8, not given: how it hides scores there is not "
        "known; pass actual_seq_lengths_kv",
        Code.UNSUPPORTED,
    )
    contract.require(
        not a.returns_lse,
        "softmax_lse_flag must be False with key of int8, not True: what its kernel returns is not "
        "known; leave it out",
        Code.UNSUPPORTED,
    )
    contract.require(
        a.head_size % UNIT == 0,
        f"a head must have a multiple of {UNIT} columns with key of int8, not {a.head_size}; pad "
        f"it",
    )
    contract.require(
        page is None or page.block_size % UNIT == 0,
        f"block_size must be a multiple of {UNIT} with key of int8, not "
        f"{page.block_size if page else 0}; make the cache so",
    )
