"""Attention and feed-forward layers on separate cards, by addresses in a context."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pytest
from simulated_card import torch, torch_npu

TAKEN = 2**31 - 1
SESSIONS, BATCHES, TOKENS, EXPERTS = 2, 3, 2, 3


def context(**fields: Any) -> Any:
    """A context with values of 32 or 64 bits at places."""
    found = bytearray(1024)
    for name, value in fields.items():
        place = int(name.removeprefix("at_"))
        struct.pack_into("<Q" if place >= 256 and place not in (288, 576) else "<I", found, place,
                         value)  # fmt: skip
    return torch.frombuffer(found, dtype=torch.int8).npu()


def sizes(token_bytes: int) -> dict[str, int]:
    return {"at_0": SESSIONS, "at_4": BATCHES, "at_8": TOKENS, "at_12": EXPERTS,
            "at_20": token_bytes}  # fmt: skip


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float16, 0), (torch.bfloat16, 1)])
def test_results_of_experts_are_summed_with_their_scales(dtype: Any, kind: int) -> None:
    rng = np.random.default_rng(3)
    rows = torch.from_numpy(rng.normal(size=(BATCHES, TOKENS, EXPERTS, 48))).to(dtype)
    scales = torch.from_numpy(rng.random((TOKENS, EXPERTS - 1), np.float32))
    there, flags = rows.npu(), torch.ones(BATCHES, TOKENS, EXPERTS, dtype=torch.int32).npu()
    area = {"at_256": flags.data_ptr(), "at_272": there.data_ptr(), "at_288": 1}
    known = context(**sizes(0), **area)
    layer = torch.tensor([7], dtype=torch.int32).npu()
    call = torch_npu.npu_attention_worker_combine
    for schedule, batch in ((0, 1), (1, 2), (1, 0)):
        y, after = call(known, scales.npu(), layer, 48, token_dtype=kind, need_schedule=schedule)
        own = rows[batch].double()
        wanted = (own[:, :-1] * scales[..., None]).sum(1) + own[:, -1]
        torch.testing.assert_close(y.cpu().double(), wanted, rtol=1e-2, atol=1e-2)
        assert (y.dtype, after.tolist()) == (dtype, [8])
        assert flags[batch].sum().item() == (0 if schedule else flags[batch].numel())
    assert known[288:292].tolist() == [0] * 4
    call(known, scales.npu(), layer, 48, token_dtype=kind, need_schedule=1)
    message = (
        "npu_attention_worker_combine: the flags of all tokens must be set with need_schedule=1, "
        "6, not 0, for nothing else runs that would set them; set them before"
    )
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        call(known, scales.npu(), layer, 48, token_dtype=kind, need_schedule=1)


def test_tokens_of_a_micro_batch_are_sorted_by_expert() -> None:
    rng = np.random.default_rng(5)
    data = rng.integers(-128, 128, (SESSIONS, BATCHES, TOKENS, EXPERTS, 64)).astype(np.int8)
    info = rng.integers(0, 4, (SESSIONS, BATCHES, 2 + TOKENS * EXPERTS)).astype(np.int32)
    info[:, :, 0] = 1
    info[1, 2, 4] = 10**6
    chosen = info[:, 2, 2:].copy()
    places = [(int(chosen[s].reshape(TOKENS, EXPERTS)[t, e]), s, t, e)
              for s in range(SESSIONS) for t in range(TOKENS) for e in range(EXPERTS)]  # fmt: skip
    order = sorted(p for p in places if p[0] < 10**6)
    there, flags = torch.from_numpy(data).npu(), torch.from_numpy(info).npu()
    known = context(**sizes(64), at_384=flags.data_ptr(), at_400=there.data_ptr(), at_416=2)
    y, groups, sessions, batches, tokens, experts, scales, total = (
        torch_npu.npu_ffn_worker_batching(
            known, 5, [SESSIONS, TOKENS, EXPERTS, 60], token_dtype=2, need_schedule=1
        )
    )
    rows = np.array([data[s, 2, t, e] for _, s, t, e in order])
    n = len(order)
    assert n == 11 == total.item()
    assert y[:n].tolist() == rows[:, :60].tolist()
    assert scales[:n].cpu().numpy().tobytes() == rows[:, 60:].tobytes()
    found = torch.stack([sessions, tokens, experts], 1)[:n]
    assert found.tolist() == [[s, t, e] for _, s, t, e in order]
    assert batches[:n].tolist() == [2] * n
    counts = [[e, sum(p[0] == e for p in order)] for e in sorted({p[0] for p in order})]
    assert groups.tolist() == [*counts, *[[0, 0]] * (5 - len(counts))]
    assert (flags[:, 2, 2:] == TAKEN).all()
    assert known[416:424].tolist() == [0] * 8


def test_tokens_are_listed_without_a_schedule() -> None:
    data = torch.arange(SESSIONS * BATCHES * TOKENS * EXPERTS * 8, dtype=torch.float16)
    data = data.reshape(SESSIONS, BATCHES, TOKENS, EXPERTS, 8)
    chosen = torch.tensor([2, 0, 1, 1, 0, 2], dtype=torch.int32).npu()
    session, batch = (torch.tensor([x], dtype=torch.int32).npu() for x in (1, 2))
    there = data.npu()
    known = context(
        **sizes(16), at_400=there.data_ptr(), at_528=session.data_ptr(),
        at_544=batch.data_ptr(), at_560=chosen.data_ptr(), at_576=1,
    )  # fmt: skip
    y, groups, sessions, batches, *_ = torch_npu.npu_ffn_worker_batching(
        known, 3, [1, TOKENS, EXPERTS, 8]
    )
    own = data[1, 2].reshape(6, 8)
    assert y.tolist() == own[[1, 4, 2, 3, 0, 5]].tolist()
    assert groups.tolist() == [[0, 2], [1, 2], [2, 2]]
    assert (sessions.tolist(), batches.tolist()) == ([1] * 6, [2] * 6)
    message = (
        "npu_ffn_worker_batching: max_out_shape must have room for the tokens of all experts, 6 of "
        "3, not for 6 of 2; make it larger"
    )
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        torch_npu.npu_ffn_worker_batching(known, 2, [1, TOKENS, EXPERTS, 8])
    with pytest.raises(RuntimeError, match=re.escape(
        "npu_ffn_worker_batching: token_dtype must be 0, 1 or 2, expert_num and max_out_shape "
        "positive, not 3, 2 and [1, 2, 3, 8]; pass sizes of the context"
    )):  # fmt: skip
        torch_npu.npu_ffn_worker_batching(known, 2, [1, TOKENS, EXPERTS, 8], token_dtype=3)


def test_a_buffer_must_be_memory_of_a_tensor() -> None:
    there = torch.ones(TOKENS * EXPERTS * 8, dtype=torch.float16).npu()
    start = there.data_ptr()
    scales, layer = torch.ones(TOKENS, EXPERTS - 1).npu(), torch.ones(1, dtype=torch.int32).npu()
    call = torch_npu.npu_attention_worker_combine
    assert call(context(at_272=start), scales, layer, 8)[0].eq(EXPERTS).all()
    message = (
        f"npu_attention_worker_combine: token_data_buf must be the address of 96 bytes of a tensor "
        f"on npu, not {start + 2:#x}, where no tensor has them; keep the tensor while its address "
        f"is in use"
    )
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        call(context(at_272=start + 2), scales, layer, 8)
    with pytest.raises(RuntimeError, match=re.escape(
        "npu_attention_worker_combine: schedule_context must be int8 of shape (1024,), not "
        "torch.int8 of (512,); pass the bytes of a ScheduleContext"
    )):  # fmt: skip
        call(context()[:512], scales, layer, 8)
