"""Random programs of vector and cube cores, and an oracle that says what is wrong with each.

``random_program(seed)`` writes a launch of one to three cores for ``DEVICE``: copies with and
without gaps, vector and scalar micro-ops, calls, aliases, flags inside a core and between cores.
Where micro-ops clash it orders them, one way or another, and then it may spoil the result.
``faults(program)`` is the oracle: a graph of the moments at which micro-ops begin and end, its
transitive closure, and sets of single bytes. It shares no code with ``npusim.check``.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8, DType
from npusim.devices.schema import Pipe
from npusim.isa import (
    Barrier,
    Binary,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    Cast,
    Copy,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    Duplicate,
    Fold,
    Global,
    Load,
    Local,
    MicroOp,
    Reduce,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
    SetFlag,
    Store,
    WaitFlag,
    WholeReduce,
    registers_read,
    registers_set,
)
from npusim.kernel.program import Binding, Block, Body, Call, Program

__all__ = ["DEVICE", "OUTPUTS", "TENSORS", "Fault", "RandomProgram", "faults", "random_program"]

DEVICE = "ascend910b2"
TENSORS = {"x": 4096, "y": 4096, "ws": 1024}
"""Tensor -> its bytes: an input, an output, and a workspace that all cores know by two names."""
OUTPUTS = {"y": TENSORS["y"]}
"""What ``chip.verify`` is to look at for bytes that nobody wrote."""
BINDINGS = {"x": Binding("x"), "y": Binding("y"), "w": Binding("ws", 64), "v": Binding("ws", 128)}
Fault = Literal["race", "deadlock", "flag", "unwritten"]
"""What is wrong: accesses that nothing orders, a wait without end, a flag left over, set twice in a
core or too often between cores, and unwritten bytes that reach global memory."""


@dataclass(frozen=True)
class RandomProgram:
    """A launch, what was done to spoil it, and the seed that gives it again."""

    seed: int
    blocks: tuple[Block, ...]
    spoiled: str

    def __str__(self) -> str:
        texts = [f"seed {self.seed}, {self.spoiled}"]
        for block in self.blocks:
            rows = (f"  #{i} {op.pipe}: {op}" for i, op in enumerate(block.program.ops))
            texts.append(f"core {block.core} {block.kind}\n" + "\n".join(rows))
        return "\n".join(texts)


# ---- the oracle: which bytes ----

Bytes = frozenset[int]
Touch = tuple[str, Bytes, bool]
"""Buffer or tensor, the bytes touched, whether they are written."""


def _pieces(first: int, nbytes: int, count: int, step: int) -> Bytes:
    starts = (first + step * i for i in range(count))
    return frozenset(byte for start in starts for byte in range(start, start + nbytes))


def elements(local: Local) -> list[Bytes]:
    """The bytes of each element of *local*, in order."""
    size = local.dtype.bits // 8
    found = []
    for i in range(local.count):
        at = i * size
        if local.is_strided:
            block, inside = divmod(at, 32)
            repeat, lane = divmod(block, local.repeat_blocks)
            at = 32 * (repeat * local.repeat_stride + lane * local.block_stride) + inside
        found.append(frozenset(range(local.offset_bytes + at, local.offset_bytes + at + size)))
    return found


def _all(local: Local) -> Bytes:
    return frozenset[int]().union(*elements(local))


def _loop_bytes(local: Local, step: int, count: int) -> Bytes:
    return _pieces(local.offset_bytes, local.dtype.bits // 8, count, step)


def touches(op: MicroOp, bindings: dict[str, Binding]) -> list[Touch]:
    """All bytes that *op* touches."""

    def far(place: Global, is_write: bool) -> Touch:
        bound = bindings[place.name]
        first = bound.base_bytes + place.offset_bytes
        data = _pieces(first, place.burst_bytes, place.bursts, place.stride_bytes)
        return f"gm {bound.tensor}", data, is_write

    match op:
        case Load(dst, src, pitch):
            padded = -(-src.burst_bytes // 32) * 32
            into = _pieces(dst.offset_bytes, padded, src.bursts, pitch)
            return [far(src, False), (dst.buffer, into, True)]
        case Store(dst, src, pitch):
            out = _pieces(src.offset_bytes, dst.burst_bytes, dst.bursts, pitch)
            return [(src.buffer, out, False), far(dst, True)]
        case Duplicate():
            return [("ub", _all(op.dst), True)]
        case Binary():
            return [("ub", _all(x), False) for x in (op.a, op.b)] + [("ub", _all(op.dst), True)]
        case BinaryScalar():
            return [("ub", _all(op.a), False), ("ub", _all(op.dst), True)]
        case Fold():
            both = _all(op.src) | _all(op.dst)
            return [("ub", both, False), ("ub", _all(op.dst), True)]
        case Cast() | Copy() | Broadcast() | BlockReduce() | Reduce() | WholeReduce():
            return [("ub", _all(op.src), False), ("ub", _all(op.dst), True)]
        case ScalarLoad():
            return [("ub", _all(op.src), False)]
        case ScalarStore():
            return [("ub", _all(op.dst), True)]
        case ScalarLoop():
            found = []
            for part in op.body:
                if isinstance(part, ScalarLoad):
                    swept = _loop_bytes(part.src, part.step_bytes, op.count)
                    found.append(("ub", swept, False))
                if isinstance(part, ScalarStore):
                    swept = _loop_bytes(part.dst, part.step_bytes, op.count)
                    found.append(("ub", swept, True))
            return found
        case _:
            return []


# ---- the oracle: what comes before what ----

Node = tuple[int, int, str]
"""Core, micro-op, moment: it begins, has read and lets its pipe go on, or is over."""
WAITS = WaitFlag | CrossCoreWaitFlag | Barrier


def _edges(cores: list[tuple[Block, tuple[MicroOp, ...]]], is_alone: bool) -> dict[Node, set[Node]]:
    """What each moment must wait for; a wait that is never answered waits for itself.

    A core that is looked at alone does not wait for others.
    """
    before: dict[Node, set[Node]] = {}
    for core, (_, ops) in enumerate(cores):
        for i, op in enumerate(ops):
            begins, reads, ends = ((core, i, moment) for moment in ("begin", "read", "end"))
            before |= {begins: set(), reads: {begins}, ends: {reads}}
            for j, other in enumerate(ops[:i]):
                if other.pipe == "scalar":
                    before[begins].add((core, j, "read"))
                is_same = other.pipe == op.pipe
                if is_same and op.pipe not in ("vector", "scalar"):
                    before[begins].add((core, j, "end"))
                if is_same and op.pipe == "vector":
                    before[begins].add((core, j, "read" if isinstance(other, WAITS) else "begin"))
                if is_same and isinstance(op, SetFlag | CrossCoreSetFlag):
                    before[ends].add((core, j, "end"))
                if isinstance(op, Barrier) and op.on in (None, other.pipe):
                    before[reads].add((core, j, "end"))
    _flag_edges(cores, before, is_alone)
    return before


def _receives(mine: Block, op: CrossCoreWaitFlag | CrossCoreSetFlag, other: Block) -> bool:
    if op.mode == "all":
        return mine.kind == other.kind
    return mine.kind != other.kind and mine.group == other.group


def _flag_edges(
    cores: list[tuple[Block, tuple[MicroOp, ...]]], before: dict[Node, set[Node]], is_alone: bool
) -> None:
    sets: dict[object, list[int]] = defaultdict(list)
    for core, (_, ops) in enumerate(cores):
        for i, op in enumerate(ops):
            if isinstance(op, SetFlag | CrossCoreSetFlag):
                sets[core, _name(op)].append(i)
    for core, (block, ops) in enumerate(cores):
        turns: dict[object, int] = defaultdict(int)
        for i, op in enumerate(ops):
            if not isinstance(op, WaitFlag | CrossCoreWaitFlag):
                continue
            turn = turns[_name(op)]
            turns[_name(op)] += 1
            sources = [core]
            if isinstance(op, CrossCoreWaitFlag):
                sources = [n for n, (other, _) in enumerate(cores) if _receives(block, op, other)]
            if not sources and is_alone:
                continue
            for source in sources or [-1]:
                raised = sets.get((source, _name(op)), [])
                cause = (source, raised[turn], "end") if turn < len(raised) else (core, i, "read")
                before[core, i, "read"].add(cause)


def _name(op: MicroOp) -> tuple[object, ...]:
    match op:
        case SetFlag() | WaitFlag():
            return op.src, op.dst, op.event
        case CrossCoreSetFlag() | CrossCoreWaitFlag():
            return op.mode, op.event
        case _:
            raise AssertionError(op)


class Closure:
    """Which moments come before which; those that never come are in no order."""

    def __init__(
        self, cores: list[tuple[Block, tuple[MicroOp, ...]]], is_alone: bool = False
    ) -> None:
        before = _edges(cores, is_alone)
        self.number: dict[Node, int] = {}
        """In an order that the chip could take."""
        self._past: dict[Node, int] = {}
        left = list(before)
        while True:
            ready = [node for node in left if all(x in self._past for x in before[node])]
            if not ready:
                break
            for node in ready:
                past = 0
                for cause in before[node]:
                    past |= self._past[cause] | 1 << self.number[cause]
                self.number[node] = len(self.number)
                self._past[node] = past
            left = [node for node in left if node not in self._past]
        self.stuck = left

    def comes(self, node: Node) -> bool:
        """Whether it ever does."""
        return node in self._past

    def is_before(self, a: Node, b: Node) -> bool:
        """Whether *a* comes before *b*, however long anything takes."""
        return bool(self._past[b] >> self.number[a] & 1)


def _is_ordered(closure: Closure, a: tuple[int, int], b: tuple[int, int], is_read: bool) -> bool:
    """Whether an access of *a* is over before *b* begins."""
    return closure.is_before((*a, "read" if is_read else "end"), (*b, "begin"))


# ---- the oracle: faults ----


def faults(program: RandomProgram) -> frozenset[Fault]:
    """All that is wrong with *program*; nothing else may be reported, and one of these must be."""
    cores = [(block, block.program.ops) for block in program.blocks]
    closure = Closure(cores)
    found: set[Fault] = set()
    if closure.stuck:
        found.add("deadlock")
    if any(_flags_left(ops) for _, ops in cores) or _cross_core_flags(cores, closure):
        found.add("flag")
    if _cross_core_flags_left(cores):
        found.add("flag")
    # Within a core its own flags must order all; an order by way of another core does not count.
    groups = [([core], Closure([core], is_alone=True)) for core in cores] + [(cores, closure)]
    if any(next(races(group, known), None) is not None for group, known in groups):
        found.add("race")
    if not found and any(unwritten(core, ops, closure) for core, (_, ops) in enumerate(cores)):
        found.add("unwritten")
    return frozenset(found)


def races(
    cores: list[tuple[Block, tuple[MicroOp, ...]]], closure: Closure
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of micro-ops, core and number of each, that share bytes in no certain order."""
    places = [
        (core, i, op.pipe, f"{'' if place.startswith('gm') else core}{place}", data, is_write, op)
        for core, (block, ops) in enumerate(cores)
        for i, op in enumerate(ops)
        if closure.comes((core, i, "end"))
        for place, data, is_write in touches(op, block.bindings)
    ]
    for n, (core, i, pipe, place, data, is_write, op) in enumerate(places):
        for other, j, its_pipe, its_place, its_data, writes, its_op in places[:n]:
            if (other, j) == (core, i) or place != its_place or not (is_write or writes):
                continue
            if (other, pipe) == (core, its_pipe) and pipe != "vector":
                continue
            if other == core and len(cores) > 1:
                continue
            if is_write and writes and _both_add(op, its_op):
                continue
            if data.isdisjoint(its_data):
                continue
            a, b = (other, j), (core, i)
            is_read, was_read = (
                pipe == "scalar" and not is_write,
                its_pipe == "scalar" and not writes,
            )
            if not _is_ordered(closure, a, b, was_read) and not _is_ordered(closure, b, a, is_read):
                yield a, b


