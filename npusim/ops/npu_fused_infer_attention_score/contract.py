"""What npu_fused_infer_attention_score accepts, per product line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, INT8, INT32, UINT8, Array
from npusim.data.errors import Code, shown
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops import _protocol
from npusim.ops._attention.description import LAYOUTS, MASK_EXTENT, Attention
from npusim.ops._contract import Contract, listed
from npusim.ops._protocol import present
from npusim.ops.npu_fused_infer_attention_score import quantised
from npusim.ops.npu_fused_infer_attention_score.choice import (
    TEMPLATES,
    Choice,
    choose,
    unmet,
)
from npusim.ops.npu_fused_infer_attention_score.pages import paging_of
from npusim.ops.npu_fused_infer_attention_score.shapes import (
    check_keys,
    head_size_of,
    heads_of,
    lengths_of,
    longest_of,
)

__all__ = ["MODES", "SIMULATED_OPTIONS", "Problem", "check", "checked", "in_own_names"]

OP = "npu_fused_infer_attention_score"
LARGEST_TOKENS = 2147483647
"""What pre_tokens and next_tokens are where they hide nothing."""
SIMULATED_OPTIONS = (
    *("atten_mask", "actual_seq_lengths", "actual_seq_lengths_kv", "block_table", "num_heads"),
    *("scale", "pre_tokens", "next_tokens", "input_layout", "num_key_value_heads", "sparse_mode"),
    *("inner_precise", "block_size", "softmax_lse_flag", "template"),
    *(name for name in quantised.OPTIONS if not name.endswith("offset")),
)
"""The parameters that may be left out and are simulated."""
OTHERS = "offsets of scores, prefixes and rotated parts of a head"
LARGEST_SCALE = float(np.finfo(np.float32).max)
MODES = dict.fromkeys(("query_quant_mode", "key_quant_mode", "value_quant_mode"), 0)
"""Parameters of quantised tensors of the second version: they are not simulated, and must be so;
all other ones must be None."""
MAX_MODE = 4
"""Sparse modes up to this one; those from 5 on are not there (the document)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call, and the kernel that takes it."""

    attention: Attention
    choice: Choice


@dataclass(frozen=True, slots=True)
class _Operands:
    """The tensors of a call, each checked by itself."""

    query: Operand
    key: Operand
    value: Operand
    mask: Operand | None
    table: Operand | None
    scales: list[Operand]


def check(
    spec: DeviceSpec,
    query: Any,
    key: Any,
    value: Any,
    *,
    pse_shift: Any = None,
    atten_mask: Any = None,
    actual_seq_lengths: Any = None,
    actual_seq_lengths_kv: Any = None,
    dequant_scale1: Any = None,
    quant_scale1: Any = None,
    dequant_scale2: Any = None,
    quant_scale2: Any = None,
    quant_offset2: Any = None,
    antiquant_scale: Any = None,
    antiquant_offset: Any = None,
    key_antiquant_scale: Any = None,
    key_antiquant_offset: Any = None,
    value_antiquant_scale: Any = None,
    value_antiquant_offset: Any = None,
    block_table: Any = None,
    query_padding_size: Any = None,
    kv_padding_size: Any = None,
    key_shared_prefix: Any = None,
    value_shared_prefix: Any = None,
    actual_shared_prefix_len: Any = None,
    query_rope: Any = None,
    key_rope: Any = None,
    key_rope_antiquant_scale: Any = None,
    num_heads: Any = 1,
    scale: Any = 1.0,
    pre_tokens: Any = LARGEST_TOKENS,
    next_tokens: Any = LARGEST_TOKENS,
    input_layout: Any = "BSH",
    num_key_value_heads: Any = 0,
    sparse_mode: Any = 0,
    inner_precise: Any = 0,
    block_size: Any = 0,
    antiquant_mode: Any = 0,
    key_antiquant_mode: Any = 0,
    value_antiquant_mode: Any = 0,
    softmax_lse_flag: Any = False,
    template: Any = None,
) -> Problem:
    """Hold a call against the contract of its product line; raises OpError."""
    options = dict(locals())
    for name in ("spec", "query", "key", "value"):
        options.pop(name)
    return checked(Contract(OP, spec), query, key, value, options)


def in_own_names(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """*given* to an operator that shares this one's kernels, by the names of this one's parameters.

    *names* has its name for each of ours that it calls otherwise.
    """
    ours = {other: name for name, other in names.items()}
    return {ours.get(name, name): value for name, value in given.items()}


def checked(
    contract: Contract, query: Any, key: Any, value: Any, options: dict[str, Any]
) -> Problem:
    """What :func:`check` does; *options* are the parameters that may be left out."""
    _check_chip(contract)
    _check_others(contract, options)
    tensors = _operands(contract, query, key, value, options)
    attention = _attention(contract, tensors, options)
    _check_mask(contract, tensors, attention)
    return Problem(
        inputs=present(
            tensors.query,
            tensors.key,
            tensors.value,
            tensors.mask,
            tensors.table,
            *tensors.scales,
            _lengths_operand("actual_seq_lengths", attention.query_lengths),
            _lengths_operand("actual_seq_lengths_kv", attention.kv_lengths),
        ),
        outputs=_outputs(tensors.query, attention),
        attention=attention,
        choice=_choice(contract, attention, options["template"]),
    )


def _check_chip(contract: Contract) -> None:
    series = contract.spec.series
    contract.require(
        contract.spec.arch != "2002",
        f"the chip must have the kernel FusedInferAttentionScore of Atlas A2 and A3, not be one of "
        f"{series}, which has those of npu_prompt_flash_attention and npu_incre_flash_attention "
        f"only, and these are not simulated; run it on Atlas A2 or A3",
        Code.UNSUPPORTED,
    )


def _check_others(contract: Contract, options: dict[str, Any]) -> None:
    """Refuse what is not simulated."""
    which = "quantised keys"
    if quantised.BOTH in options:
        which = "offsets of keys, quantised queries and outputs"
    for name, value in options.items():
        if name in SIMULATED_OPTIONS:
            continue
        wanted = MODES.get(name)
        # A tensor does not compare as one truth.
        is_so = value is None if wanted is None else isinstance(value, int) and value == wanted
        contract.require(
            is_so,
            f"{name} must be {wanted}, not {shown(value)}: {which}, {OTHERS} are not simulated; "
            f"leave it out",
            Code.UNSUPPORTED,
        )


def _operands(
    contract: Contract, query: Any, key: Any, value: Any, options: dict[str, Any]
) -> _Operands:
    q = contract.operand("query", query, (FLOAT16, BFLOAT16))
    scales = quantised.scale_operands(contract, options, q)
    of_keys, when = q.element, f" like query, {q.spec.dtype}"
    if scales:
        of_keys, when = INT8, f" with {scales[0].name}"
    elif quantised.BOTH in options:
        when += f", unless {quantised.BOTH} is given"
    k = contract.operand("key", key, (of_keys,), when)
    v = contract.operand("value", value, (of_keys,), when)
    contract.require(
        v.shape == k.shape,
        f"value must have the shape of key, {k.shape}, not {v.shape}; pass as many columns",
    )
    mask = options["atten_mask"]
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_:
        mask = mask.view(np.uint8)
    return _Operands(
        query=q,
        key=k,
        value=v,
        mask=contract.optional("atten_mask", mask, (INT8, UINT8)),
        table=contract.optional("block_table", options["block_table"], (INT32,)),
        scales=scales,
    )


def _attention(contract: Contract, tensors: _Operands, options: dict[str, Any]) -> Attention:
    """The call as kernels see it; raises OpError where shapes, lengths and attributes misfit."""
    q, k, table = tensors.query, tensors.key, tensors.table
    layout = contract.choice("input_layout", options["input_layout"], LAYOUTS)
    inner = layout.partition("_")[0]
    heads = heads_of(contract, options["num_heads"], options["num_key_value_heads"])
    head_size = head_size_of(contract, q, inner, heads[0])
    if table is None:
        check_keys(contract, q, k, inner, heads[1], head_size)
    given = options["actual_seq_lengths"], options["actual_seq_lengths_kv"]
    lengths = lengths_of(contract, inner, q, k, given, is_paged=table is not None)
    paging = None
    if table is not None:
        paging = paging_of(
            contract, k, table, heads[1], head_size, lengths[1], options["block_size"]
        )
    longest_kv = max(lengths[1]) if paging else longest_of(inner, k.shape, lengths[1])
    integers = ("pre_tokens", "next_tokens", "sparse_mode", "inner_precise")
    numbers = {name: contract.integer(name, options[name]) for name in integers}
    _check_attributes(contract, numbers, options["scale"])
    found = Attention(
        element=q.element,
        layout=next(name for name in LAYOUTS if name == layout),
        query_heads=heads[0],
        kv_heads=heads[1],
        head_size=head_size,
        query_lengths=lengths[0],
        kv_lengths=lengths[1],
        longest_query=longest_of(inner, q.shape, lengths[0]),
        longest_kv=longest_kv,
        scale=float(options["scale"]),
        has_mask=tensors.mask is not None,
        mask_shape=tensors.mask.shape if tensors.mask is not None else (),
        returns_lse=contract.boolean("softmax_lse_flag", options["softmax_lse_flag"]),
        paging=paging,
        pre_tokens=numbers["pre_tokens"],
        next_tokens=numbers["next_tokens"],
        sparse_mode=numbers["sparse_mode"],
        inner_precise=numbers["inner_precise"],
    )
    antiquant = quantised.antiquant_of(contract, tensors.scales, options, found)
    return replace(found, antiquant=antiquant)


def _check_attributes(contract: Contract, numbers: dict[str, int], scale: Any) -> None:
    is_number = isinstance(scale, int | float | np.number) and not isinstance(scale, bool)
    contract.require(
        is_number and bool(abs(scale) <= LARGEST_SCALE),
        f"scale must be a finite number of fp32, not {shown(scale)}; pass 1 / sqrt(columns "
        f"of a head), say",
    )
    mode, precise = numbers["sparse_mode"], numbers["inner_precise"]
    contract.require(
        0 <= mode <= MAX_MODE,
        f"sparse_mode must lie in [0, {MAX_MODE}], not be {mode}; choose one of these",
    )
    contract.require(
        0 <= precise <= 3,
        f"inner_precise must lie in [0, 3], not be {precise}; choose one of these",
    )


def _check_mask(contract: Contract, tensors: _Operands, a: Attention) -> None:
    """A mask of the shape that its sparse mode asks for: nonzero hides."""
    mask = tensors.mask
    if not a.is_stencil:
        if mask is None:
            return
        rows, columns = a.longest_query, a.longest_kv
        wanted: list[tuple[int, ...]] = [(rows, columns), (1, rows, columns)]
        wanted += [(a.requests, rows, columns)]
        wanted += [(1, 1, rows, columns), (a.requests, 1, rows, columns)]
        wanted += [(a.requests, columns)] * (rows == 1)
        contract.require(
            mask.shape in wanted,
            f"atten_mask must have shape {listed(tuple(map(str, dict.fromkeys(wanted))))} with "
            f"sparse_mode {a.sparse_mode}, not {mask.shape}; pass a number for each token and key",
        )
        return
    if mask is None:
        contract.fail(
            f"atten_mask must be given with sparse_mode {a.sparse_mode}, not None; pass the upper "
            f"triangle of ones, numpy.triu(..., 1), of {MASK_EXTENT} x {MASK_EXTENT}",
            Code.TILING_ERROR,
        )
    extents = MASK_EXTENT, MASK_EXTENT
    contract.require(
        mask.shape in (extents, (1, *extents), (1, 1, *extents)),
        f"atten_mask must have shape {extents} with sparse_mode {a.sparse_mode}, not {mask.shape}; "
        f"pass the upper triangle of ones, whatever the lengths are",
        Code.TILING_ERROR,
    )
    contract.require(
        mask.array is None or _is_triangle(mask.array),
        "atten_mask must be the upper triangle of ones, numpy.triu(..., 1), with sparse_mode "
        f"{a.sparse_mode}, not other numbers: a card would hide other keys; pass it so",
    )


def _is_triangle(mask: Array) -> bool:
    """Whether *mask*, a square, has ones above its diagonal and zeros elsewhere."""
    square = mask.reshape(mask.shape[-2:])
    return bool(np.array_equal(square, np.triu(np.ones_like(square), 1)))


def _lengths_operand(name: str, lengths: tuple[int, ...]) -> Operand:
    """What the kernel reads of *lengths* in global memory."""
    numbers = np.array(lengths, np.int64)
    return Operand(name, TensorSpec(numbers.shape, "int64"), numbers)


def _outputs(query: Operand, a: Attention) -> dict[str, TensorSpec]:
    """What is attended to, in the layout of the output, and the logarithms of the sums."""
    heads, size, requests, tokens = a.query_heads, a.head_size, a.requests, a.longest_query
    inner, _, outer = a.layout.partition("_")
    shape = query.shape
    of_rows: tuple[int, ...] = requests, heads, tokens, 1
    if inner in ("TND", "NTD"):
        of_rows = (sum(a.query_lengths), heads, 1)
    if outer == "BSND":
        shape = requests, tokens, heads, size
    elif outer == "TND":
        shape = sum(a.query_lengths), heads, size
    return {
        "output": TensorSpec(shape, query.spec.dtype),
        "softmax_lse": TensorSpec(of_rows if a.returns_lse else (1,), "float32"),
    }


def _choice(contract: Contract, a: Attention, template: Any) -> Choice:
    """The kernel that takes the call."""
    cores = contract.spec.cores["aic"].count
    named = next(
        (each for each in TEMPLATES if isinstance(template, str) and each == template), None
    )
    if template is not None:
        if named is None:
            contract.fail(
                f"template must be {listed(TEMPLATES)}, not {shown(template)}; leave it out to get "
                f"the vendor's choice"
            )
        need = unmet(named, a, cores)
        contract.require(
            need is None,
            f"template {named!r} can run only if {need}; leave it out to get the vendor's choice",
        )
    choice = choose(a, cores, named)
    if choice.template == "IFA":
        quantised.check_call(contract, a)
    elif choice.template == "FIA":
        _check_legacy(contract, a)
    else:
        _check_fai(contract, a)
    return choice


def _check_fai(contract: Contract, a: Attention) -> None:
    """Refuse what FAI, FAI-FD and FAI-DEC take beyond what is simulated of them."""
    contract.require(
        a.inner_precise == 0,
        f"inner_precise must be 0 in layout TND, not {a.inner_precise}: scores of half the size "
        f"are not simulated; pass 0",
        Code.UNSUPPORTED,
    )
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


def _check_legacy(contract: Contract, a: Attention) -> None:
    """One token a request of as many heads of keys, 256 columns each, is another kernel's."""
    is_legacy = a.group == 1 and a.longest_query == 1 and a.paging is None and a.head_size == 256
    contract.require(
        not is_legacy,
        "heads must have other than 256 columns where each request has one token and num_heads "
        "heads of keys without a block_table, not 256: the older kernel that takes these is not "
        "simulated; put the keys in pages",
        Code.UNSUPPORTED,
    )
