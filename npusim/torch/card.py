"""The one card of this process: which chip it is, and kernels run on it.

::

    run = card.run("npu_quantize", x, scales, None, dtype="qint8")   # npusim.run, and time passes
    card.spec().series                                               # "Atlas A2"
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from npusim.ascendc import SourceLaunch
from npusim.devices.schema import DeviceSpec
from npusim.run import run as simulate
from npusim.run.card import Card
from npusim.run.memory_cache import CACHE, device_key, key_of
from npusim.run.prepared import Prepared, prepared
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
    """What a call says of the launch that it becomes."""

    shapes: Hashable
    """Of its arguments, and types, strides and attributes."""
    values: tuple[bytes, ...] = ()
    """Of those on which the operator's kernel depends."""


COLD = Found()
"""Nothing of the inputs is in the L2, nor of the kernel in the instruction caches."""

_inserted: list[tuple[DeviceSpec, bytes, bool, Card | None, int]] = []
"""The card, by what its kernels are found, whether they compute values, what its caches hold if
that passes from launch to launch, and the bytes that tensors may take."""


def insert(
    device: DeviceSpec,
    *,
    values: bool = True,
    carried: bool = False,
    memory_bytes: int | None = None,
) -> None:
    """Make *device* the card, as it is now; a later one takes the place of an earlier one.

    Without *values* its tensors have shapes alone, and its kernels take their time alone. What its
    caches hold passes from launch to launch if it is *carried*. Its tensors may take *memory_bytes*
    or, without them, what it has.
    """
    caches = Card(device) if carried else None
    _numbers[0] += 1
    room_bytes = device.gm.capacity_bytes if memory_bytes is None else memory_bytes
    _inserted[:] = [(device, device_key(device), values, caches, room_bytes)]


def memory_bytes() -> int:
    """What tensors may take: what the chip has, or several of them that a plan is for."""
    return _inserted[0][4] if _inserted else spec().gm.capacity_bytes


def number() -> int:
    """Which card it is: another one for each that was inserted."""
    return _numbers[0]


_numbers = [0]


def caches() -> Card | None:
    """The card whose caches pass from launch to launch; None where each launch finds nothing."""
    return _inserted[0][3] if _inserted else None


def computes_values() -> bool:
    """Whether kernels compute values, and tensors on npu have them."""
    return not _inserted or _inserted[0][2]


def spec() -> DeviceSpec:
    """The chip. Raises RuntimeError where none is simulated."""
    if not _inserted:
        raise RuntimeError(
            "npusim.torch: a card must be simulated before it is asked for, but none is; "
            "call npusim.torch.install() first"
        )
    return _inserted[0][0]


def name() -> str:
    """What `torch.npu.get_device_name()` says, for example Ascend910B2."""
    chip = spec()
    return next((alias for alias in chip.aliases if alias.startswith("Ascend")), chip.name)


def run(op: str | SourceLaunch, *args: object, again_by: Hashable = None, **kwargs: Any) -> Result:
    """`npusim.run` on the card; the clock moves on by its time.

    The launch is found :func:`again` by the key *again_by*, which says all that *args* and *kwargs*
    do but for the values of tensors.
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
    """A launch of shapes alone that was made before, by the *key* given to :func:`run`.

    The clock moves on. None where there was none, and where kernels compute values or find what
    others have left.
    """
    if computes_values() or caches() is not None:
        return None
    done: Result | None = CACHE.named(("launch", _inserted[0][1], found(), key))
    if done is not None:
        clock.kernel(done)
    return done


def play(work: Work) -> None:
    """Run a kernel of which the time alone is known; the clock moves on.

    With carried caches its operands are memory of their own, of which the L2 holds nothing.
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
    """Run operator *op* for its time alone, as that of *kernel* if given; the clock moves on."""
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
    """What the next launch finds on the card."""
    return COLD


def known(key: Hashable, find: Callable[[], bool]) -> bool:
    """What *find* says of the card, asked once for each *key*."""
    found: bool = CACHE.get((key, _inserted[0][1]), find, lambda _: 0)
    return found


def is_repeatable() -> bool:
    """Whether a launch of the same shapes differs from an earlier one in nothing but values."""
    return bool(_inserted) and _inserted[0][2] and _inserted[0][3] is None


def prepared_again(op: str, key: Said, arguments: Mapping[str, object]) -> Prepared | None:
    """What calls of an operator have in common that may have run on the card before.

    *key* is all that *arguments* say but for values on which the kernel does not depend. None where
    the call cannot be prepared, and where kernels find what others have left. What the kernel of
    the first values does is checked; that of others differs in where it goes.
    """
    if not is_repeatable():
        return None
    chip = spec()

    def make(is_checked: bool) -> Prepared | None:
        return prepared(op, chip, dict(arguments), is_checked)

    of_shapes = "again", op, _inserted[0][1], key.shapes
    first: tuple[tuple[bytes, ...], Prepared | None]
    first = CACHE.get(of_shapes, lambda: (key.values, make(True)), lambda x: _prepared_bytes(x[1]))
    if first[1] is None or first[0] == key.values:
        return first[1]
    again: Prepared | None
    again = CACHE.get((*of_shapes, key.values), lambda: make(False), _prepared_bytes)
    return again


def _prepared_bytes(made: Prepared | None) -> int:
    return made.nbytes if made else 0
