"""A rule of attention: the calls it applies to, who checks it, and the effect of a violation.

Who checks a rule determines the effect of a violation:

* the *wrapper* of torch_npu, before anything is launched, and the *tiling* of the kernel refuse it;
* if only the *document* excludes it, there is a DocumentWarning, and the call runs, as on a card;
* *nobody* checks the rest, and a card accesses wrong memory: such calls are refused here, too;
* what *npusim* lacks works on a card.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from npusim.data.errors import Code
from npusim.ops._attention.call import Call


class Checked(NamedTuple):
    """Who checks a rule."""

    by: str
    code: Code | None
    """Code of the refusal; None if the call runs with a warning."""


WRAPPER = Checked("wrapper", Code.INVALID_PARAMETER)
TILING = Checked("tiling", Code.TILING_ERROR)
DOCUMENT = Checked("document", None)
NOBODY = Checked("nobody", Code.INVALID_PARAMETER)
NPUSIM = Checked("npusim", Code.UNSUPPORTED)


class Scope(NamedTuple):
    """The calls to which a rule applies."""

    words: str
    has: Callable[[Call], bool]


ALL = Scope("all", lambda _: True)
PACKED = Scope("TND, NTD", lambda c: c.is_packed)
PADDED = Scope("BSH, BSND, BNSD", lambda c: not c.is_packed)
PAGES = Scope("pages", lambda c: c.is_paged)
NO_PAGES = Scope("no pages", lambda c: not c.is_paged)
PACKED_KEYS = Scope("TND, NTD without pages", lambda c: c.is_packed and not c.is_paged)
ROPE = Scope("query_rope", lambda c: c.has_rope)
NO_ROPE = Scope("no query_rope", lambda c: not c.has_rope)
MLA = Scope("query_rope, heads of 512", lambda c: c.is_mla)
MLA_PACKED = Scope("TND, query_rope, heads of 512", lambda c: c.is_mla and c.is_packed)
HEADS_ALIKE = Scope("query_rope, heads of 128", lambda c: c.has_rope and c.value_size == 128)
SINGLE = Scope("a token a request", lambda c: c.longest_query == 1)
MASK = Scope("atten_mask", lambda c: c.mask is not None)
OWN_MASK = Scope("sparse_mode 0, 1", lambda c: c.mask is not None and c.sparse_mode < 2)
STENCIL = Scope("sparse_mode 2, 3, 4", lambda c: c.sparse_mode in (2, 3, 4))
HALVES = Scope("key of fp16, bf16", lambda c: not c.is_int8)
INT8 = Scope("key of int8", lambda c: c.is_int8)
DIGITS = Scope("key of int8", lambda c: c.is_int8 and not c.offsets)
OFFSET = Scope("key of int8 with offsets", lambda c: c.is_int8 and len(c.offsets) > 0)
INCRE = Scope("npu_incre_flash_attention", lambda c: c.contract.op == "npu_incre_flash_attention")
FAI = Scope("kernel FAI", lambda c: c.kernel == "FAI")
FIA = Scope("kernel FIA", lambda c: c.kernel == "FIA")
FAI_PAGES = Scope("kernel FAI, pages", lambda c: c.kernel == "FAI" and c.is_paged)
PACKED_ELSE = Scope("TND, NTD, not FAI", lambda c: c.is_packed and c.kernel != "FAI")
SINK = Scope("learnable_sink", lambda c: c.sink is not None)
SINK_OF_FAI = Scope("learnable_sink, kernel FAI", lambda c: c.has_sink_of_fai)
SINK_OF_FIA = Scope("learnable_sink, kernel FIA", lambda c: (
    c.sink is not None and not c.has_sink_of_fai
))  # fmt: skip


class Rule(NamedTuple):
    """A condition for calls of a scope; format strings use `{c.heads}` for properties of a call."""

    checked: Checked
    source: str
    scope: Scope
    holds: Callable[[Call], bool]
    must: str
    came: str
    remedy: str

    def warning(self, call: Call) -> str | None:
        """The warning if *call* violates a rule of the document; raises OpError for others."""
        if not self.scope.has(call) or self.holds(call):
            return None
        must, came, remedy = (x.format(c=call) for x in (self.must, self.came, self.remedy))
        if self.checked.code is not None:
            call.contract.fail(f"{must}, not {came}; {remedy}", self.checked.code)
        return f"by the document {must}, not {came}; {remedy}"
