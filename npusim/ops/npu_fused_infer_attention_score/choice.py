"""Which of the vendor's kernels takes a call of npu_fused_infer_attention_score, and why.

========  ====================================================================================
template  what it does
========  ====================================================================================
FAI       tokens of all requests behind each other (TND); a task is up to 128 rows of a request
          against all of its keys, 512 at a time; tasks go round the cores
FAI-FD    as FAI, the keys of a task split over cores, for few and long requests in pages
FAI-DEC   as FAI, one token a request, without a mask: several heads of keys in a task
FIA       every other layout, and what FAI refuses
IFA       keys and values of int8
========  ====================================================================================

ops-transformer@3a280bc attention/fused_infer_attention_score/op_host,
fused_infer_attention_score_tiling.cpp and arch22/fused_infer_attention_score_tiling_v3.cpp. A
caller may name another template, which overrules the choice, but not what a kernel needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from npusim.ops._attention.description import Attention

__all__ = ["TEMPLATES", "Choice", "Template", "choose", "unmet"]

Template = Literal["FAI", "FAI-FD", "FAI-DEC", "FIA", "IFA"]
TEMPLATES: tuple[Template, ...] = get_args(Template)

MAX_HEAD_SIZE = 256
"""Columns of a head that FAI takes."""
PAGE_UNIT, MAX_PAGE = 16, 512
"""Tokens of a block of the cache, for FAI: multiples of the one up to the other."""
TASK_ROWS = 128
"""Rows of a task of FAI, at most; query heads of a group that FAI-DEC takes."""
FD_TOKENS = 16
"""Query tokens of a request that FAI-FD takes, at most."""
FD_KEYS = 1024
"""Keys that the longest request of FAI-FD has, at least."""
FD_FEW, FD_SOME = 4, 8
"""FAI-FD is taken for up to so many tenths of the cores in requests x heads of keys: the second
number only where the longest request has 512 keys a core."""
FD_KEYS_PER_CORE = 512
DEC_PAGE = 128
"""Tokens of a block of the cache, for FAI-DEC."""


TYPES_AGREE = "key and value have the type of query"


@dataclass(frozen=True, slots=True)
class Choice:
    """A template, and one line that says why."""

    template: Template
    reason: str


def choose(a: Attention, cores: int, asked: Template | None = None) -> Choice:
    """The template for *a* on a chip of so many cube *cores*; *asked* must be able to run."""
    if asked is not None:
        return Choice(asked, "asked for")
    if a.antiquant is not None:
        return Choice("IFA", f"key and value are {a.antiquant.element.name}")
    refusal = unmet("FAI", a, cores)
    if refusal is not None:
        return Choice("FIA", f"FAI takes calls only if {refusal}")
    if _prefers_split(a, cores):
        return Choice("FAI-FD", f"{_tasks(a)}, the longest of {max(a.kv_lengths)} keys")
    if unmet("FAI-DEC", a, cores) is None:
        return Choice("FAI-DEC", f"one token a request without a mask, {a.requests} requests")
    return Choice("FAI", f"layout TND with sparse_mode {a.sparse_mode}")


def _tasks(a: Attention) -> str:
    return f"{a.requests} requests x {a.kv_heads} heads of keys"


def unmet(template: Template, a: Attention, cores: int) -> str | None:
    """What *template* would need and *a* does not have; None if it can run."""
    match template:
        case "FAI":
            return _unmet_fai(a)
        case "FAI-FD":
            return _unmet_fai(a) or _unmet_fd(a)
        case "FAI-DEC":
            return _unmet_fai(a) or _unmet_dec(a, cores)
        case "FIA":
            return _unmet_type(a)
        case "IFA":
            return None if a.antiquant is not None else "key and value are int8"


def _unmet_type(a: Attention) -> str | None:
    return None if a.antiquant is None else TYPES_AGREE


def _unmet_fai(a: Attention) -> str | None:
    is_mha, page = a.group == 1, a.paging
    needs = {
        TYPES_AGREE: a.antiquant is None,
        "the layout is TND": a.layout == "TND",
        "sparse_mode is 0, 3 or 4": a.sparse_mode in (0, 3, 4),
        f"a head has at most {MAX_HEAD_SIZE} columns": a.head_size <= MAX_HEAD_SIZE,
        "inner_precise is 0 where query heads share keys": is_mha or a.inner_precise == 0,
        "inner_precise is not 1 with bfloat16": a.element.name != "bfloat16"
        or a.inner_precise != 1,
        "no mask is given with sparse_mode 0": a.sparse_mode != 0 or not a.has_mask,
        "the cache is (blocks, block_size, heads x columns)": page is None or not page.heads_first,
        f"a block of the cache has a multiple of {PAGE_UNIT} tokens up to {MAX_PAGE}": page is None
        or (page.block_size % PAGE_UNIT == 0 and page.block_size <= MAX_PAGE),
    }
    return next((need for need, holds in needs.items() if not holds), None)


def _unmet_fd(a: Attention) -> str | None:
    longest = max(a.query_lengths)
    needs = {
        "the cache is in pages": a.paging is not None,
        "sparse_mode is not 4": a.sparse_mode != 4,
        "inner_precise is not 1": a.inner_precise != 1,
        f"a request has at most {TASK_ROWS} rows, query tokens x heads of a group": (
            longest * a.group <= TASK_ROWS
        ),
        f"a request has 1 to {FD_TOKENS} query tokens": (
            min(a.query_lengths) >= 1 and longest <= FD_TOKENS
        ),
        f"the longest request has at least {FD_KEYS} keys": max(a.kv_lengths) >= FD_KEYS,
    }
    return next((need for need, holds in needs.items() if not holds), None)


def _prefers_split(a: Attention, cores: int) -> bool:
    """Whether the vendor splits the keys, which FAI-FD can."""
    if _unmet_fd(a) is not None:
        return False
    tasks = a.requests * a.kv_heads
    is_long = max(a.kv_lengths) >= FD_KEYS_PER_CORE * cores
    return 10 * tasks <= (FD_SOME if is_long else FD_FEW) * cores


def _unmet_dec(a: Attention, cores: int) -> str | None:
    page = a.paging
    needs = {
        "the cache is in pages": page is not None,
        "a request has one query token": set(a.query_lengths) == {1},
        "sparse_mode is 0": a.sparse_mode == 0,
        "there is a request for each core": a.requests >= cores,
        f"a block of the cache has {DEC_PAGE} tokens": page is None or page.block_size == DEC_PAGE,
        "softmax_lse is not asked for": not a.returns_lse,
        "inner_precise is 0": a.inner_precise == 0,
        f"at most {TASK_ROWS} query heads share keys": a.group <= TASK_ROWS,
    }
    return next((need for need, holds in needs.items() if not holds), None)
