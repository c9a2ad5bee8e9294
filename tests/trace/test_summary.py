"""A summary of a timeline: what is shown one by one, what is joined, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from chips import THREE
from played import CHAIN, LOAD, MUL, X, lane, trace

import npusim
from npusim import TensorSpec
from npusim.isa import Binary, Local
from npusim.kernel.program import Body, Call, Program
from npusim.trace import LaneTrace, Trace, summary
from npusim.trace.summary import Joined, Part, Summary, level_of


def repeated(times: int, *, cores: tuple[int, ...] = (0,), late: int = 0) -> LaneTrace:
    """A body of two micro-ops, called so many times: 10 cycles of a load, then 5 of mul, 5 idle."""
    body = Body((LOAD, MUL))
    program = Program("kernel", tuple(Call(body) for _ in range(times)))
    first = np.arange(times)[:, None] * 20 + late
    start, free, end = ((first + np.array(each)).ravel() for each in ([0, 10], [10, 15], [12, 18]))
    return LaneTrace(cores, "aiv", program, start, free, end, 0, 0)


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls joined up to four micro-ops, and cut where they have more than eight."""
    monkeypatch.setattr(summary, "LEAST_OPS", 4)
    monkeypatch.setattr(summary, "MOST_OPS", 8)


def test_the_slowest_is_shown_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    slow, fast = repeated(12, late=1), repeated(12, cores=(1, 2))
    found = Summary(Trace((fast, slow), 1_000_000), 36)

    # Of 36 spans 18 are micro-ops of the slowest core, six at each of three places. The others are
    # for 72 micro-ops of three cores on up to seven pipes: 2 x 7 x 72 / 36 = 28 are joined.
    assert found.parts(slow) == (
        *(Part(0, 6, 3, False), Part(6, 10, 2, True), Part(10, 16, 3, False)),
        *(Part(16, 18, 1, True), Part(18, 24, 3, False)),
    )
    assert found.parts(fast) == (Part(0, 24, 12, True),)
    none, some, *_ = found.joined(slow)
    assert none == []
    assert some == [
        Joined("vector", 2, 2, start=71, free=96, end=99, held=10, nbytes=0),
        Joined("mte2", 2, 2, start=61, free=91, end=93, held=20, nbytes=64),
    ]
    assert [each.text for each in found.joined(fast)[0]] == ["12 instructions (12 iterations)"] * 2


def test_a_call_without_repeats_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    add = Binary("add", X, X, Local("ub", 64, X.dtype, 8))
    slow = lane((0,), *((add, 10 * n, 10 * n + 4, 10 * n + 9) for n in range(20)))
    fast = lane((1,), *((add, 9 * n, 9 * n + 4, 9 * n + 9) for n in range(20)))
    found = Summary(trace(slow, fast), 280)

    assert found.parts(slow) == (Part(0, 20, 1, False),)
    assert found.parts(fast) == (Part(0, 6, 0, True), Part(6, 13, 0, True), Part(13, 20, 0, True))
    assert [each.text for spans in found.joined(fast) for each in spans] == [
        *("6 instructions", "7 instructions", "7 instructions")
    ]


def test_flags_and_barriers_are_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    monkeypatch.setattr(summary, "MOST_OPS", 20)
    other = lane((1,), *CHAIN)
    found = Summary(trace(lane((0,), *CHAIN, (MUL, 100, 110, 110)), other), 1000).joined(other)

    assert [
        [(one.pipe, one.micro_ops, one.held, one.nbytes) for one in spans] for spans in found
    ] == [[("vector", 1, 9, 0), ("mte2", 2, 19, 64), ("mte3", 1, 19, 32)]]


CALL = TensorSpec((1024, 1024), "int8"), TensorSpec((1024, 512), "int8"), TensorSpec((1,), "int64")


@pytest.mark.parametrize("device", THREE)
def test_nothing_is_lost(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "LEAST_OPS", 30)
    played = npusim.run("npu_quant_matmul", *CALL, device=device).trace
    assert played is not None
    found, shown = Summary(played, 300), 0
    for own in played.lanes:
        parts, joined = found.parts(own), found.joined(own)
        assert [part.first for part in parts] == [0, *(part.last for part in parts[:-1])]
        assert parts[-1].last == len(own.program)
        shown += sum(part.last - part.first for part in parts if not part.is_joined)
        for pipe, counter in own.counters().items():
            spans = [one for spans in joined for one in spans if one.pipe == pipe]
            rows = [
                number
                for part in parts
                for number in range(part.first, part.last)
                if not part.is_joined and own.ops[number].pipe == pipe
            ]
            plain = lane((0,), *((own.ops[n], own.start[n], own.free[n], own.end[n]) for n in rows))
            rest = plain.counters().get(pipe)
            assert sum(one.micro_ops for one in spans) + (rest.micro_ops if rest else 0) == (
                counter.micro_ops
            )
            assert sum(one.nbytes for one in spans) + (rest.nbytes if rest else 0) == counter.nbytes
            held = sum(one.held for one in spans) + plain.work_cycles().get(pipe, 0)
            assert held == own.work_cycles()[pipe]
    assert 0 < shown < played.micro_ops / 4


def test_a_level_follows_from_how_much_there_is() -> None:
    played = trace(lane((0, 1), *CHAIN))

    assert level_of(played, None, 20) == "full"
    assert level_of(played, None, 19) == "summary"
    assert level_of(played, "full", 19) == "full"
    assert level_of(played, "summary", 20) == "summary"
    with pytest.raises(ValueError) as error:
        level_of(played, "half", 20)  # type: ignore[arg-type]
    assert str(error.value) == (
        "trace: level must be one of full, summary, not 'half'; use one of these"
    )