def _both_add(a: MicroOp, b: MicroOp) -> bool:
    return isinstance(a, Store) and isinstance(b, Store) and a.atomic is b.atomic is not None


def _flags_left(ops: tuple[MicroOp, ...]) -> bool:
    """Whether a flag is set twice without a wait between, or is up at the end."""
    up: dict[object, int] = defaultdict(int)
    for op in ops:
        if isinstance(op, SetFlag):
            up[_name(op)] += 1
            if up[_name(op)] > 1:
                return True
        if isinstance(op, WaitFlag):
            up[_name(op)] -= 1
    return any(count > 0 for count in up.values())


def _cross_core_flags_left(cores: list[tuple[Block, tuple[MicroOp, ...]]]) -> bool:
    """Whether a core sets a flag more often than some core that is to hear of it awaits it."""
    for block, ops in cores:
        for op in ops:
            if not isinstance(op, CrossCoreSetFlag):
                continue
            hear = [its_ops for other, its_ops in cores if _receives(other, op, block)]
            sets = _number_of(CrossCoreSetFlag, op, ops)
            if not hear or any(_number_of(CrossCoreWaitFlag, op, x) < sets for x in hear):
                return True
    return False


def _number_of(kind: type, flag: CrossCoreSetFlag, ops: tuple[MicroOp, ...]) -> int:
    """How many of *ops* set, or await, what *flag* sets."""
    return sum(isinstance(op, kind) and _name(op) == _name(flag) for op in ops)


