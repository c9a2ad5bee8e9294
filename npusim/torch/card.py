"""The simulated card of this process: which chip it is, and how kernels run on it.

::

    run = card.run("npu_quantize", x, scales, None, dtype="qint8")   # npusim.run, on the clock
    card.spec().series                                               # "Atlas A2"
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

from npusim.ascendc import SourceLaunch
from npusim.data.errors import DocumentWarning, OpError
from npusim.devices.schema import DeviceSpec
from npusim.run import run as simulate
from npusim.run.card import Card
from npusim.run.memory_cache import CACHE, device_key, key_of
from npusim.run.prepared import Prepared, prepared, time_key
from npusim.run.repeats import Found
from npusim.run.result import Result
from npusim.torch.clock import clock
from npusim.torch.works.work import Work, operator_of

__all__ = [
    "Said",
    "again",
    "caches",
    "computes_values",
    "found",
    "insert",
    "is_repeatable",
    "known",
    "memory_bytes",
    "name",
    "number",
    "play",
    "play_as",
    "prepared_again",
    "run",
    "spec",
]


class Said(NamedTuple):
    """The key of a launch: calls with equal keys run the same kernel."""

    shapes: Hashable
    """Shapes, types and strides of the arguments, and the attributes."""
    values: tuple[bytes, ...] = ()
    """Values of the arguments whose values the operator's kernel depends on."""


COLD = Found()
"""Cold caches: the L2 holds none of the inputs, the instruction caches nothing of the kernel."""

_inserted: list[tuple[DeviceSpec, bytes, bool, Card | None, int]] = []
"""The card, the key under which its kernels are cached, whether they compute values, the state of
its caches if that is carried from launch to launch, and the bytes available to tensors."""


def insert(
    device: DeviceSpec,
    *,
    values: bool = True,
    carried: bool = False,
    memory_bytes: int | None = None,
) -> None:
    """Make *device*, in its current state, the card; this replaces any earlier card.

    Without *values*, tensors have only shapes and kernels only take time. If *carried*, the
    contents of the caches carry over from launch to launch. Tensors may use *memory_bytes*, by
    default the capacity of the chip's memory.
    """
    caches = Card(device) if carried else None
    _numbers[0] += 1
    room_bytes = device.gm.capacity_bytes if memory_bytes is None else memory_bytes
    _inserted[:] = [(device, device_key(device), values, caches, room_bytes)]


def memory_bytes() -> int:
    """The memory available to tensors: that of the chip, or of all the chips of a plan."""
    return _inserted[0][4] if _inserted else spec().gm.capacity_bytes


def number() -> int:
    """The serial number of the card; each :func:`insert` gives a new one."""
    return _numbers[0]


_numbers = [0]


def caches() -> Card | None:
    """The card with its cache state if that is carried over; None if each launch starts cold."""
    return _inserted[0][3] if _inserted else None


def computes_values() -> bool:
    """Whether kernels compute values and tensors on npu hold them."""
    return not _inserted or _inserted[0][2]


def spec() -> DeviceSpec:
    """The specification of the chip. Raises RuntimeError if no card is simulated."""
    if not _inserted:
        raise RuntimeError(
            "npusim.torch: a card must be simulated before it is asked for, but none is; "
            "call npusim.torch.install() first"
        )
    return _inserted[0][0]


def name() -> str:
    """The name that `torch.npu.get_device_name()` returns, for example Ascend910B2."""
    chip = spec()
    return next((alias for alias in chip.aliases if alias.startswith("Ascend")), chip.name)


def run(op: str | SourceLaunch, *args: object, again_by: Hashable = None, **kwargs: Any) -> Result:
    """`npusim.run` on the card; advances the clock.

    :func:`again` finds the launch by the key *again_by*, which must cover everything in *args* and
    *kwargs* except the values of tensors.
    """
    if (on := caches()) is not None:
        done = on.run(op, *args, values=computes_values(), **kwargs)
        clock.kernel(done)
        return done
    done = simulate(
        op, *args, device=spec(), values=computes_values(), **found()._asdict(), **kwargs
    )
    if again_by is not None and not computes_values():
        CACHE.name(("launch", _inserted[0][1], found(), again_by), done.cached_as, done)
    clock.kernel(done)
    return done


