"""The calls that attention operators accept: rows of support, and a table of rules.

Operators differ in the names of their parameters and in their rows; a contract that arrives here
has its arguments by the names of npu_fused_infer_attention_score. Kernels see a call as an
:class:`Attention`. The rules are in :mod:`npusim.ops._attention.rules`.

Sources: op-plugin@517f2e7, torch_npu-npu_fused_infer_attention_score.md, and torch_npu 2.14.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, UINT8
from npusim.data.errors import Code
from npusim.data.tensor import Operand, Tensor, TensorSpec
from npusim.ops import _protocol
from npusim.ops._attention.call import Call, is_triangle
from npusim.ops._attention.problem import Attention, Choice
from npusim.ops._attention.rules import QUERY_RULES, RULES
from npusim.ops._attention.scales import APART, BOTH, mode_of, offset_of
from npusim.ops._attention.shapes import are_alike
from npusim.ops._contract import Contract
from npusim.ops._protocol import Reads, present
from npusim.ops._support import A2_A3, Entries, Row, required

HALVES = (FLOAT16, BFLOAT16)


# ---- rows ----


def _rows(
    key: Any,
    modes: Mapping[str, int],
    *scales: str,
    dequantises: bool = False,
    has_sink: bool = False,
) -> tuple[Row, ...]:
    """Rows with *key* and value of one type (None: that of the query), and *scales* by their modes.

    A kernel that *dequantises* needs offsets, and float32.
    """
    found = []
    for half in HALVES:
        entries: Entries = {"query": half, "key": key or half, "value": key or half}
        entries |= {"atten_mask": (INT8, UINT8), "block_table": INT32}
        if key is None:
            entries |= {"query_rope": half, "key_rope": half}
        if has_sink:
            entries["learnable_sink"] = half
        if scales == APART:
            # It is ignored.
            entries[BOTH] = half, FLOAT32
        for name in scales:
            kind = FLOAT32 if dequantises or modes.get(mode_of(name)) else half
            entries[name] = required(kind)
            entries[offset_of(name)] = required(kind) if dequantises else kind
        entries |= {name: (mode,) for name, mode in modes.items()}
        found.append(Row(on=A2_A3, **entries))
    return tuple(found)


NO_MODES = {mode_of(name): 0 for name in (BOTH, *APART)}
KEYS_ALIKE = _rows(None, {}, has_sink=True)
"""Keys and values have the type of the query."""
INT8_BOTH = _rows(INT8, {}, BOTH)
"""Keys and values of int8, with one scale each for everything, or one per column."""
INT8_PER_TOKEN = (
    *_rows(None, NO_MODES),
    *_rows(INT8, NO_MODES, BOTH),
    *_rows(INT8, NO_MODES | {mode_of(BOTH): 1}, BOTH),
    *_rows(INT8, NO_MODES, *APART),
    *_rows(INT8, NO_MODES | {mode_of(APART[1]): 1}, *APART),
    *_rows(INT8, NO_MODES | {mode_of(name): 1 for name in APART}, *APART),
    *_rows(INT8, NO_MODES, BOTH, dequantises=True),
    *_rows(INT8, NO_MODES, *APART, dequantises=True),
)
"""All of these, with modes, of which 1 is a scale per token, and with offsets."""

READS = (
    Reads(operands=("atten_mask",), finds=is_triangle),
    Reads(operands=("key", "value"), finds=are_alike),
)
"""A mask may have to be the stencil, and latent keys are the values."""


# ---- a call ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call, and the kernel that runs it."""

    attention: Attention
    choice: Choice


def check_as(
    contract: Contract, names: Mapping[str, str], fixed: Mapping[str, Any] | None = None
) -> Problem:
    """Like :func:`check`, for an operator with other *names*, the first operator's first.

    *fixed* are parameters that only the first operator has, with their values here.
    """
    ours = {other: name for name, other in names.items()}
    given = {ours.get(name, name): value for name, value in contract.arguments.items()}
    return check(replace(contract, names=names, arguments={**(fixed or {}), **given}))


