"""Convert a measured row to the call that is timed in its place.

Properties that the rows leave open are decided here:

* If a row says warm, the L2 holds what an earlier run of the same call left there. If it says
  flushed, the kernel alternates with one that reads as much as the L2 holds:
  `npusim.validation.turns`. If it says that weights are cold and activations warm, the L2 holds the
  activations. The same applies if a row only says that weights are cold: such rows come from a
  benchmark that replays a graph over six copies of the weights in turn, whose activations stay. The
  L2 holds what remains of a copy of the weights when its turn comes: all of it if six copies are
  clearly smaller than the L2, half if they are as large. If a row does not say, or says it in its
  notes, the L2 is cold. Copies in a served model find what other kernels left: with a cold L2 they
  take its minimum times, with a dirty one the medians.
* A row of several batches has them in both operands. The first operand is stored as `[K, M]` if the
  note says so.
* A weight is stored as `[N, K]` or `[K, N]` according to the note; without one as `[K, N]`, except
  for two families: bf16 products of that benchmark use the weight of a linear layer, which torch
  stores as `[N, K]`, and the fractals of the 310P kernel of npu_weight_quant_batchmatmul are those
  of `[N, K]`.
* npu_quant_matmul with fp16 output, without scales per token, gets its fp32 scale through
  npu_trans_quant_param, whose time is not in the row: the kernel takes int64.
* A bias has the last dtype that the note lists. A bias of unknown dtype is left out, and so is an
  offset.
* AddRmsNormBias, of vllm-ascend, is timed as npu_add_rms_norm: without a bias its kernels are
  copies of that kernel, and bf16 rows of 6144 have the same tiling.
* The times of two operators add; the gap between their kernels, which some rows include, is not
  simulated.
* npu_dynamic_quant of the sources ROW_BY_ROW runs the template base (inferred): they have CANN 8,
  whose release seems to lack the templates single_row and multi_row. In their traces of Atlas A3,
  6, 9 and 27 rows take 4.3, 5.2 and 9.0 us for any length, as if each row started a core, and 4096
  rows of 768 take 33 us; the present rules give one core for 6 or 9 rows of 512, and 18 us. In
  their table of linear layers 16384 rows of 256 and 512 take 93 and 101 us more than 1024 rows, of
  which the product with 256 columns takes 21 and 24: 0.22 and 0.24 us per row of a core, as in a
  kernel that works row by row. Which of the two such templates it is, base or db, is open: base is
  nearer to most rows. Rows that are too long for it run the template that the rules choose.
* npu_dequant_swiglu_quant is dynamic, without groups: the harness of its rows says so.
* Layers of experts are timed as the products with both weights and the swiglu between them, in int8
  with npu_dynamic_quant before each product, which returns bfloat16 (inferred): the table has the
  shapes of the first weight and of the result, and from four rows per expert on its times are those
  of reading both weights from memory once, at 1.3 to 1.4 TB/s. Each token goes to some experts; the
  experts of this card get their share of the rows, assigned at random by numpy's generator with
  seed 0, since a group slightly larger than a block takes one more block. If some experts are
  expected to get no row, the time depends on the number of drawn experts, whose weights are read:
  for one token it is given; for several it is assumed to be the expected number if each token draws
  at random, with a standard deviation of at most OPEN; rows of fewer draws are not modelled.
* npu_fused_infer_attention_score is causal, in TND; keys are in pages if the note says so, those of
  a request in consecutive blocks. Its tensors are the same in each replay: the L2 holds what
  remains of query, keys and values after all other tensors were used.
* The same holds for latent keys, in pages for decode, by npu_fused_infer_attention_score_v2.
* In CANN_8_5 bf16 heads that share no keys run FIA: there FAI accepts such heads only in fp16,
  without a mask (cannmirror/ops-transformer@05c401f fused_infer_attention_score_tiling.cpp,
  IsUsingFAI). Their times confirm it: 67 MB of keys take 79 to 83 us, 134 MB 104 to 106, for any
  number of requests and heads, while FAI splits by whole requests and heads.
* Other operators are called as text: `npusim.validation.words`.
* The instruction caches hold a kernel that is run repeatedly, but not one of two that alternate,
  nor one in the trace of a model.

If a benchmark measured its host instead of a short kernel, any time from that of a larger product
on counts as exact: `npusim.validation.rows.HOST_US`.

Rows that were measured with kernels other than the vendor's library, OTHER_KERNELS, are compared
with the library's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from npusim import devices, ops
from npusim.chip import L2State
from npusim.data.arguments import Arguments
from npusim.data.dtypes import Array
from npusim.data.integers import ceil_div
from npusim.data.tensor import TensorSpec
from npusim.micro import time
from npusim.micro.published import find
from npusim.ops._attention.problem import MASK_EXTENT
from npusim.ops._dynamic_quant.choice import UB_BYTES, Traits, chosen
from npusim.timing.memory import WHOLE, resident_share
from npusim.validation.columns import (
    TRACED,
    batches,
    bias_dtype,
    icache_of,
    l2_of,
    rows_of,
    shapes,
    size,
    sizes,
    weight_of,
)
from npusim.validation.routing import Draw
from npusim.validation.rows import Row, RowError
from npusim.validation.timed import Call, NotModelledError, Timed
from npusim.validation.words import call_of, options_of

__all__ = ["KERNELS", "OTHER_KERNELS", "timed"]

CANN_8_5 = "systems/data/ascend_910b/vllm-ascend/0.18.0"
"""The part of hudingyi688/aiconfigurator-npu with the kernels of an earlier release."""
ROW_BY_ROW = (TRACED, CANN_8_5)
"""Parts of it with an earlier npu_dynamic_quant."""
OTHER_KERNELS = ("matmul_pto_a3", "qmm_catlass_910b1")
"""Families that were measured with kernels written by their sources."""

QUANTISED = "npu_dynamic_quant + npu_grouped_matmul"
"""One half of a layer of experts in int8."""
OPEN = 0.15
"""The largest relative uncertainty of the number of experts that few tokens draw: half of all times
may be wrong by as much."""
PAGE = 128
"""Keys per block of the KV cache."""


@dataclass(frozen=True, slots=True)
class Published:
    """A kernel of `npusim.micro.published`, by the id of its row."""

    id: str
    device: str

    def time_us(self) -> float:
        """Task Duration."""
        found = find(self.id)
        assert found is not None
        table, row = found
        spec = devices.load(self.device)
        kernel = row.write(spec)
        return table.time_us(row, kernel, spec, time(kernel, spec, table.l2))


def timed(row: Row) -> tuple[Timed, ...]:
    """The kernels that *row* measured, in order.

    Raises NotModelledError, and RowError if a cell that its operator needs is empty or wrong.
    """
    if row.op.startswith("micro: ") and find(row.id):
        return (Published(row.id, row.device),)
    kernels = KERNELS.get(row.op, _in_words if row.op in ops.names() else None)
    if kernels is None:
        reasons = (reason for start, reason in ABSENT.items() if row.op.startswith(start))
        raise NotModelledError(next(reasons, f"npusim has no {row.op}"))
    for op in row.op.split(" + "):
        if op.startswith("npu_") and op not in ops.names():
            raise NotModelledError(f"npusim has no {op}")
    try:
        return kernels(row)
    except (RowError, NotModelledError):
        raise
    except ValueError as error:
        raise RowError(f"validate: row {row.id}: {error}") from None


# ---- operators ----


def _matmul(row: Row) -> tuple[Timed, ...]:
    m, k, n = sizes(row)
    weight = weight_of(row, row.x_dtype)
    x = rows_of(row, "k", row.x_dtype)
    if "[K,M]" in row.note:
        x = TensorSpec((*batches(row), k, m), row.x_dtype).T
    options: Arguments = options_of(row) if row.variant.startswith("template") else {}
    if row.bias:
        options["bias"] = TensorSpec((n,), bias_dtype(row))
    l2 = l2_of(row, weight, "x2", "x1")
    return (Call("matmul", (x, weight), row.device, l2, icache_of(row), options),)


def _quant_matmul(row: Row) -> tuple[Timed, ...]:
    m, _, n = sizes(row)
    weight = weight_of(row, "int8")
    scale = row.scale_dtype or "float32"
    if scale == "float32" and row.out_dtype == "float16" and not row.pertoken:
        scale = "int64"
    options: Arguments = {"output_dtype": row.out_dtype}
    names = ["x2", "x1"]
    if row.pertoken:
        options["pertoken_scale"] = TensorSpec((m,), "float32")
        names.append("pertoken_scale")
    if row.bias:
        options["bias"] = TensorSpec((n,), bias_dtype(row))
    args = rows_of(row, "k", "int8"), weight, TensorSpec((n,), scale)
    return (
        Call(
            "npu_quant_matmul",
            args,
            row.device,
            l2_of(row, weight, *names),
            icache_of(row),
            options,
        ),
    )


def _grouped_matmul(row: Row) -> tuple[Timed, ...]:
    """A product of rows in groups, whose ends are in the column shape."""
    m, _, n = sizes(row)
    experts = size(row, "b")
    word, *ends = row.shape.split() or [""]
    if word != "ends" or len(ends) != experts or not all(map(str.isdigit, ends)):
        raise RowError(
            f"validate: row {row.id}: shape must be ends and where each of {experts} groups ends "
            f"for {row.op}, not {row.shape!r}; fix the cell"
        )
    options: Arguments = {"group_list": np.array(list(map(int, ends)), np.int64)}
    options |= {"group_type": 0, "split_item": 3}
    named = options_of(row)
    if "tuning" in named:
        options["tuning_config"] = [named["tuning"]]
    options["act_type"] = named.get("activation", 0)
    if row.bias:
        kind = "float32" if row.x_dtype == "bfloat16" else row.x_dtype
        options["bias"] = TensorSpec((experts, n), kind)
    if row.scale_dtype:
        options |= {"scale": TensorSpec((experts, n), row.scale_dtype)}
        options |= {"output_dtype": row.out_dtype}
    if row.pertoken:
        options["per_token_scale"] = TensorSpec((m,), "float32")
    weight = weight_of(row, row.x_dtype)
    args = TensorSpec((m, size(row, "k")), row.x_dtype), weight
    return (
        Call(row.op, args, row.device, l2_of(row, weight, "weight", "x"), icache_of(row), options),
    )


def _experts(row: Row) -> tuple[Timed, ...]:
    """The products with both weights of each expert, and the swiglu between them."""
    m, hidden, inner = sizes(row)
    experts = size(row, "b")
    shares = _shares(row, m, experts)
    is_int8 = row.x_dtype == "int8"

    def of_rows(op: str, columns: int) -> Call:
        x = TensorSpec((m, columns), row.out_dtype)
        return Call(op, (x,), row.device, "repeat", icache_of(row))

    def product(k: int, n: int) -> Iterator[Call]:
        if is_int8:
            yield of_rows("npu_dynamic_quant", k)
        options: Arguments = {"group_list": shares, "group_list_type": 1}
        options |= {"group_type": 0, "split_item": 3}
        if is_int8:
            options |= {"scale": TensorSpec((experts, n), row.scale_dtype)}
            options |= {"per_token_scale": TensorSpec((m,), "float32")}
            options |= {"output_dtype": row.out_dtype}
        weight = TensorSpec((experts, n, k), row.x_dtype).T
        args = TensorSpec((m, k), row.x_dtype), weight
        yield Call("npu_grouped_matmul", args, row.device, ("x",), icache_of(row), options)

    return *product(hidden, 2 * inner), of_rows("npu_swiglu", 2 * inner), *product(inner, hidden)


def _shares(row: Row, m: int, experts: int) -> Array:
    """The number of the *m* rows that each of *experts* gets `(experts,)`."""
    draw = Draw.read(row.note)
    known = draw if draw is not None and draw.here == experts else None
    if m > experts and not (known and round(known.mean) < experts):
        return np.random.default_rng(0).multinomial(m, [1 / experts] * experts)
    if known is None:
        raise NotModelledError("which experts so few rows went to is not known")
    if known.spread > OPEN:
        raise NotModelledError(
            f"which experts so few rows went to is not known, and how many differs by "
            f"{known.spread:.0%} from draw to draw"
        )
    return known.rows(m)


def _weight_quant_matmul(row: Row) -> tuple[Timed, ...]:
    n = size(row, "n")
    weight = weight_of(row, "int8")
    channel = TensorSpec((n,), row.scale_dtype or row.x_dtype)
    options: Arguments = {}
    if row.antiquant_offset:
        options["antiquant_offset"] = channel
    if row.bias:
        options["bias"] = TensorSpec((n,), bias_dtype(row))
    args = rows_of(row, "k", row.x_dtype), weight, channel
    return (
        Call(row.op, args, row.device, l2_of(row, weight, "weight", "x"), icache_of(row), options),
    )


def _quantize(row: Row) -> tuple[Timed, ...]:
    channel = TensorSpec((size(row, "n"),), row.x_dtype)
    x = rows_of(row, "n", row.x_dtype)
    return (
        Call(
            row.op,
            (x, channel, channel, "qint8", -1, False),
            row.device,
            l2_of(row),
            icache_of(row),
        ),
    )


def _dynamic_quant(row: Row, columns: str = "n") -> tuple[Timed, ...]:
    x = rows_of(row, columns, row.x_dtype)
    is_earlier = any(source in row.source for source in ROW_BY_ROW)
    traits = Traits(rows=1, columns=x.shape[-1], ub_bytes=UB_BYTES)
    is_base = is_earlier and chosen(traits, "base").fits
    options = {"template": "base"} if is_base else {}
    return (Call("npu_dynamic_quant", (x,), row.device, l2_of(row), icache_of(row), options),)


def _norm(row: Row) -> tuple[Timed, ...]:
    x, gamma = rows_of(row, "n", row.x_dtype), TensorSpec((size(row, "n"),), row.x_dtype)
    added = (x,) if row.op == "npu_rms_norm" else (x, x)
    return (Call(row.op, (*added, gamma), row.device, l2_of(row), icache_of(row)),)


def _dynamic_quant_matmul(row: Row) -> tuple[Timed, ...]:
    return (*_dynamic_quant(row, "k"), *_quant_matmul(row))


def _dequant_swiglu_quant(row: Row) -> tuple[Timed, ...]:
    """x; for int32 its scales per column and per row; scales of y, if there are more shapes."""
    shape, *more = shapes(row)
    dtype, *_ = row.x_dtype.split("/")
    names = ("weight_scale", "activation_scale") if dtype == "int32" else ()
    given = dict(zip((*names, "quant_scale"), more, strict=False))
    options: Arguments = {name: TensorSpec(shape, "float32") for name, shape in given.items()}
    x = TensorSpec(shape, dtype)
    return (
        Call(row.op, (x,), row.device, l2_of(row), icache_of(row), options | {"quant_mode": 1}),
    )


def _attention(row: Row) -> tuple[Timed, ...]:
    """b requests of m query tokens and k keys each; shape has heads and columns of q and of k, and
    those of the rotary part, if it is stored separately.
    """
    (heads, width), (kv_heads, _), *rotated = shapes(row)
    requests, tokens, keys = size(row, "b"), size(row, "m"), size(row, "k")
    query = TensorSpec((requests * tokens, heads, width), row.x_dtype)
    options: Arguments = {
        "atten_mask": TensorSpec((MASK_EXTENT, MASK_EXTENT), "int8"),
        "actual_seq_lengths": [tokens * number for number in range(1, requests + 1)],
        "actual_seq_lengths_kv": [keys * number for number in range(1, requests + 1)],
        "num_heads": heads,
        "num_key_value_heads": kv_heads,
        "scale": width**-0.5,
        "input_layout": "TND",
        "sparse_mode": 3,
    }
    kv = TensorSpec((requests * keys, kv_heads, width), row.x_dtype)
    if "pages" in row.note:
        blocks = ceil_div(keys, PAGE)
        kv = TensorSpec((requests * blocks, PAGE, kv_heads * width), row.x_dtype)
        options["block_table"] = TensorSpec((requests, blocks), "int32")
        options |= {"block_size": PAGE, "actual_seq_lengths_kv": [keys] * requests}
    for _, columns in rotated:
        options["query_rope"] = TensorSpec((requests * tokens, heads, columns), row.x_dtype)
        options["key_rope"] = TensorSpec((requests * keys, kv_heads, columns), row.x_dtype)
    if CANN_8_5 in row.source and heads == kv_heads and row.x_dtype == "bfloat16" and not rotated:
        options["template"] = "FIA"
    return (_replayed(row, (query, kv, kv), options),)


def _latent_attention(row: Row) -> tuple[Timed, ...]:
    """b requests of one query token and k keys each, in pages; shape has heads and columns of the
    latent part of q and of k, and those of the rotary part.
    """
    (heads, width), (kv_heads, _), (_, columns) = shapes(row)
    requests, keys = size(row, "b"), size(row, "k")
    blocks = ceil_div(keys, PAGE)
    parts = (width, columns)
    query, query_rope = (TensorSpec((requests, heads, 1, each), row.x_dtype) for each in parts)
    kv, key_rope = (
        TensorSpec((requests * blocks, kv_heads, PAGE, each), row.x_dtype) for each in parts
    )
    options: Arguments = {
        "query_rope": query_rope,
        "key_rope": key_rope,
        "block_table": TensorSpec((requests, blocks), "int32"),
        "actual_seq_kvlen": [keys] * requests,
        "num_query_heads": heads,
        "num_key_value_heads": kv_heads,
        "softmax_scale": sum(parts) ** -0.5,
        "input_layout": "BNSD_NBSD",
        "block_size": PAGE,
    }
    return (_replayed(row, (query, kv, kv), options),)


def _replayed(row: Row, args: tuple[TensorSpec, ...], options: Arguments) -> Call:
    """An attention with the same tensors in each replay: all are used between two uses of one."""
    ropes = {name: options[name] for name in ("query_rope", "key_rope") if name in options}
    named = dict(zip(("query", "key", "value"), args, strict=True)) | ropes
    touched = 2 * sum(each.nbytes for each in (*args[:2], *ropes.values()))
    share = resident_share(touched, devices.load(row.device))
    l2: L2State = "repeat" if share == WHOLE else dict.fromkeys(named, share / WHOLE)
    return Call(row.op, args, row.device, l2, icache_of(row), options)


def _in_words(row: Row) -> tuple[Timed, ...]:
    if row.op == "maximum" and row.x_dtype.startswith("int64"):
        raise NotModelledError("how the vendor compares int64 is closed")
    if row.op == "cast" and not row.variant:
        row = replace(row, variant="dtype float32")
    return (call_of(row),)


KERNELS: dict[str, Callable[[Row], tuple[Timed, ...]]] = {
    "matmul": _matmul,
    "npu_quant_matmul": _quant_matmul,
    "npu_grouped_matmul": _grouped_matmul,
    "npu_grouped_matmul + npu_swiglu + npu_grouped_matmul": _experts,
    f"{QUANTISED} + npu_swiglu + {QUANTISED}": _experts,
    "npu_weight_quant_batchmatmul": _weight_quant_matmul,
    "npu_quantize": _quantize,
    "npu_dynamic_quant": _dynamic_quant,
    "npu_dequant_swiglu_quant": _dequant_swiglu_quant,
    "npu_dynamic_quant + npu_quant_matmul": _dynamic_quant_matmul,
    "npu_rms_norm": _norm,
    "npu_add_rms_norm": _norm,
    "npu_add_rms_norm_dynamic_quant": _norm,
    "npu_fused_infer_attention_score": _attention,
    "npu_fused_infer_attention_score_v2": _latent_attention,
}
"""The op of a row -> the work that is timed for it; other operators are called as text.

A kernel that is not an operator of torch_npu belongs here too: it can be anything Timed, and a
variant that is not simulated raises NotModelledError.
"""

ABSENT = {
    "micro: ": "a kernel of the vendor's guide that is not simulated, or not by that name",
    "as noted: ": "mentioned in passing, as a sum or for a shape that is not exact",
}
"""The prefix of the op of a row -> the reason why it is not in KERNELS."""
