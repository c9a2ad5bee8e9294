"""npu_fusion_attention: attention for training, with what its backward pass needs.

.. code-block:: text

    s[i, j] = fp32(query[i] . key[j]) * scale            masked scores: -FLT_MAX
    softmax_max[i] = max_j s[i, j];   p[i, j] = exp(s[i, j] - softmax_max[i])
    softmax_sum[i] = sum_j p[i, j]
    attention_out[i] = T(sum_j T(p[i, j]) * value[j] / softmax_sum[i])   T: ties away from zero

for each request and each of its heads; the query heads share the key heads evenly. All is fp32
except the factors of both products. Keys are processed 1024 at a time, and earlier results are
scaled by exp(maximum before - maximum now); exp rounds to nearest (assumed).

* softmax_max and softmax_sum hold each value eight times: `(requests, heads, tokens, 8)`, in TND
  `(tokens, heads, 8)`; but there too each request is stored head by head, unless softmax_layout is
  TND. They are fp32.
* Nonzero in atten_mask masks a score. sparse_mode 0, 1 and 5 take a mask for all requests, or one
  for each; pre_tockens and next_tockens of mode 0 select the tiles of keys that are processed. 2
  left-up and 3 right-down causal, and 4, a band, take the stencil `numpy.triu(ones, 1)` of 2048 x
  2048. 6 is 3 with as many first keys visible as prefix says, for each request; the stencil has
  1024 more rows, zeros on the left and ones on the right. 7 is 3 and 8 is 2 in TND, except that
  next_tockens moves the diagonal of the last or of the first request. Without a mask all of these
  are ignored.
* Tokens for which a mode leaves no key give zeros, and softmax_sum FLT_MAX. So do rows whose keys a
  mask hides all with inner_precise 2; otherwise they are the mean of the values.
* In TND requests are concatenated, and actual_seq_qlen and actual_seq_kvlen are cumulative lengths;
  zeros at the end are requests without tokens.
* pse is added to scores before they are scaled: `(requests or 1, heads, tokens or 1, keys)`, in TND
  the same of one request after another, flat. With keep_prob below 1, dropout_mask has a bit for
  each score, in the same order, set where a weight is kept: T(p * kept * (1 / keep_prob)) replaces
  T(p) in the product, but not in softmax_sum. torch_npu draws it by a kernel of its own.

The tiles are those of its own kernel, S1S2; that cube and vector cores process them like those of
FIA, and that no two share a row of them, is assumed (:mod:`npusim.ops._attention.fia`). Not
simulated are sink, float32, and a mask for each head, which :mod:`npusim.torch` composes from
several operators, and pse of the last 1024 tokens alone.

Sources: op-plugin@517f2e7, torch_npu-npu_fusion_attention.md and FlashAttentionKernelNpuOpApi.cpp;
ops-transformer@3a280bc attention/flash_attention_score. Atlas A2; Atlas A3 by the
document of aclnn.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, UINT8, Array
from npusim.data.errors import Code, shown
from npusim.data.tensor import Operand, Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops import _vocabulary as ops
from npusim.ops._attention import at_once, build, fia, oracle_of
from npusim.ops._attention.check import Problem
from npusim.ops._attention.modes_check import (
    PREFIX_MODES,
    check_slices,
    prefixes_of,
    require_stencil,
)
from npusim.ops._attention.problem import (
    LARGEST_TOKENS,
    STENCIL_MODES,
    SUM_COPIES,
    Attention,
    Choice,
)
from npusim.ops._attention.scores_check import bias_of, dropout_of
from npusim.ops._support import Entries
from npusim.ops._torch import Result, Sizes


def support_of(*others: str) -> tuple[ops.Row, ...]:
    """Rows of support, with *others* of the type of the query, all optional."""
    found = []
    for half in (FLOAT16, BFLOAT16):
        entries: Entries = dict.fromkeys(("query", "key", "value", *others), half)
        entries |= {"pse": (half, FLOAT32) if others else half, "dropout_mask": UINT8}
        found.append(ops.Row(on=ops.A2_A3, atten_mask=UINT8, **entries))
    return tuple(found)


LAYOUTS = {"BSH": (0, 1), "SBH": (1, 0), "BSND": (0, 1), "BNSD": (0, 2), "TND": (0, 0)}
"""Layout -> the dimensions of requests and tokens in a shape."""
MOST_HEADS, MOST_COLUMNS, COLUMN_UNIT = 256, 512, 16
"""The head limit is the document's; the kernel takes 768 columns, the schedule here 512."""
ROPES, ROPE_COLUMNS = ("query_rope", "key_rope"), (128, 64)
"""Rotary parts, which the second version takes; columns of a head and of such a part."""