MOST_SETS = 16
"""Sets that a core may not have awaited yet: assumed, see ``isa.CrossCoreSetFlag``."""


def _cross_core_flags(cores: list[tuple[Block, tuple[MicroOp, ...]]], closure: Closure) -> bool:
    """Whether the counter of a flag between cores may run over."""
    for block, ops in cores:
        for op in {op: None for op in ops if isinstance(op, CrossCoreSetFlag)}:
            receivers = [n for n, (other, _) in enumerate(cores) if _receives(other, op, block)]
            for receiver in receivers:
                its_ops = cores[receiver][1]
                waits = [
                    i
                    for i, other in enumerate(its_ops)
                    if isinstance(other, CrossCoreWaitFlag) and _name(other) == _name(op)
                ]
                if _runs_over(cores, closure, op, receiver, waits):
                    return True
    return False


def _runs_over(
    cores: list[tuple[Block, tuple[MicroOp, ...]]],
    closure: Closure,
    op: CrossCoreSetFlag,
    receiver: int,
    waits: list[int],
) -> bool:
    """Whether all sources may set the flag once more before its counter has been lowered enough."""
    mine = cores[receiver][0]
    sources = [
        [(core, i, "end") for i, x in enumerate(ops) if x == replace(op, pipe=x.pipe)]
        for core, (block, ops) in enumerate(cores)
        if _receives(mine, op, block)
    ]
    for turn in range(MOST_SETS, min(len(sets) for sets in sources)):
        sets = [sets[turn] for sets in sources]
        if not all(closure.comes(node) for node in sets):
            continue
        if turn - MOST_SETS >= len(waits):
            return True
        wait = receiver, waits[turn - MOST_SETS], "read"
        if not any(closure.is_before(wait, node) for node in sets):
            return True
    return False


