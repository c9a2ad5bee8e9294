"""A call of attention as kernels see it, whatever its layout.

Tokens are addressed in the same way in all layouts: each request has an offset in the tensor, and
its heads and tokens have constant strides. A paged cache is addressed through a table, which gives
the block of the cache for each block of a request's tokens.

The vendor's kernel that runs a call, and why:

========  ====================================================================================
template  what it does
========  ====================================================================================
FAI       tokens of all requests packed (TND); a task is up to 128 rows of a request against all
          of its keys, 512 at a time; tasks are assigned to cores in turn
FAI-FD    like FAI, with the keys of a task split over cores, for few and long requests in pages
FAI-DEC   like FAI, one token per request, without a mask: several heads of keys in a task
FIA       every other layout, and what FAI refuses
FIA-MLA   latent keys: a head of 512 columns, which is also the values, and a rotary part
IFA       keys and values of int8
IFA-ATB   keys and values of int8 with offsets, in pages, for tokens in TND
========  ====================================================================================

ops-transformer@3a280bc attention/fused_infer_attention_score/op_host,
fused_infer_attention_score_tiling.cpp and arch22/fused_infer_attention_score_tiling_v3.cpp. A
caller may select another template, which overrides the choice, but not a kernel's requirements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from npusim.data.dtypes import FLOAT16, FLOAT32, DType
from npusim.ops._attention.scores import Bias, Dropout

Layout = Literal[
    "BSH", "BSND", "BNSD", "TND", "NTD", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "TND_NTD",
    "NTD_TND", "BSH_BNSD", "BSND_BNSD", "BNSD_BSND",
]  # fmt: skip
"""The order of requests (B), heads (N), tokens (S), columns (D); H is N x D, T all tokens of all
requests; after the underscore that of the output, if it is different."""
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
PACKED = ("TND", "NTD", "TND_NTD", "NTD_TND")
"""Layouts with packed requests."""
LARGEST_TOKENS = 2147483647
"""The value of pre_tokens and next_tokens that hides nothing."""
FRACTAL_COLUMNS = 16
"""Adjacent columns in a cache in fractals, of 16 bits."""
LATENT_COLUMNS = 512
"""Columns of latent keys, without rotary parts."""
LOWEST = -3.4028234663852886e38
"""-FLT_MAX."""
SUM_COPIES = 8
"""Copies of each maximum and sum in training, a block of 32 bytes."""
STENCIL_MODES = (2, 3, 4, 6, 7, 8)
"""Values of sparse_mode for which lengths decide what is hidden."""
MASK_EXTENT = 2048
"""Rows and columns of the mask for sparse modes 2, 3 and 4: a stencil, whatever the lengths
(op-plugin@517f2e7, torch_npu-npu_fused_infer_attention_score.md)."""


@dataclass(frozen=True, slots=True)
class Paging:
    """A cache in blocks: key and value alike."""

    blocks: int
    block_size: int
    """Tokens of a block."""
    heads_first: bool
    """Whether a block is `(heads, tokens, columns)` rather than `(tokens, heads, columns)`."""
    tables: tuple[tuple[int, ...], ...]
    """The blocks of the tokens of each request, in order."""
    width: int
    """Columns of the block table: most blocks of a request."""
    is_assumed: bool
    """Whether the table has no values, so that blocks are assumed to be consecutive."""
    is_nz: bool = False
    """Whether tokens of a head are in fractals: `(heads, columns / 16, tokens, 16)`."""


Per = Literal["tensor", "channel", "token"]
"""One scale for all, for each column of each head, or for each token of each request."""


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of int8 keys, or values."""

    name: str
    """The tensor."""
    dtype: DType
    per: Per
    first: int
    """Offset in the tensor, which keys and values may share."""
    tokens: int
    """Scales per request, one for each token."""

    def place(self, request: int, head: int, token: int, head_size: int) -> int:
        """The index of the first scale of *head* of *request*, from *token* on."""
        own = {
            "tensor": 0,
            "channel": head * head_size,
            "token": request * self.tokens + token,
        }
        return self.first + own[self.per]


