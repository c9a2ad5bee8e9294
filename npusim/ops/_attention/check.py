"""What the operators of attention accept: rows of support, and rules that tie arguments together.

Operators differ in the names of their parameters and in their rows; a contract that gets here has
its arguments by the names of npu_fused_infer_attention_score. What kernels see of a call is an
:class:`Attention`; rules about it stand in tables, one for each kernel.

Sources: op-plugin@517f2e7, torch_npu-npu_fused_infer_attention_score.md, and torch_npu 2.14.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, UINT8, Array
from npusim.data.errors import Code, shown
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import _protocol
from npusim.ops._attention.problem import (
    LAYOUTS,
    MASK_EXTENT,
    TEMPLATES,
    Attention,
    Choice,
    choose,
    unmet,
)
from npusim.ops._attention.shapes import (
    BOTH,
    antiquant_of,
    heads_of,
    lengths_of,
    longest_of,
    mode_of,
    paging_of,
    size_of,
)
from npusim.ops._contract import Contract, listed
from npusim.ops._protocol import present
from npusim.ops._support import A2_A3, Entries, Row, required

LARGEST_TOKENS = 2147483647
"""What pre_tokens and next_tokens are where they hide nothing."""
LARGEST_SCALE = float(np.finfo(np.float32).max)
APART = ("key_antiquant_scale", "value_antiquant_scale")
ATTRIBUTES = (
    *("actual_seq_lengths", "actual_seq_lengths_kv", "num_heads", "scale", "pre_tokens"),
    *("next_tokens", "input_layout", "num_key_value_heads", "sparse_mode", "inner_precise"),
    *("block_size", "softmax_lse_flag", "template", "antiquant_mode", "key_antiquant_mode"),
    "value_antiquant_mode",
)
"""The attributes that are simulated; of tensors those that rows of support name."""
HALVES = (FLOAT16, BFLOAT16)


# ---- rows ----


def _rows(key: Any, modes: Mapping[str, int], *scales: str) -> tuple[Row, ...]:
    """Rows with *key* and value of a type, None that of the query, and *scales* by their modes."""
    found = []
    for half in HALVES:
        entries: Entries = {"query": half, "key": key or half, "value": key or half}
        entries |= {"atten_mask": (INT8, UINT8), "block_table": INT32}
        for name in scales:
            entries[name] = required(FLOAT32 if modes.get(mode_of(name)) else half)
        entries |= {name: (mode,) for name, mode in modes.items()}
        found.append(Row(on=A2_A3, **entries))
    return tuple(found)


NO_MODES = {mode_of(name): 0 for name in (BOTH, *APART)}
KEYS_ALIKE = _rows(None, {})
"""Keys and values have the type of the query."""
INT8_BOTH = _rows(INT8, {}, BOTH)
"""Keys and values of int8, one scale of each for all, or one for each column."""
INT8_PER_TOKEN = (
    *_rows(None, NO_MODES),
    *_rows(INT8, NO_MODES, BOTH),
    *_rows(INT8, NO_MODES | {mode_of(BOTH): 1}, BOTH),
    *_rows(INT8, NO_MODES, *APART),
    *_rows(INT8, NO_MODES | {mode_of(APART[1]): 1}, *APART),
    *_rows(INT8, NO_MODES | {mode_of(name): 1 for name in APART}, *APART),
)
"""All of these, with modes: 1 is a scale for each token."""


# ---- rules ----


@dataclass(frozen=True, slots=True)
class Rule:
    """What a call must fulfil."""

    holds: Callable[[Attention], bool]
    text: str
    """What must hold, not what came; what to do. `{a.layout}` stands for the layout that came."""
    code: Code = Code.INVALID_PARAMETER


ALL_RULES = (
    Rule(
        lambda a: 0 <= a.sparse_mode <= 4,
        "sparse_mode must lie in [0, 4], not be {a.sparse_mode}; choose one of these",
    ),
    Rule(
        lambda a: 0 <= a.inner_precise <= 3,
        "inner_precise must lie in [0, 3], not be {a.inner_precise}; choose one of these",
    ),
)
FAI_RULES = (
    Rule(
        lambda a: a.inner_precise == 0,
        "inner_precise must be 0 in layout TND, not {a.inner_precise}: scores of half the size are "
        "not simulated; pass 0",
        Code.UNSUPPORTED,
    ),
)
FIA_RULES = (
    Rule(
        lambda a: (
            not (a.group == 1 and a.longest_query == 1 and a.paging is None and a.head_size == 256)
        ),
        "heads must have other than 256 columns where each request has one token and num_heads "
        "heads of keys without a block_table, not 256: the older kernel that takes these is not "
        "simulated; put the keys in pages",
        Code.UNSUPPORTED,
    ),
)
IFA_RULES = (
    Rule(
        lambda a: a.layout in ("BSH", "BSND", "BNSD"),
        "input_layout must be BSH, BSND or BNSD with key of int8, not {a.layout}: other kernels "
        "take others, and are not simulated; transpose query",
        Code.UNSUPPORTED,
    ),
    Rule(
        lambda a: a.longest_query == 1,
        "query must have one token a request with key of int8, not {a.longest_query}: the kernel "
        "that takes more is not simulated; pass key and value of {a.element.name}, and no scales, "
        "to npu_fused_infer_attention_score",
        Code.UNSUPPORTED,
    ),
    Rule(
        lambda a: not a.has_mask,
        "atten_mask must be None with key of int8, not given: how it hides scores there is not "
        "known; pass actual_seq_lengths_kv",
        Code.UNSUPPORTED,
    ),
    Rule(
        lambda a: not a.returns_lse,
        "softmax_lse_flag must be False with key of int8, not True: what its kernel returns is not "
        "known; leave it out",
        Code.UNSUPPORTED,
    ),
    Rule(
        lambda a: a.head_size % 32 == 0,
        "a head must have a multiple of 32 columns with key of int8, not {a.head_size}; pad it",
    ),
    Rule(
        lambda a: a.paging is None or a.paging.block_size % 32 == 0,
        "block_size must be a multiple of 32 with key of int8, not {a.paging.block_size}; make the "
        "cache so",
    ),
)
RULES: dict[str, tuple[Rule, ...]] = {"FIA": FIA_RULES, "IFA": IFA_RULES}
RULES |= dict.fromkeys(("FAI", "FAI-FD", "FAI-DEC"), FAI_RULES)


def _require(contract: Contract, rules: tuple[Rule, ...], a: Attention) -> None:
    """Refuse *a* unless it fulfils all *rules*."""
    for rule in rules:
        if not rule.holds(a):
            contract.fail(rule.text.format(a=a), rule.code)


# ---- a call ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call, and the kernel that takes it."""

    attention: Attention
    choice: Choice