def again(key: Hashable) -> Result | None:
    """Repeat an earlier launch of shapes alone, by the *key* given to :func:`run`.

    Advances the clock. Returns None if there is no such launch, if kernels compute values, or if
    the contents of the caches are carried over.
    """
    if computes_values() or caches() is not None:
        return None
    done: Result | None = CACHE.named(("launch", _inserted[0][1], found(), key))
    if done is not None:
        clock.kernel(done)
    return done


def play(work: Work) -> None:
    """Run a kernel for its time alone; advances the clock.

    With carried caches, its operands count as separate memory that is not in the L2.
    """
    operator = operator_of(work.kernel)
    if (on := caches()) is not None:
        clock.kernel(on.run(operator, work, values=False))
        return
    how = found()._asdict()

    def make() -> Result:
        return simulate(operator, work, device=spec(), values=False, **how)

    key = "work", _inserted[0][1], found(), type(work), work
    clock.kernel(CACHE.get(key, make, _nbytes))


def play_as(kernel: str | None, op: str, arguments: Mapping[str, Any]) -> None:
    """Run operator *op* for its time alone, recorded as *kernel* if given; advances the clock."""
    if (on := caches()) is not None:
        clock.kernel(on.run(op, values=False, **arguments), kernel)
        return
    how: dict[str, Any] = {**found()._asdict(), **arguments}

    def make() -> Result:
        return simulate(op, device=spec(), values=False, **how)

    key = "played", op, _inserted[0][1], found(), key_of(arguments)
    clock.kernel(CACHE.get(key, make, _nbytes), kernel)


def _nbytes(done: Result) -> int:
    return done.trace.nbytes if done.trace else 0


def found() -> Found:
    """The state of the caches that the next launch finds."""
    return COLD


def known(key: Hashable, find: Callable[[], bool]) -> bool:
    """The result of *find* for this card, computed once for each *key*."""
    found: bool = CACHE.get((key, _inserted[0][1]), find, lambda _: 0)
    return found


def is_repeatable() -> bool:
    """Whether launches with the same shapes differ only in values."""
    return bool(_inserted) and _inserted[0][2] and _inserted[0][3] is None


def prepared_again(op: str, key: Said, arguments: Mapping[str, object]) -> Prepared | None:
    """The prepared form that calls of *op* with this *key* share; made by the first of them.

    *key* covers everything in *arguments* except values on which the kernel does not depend.
    Returns None if the call cannot be prepared, if it warns or is refused, which its run does, or
    if the contents of the caches are carried over.
    The kernel for the first values is checked. Kernels for other values differ only in addresses
    and are not checked again, and those that take the same time share one form.
    """
    if not is_repeatable():
        return None
    chip, given = spec(), dict(arguments)
    of_shapes = "again", op, _inserted[0][1], key.shapes
    first: tuple[tuple[bytes, ...], Prepared | None]
    again: Prepared | None
    try:
        with catch_warnings():
            simplefilter("ignore", DocumentWarning)
            first = CACHE.get(
                of_shapes,
                lambda: (key.values, prepared(op, chip, given)),
                lambda made: _prepared_bytes(made[1]),
            )
            values, form = first
            if form is None or values == key.values:
                return form

            def make() -> Prepared | None:
                return form.of_values(given)

            def shared() -> Prepared | None:
                timed = time_key(op, chip, given)
                if timed is None:
                    return make()
                found: Prepared | None
                found = CACHE.get((*of_shapes, "timed", timed), make, _prepared_bytes)
                return found

            again = CACHE.get((*of_shapes, key.values), shared, _prepared_bytes)
    except OpError:
        return None
    return again


def _prepared_bytes(made: Prepared | None) -> int:
    return made.nbytes if made else 0