@dataclass(frozen=True, slots=True)
class Antiquant:
    """Keys and values of int8."""

    element: DType
    key: Scales
    value: Scales
    offsets: tuple[Scales, Scales] | None = None
    """Offsets added to keys and to values first; None if there are none."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The parameters of a call, without values of tensors."""

    element: DType
    layout: Layout
    query_heads: int
    kv_heads: int
    head_size: int
    """Columns of a head of query and key, without rotary parts."""
    value_size: int
    """Columns of a head of values and of the output."""
    rope_size: int
    """Columns of the rotary part of a head of query and key, a tensor each; 0 without one."""
    query_lengths: tuple[int, ...]
    """Tokens of each request."""
    kv_lengths: tuple[int, ...]
    longest_query: int
    """Tokens for which the layout has room; in TND and NTD those of the longest request."""
    longest_kv: int
    scale: float
    sparse_mode: int
    """0 and 1: the mask itself, 2: left-up causal, 3: right-down causal, 4: a band; in training 5:
    the mask itself with prefixes, 6: right-down causal with prefixes, 7: 3 with a band for the last
    request, 8: 2 with a band for the first one."""
    pre_tokens: int
    next_tokens: int
    has_mask: bool
    mask_shape: tuple[int, ...]
    inner_precise: int
    """Bit 0: high performance, bit 1: correct rows that see nothing."""
    returns_lse: bool
    paging: Paging | None
    antiquant: Antiquant | None = None
    """None for keys and values of the query's type."""
    is_training: bool = False
    """Whether maxima and sums of rows are output for a backward pass, instead of logarithms."""
    sums_by_token: bool = False
    """Whether those of packed requests are ordered by token rather than by head in each request."""
    bias: Bias | None = None
    """pse, in training."""
    dropout: Dropout | None = None
    prefixes: tuple[int, ...] = ()
    """Keys of each request that all of its tokens see, in modes 5 and 6."""

    @staticmethod
    def empty(element: DType, layout: str) -> Attention:
        """A call without query tokens."""
        own = next(name for name in LAYOUTS if name == layout)
        nothing = False, (), 0, False, None
        return Attention(element, own, 1, 1, 0, 0, 0, (), (), 0, 0, 1.0, 0, 0, 0, *nothing)

    @property
    def requests(self) -> int:
        return len(self.query_lengths)

    @property
    def score_count(self) -> int:
        """Scores of all heads of all requests."""
        pairs = zip(self.query_lengths, self.kv_lengths, strict=True)
        return self.query_heads * sum(tokens * keys for tokens, keys in pairs)

    @property
    def is_latent(self) -> bool:
        """Whether keys are latent: one head, which is also the values, and a rotary part."""
        return self.rope_size > 0 and self.head_size == LATENT_COLUMNS

    @property
    def group(self) -> int:
        """Query heads that share a head of the keys."""
        return self.query_heads // self.kv_heads

    @property
    def is_stencil(self) -> bool:
        """Whether lengths decide what is hidden, and the mask is only a stencil."""
        return self.sparse_mode in STENCIL_MODES

    @property
    def work_type(self) -> DType:
        """FAI's type of scores, sums and products: fp16 with high performance, else fp32."""
        return FLOAT16 if self.inner_precise == 1 else FLOAT32

    @property
    def has_digits(self) -> bool:
        """Whether keys are multiplied as int8, with digits of queries."""
        return self.antiquant is not None and self.antiquant.offsets is None

    @property
    def dequantises(self) -> bool:
        """Whether int8 keys and values are first converted to the query's type."""
        return self.antiquant is not None and self.antiquant.offsets is not None

    @property
    def hidden(self) -> float:
        """The value with which FIA replaces a hidden score."""
        return LOWEST if self.is_training else -1e12

    @property
    def rounds_away(self) -> bool:
        """Whether ties of the output round away from zero rather than to even."""
        return self.is_training or self.element is FLOAT16

    @property
    def sums(self) -> dict[str, tuple[int, float]]:
        """Outputs derived from the sums of rows: columns of the tensor, and its value for rows that
        see no key (fia_block_vec_nonquant.h; assumed for maxima in training)."""
        if self.is_training:
            return {"softmax_max": (SUM_COPIES, LOWEST), "softmax_sum": (SUM_COPIES, -LOWEST)}
        return {"softmax_lse": (1, float("inf"))} if self.returns_lse else {}

    @property
    def is_packed(self) -> bool:
        """Whether the tokens of all requests are packed (TND, NTD)."""
        return self.layout in PACKED

    @property
    def has_own_mask(self) -> bool:
        """Whether a mask is used directly, rather than as a stencil."""
        return self.has_mask and not self.is_stencil

    @property
    def band_request(self) -> int | None:
        """The request with a band in modes 7 and 8."""
        found = [request for request, tokens in enumerate(self.query_lengths) if tokens]
        if not found or self.sparse_mode not in (7, 8):
            return None
        return found[-1] if self.sparse_mode == 7 else found[0]

    def window(self, request: int) -> tuple[int | None, int | None]:
        """Query token i of *request* sees keys i + first to i + last; None is no bound.

        For a mask that is used directly nothing is known: both are None. Prefixes are seen besides.
        """
        apart = self.kv_lengths[request] - self.query_lengths[request]
        in_band = request == self.band_request
        match self.sparse_mode:
            case 2:
                return None, 0
            case 3 | 6:
                return None, apart
            case 7:
                return None, apart + in_band * self.next_tokens
            case 8:
                return None, in_band * (apart + self.next_tokens)
            case 4:
                return apart - self.pre_tokens, apart + self.next_tokens
            case _:
                return None, None