class Call:
    """The shapes of a call, in the order of its layout."""

    def __init__(self, contract: ops.Contract) -> None:
        self.contract = contract
        layout = contract.value("input_layout")
        known = ops.listed(tuple(LAYOUTS))
        contract.require(
            isinstance(layout, str) and layout.upper() in LAYOUTS,
            f"input_layout must be {known}, not {shown(layout)}; choose one of these",
        )
        self.layout = layout.upper()
        given = contract.value("query")
        is_tensor = isinstance(given, np.ndarray | Tensor | TensorSpec)
        contract.require(
            not (is_tensor and str(given.dtype) == FLOAT32.name),
            "query must be float16 or bfloat16, not float32: the kernel for it is not simulated; "
            "cast query, key and value",
            Code.UNSUPPORTED,
        )
        self.query, self.key, self.value = map(contract.operand, ("query", "key", "value"))
        self.heads = contract.integer("head_num")
        for each in (self.query, self.key, self.value):
            contract.require(
                len(each.shape) == len(self.layout),
                f"{each.name} must have the dimensions of input_layout {self.layout}, not shape "
                f"{each.shape}; reshape it",
            )
        self._check_heads()
        self.query_lengths, self.kv_lengths = self._lengths()

    def _check_heads(self) -> None:
        require, query, key = self.contract.require, self.query.shape, self.key.shape
        require(
            1 <= self.heads <= MOST_HEADS,
            f"head_num must be 1 to {MOST_HEADS}, not {self.heads}; pass the heads of query",
        )
        if self.layout[-1] == "H":
            require(
                query[-1] % self.heads == 0,
                f"query must have head_num heads of as many columns each, not {query[-1]} columns "
                f"for {self.heads}; pass the heads of query",
            )
            self.size = query[-1] // self.heads
            self.kv_heads = key[-1] // self.size if self.size else 1
            is_whole = self.size > 0 and key[-1] % self.size == 0
            self.value_size = self.value.shape[-1] // max(1, self.kv_heads)
        else:
            axis = self.layout.index("N")
            self.size, self.kv_heads, self.value_size = query[-1], key[axis], self.value.shape[-1]
            is_whole = query[axis] == self.heads and self.value.shape[axis] == self.kv_heads
            is_whole = is_whole and key[-1] == self.size
        require(
            is_whole and self.kv_heads > 0 and self.heads % self.kv_heads == 0,
            f"query and key must have head_num heads, and one that divides it, of as many columns, "
            f"not {query} and {key} for {self.heads}; pass them so",
        )
        require(
            0 < self.value_size <= self.size,
            f"a head of value must have at most as many columns as one of key, not "
            f"{self.value_size} with {self.size}; pad key",
        )
        require(
            self.size % COLUMN_UNIT == self.value_size % COLUMN_UNIT == 0
            and self.size <= MOST_COLUMNS,
            f"a head must have a multiple of {COLUMN_UNIT} columns up to {MOST_COLUMNS}, not "
            f"{self.size} and {self.value_size}: others are not simulated; pad it",
            Code.UNSUPPORTED,
        )

    def _lengths(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tokens and keys of each request."""
        requests, tokens = LAYOUTS[self.layout]
        lists = [self.contract.value(name) for name in ("actual_seq_qlen", "actual_seq_kvlen")]
        if self.layout != "TND":
            for each in (self.key, self.value):
                self.contract.require(
                    each.shape[requests] == self.query.shape[requests]
                    and each.shape[tokens] == self.key.shape[tokens],
                    f"{each.name} must have the requests of query and the tokens of key, not shape "
                    f"{each.shape} with {self.query.shape} in {self.layout}; pass it so",
                )
            count = self.query.shape[requests]
            return (self.query.shape[tokens],) * count, (self.key.shape[tokens],) * count
        self.contract.require(
            all(lists) and len(lists[0]) == len(lists[1]),
            "actual_seq_qlen and actual_seq_kvlen must be given in TND, as long as each other, not "
            f"{lists[0]} and {lists[1]}; pass the sums of the lengths",
        )
        found = []
        for name, sums, operand in zip(
            ("actual_seq_qlen", "actual_seq_kvlen"), lists, (self.query, self.key), strict=True
        ):
            # Zeros at the end are requests without tokens.
            last = max((at for at, each in enumerate(sums) if each), default=-1)
            upto = [0, *sums[: last + 1], *[max(sums)] * (len(sums) - last - 1)]
            lengths = tuple(end - start for start, end in pairwise(upto))
            self.contract.require(
                min(lengths) >= 0 and upto[-1] == operand.shape[0],
                f"{name} must rise to the tokens of {operand.name}, {operand.shape[0]}, not be "
                f"{list(sums)}; pass the sums of the lengths",
            )
            found.append(lengths)
        return found[0], found[1]

    @property
    def longest(self) -> tuple[int, int]:
        """Tokens and keys that the layout has room for."""
        return max(self.query_lengths, default=0), max(self.kv_lengths, default=0)

    def mask(self) -> tuple[Operand | None, tuple[int, ...]]:
        """The mask, and its shape as `(requests or 1, tokens, keys)`."""
        contract, value = self.contract, self.contract.value("atten_mask")
        if isinstance(value, np.ndarray) and value.dtype == np.bool_:
            value = value.view(np.uint8)
        mask, mode = contract.optional("atten_mask", value), contract.integer("sparse_mode")
        contract.require(
            0 <= mode <= 8,
            f"sparse_mode must be 0 to 8, not {mode}; choose one of these",
        )
        if mask is None:
            return None, ()
        if mode in STENCIL_MODES:
            require_stencil(contract, mask, mode)
            return mask, mask.shape
        tokens, keys = self.longest
        pair, requests = (tokens, keys), len(self.query_lengths)
        by_head = (requests, self.heads, *pair)
        contract.require(
            mask.shape != by_head or self.heads == 1,
            f"atten_mask must be the same for all heads, not {mask.shape}: one of each is not "
            f"simulated; pass (requests, 1, tokens, keys)",
            Code.UNSUPPORTED,
        )
        shapes = (pair,) if self.layout == "TND" else (pair, (1, 1, *pair), (requests, 1, *pair))
        contract.require_shape(mask, *shapes, remedy="pass a row of keys for each token")
        return mask, (mask.shape[0] if len(mask.shape) > 2 else 1, *pair)


def check(contract: ops.Contract) -> Problem:
    """Check that the kernel accepts a call; raises OpError."""
    asked = asked_of(contract)
    a, call = asked.attention, asked.call
    output, sums = shapes_of(call.query.shape, call.layout, call.heads, call.value_size)
    return Problem(
        inputs=asked.inputs,
        outputs={"output": TensorSpec(output, call.query.spec.dtype)}
        | {name: TensorSpec(sums, "float32") for name in a.sums},
        attention=a,
        choice=Choice("FIA", "keys of training are split as those of FIA"),
    )


class Asked(NamedTuple):
    """What a call asks for."""

    call: Call
    attention: Attention
    """The call in the form that the kernels take."""
    inputs: tuple[Operand, ...]


def asked_of(contract: ops.Contract) -> Asked:
    """What forward and backward have in common; raises OpError."""
    contract.require(
        contract.arguments.get("sink") is None,
        "sink must be None: a sink is not simulated in this kernel; leave it out",
        Code.UNSUPPORTED,
    )
    call = Call(contract)
    mask, mask_shape = call.mask()
    word = contract.value("softmax_layout")
    contract.require(
        isinstance(word, str) and word in {"", *["TND"] * (call.layout == "TND")},
        f"softmax_layout must be empty, or TND with input_layout TND, not {shown(word)} with "
        f"{call.layout}; leave it out",
    )
    ropes = _ropes(contract, call)
    a = _attention(call, mask_shape, by_token=word == "TND", has_rope=bool(ropes))
    pse, bias = bias_of(contract, a)
    dropout_mask, dropout = dropout_of(contract, a)
    check_slices(contract, a)
    a = replace(a, bias=bias, dropout=dropout, prefixes=prefixes_of(contract, a))
    lengths = zip(("query_lengths", "kv_lengths"), (a.query_lengths, a.kv_lengths), strict=True)
    inputs = ops.present(call.query, call.key, call.value, mask, *ropes, pse, dropout_mask)
    inputs += tuple(_lengths_operand(*each) for each in lengths if call.layout == "TND")
    return Asked(call, a, inputs)


def _ropes(contract: ops.Contract, call: Call) -> tuple[Operand, ...]:
    """The rotary parts of query and key, if they are separate."""
    names = [name for name in ROPES if name in contract.arguments]
    found = ops.present(*(contract.optional(name) for name in names))
    contract.require(
        len(found) != 1, "query_rope and key_rope must be given together, not one; pass both"
    )
    size, columns = ROPE_COLUMNS
    for rope, of in zip(found, (call.query, call.key), strict=False):
        contract.require(
            call.layout == "TND" and call.size == call.value_size == size,
            f"heads must have {size} columns in TND with query_rope, not {call.size} in "
            f"{call.layout}: others are not simulated; join the parts",
            Code.UNSUPPORTED,
        )
        contract.require_shape(rope, (*of.shape[:-1], columns), remedy="pass the rotated part")
    return found


def _attention(
    call: Call, mask_shape: tuple[int, ...], *, by_token: bool, has_rope: bool
) -> Attention:
    """The call in the form that the kernels take."""
    contract, has_mask = call.contract, bool(mask_shape)
    mode = contract.integer("sparse_mode") if has_mask else 0
    names = ("pre_tockens", "next_tockens")
    before, behind = (min(contract.integer(x), LARGEST_TOKENS) for x in names)
    if mode in (1, 2, 3, *PREFIX_MODES) or not has_mask:
        before = behind = LARGEST_TOKENS
    tokens, keys = call.longest
    return Attention(
        element=call.query.element,
        layout=call.layout,
        query_heads=call.heads,
        kv_heads=call.kv_heads,
        head_size=call.size,
        value_size=call.value_size,
        rope_size=ROPE_COLUMNS[1] if has_rope else 0,
        query_lengths=call.query_lengths,
        kv_lengths=call.kv_lengths,
        longest_query=tokens,
        longest_kv=keys,
        scale=float(contract.value("scale")),
        sparse_mode=mode,
        pre_tokens=before,
        next_tokens=behind,
        has_mask=has_mask,
        mask_shape=mask_shape,
        inner_precise=contract.integer("inner_precise"),
        returns_lse=False,
        paging=None,
        is_training=True,
        sums_by_token=by_token,
    )


def _lengths_operand(name: str, lengths: tuple[int, ...]) -> Operand:
    array = np.array(lengths, np.int64)
    return Operand(name, TensorSpec(array.shape, "int64"), array)


def tile(spec: DeviceSpec, p: Problem) -> fia.Plan:
    """Tiles of 1024 keys, and of rows for two vector cores; see :mod:`npusim.ops._attention`."""
    nbytes = sum(each.spec.nbytes for each in p.inputs if each.name in ("key", "value"))
    plan = fia.tile(spec, p.attention, "FIA", nbytes, p.choice.reason)
    return replace(plan, template=None, reason=None, streams_keys=False)


def oracle(given: ops.Given) -> tuple[Array, ...]:
    """The attention output of each token, and the maxima and sums of its scores."""
    return oracle_of(OPERATOR, given)


# ---- torch ----


def shapes_of(
    query: tuple[int, ...], layout: str, heads: int, columns: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the output and of maxima and sums."""
    width = heads * columns if layout[-1] == "H" else columns
    requests, tokens = LAYOUTS[layout]
    rows = (query[0], heads) if layout == "TND" else (query[requests], heads, query[tokens])
    return (*query[:-1], width), (*rows, SUM_COPIES)


def outputs(given: ops.TorchArguments, _: Sizes) -> tuple[Result, ...]:
    query, key, value, heads = (given[x] for x in ("query", "key", "value", "head_num"))
    # An unknown layout is refused when the operator runs.
    layout = given["input_layout"].upper()
    layout = layout if layout in LAYOUTS else "BSH"
    columns = value.shape[-1]
    if layout[-1] == "H":
        columns = columns * (query.shape[-1] // heads) // key.shape[-1]
    output, sums = shapes_of(query.shape, layout, heads, columns)
    return (output, query.dtype), (sums, "float32"), (sums, "float32")


def behind(given: ops.TorchArguments) -> tuple[Result | int, ...]:
    """softmax_out, which is empty; seed and offset, and the number of scores."""
    none = ((0,), given["query"].dtype)
    return none, given["seed"], given["offset"], score_count(given)


def score_count(given: ops.TorchArguments) -> int:
    """The number of scores of all heads."""
    query, key, heads = given["query"], given["key"], given["head_num"]
    layout = given["input_layout"].upper()
    requests, tokens = LAYOUTS.get(layout, (0, 1))
    count = query.shape[requests] * query.shape[tokens] * key.shape[tokens]
    if layout == "TND":
        lists = (given[name] or () for name in ("actual_seq_qlen", "actual_seq_kvlen"))
        lengths = ([end - start for start, end in pairwise((0, *each))] for each in lists)
        count = sum(a * b for a, b in zip(*lengths, strict=False))
    # Not int(): a compiler that traces symbolic sizes would fix them.
    found: int = heads * count
    return found


def aclnn(given: ops.TorchArguments) -> str:
    if given["actual_seq_qlen"] and given["actual_seq_kvlen"]:
        return "aclnnFlashAttentionVarLenScore" + ("V4" if given["softmax_layout"] else "")
    return "aclnnFlashAttentionScore"


RESULTS = "(Tensor, Tensor, Tensor, Tensor, int, int, int)"
TORCH = ops.TorchFunction(
    schema="npu_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, "
    "str input_layout, Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, "
    "float scale=1., float keep_prob=1., int pre_tockens=2147483647, "
    "int next_tockens=2147483647, int inner_precise=0, int[]? prefix=None, "
    "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, "
    'bool gen_mask_parallel=True, bool sync=False, str softmax_layout="", Tensor? sink=None, '
    f"Tensor? dropout_mask=None, int seed=0, int offset=0) -> {RESULTS}",
    aclnn=aclnn,
    outputs=outputs,
    behind=behind,
    gradient=ops.Gradient(
        "query, key, value, pse, sink: npu_fusion_attention_grad(query, key, value, grad, "
        "head_num, input_layout, pse, padding_mask, atten_mask, result1, result2, result3, "
        "result0, scale, keep_prob, pre_tockens, next_tockens, inner_precise, result4, result5, "
        "result6, prefix, actual_seq_qlen, actual_seq_kvlen, sparse_mode, gen_mask_parallel, "
        "sync, softmax_layout, sink)"
    ),
)

OPERATOR = ops.Operator(
    kernel_type="FlashAttentionScore",
    document=__doc__,
    support=support_of(),
    elsewhere="run it on Atlas A2 or A3",
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=at_once,
    torch=(TORCH,),
)