def check(contract: Contract) -> Problem:
    """Check a call against the contract of its product line; raises OpError."""
    call = call_of(contract)
    is_empty = call.query.spec.size == 0
    rules = QUERY_RULES if is_empty else RULES
    # A call that is refused in the end gives no warnings.
    for warning in [rule.warning(call) for rule in rules]:
        if warning is not None:
            contract.warn(warning)
    a = Attention.empty(call.query.element, call.layout) if is_empty else call.attention
    columns = call.size if is_empty else call.value_size
    lse = contract.boolean("softmax_lse_flag")
    shapes = shapes_of(call.query.shape, call.heads, call.layout, columns, returns_lse=lse)
    return Problem(
        inputs=present(
            *(call.query, call.key, call.value, call.mask, call.table),
            *(*call.ropes, *(scale for scale, _ in call.scales), *call.offsets),
            _lengths_operand("actual_seq_lengths", a.query_lengths),
            _lengths_operand("actual_seq_lengths_kv", a.kv_lengths),
        ),
        outputs={
            "output": TensorSpec(shapes[0], call.query.spec.dtype),
            "softmax_lse": TensorSpec(shapes[1], "float32"),
        },
        attention=a,
        choice=Choice("FIA", "nothing to do") if is_empty else call.choice,
    )


def call_of(contract: Contract) -> Call:
    """The tensors of a call, with types that a row of support combines."""
    for name in ("key", "value"):
        contract.require(
            not isinstance(contract.value(name), list | tuple),
            f"{name} must be one tensor, not a list: requests apart are not simulated; pad them to "
            f"one length, stack them, and pass actual_seq_lengths_kv",
            Code.UNSUPPORTED,
        )
    given = contract.value("query")
    if isinstance(given, Tensor):
        given = given.spec
    contract.require(
        "query_rope" not in contract.arguments
        or not isinstance(given, np.ndarray | TensorSpec)
        or str(given.dtype) != INT8.name,
        "query must be float16 or bfloat16, not int8: the kernels that take it, and latent keys of "
        "int8 with it, are not simulated; dequantise query and key, and leave their scales out",
        Code.UNSUPPORTED,
    )
    query, (scales, offsets) = contract.operand("query"), _scales(contract)
    key, value = contract.operand("key"), contract.operand("value")
    mask = contract.value("atten_mask")
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_:
        mask = mask.view(np.uint8)
    masks = contract.optional("atten_mask", mask), contract.optional("block_table")
    query_rope, key_rope, sink = (
        contract.optional(name) if name in contract.arguments else None
        for name in ("query_rope", "key_rope", "learnable_sink")
    )
    tensors = query, key, value, *masks, (query_rope, key_rope), sink
    return Call(contract, *tensors, scales, offsets)


def _scales(
    contract: Contract,
) -> tuple[tuple[tuple[Operand, int], ...], tuple[Operand, ...]]:
    """Scales of a call that apply, with their modes, and offsets: one for both, two, or none."""
    found: dict[str, tuple[Operand, int]] = {}
    arguments = contract.arguments
    scales = [name for name in (BOTH, *APART) if name in arguments]
    for name in scales:
        mode, is_given = mode_of(name), arguments[name] is not None
        number = contract.whole(mode, arguments.get(mode, 0))
        contract.require(
            not is_given or number in (0, 1),
            f"{mode} must be 0, one scale or one for each column, or 1, one for each token, not "
            f"{number}: others are not simulated; choose one of these",
            Code.UNSUPPORTED,
        )
        if not is_given:
            contract.optional(name)
        if mode in arguments:
            contract.integer(mode)
        if is_given:
            found[name] = contract.operand(name), number
    offsets = {name: contract.optional(offset_of(name)) for name in scales}
    # If both forms are given, those of keys and of values apply.
    names = APART if all(name in found for name in APART) else tuple(found)
    return tuple(found[name] for name in names), present(*(offsets[name] for name in names))


def _lengths_operand(name: str, lengths: tuple[int, ...]) -> Operand:
    """The operand that the kernel reads for *lengths* in global memory."""
    array = np.array(lengths, np.int64)
    return Operand(name, TensorSpec(array.shape, "int64"), array)


def shapes_of(
    query: tuple[Any, ...], heads: Any, layout: str, columns: Any, *, returns_lse: bool
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Shapes of the output and of softmax_lse for a shape of the query; sizes may be symbols.

    *columns* are those of a head of value.
    """
    inner, _, outer = layout.partition("_")
    sizes = {axis: query[place] for place, axis in enumerate(inner)}
    sizes |= {"D": columns, "H": heads * columns}
    if inner == "BSH":
        sizes["N"] = heads
    of_rows = (*(sizes[axis] for axis in ("TN" if "T" in inner else "BNS")), 1)
    return tuple(sizes[axis] for axis in outer or inner), of_rows if returns_lse else (1,)