# ---- the choice of a kernel ----

Template = Literal["FAI", "FAI-FD", "FAI-DEC", "FIA", "FIA-MLA", "IFA", "IFA-ATB"]
TEMPLATES: tuple[Template, ...] = get_args(Template)

MAX_HEAD_SIZE = 256
"""Most columns of a head for FAI."""
PAGE_UNIT, MAX_PAGE = 16, 512
"""Tokens of a cache block for FAI: multiples of the first, up to the second."""
TASK_ROWS = 128
"""Most rows of a task of FAI; most query heads of a group for FAI-DEC."""
FD_TOKENS = 16
"""Most query tokens of a request for FAI-FD."""
FD_KEYS = 1024
"""Fewest keys of the longest request for FAI-FD."""
FD_FEW, FD_SOME = 4, 8
"""FAI-FD is chosen if requests x heads of keys are at most this many tenths of the cores; the
second number applies only if the longest request has 512 keys per core."""
FD_KEYS_PER_CORE = 512
DEC_PAGE = 128
"""Tokens of a cache block for FAI-DEC."""

Needs = dict[str, Callable[[Attention, int], bool]]
"""A kernel's requirement -> whether a call meets it on a chip of that many cube cores."""


def _is_paged(a: Attention, unit: int, most: int) -> bool:
    """Whether keys are not in pages, or pages have a multiple of *unit* tokens up to *most*."""
    page = a.paging
    return page is None or (page.block_size % unit == 0 and page.block_size <= most)


