"""Attention and feed-forward layers on separate cards: what each does with tokens of the other.

The parameters point to a context of 1024 bytes, which has sizes and addresses of buffers on the
card, and is updated in place. The buffers must be memory of live tensors. Tokens of token_data_buf
are `(sessions, micro batches, tokens, experts)` for feed-forward, without sessions for attention.

Sources: ops-transformer@3a280bc, attention/attention_worker_combine and ffn/ffn_worker_batching,
documents and op_kernel; op-plugin@517f2e7 for the functions. That the order of equal experts is
that of their tokens is assumed. Rows behind the last token are not written on a card, and 0 here.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray

from npusim.torch.memory import memory

__all__ = ["attention_worker_combine", "ffn_worker_batching"]

CONTEXT = np.dtype({
    "names": [
        *("sessions", "micro_batches", "tokens", "experts", "token_bytes"),
        *("attention_info", "attention_data", "attention_micro_batch"),
        *("ffn_info", "ffn_data", "ffn_micro_batch", "session_ids", "micro_batch_ids"),
        *("expert_ids", "outputs"),
    ],
    "formats": [*["u4"] * 5, "u8", "u8", "u4", *["u8"] * 6, "u4"],
    "offsets": [0, 4, 8, 12, 20, 256, 272, 288, 384, 400, 416, 528, 544, 560, 576],
    "itemsize": 1024,
})  # fmt: skip
"""The fields of ScheduleContext that the kernels read (attention_worker_combine_common_utils.h,
ffn_wb_get_schedule_context.h)."""
NO_EXPERT = 1_000_000
"""Tokens of experts from here on are left out (ffn_wb_sort_base.h)."""
TAKEN = np.iinfo(np.int32).max
"""The expert of tokens that have been batched."""
FLAG_WORDS = 2
"""int32 before the experts of a session and micro batch: a flag and the layer."""
TYPES = (torch.float16, torch.bfloat16, torch.int8)
"""token_dtype -> the type of tokens."""


def attention_worker_combine(
    schedule_context: torch.Tensor,
    expert_scales: torch.Tensor,
    layer_id: torch.Tensor,
    hidden_size: int,
    *,
    token_dtype: int = 0,
    need_schedule: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the scaled results of all experts of each token.

    That of the shared expert, the last one, is not scaled. Sums are in float32, expert after
    expert. With *need_schedule* the next micro batch is taken, whose flags must be set, and they
    are reset.
    """
    function = "npu_attention_worker_combine"
    dtype = TYPES[1] if token_dtype == 1 else TYPES[0]
    tokens, experts = expert_scales.shape
    found = expert_scales.new_empty((tokens, hidden_size), dtype=dtype)
    if schedule_context.is_meta:
        return found, layer_id + 1
    context = _context(function, schedule_context)
    batch = int(context["attention_micro_batch"])
    shape = tokens, experts + 1
    if need_schedule:
        batch = (batch + 1) % int(context["micro_batches"])
        offset_bytes = 4 * batch * tokens * (experts + 1)
        flags = _words(function, "token_info_buf", context["attention_info"], offset_bytes, shape)
        _require_set(function, int(flags.sum()), flags.size)
        flags[...] = 0
        context["attention_micro_batch"] = batch
    nbytes = dtype.itemsize * tokens * (experts + 1) * hidden_size
    data = _bytes(function, "token_data_buf", context["attention_data"], batch * nbytes, nbytes)
    rows = torch.from_numpy(data).view(dtype).reshape(*shape, hidden_size)
    total = torch.zeros(tokens, hidden_size)
    for expert in range(experts):
        total += rows[:, expert].float() * expert_scales[:, expert, None]
    found.copy_(rows[:, experts].float() + total)
    return found, layer_id + 1