# ---- the oracle: bytes that nobody wrote ----


def unwritten(core: int, ops: tuple[MicroOp, ...], closure: Closure) -> bool:
    """Whether something made of bytes that nobody wrote reaches global memory."""
    order = sorted(range(len(ops)), key=lambda i: closure.number[core, i, "begin"])
    state = _Definedness()
    used = [state.run(ops[i]) for i in order]
    return any(used) or bool(state.unwritten)


class _Definedness:
    """Which bytes, and which registers, hold something that a program put there."""

    def __init__(self) -> None:
        self.bytes: set[tuple[str, int]] = set()
        self.registers: set[str] = set()
        self.unwritten: set[int] = set()
        """Bytes of the output that hold something else."""

    def _has(self, data: Bytes) -> bool:
        return all(("ub", byte) in self.bytes for byte in data)

    def _put(self, data: Bytes, is_defined: bool, buffer: str = "ub") -> None:
        spots = {(buffer, byte) for byte in data}
        self.bytes = self.bytes | spots if is_defined else self.bytes - spots

    def run(self, op: MicroOp) -> bool:
        """Run *op*; whether it reads back what is not defined."""
        match op:
            case Load():
                ((place, far, _), (buffer, into, _)) = touches(op, BINDINGS)
                self._put(into, True, buffer)
                return place == "gm y" and not self.unwritten.isdisjoint(far)
            case Store(dst, src, pitch, atomic) if dst.name == "y":
                for row in range(dst.bursts):
                    for byte in range(dst.burst_bytes):
                        at = dst.offset_bytes + row * dst.stride_bytes + byte
                        if ("ub", src.offset_bytes + row * pitch + byte) not in self.bytes:
                            self.unwritten.add(at)
                        elif atomic is None:
                            self.unwritten.discard(at)
            case Duplicate():
                known = not isinstance(op.scalar, str) or op.scalar in self.registers
                self._put(_all(op.dst), known)
            case Binary():
                self._each(op.dst, [elements(op.a), elements(op.b)])
            case BinaryScalar():
                known = not isinstance(op.scalar, str) or op.scalar in self.registers
                self._each(op.dst, [elements(op.a)])
                if not known:
                    self._put(_all(op.dst), False)
            case Cast():
                self._each(op.dst, [elements(op.src)])
            case Copy():
                dst, src = (replace(x, dtype=UINT8, count=x.nbytes) for x in (op.dst, op.src))
                self._each(dst, [elements(src)])
            case Broadcast():
                wide = 32 * 8 // op.dst.dtype.bits
                sources = [each for each in elements(op.src) for _ in range(wide)]
                self._each(op.dst, [sources])
            case BlockReduce():
                wide, each = 32 * 8 // op.src.dtype.bits, elements(op.src)
                groups = [each[i : i + wide] for i in range(0, len(each), wide)]
                self._each(op.dst, [[frozenset[int]().union(*group) for group in groups]])
            case WholeReduce():
                lanes, each = op.src.count // op.dst.count, elements(op.src)
                groups = [each[i : i + lanes] for i in range(0, len(each), lanes)]
                self._each(op.dst, [[frozenset[int]().union(*group) for group in groups]])
            case Fold():
                lanes, each = op.dst.count, elements(op.src)
                repeats = [each[i : i + lanes] for i in range(0, len(each), lanes)]
                self._each(op.dst, [elements(op.dst), *repeats])
            case Reduce():
                self._put(elements(op.dst)[0], self._has(_all(op.src)))
            case ScalarLoad() | ScalarStore():
                self._scalar(op, 0)
            case ScalarLoop():
                for turn in range(op.count):
                    for part in op.body:
                        self._scalar(part, turn)
            case _:
                pass
        return False

    def _each(self, dst: Local, sources: list[list[Bytes]]) -> None:
        known = [all(self._has(each) for each in row) for row in zip(*sources, strict=True)]
        for data, is_known in zip(elements(dst), known, strict=True):
            self._put(data, is_known)

    def _scalar(self, op: MicroOp, turn: int) -> None:
        match op:
            case ScalarLoad(name, src, step):
                data = frozenset(byte + turn * step for byte in _all(src))
                (self.registers.add if self._has(data) else self.registers.discard)(name)
            case ScalarStore(dst, name, step):
                data = frozenset(byte + turn * step for byte in _all(dst))
                self._put(data, name in self.registers)
            case _:
                raise AssertionError(op)