ALIKE: Needs = {"key and value have the type of query": lambda a, _: a.antiquant is None}
PAGES: Needs = {"the cache is in pages": lambda a, _: a.paging is not None}
FAI: Needs = {
    **ALIKE,
    "the layout is TND": lambda a, _: a.layout == "TND",
    "sparse_mode is 0, 3 or 4": lambda a, _: a.sparse_mode in (0, 3, 4),
    "heads have no rotated part": lambda a, _: a.rope_size == 0,
    f"a head has at most {MAX_HEAD_SIZE} columns, of value, too": lambda a, _: (
        a.value_size == a.head_size <= MAX_HEAD_SIZE
    ),
    "inner_precise is 0 where query heads share keys": lambda a, _: (
        a.group == 1 or a.inner_precise == 0
    ),
    "inner_precise is not 1 with bfloat16": lambda a, _: (
        a.element.name != "bfloat16" or a.inner_precise != 1
    ),
    "no mask is given with sparse_mode 0 where no query heads share keys": lambda a, _: (
        a.group > 1 or a.sparse_mode != 0 or not a.has_mask
    ),
    "the cache is (blocks, block_size, heads x columns)": lambda a, _: (
        a.paging is None or not a.paging.heads_first
    ),
    "heads have other than 64 and 128 columns in a cache of fractals": lambda a, _: (
        a.paging is None or not a.paging.is_nz or a.head_size not in (64, 128)
    ),
    f"a block of the cache has a multiple of {PAGE_UNIT} tokens up to {MAX_PAGE}": lambda a, _: (
        _is_paged(a, PAGE_UNIT, MAX_PAGE)
    ),
}
FD: Needs = {
    **PAGES,
    "sparse_mode is not 4": lambda a, _: a.sparse_mode != 4,
    "inner_precise is not 1": lambda a, _: a.inner_precise != 1,
    f"a request has at most {TASK_ROWS} rows, query tokens x heads of a group": lambda a, _: (
        max(a.query_lengths) * a.group <= TASK_ROWS
    ),
    f"a request has 1 to {FD_TOKENS} query tokens": lambda a, _: (
        1 <= min(a.query_lengths) <= max(a.query_lengths) <= FD_TOKENS
    ),
    f"the longest request has at least {FD_KEYS} keys": lambda a, _: max(a.kv_lengths) >= FD_KEYS,
}
DEC: Needs = {
    **PAGES,
    "a request has one query token": lambda a, _: set(a.query_lengths) == {1},
    "sparse_mode is 0": lambda a, _: a.sparse_mode == 0,
    "there is a request for each core": lambda a, cores: a.requests >= cores,
    f"a block of the cache has {DEC_PAGE} tokens": lambda a, _: _is_paged(a, DEC_PAGE, DEC_PAGE),
    "softmax_lse is not asked for": lambda a, _: not a.returns_lse,
    "inner_precise is 0": lambda a, _: a.inner_precise == 0,
    f"at most {TASK_ROWS} query heads share keys": lambda a, _: a.group <= TASK_ROWS,
}
NEEDS: dict[Template, Needs] = {
    "FAI": FAI,
    "FAI-FD": FAI | FD,
    "FAI-DEC": FAI | DEC,
    "FIA": ALIKE | {"keys are not latent": lambda a, _: not a.is_latent},
    "FIA-MLA": ALIKE | {"keys are latent, with a rotated part": lambda a, _: a.is_latent},
    "IFA": {"key and value are int8 without offsets": lambda a, _: a.has_digits},
    "IFA-ATB": {"key and value are int8 with offsets": lambda a, _: a.dequantises},
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A template, and a sentence that says why."""

    template: Template
    reason: str


def unmet(template: Template, a: Attention, cores: int) -> str | None:
    """A requirement of *template* that *a* does not meet; None if it can run."""
    return next((need for need, holds in NEEDS[template].items() if not holds(a, cores)), None)


def choose(a: Attention, cores: int, asked: Template | None = None) -> Choice:
    """The template for *a* on a chip of that many cube *cores*; *asked* must be able to run."""
    if asked is not None:
        return Choice(asked, "asked for")
    if a.antiquant is not None:
        if a.dequantises:
            return Choice("IFA-ATB", f"key and value are {a.antiquant.element.name} with offsets")
        return Choice("IFA", f"key and value are {a.antiquant.element.name}")
    if a.is_latent:
        return Choice("FIA-MLA", f"keys are latent: {LATENT_COLUMNS} columns and a rotated part")
    refusal = unmet("FAI", a, cores)
    if refusal is not None:
        return Choice("FIA", f"FAI takes calls only if {refusal}")
    longest, tasks = max(a.kv_lengths), a.requests * a.kv_heads
    tenths = FD_SOME if longest >= FD_KEYS_PER_CORE * cores else FD_FEW
    if unmet("FAI-FD", a, cores) is None and 10 * tasks <= tenths * cores:
        words = f"{a.requests} requests x {a.kv_heads} heads of keys"
        return Choice("FAI-FD", f"{words}, the longest of {longest} keys")
    if unmet("FAI-DEC", a, cores) is None:
        return Choice("FAI-DEC", f"one token a request without a mask, {a.requests} requests")
    return Choice("FAI", f"layout TND with sparse_mode {a.sparse_mode}")