def check_as(
    contract: Contract, names: Mapping[str, str], fixed: Mapping[str, Any] | None = None
) -> Problem:
    """What :func:`check` does for an operator with other *names*, first the first operator's.

    *fixed* are parameters that the first operator alone has, and what they are here.
    """
    ours = {other: name for name, other in names.items()}
    given = {ours.get(name, name): value for name, value in contract.arguments.items()}
    return check(replace(contract, names=names, arguments={**(fixed or {}), **given}))


def check(contract: Contract) -> Problem:
    """Hold a call against the contract of its product line; raises OpError."""
    _refuse_others(contract)
    query, scales = contract.operand("query"), _scales(contract)
    key, value = contract.operand("key"), contract.operand("value")
    contract.require(
        value.shape == key.shape,
        f"value must have the shape of key, {key.shape}, not {value.shape}; pass as many columns",
    )
    mask = contract.value("atten_mask")
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_:
        mask = mask.view(np.uint8)
    mask = contract.optional("atten_mask", mask)
    table = contract.optional("block_table")
    a = _attention(contract, query, key, table, mask)
    a = replace(a, antiquant=antiquant_of(contract, scales, a))
    _check_mask(contract, mask, a)
    shapes = shapes_of(query.shape, a.query_heads, a.layout, returns_lse=a.returns_lse)
    return Problem(
        inputs=present(
            *(query, key, value, mask, table, *(scale for scale, _ in scales)),
            _lengths_operand("actual_seq_lengths", a.query_lengths),
            _lengths_operand("actual_seq_lengths_kv", a.kv_lengths),
        ),
        outputs={
            "output": TensorSpec(shapes[0], query.spec.dtype),
            "softmax_lse": TensorSpec(shapes[1], "float32"),
        },
        attention=a,
        choice=_choice(contract, a),
    )


