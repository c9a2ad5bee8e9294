"""The one card of this process: which chip it is, and kernels run on it.

::

    run = card.run("npu_quantize", x, scales, None, dtype="qint8")   # npusim.run, and time passes
    card.spec().series                                               # "Atlas A2"
"""

from __future__ import annotations

from typing import Any

from npusim.devices.schema import DeviceSpec
from npusim.run import run as simulate
from npusim.run.result import Run
from npusim.torch.clock import clock

__all__ = ["insert", "name", "run", "spec"]

_inserted: list[DeviceSpec] = []


def insert(device: DeviceSpec) -> None:
    """Make *device* the card; a later one takes the place of an earlier one."""
    _inserted[:] = [device]


def spec() -> DeviceSpec:
    """The chip. Raises RuntimeError where none is simulated."""
    if not _inserted:
        raise RuntimeError(
            "npusim.torch: a card must be simulated before it is asked for, but none is; "
            "call npusim.torch.install() first"
        )
    return _inserted[0]


def name() -> str:
    """What `torch.npu.get_device_name()` says, for example Ascend910B2."""
    chip = spec()
    return next((alias for alias in chip.aliases if alias.startswith("Ascend")), chip.name)


def run(op: str, *args: Any, **kwargs: Any) -> Run:
    """`npusim.run` on the card; the clock moves on by its time."""
    done = simulate(op, *args, device=spec(), **kwargs)
    clock.kernel(done)
    return done