# ---- writing programs ----

ROOM = 1024
"""Bytes of the unified buffer that programs use: little, so that micro-ops clash."""
EVENTS = 6
VECTOR_PIPES: tuple[Pipe, ...] = ("scalar", "mte2", "vector", "mte3")


class _Writer:
    """Writes the micro-ops of one vector core, in an order that is certain."""

    def __init__(self, rng: random.Random, names: tuple[str, ...]) -> None:
        self.rng, self.names = rng, names
        self.ops: list[MicroOp] = []
        self._registers = 0

    # -- micro-ops --

    def _offset(self, nbytes: int) -> int:
        return 32 * self.rng.randint(0, max(0, (ROOM - nbytes) // 32))

    def _local(self, dtype: DType, count: int) -> Local:
        return Local("ub", self._offset(dtype.nbytes(count)), dtype, count)

    def _apart(self, dtype: DType, count: int, *sources: Local) -> Local:
        """A range that is one of *sources* or shares no byte with any."""
        while True:
            dst = self._local(dtype, count)
            if all(
                dst == src or dst.offset_bytes >= src.end_bytes or src.offset_bytes >= dst.end_bytes
                for src in sources
            ):
                return dst

    def _strided(self) -> Local:
        """Two repeats of float32, or one, blocks one to three apart, each block once."""
        repeats, blocks = self.rng.randint(1, 2), self.rng.choice((4, 8, 8))
        apart, after = self.rng.choice(((1, 8), (1, 12), (2, 1), (2, 16), (3, 1), (3, 2)))
        span = 32 * ((repeats - 1) * after + (blocks - 1) * apart + 1)
        count = 8 * blocks * repeats
        return Local("ub", self._offset(span), FLOAT32, count, apart, after, blocks)

    def _copy(self) -> tuple[Global, int, int]:
        """Rows in global memory, and how far apart and how wide they are in the buffer."""
        rng = self.rng
        name, nbytes = rng.choice(self.names), rng.choice((4, 32, 60, 64, 128))
        rows = rng.choice((1, 1, 2, 3))
        stride = rng.choice((nbytes, nbytes + 32, 2 * nbytes)) if rows > 1 else 0
        padded = -(-nbytes // 32) * 32
        pitch = padded + rng.choice((0, 32, 64)) if rows > 1 else 0
        return Global(name, 32 * rng.randint(0, 6), nbytes, rows, stride), pitch, padded

    def load(self) -> MicroOp:
        place, pitch, padded = self._copy()
        nbytes = (place.bursts - 1) * pitch + padded
        return Load(Local("ub", self._offset(nbytes), UINT8, nbytes), place, pitch)

    def store(self) -> MicroOp:
        place, pitch, _ = self._copy()
        name = self.rng.choice([name for name in self.names if name != "x"])
        nbytes = (place.bursts - 1) * pitch + place.burst_bytes
        atomic = FLOAT32 if self.rng.random() < 0.1 else None
        where = Local("ub", self._offset(nbytes), UINT8, nbytes)
        return Store(replace(place, name=name), where, pitch, atomic)

    def vector(self) -> MicroOp:
        rng = self.rng
        count = rng.choice((8, 16, 40, 64))
        match rng.randint(0, 10):
            case 0:
                return Duplicate(self._local(FLOAT32, count), 1.0)
            case 1:
                a, b = self._local(FLOAT32, count), self._local(FLOAT32, count)
                return Binary("add", self._apart(FLOAT32, count, a, b), a, b)
            case 2:
                src = self._local(FLOAT32, count)
                return Cast(self._apart(FLOAT16, count, src), src, "none")
            case 3:
                src = self._local(FLOAT16, count)
                return Cast(self._apart(FLOAT32, count, src), src, "none")
            case 4:
                src = self._strided()
                return Copy(Local("ub", self._offset(4 * src.count), FLOAT32, src.count), src)
            case 5:
                dst = self._strided()
                return Copy(dst, Local("ub", self._offset(4 * dst.count), FLOAT32, dst.count))
            case 6:
                return Broadcast(self._local(FLOAT32, 64), self._local(FLOAT32, 8))
            case 7:
                return BlockReduce("max", self._local(FLOAT32, 8), self._local(FLOAT32, 64))
            case 8:
                return WholeReduce("max", self._local(FLOAT32, 2), self._local(FLOAT32, 128))
            case 9:
                return Fold("max", self._local(FLOAT32, 16), self._local(FLOAT32, 64))
            case _:
                return Duplicate(self._strided(), 2.0)

    def scalar(self) -> tuple[MicroOp, ...]:
        rng = self.rng
        self._registers += 1
        name = f"r{self._registers}"
        src, dst = (Local("ub", 4 * rng.randint(0, ROOM // 4 - 64), FLOAT32, 1) for _ in range(2))
        match rng.randint(0, 3):
            case 0:
                return (ScalarLoad(name, src),)
            case 1:
                return ScalarLoad(name, src), ScalarStore(dst, name)
            case 2:
                a = self._local(FLOAT32, 16)
                return ScalarLoad(name, src), BinaryScalar("add", a, a, name)
            case _:
                # Rounds must not touch what others store.
                src, dst = (replace(x, offset_bytes=x.offset_bytes // 16 * 4) for x in (src, dst))
                dst = replace(dst, offset_bytes=dst.offset_bytes + ROOM // 2)
                step, back = rng.choice((4, 8, 16)), rng.choice((4, 8, 16))
                body = (ScalarLoad(name, src, step), ScalarStore(dst, name, back))
                return (ScalarLoop(rng.randint(2, 12), body),)

    # -- order --

    def add(self, op: MicroOp) -> None:
        """Append *op*, after what orders it behind all that it clashes with."""
        for _ in range(12):
            clash = self._clash(op)
            if clash is None:
                break
            self._order(clash, op)
        self.ops.append(op)

    def _clash(self, op: MicroOp) -> int | None:
        ops = (*self.ops, op)
        block = Block(0, "aiv", Program("kernel", ops), BINDINGS)
        cores = [(block, ops)]
        closure = Closure(cores)
        found = [a for (_, a), (_, b) in races(cores, closure) if b == len(ops) - 1]
        return max(found, default=None)

    def _order(self, first: int, op: MicroOp) -> None:
        """Put *op*, which comes next, behind number *first*, one way or another."""
        a, b, rng = self.ops[first].pipe, op.pipe, self.rng
        if a == b:
            self.ops.append(Barrier(a) if rng.random() < 0.8 else Barrier())
            return
        event = rng.randint(0, EVENTS - 1)
        way = rng.random()
        if way < 0.1:
            self.ops.append(Barrier())
        elif way < 0.25 and "scalar" not in (a, b):
            # The scalar unit waits, and hands everything out that comes after.
            self.ops += [SetFlag(a, "scalar", event), WaitFlag(a, "scalar", event)]
        elif way < 0.6 and not self._uses(first + 1, SetFlag(a, b, event)):
            self.ops.insert(first + 1, SetFlag(a, b, event))
            self.ops.append(WaitFlag(a, b, event))
        else:
            self.ops += [SetFlag(a, b, event), WaitFlag(a, b, event)]

    def _uses(self, start: int, flag: SetFlag) -> bool:
        flags = (op for op in self.ops[start:] if isinstance(op, SetFlag | WaitFlag))
        return any(_name(op) == _name(flag) for op in flags)

    def write(self, count: int, prepared: bool) -> None:
        """Write *count* micro-ops and what orders them; all bytes are written first if asked."""
        if prepared:
            self.ops.append(Duplicate(Local("ub", 0, FLOAT32, ROOM // 4), 0.0))
        makers: list[Callable[[], MicroOp]] = [self.load, self.store, self.vector]
        for _ in range(count):
            kind = self.rng.choices((0, 1, 2, 3), (3, 3, 4, 2))[0]
            found = self.scalar() if kind == 3 else (makers[kind](),)
            for op in found:
                self.add(op)


def _spoil(rng: random.Random, ops: list[MicroOp]) -> str:
    """Make one change to *ops* that may do harm; says which."""
    orders = [i for i, op in enumerate(ops) if isinstance(op, SetFlag | WaitFlag | Barrier)]
    flags = [i for i, op in enumerate(ops) if isinstance(op, SetFlag | WaitFlag)]
    way = rng.choice(("drop", "drop pair", "swap", "double", "event", "first", "nothing"))
    if way == "drop" and orders:
        return f"dropped {ops.pop(rng.choice(orders))}"
    if way == "drop pair" and flags:
        name = _name(ops[rng.choice(flags)])
        ops[:] = [
            op for op in ops if not (isinstance(op, SetFlag | WaitFlag) and _name(op) == name)
        ]
        return f"dropped all of {name}"
    if way == "swap" and len(ops) > 1:
        at = rng.randrange(len(ops) - 1)
        if set(registers_set(ops[at])) & set(registers_read(ops[at + 1])):
            return "nothing"  # a register that nobody has set is refused for that
        ops[at], ops[at + 1] = ops[at + 1], ops[at]
        return f"swapped #{at} and the next"
    if way == "double" and flags:
        at = rng.choice(flags)
        ops.insert(at, ops[at])
        return f"doubled {ops[at]}"
    if way == "event" and flags:
        at = rng.choice(flags)
        ops[at] = replace(ops[at], event=rng.randint(0, EVENTS - 1))  # type: ignore[type-var]
        return f"changed the event of #{at}"
    if way == "first" and isinstance(ops[0], Duplicate) and not ops[0].dst.is_strided:
        ops[0] = replace(ops[0], dst=replace(ops[0].dst, count=rng.randint(1, ROOM // 4)))
        return "wrote less at first"
    return "nothing"


def random_program(seed: int) -> RandomProgram:
    """The launch that belongs to *seed*: of one core, of calls of it, or of several cores."""
    rng = random.Random(seed)
    kind = rng.choices(("core", "calls", "cores"), (6, 2, 3))[0]
    if kind == "cores":
        return _cores(seed, rng)
    writer = _Writer(rng, ("x", "y", "w", "v") if rng.random() < 0.5 else ("x", "y"))
    writer.write(rng.randint(2, 9), prepared=rng.random() < 0.85)
    spoiled = _spoil(rng, writer.ops) if rng.random() < 0.6 else "nothing"
    ops = tuple(writer.ops)
    parts: tuple[MicroOp | Call, ...] = ops
    if kind == "calls":
        body = Body((*ops, Barrier()) if rng.random() < 0.7 else ops)
        step = rng.choice((0, 64, 256))
        turns = range(rng.randint(2, 5))
        parts = tuple(Call(body, {"x": step * turn, "y": step * turn}) for turn in turns)
    block = Block(0, "aiv", Program("kernel", parts), BINDINGS)
    return RandomProgram(seed, (block,), spoiled)


# ---- several cores ----


def _cores(seed: int, rng: random.Random) -> RandomProgram:
    """A cube core and its two vector cores, which pass pieces of the workspace on by flags."""
    if rng.random() < 0.2:
        return _counted(seed, rng)
    spoiled, blocks = "nothing", []
    turns, groups, meets = rng.randint(1, 3), rng.random() < 0.7, rng.random() < 0.5
    fresh = rng.random() < 0.6
    for core, kind in enumerate(("aic", "aiv", "aiv")):
        ops: list[MicroOp] = []
        if kind == "aiv":
            ops += [Duplicate(Local("ub", 0, FLOAT32, 64), 0.0)]
            ops += [SetFlag("vector", "mte3", 0), WaitFlag("vector", "mte3", 0)]
        for turn in range(turns):
            # All pieces apart, or each turn in the place of the last one.
            first = 64 * core + (192 * turn if fresh else 0)
            if kind == "aiv":
                if groups and not fresh and turn:
                    ops.append(CrossCoreWaitFlag("group", "mte3", 1))
                ops.append(Store(Global("w", first, 64), Local("ub", 0, UINT8, 64)))
                if meets:
                    ops.append(CrossCoreSetFlag("all", "mte3", 2))
                    ops.append(CrossCoreWaitFlag("all", "mte2", 2))
                    place = Global("w", 64 + (192 * turn if fresh else 0), 128)
                    ops.append(Load(Local("ub", 512, UINT8, 128), place))
                    if not fresh:
                        ops.append(CrossCoreSetFlag("all", "mte2", 3))
                        ops.append(CrossCoreWaitFlag("all", "mte3", 3))
                if groups:
                    ops.append(CrossCoreSetFlag("group", "mte3", 0))
            elif groups:
                ops.append(CrossCoreWaitFlag("group", "mte2", 0))
                place = Global("w", 64 + (192 * turn if fresh else 0), 128)
                ops.append(Load(Local("l1", 0, UINT8, 128), place))
                if not fresh and turn + 1 < turns:
                    ops.append(CrossCoreSetFlag("group", "mte2", 1))
        if rng.random() < 0.25 and ops:
            spoiled = f"core {core}: {_spoil_cross(rng, ops)}"
        blocks.append(Block(core, kind, Program("kernel", tuple(ops)), BINDINGS))
    return RandomProgram(seed, tuple(blocks), spoiled)


def _spoil_cross(rng: random.Random, ops: list[MicroOp]) -> str:
    flags = [i for i, op in enumerate(ops) if isinstance(op, CrossCoreSetFlag | CrossCoreWaitFlag)]
    at = rng.randrange(len(ops) - 1) if len(ops) > 1 else 0
    way = rng.choice(("drop", "swap", "double"))
    if way == "drop" and flags:
        return f"dropped {ops.pop(rng.choice(flags))}"
    if way == "double" and flags:
        ops.insert(at := rng.choice(flags), ops[at])
        return f"doubled {ops[at]}"
    if len(ops) > 1:
        ops[at], ops[at + 1] = ops[at + 1], ops[at]
    return f"swapped #{at} and the next"


def _counted(seed: int, rng: random.Random) -> RandomProgram:
    """A vector core that runs ahead of its cube core, further than a counter goes, or not."""
    ahead, turns = rng.randint(14, 18), rng.randint(15, 21)
    vector: list[MicroOp] = []
    cube: list[MicroOp] = []
    for turn in range(turns):
        if turn >= ahead:
            vector.append(CrossCoreWaitFlag("group", "mte3", 1))
        vector.append(CrossCoreSetFlag("group", "mte3", 0))
        cube.append(CrossCoreWaitFlag("group", "mte2", 0))
        if turn + ahead < turns:
            cube.append(CrossCoreSetFlag("group", "mte2", 1))
    programs = Program("kernel", tuple(cube)), Program("kernel", tuple(vector))
    blocks = (
        Block(0, "aic", programs[0], BINDINGS),
        Block(1, "aiv", programs[1], BINDINGS),
        Block(2, "aiv", programs[1], BINDINGS),
    )
    return RandomProgram(seed, blocks, f"{ahead} ahead of {turns}")