def ffn_worker_batching(
    schedule_context: torch.Tensor,
    expert_num: int,
    max_out_shape: list[int],
    *,
    token_dtype: int = 0,
    need_schedule: int = 0,
    layer_num: int = 0,  # noqa: ARG001
) -> tuple[torch.Tensor, ...]:
    """Sort the tokens of all sessions by expert.

    The results are the rows, the experts with their counts, where each row is from, the scales of
    int8, and the number of rows. With *need_schedule* the tokens are those of the micro batch that
    is next, whose flags must be set; their experts are then taken out of the buffer. *layer_num*
    only bounds *expert_num*.
    """
    function = "npu_ffn_worker_batching"
    if token_dtype not in range(len(TYPES)) or expert_num < 1 or min(max_out_shape) < 1:
        raise RuntimeError(
            f"{function}: token_dtype must be 0, 1 or 2, expert_num and max_out_shape positive, "
            f"not {token_dtype}, {expert_num} and {list(max_out_shape)}; pass sizes of the context"
        )
    dtype = TYPES[token_dtype]
    count, width = int(np.prod(max_out_shape[:3])), max_out_shape[3]
    new = schedule_context.new_zeros
    rows, groups = new((count, width), dtype=dtype), new((expert_num, 2), dtype=torch.int64)
    origins = [new(count, dtype=torch.int32) for _ in range(4)]
    scales, total = new(count, dtype=torch.float32), new(1, dtype=torch.int64)
    if schedule_context.is_meta:
        return rows, groups, *origins, scales, total
    context = _context(function, schedule_context)
    sizes = [int(context[name]) for name in ("sessions", "micro_batches", "tokens", "experts")]
    chosen, places = (_scanned if need_schedule else _listed)(function, context, sizes)
    taken = np.flatnonzero(chosen < NO_EXPERT)
    order = taken[np.argsort(chosen[taken], kind="stable")]
    found, counts = np.unique(chosen[order], return_counts=True)
    if order.size > count or found.size > expert_num:
        raise RuntimeError(
            f"{function}: max_out_shape must have room for the tokens of all experts, "
            f"{order.size} of {found.size}, not for {count} of {expert_num}; make it larger"
        )
    for into, values in zip(origins, places, strict=True):
        into[: order.size] = torch.from_numpy(values[order])
    token_bytes = int(context["token_bytes"])
    nbytes = int(np.prod(sizes)) * token_bytes
    data = _bytes(function, "token_data_buf", context["ffn_data"], 0, nbytes)
    whole = data.reshape(*sizes, token_bytes)[tuple(values[order] for values in places)]
    row_bytes = dtype.itemsize * width
    rows[: order.size] = torch.from_numpy(whole[:, :row_bytes].copy()).view(dtype)
    if dtype is torch.int8:
        # The scale follows the elements.
        behind = whole[:, row_bytes : row_bytes + scales.itemsize].copy()
        scales[: order.size] = torch.from_numpy(behind).view(torch.float32)[:, 0]
    groups[: found.size] = torch.from_numpy(np.stack([found, counts], 1).astype(np.int64))
    total[0] = order.size
    return rows, groups, *origins, scales, total


Words = NDArray[np.int32]


def _scanned(function: str, context: np.void, sizes: list[int]) -> tuple[Words, list[Words]]:
    """The expert and the origin of all tokens of the current micro batch; advances it."""
    sessions, micro_batches, tokens, experts = sizes
    batch = int(context["ffn_micro_batch"])
    shape = sessions, micro_batches, FLAG_WORDS + tokens * experts
    info = _words(function, "token_info_buf", context["ffn_info"], 0, shape)[:, batch]
    _require_set(function, int(info[:, 0].sum()), sessions)
    chosen = info[:, FLAG_WORDS:].copy()
    info[:, FLAG_WORDS:] = TAKEN
    context["ffn_micro_batch"] = (batch + 1) % micro_batches
    session, token, expert = _places(sessions, tokens, experts)
    return chosen.reshape(-1), [session, np.full_like(session, batch), token, expert]


def _listed(function: str, context: np.void, sizes: list[int]) -> tuple[Words, list[Words]]:
    """The same of tokens whose experts, sessions and micro batches are listed."""
    _, _, tokens, experts = sizes
    outputs = int(context["outputs"])
    size = outputs * tokens * experts
    chosen = _words(function, "expert_ids_buf", context["expert_ids"], 0, (size,))
    place, token, expert = _places(outputs, tokens, experts)
    session, batch = (
        _words(function, f"{name}_buf", context[name], 0, (outputs,))[place]
        for name in ("session_ids", "micro_batch_ids")
    )
    return chosen, [session, batch, token, expert]


def _places(*sizes: int) -> Words:
    """The indices of all elements along each axis, `(axes, elements)`."""
    return np.indices(sizes, np.int32).reshape(len(sizes), -1)


def _context(function: str, tensor: torch.Tensor) -> np.void:
    """The fields of the context, which share its memory."""
    if tensor.dtype != torch.int8 or tensor.shape != (CONTEXT.itemsize,):
        raise RuntimeError(
            f"{function}: schedule_context must be int8 of shape ({CONTEXT.itemsize},), not "
            f"{tensor.dtype} of {tuple(tensor.shape)}; pass the bytes of a ScheduleContext"
        )
    fields: np.void = tensor.numpy().view(CONTEXT)[0]
    return fields


def _bytes(
    function: str, name: str, start: np.uint64, offset_bytes: int, nbytes: int
) -> NDArray[np.uint8]:
    """*nbytes* of the buffer at address *start*, from *offset_bytes* on."""
    first = int(start) + offset_bytes
    if not memory.has(first, nbytes):
        raise RuntimeError(
            f"{function}: {name} must be the address of {offset_bytes + nbytes} bytes of a tensor "
            f"on npu, not {int(start):#x}, where no tensor has them; keep the tensor while its "
            f"address is in use"
        )
    buffer = (ctypes.c_uint8 * nbytes).from_address(first)
    return np.ctypeslib.as_array(buffer)


def _words(
    function: str, name: str, start: np.uint64, offset_bytes: int, shape: tuple[int, ...]
) -> Words:
    """A buffer of int32 with *shape*."""
    nbytes = 4 * int(np.prod(shape))
    return _bytes(function, name, start, offset_bytes, nbytes).view(np.int32).reshape(shape)


def _require_set(function: str, flags: int, wanted: int) -> None:
    """Raise RuntimeError unless all flags are set, for which a card would wait forever."""
    if flags != wanted:
        raise RuntimeError(
            f"{function}: the flags of all tokens must be set with need_schedule=1, {wanted}, not "
            f"{flags}, for nothing else runs that would set them; set them before"
        )