def _refuse_others(contract: Contract) -> None:
    """Refuse what is not simulated."""
    which = "quantised keys"
    if BOTH in contract.arguments:
        which = "offsets of keys, quantised queries and outputs"
    known = {*ATTRIBUTES, *(name for row in contract.support for name in row.entries)}
    for name in [name for name in contract.arguments if name not in known]:
        value, wanted = contract.value(name), 0 if name.endswith("_mode") else None
        # A tensor does not compare as one truth.
        is_so = value is None if wanted is None else value == wanted
        contract.require(
            is_so,
            f"{name} must be {wanted}, not {shown(value)}: {which}, offsets of scores, prefixes "
            f"and rotated parts of a head are not simulated; leave it out",
            Code.UNSUPPORTED,
        )


def _scales(contract: Contract) -> list[tuple[Operand, int]]:
    """The scales of a call with their modes: one for both, two, or none."""
    arguments = contract.arguments
    has = [name for name in (BOTH, *APART) if name in arguments]
    names = [name for name in has if arguments[name] is not None]
    contract.require(
        names in ([], [BOTH], [*APART]),
        f"{BOTH} must be given alone, or {listed(APART, 'and')} together, not "
        f"{listed(tuple(names), 'and')}; leave the others out, or pass what is missing",
    )
    found = []
    for name in has:
        mode = 0
        if mode_of(name) in arguments:
            mode = contract.whole(mode_of(name), arguments[mode_of(name)])
            contract.require(
                name not in names or mode in (0, 1),
                f"{mode_of(name)} must be 0, one scale or one for each column, or 1, one for each "
                f"token, not {mode}: others are not simulated; choose one of these",
                Code.UNSUPPORTED,
            )
        if name in names and mode_of(name) in arguments:
            contract.integer(mode_of(name))
        scale = contract.optional(name)
        if scale is not None:
            found.append((scale, mode))
        elif mode_of(name) in arguments:
            contract.integer(mode_of(name))
    return found


def _attention(
    contract: Contract, query: Operand, key: Operand, table: Operand | None, mask: Operand | None
) -> Attention:
    """The call as kernels see it; raises OpError where shapes, lengths and attributes misfit."""
    layout = contract.choice("input_layout", LAYOUTS)
    inner = layout.partition("_")[0]
    heads, kv_heads = heads_of(contract)
    head_size = size_of(contract, query, inner, heads)
    if table is None:
        _check_keys(contract, query, key, inner, kv_heads, head_size)
    lengths = lengths_of(contract, inner, query, key, is_paged=table is not None)
    paging = None
    if table is not None:
        paging = paging_of(contract, key, table, kv_heads, head_size, lengths[1])
    pre_tokens, next_tokens, sparse_mode, inner_precise = (
        contract.integer(name)
        for name in ("pre_tokens", "next_tokens", "sparse_mode", "inner_precise")
    )
    scale = contract.value("scale")
    contract.require(
        abs(scale) <= LARGEST_SCALE,
        f"scale must be a finite number of fp32, not {shown(scale)}; pass 1 / sqrt(columns of a "
        f"head), say",
    )
    a = Attention(
        element=query.element,
        layout=next(name for name in LAYOUTS if name == layout),
        query_heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        query_lengths=lengths[0],
        kv_lengths=lengths[1],
        longest_query=longest_of(inner, query.shape, lengths[0]),
        longest_kv=max(lengths[1]) if paging else longest_of(inner, key.shape, lengths[1]),
        scale=float(scale),
        has_mask=mask is not None,
        mask_shape=() if mask is None else mask.shape,
        returns_lse=False,
        paging=paging,
        sparse_mode=sparse_mode,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        inner_precise=inner_precise,
    )
    _require(contract, ALL_RULES, a)
    return replace(a, returns_lse=contract.boolean("softmax_lse_flag"))


def _check_keys(
    contract: Contract, query: Operand, key: Operand, layout: str, kv_heads: int, head_size: int
) -> None:
    """Hold keys that are not in pages against the query."""
    size = size_of(contract, key, layout, kv_heads)
    contract.require(
        size == head_size,
        f"a head of key must have as many columns as one of query, {head_size}, not {size}: others "
        f"are not simulated; pad the shorter one",
    )
    contract.require(
        "T" in layout or key.shape[0] == query.shape[0],
        f"key must have the requests of query, {query.shape[0]}, not {key.shape[0]}; pass keys for "
        f"each",
    )


def _check_mask(contract: Contract, mask: Operand | None, a: Attention) -> None:
    """A mask of the shape that its sparse mode asks for: nonzero hides."""
    extents, mode = (MASK_EXTENT, MASK_EXTENT), f"with sparse_mode {a.sparse_mode}"
    if mask is None:
        contract.require(
            not a.is_stencil,
            f"atten_mask must be given {mode}, not None; pass the upper triangle of ones, "
            f"numpy.triu(..., 1), of {MASK_EXTENT} x {MASK_EXTENT}",
            Code.TILING_ERROR,
        )
        return
    if not a.is_stencil:
        rows, columns = a.longest_query, a.longest_kv
        wanted: list[tuple[int, ...]] = [(rows, columns), (1, rows, columns)]
        wanted += [(a.requests, rows, columns)]
        wanted += [(1, 1, rows, columns), (a.requests, 1, rows, columns)]
        wanted += [(a.requests, columns)] * (rows == 1)
        contract.require(
            mask.shape in wanted,
            f"atten_mask must have shape {listed(tuple(map(str, dict.fromkeys(wanted))))} {mode}, "
            f"not {mask.shape}; pass a number for each token and key",
        )
        return
    contract.require(
        mask.shape in (extents, (1, *extents), (1, 1, *extents)),
        f"atten_mask must have shape {extents} {mode}, not {mask.shape}; pass the upper triangle "
        f"of ones, whatever the lengths are",
        Code.TILING_ERROR,
    )
    contract.require(
        mask.array is None or _is_triangle(mask.array),
        f"atten_mask must be the upper triangle of ones, numpy.triu(..., 1), {mode}, not other "
        f"numbers: a card would hide other keys; pass it so",
    )


def _is_triangle(mask: Array) -> bool:
    """Whether *mask*, a square, has ones above its diagonal and zeros elsewhere."""
    square = mask.reshape(mask.shape[-2:])
    return bool(np.array_equal(square, np.triu(np.ones_like(square), 1)))


def _lengths_operand(name: str, lengths: tuple[int, ...]) -> Operand:
    """What the kernel reads of *lengths* in global memory."""
    array = np.array(lengths, np.int64)
    return Operand(name, TensorSpec(array.shape, "int64"), array)


def shapes_of(
    query: tuple[Any, ...], heads: Any, layout: str, *, returns_lse: bool
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Shapes of the output and of softmax_lse for a shape of the query; sizes may be symbols."""
    inner, _, outer = layout.partition("_")
    sizes = {axis: query[place] for place, axis in enumerate(inner)}
    if inner == "BSH":
        sizes |= {"N": heads, "D": sizes["H"] // max(1, heads)}
    of_rows = (*(sizes[axis] for axis in ("TN" if "T" in inner else "BNS")), 1)
    return tuple(sizes[axis] for axis in outer or inner), of_rows if returns_lse else (1,)


def _choice(contract: Contract, a: Attention) -> Choice:
    """The kernel that takes the call."""
    cores, asked = contract.spec.cores["aic"].count, contract.value("template")
    named = next((x for x in TEMPLATES if isinstance(asked, str) and x == asked), None)
    leave_out = "leave it out to get the vendor's choice"
    contract.require(
        asked is None or named is not None,
        f"template must be {listed(TEMPLATES)}, not {shown(asked)}; {leave_out}",
    )
    if named is not None:
        need = unmet(named, a, cores)
        contract.require(need is None, f"template {named!r} can run only if {need}; {leave_out}")
    choice = choose(a, cores, named)
    _require(contract, RULES[choice.template], a)
    if choice.template.startswith("FAI"):
        _require_seen(contract, a)
    return choice


def _require_seen(contract: Contract, a: Attention) -> None:
    """Refuse tokens that see no key, unless their request has none."""
    for request, (tokens, keys) in enumerate(zip(a.query_lengths, a.kv_lengths, strict=True)):
        first, last = a.window(request)
        # The first token sees the fewest keys at the end, the last one the fewest at the start.
        sees = (last is None or last >= 0) and (first is None or tokens - 1 + first < keys)
        is_wide = first is None or last is None or first <= last
        contract.require(
            keys == 0 or (sees and is_wide),
            f"each query token must see a key, or its request have none, not be without one of "
            f"{keys} with sparse_mode {a.sparse_mode} as one of {tokens} of request {request} is: "
            f"such tokens are not simulated; pass all keys",
            Code.UNSUPPORTED,
        )
