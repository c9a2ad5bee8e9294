"""Run unchanged torch_npu scripts on a simulated card.

From the shell: ``python -m npusim.torch script.py``. In a notebook or a test, before `torch_npu` is
imported::

    import npusim.torch
    npusim.torch.install(device="ascend910b2")

    import torch, torch_npu
    torch.ones(2, 3).npu()

Importing this package changes nothing and does not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from npusim import devices, engines
from npusim.devices.schema import DeviceSpec
from npusim.engines.schema import Engine
from npusim.torch.planning import PlanError, memory_bytes, shares_of

if TYPE_CHECKING:
    from npusim.ascendc import SourceLaunch
    from npusim.torch.recording import Recording

__all__ = ["DEFAULT_DEVICE", "install", "launch", "record"]

DEFAULT_DEVICE = "ascend910b2"


def install(
    device: str | os.PathLike[str] | DeviceSpec = DEFAULT_DEVICE,
    *,
    values: bool = True,
    carried: bool = False,
    engine: str | os.PathLike[str] | Engine | None = None,
    shadow: bool = False,
    memory: str | None = None,
    experts: str | os.PathLike[str] | Sequence[float] | None = None,
) -> str:
    """Simulate *device* as `npu:0`, and provide `torch_npu` and `torchair`; returns its name.

    Without *values*, tensors on npu have only shapes, of any size: kernels take their time and
    compute nothing, and reading a value raises an error. By default every kernel starts with a cold
    L2 and cold instruction caches; if *carried*, it finds what earlier kernels left there, which
    takes longer to simulate. By default the host takes no time; with *engine* each launch takes the
    host time of that engine, as :func:`npusim.engines.load` finds it: with "eager" the script
    launches kernel by kernel, and the card waits if the host falls behind. A second call replaces
    the card. With *shadow*, a real torch_npu on this machine is ignored, as by the launcher.
    Without values, *memory* is the memory of several cards for which a model is planned, as in
    "8x64GiB", and *experts* gives how often routers choose each expert, as a list or a JSON file;
    by default all equally often. Raises ImportError if torch is missing, DeviceError for an unknown
    device, EngineError for an unknown engine, PlanError if *memory* or *experts* cannot be read or
    values are computed, and RuntimeError if a real torch_npu is installed or already imported.
    """
    if values and (memory is not None or experts is not None):
        raise PlanError(
            "npusim.torch: memory and experts must come with shapes alone, not with values; pass "
            "values=False, or --shapes on the command line"
        )
    room_bytes = None if memory is None else memory_bytes(memory)
    shares = () if experts is None else shares_of(experts)
    spec = devices.load(device)
    launch_us = 0.0 if engine is None else engines.load(engine).decode.launch_us
    from npusim.torch import stand_ins

    if not stand_ins.installed():
        stand_ins.check_free(shadow)
        stand_ins.check_torch()
        # torch would import a real torch_npu automatically, which would claim the device.
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        from npusim.torch import backend, card, distributed, operators, refusals

        backend.register()
        distributed.register()
        card.insert(spec)
        backend.check()
        refusals.register(operators.register(backend.define))
        stand_ins.install()
    from npusim.torch import card, known
    from npusim.torch.clock import clock

    card.insert(spec, values=values, carried=carried, memory_bytes=room_bytes)
    known.choose(shares)
    clock.wait()
    clock.launch_us = launch_us
    return card.name()


def launch(kernel: SourceLaunch, *args: object) -> None:
    """Run an Ascend C kernel on the card, on npu tensors; call :func:`install` first.

    ::

        add = npusim.ascendc.load("add_custom.cpp").add_custom
        npusim.torch.launch(add[8], x, y, z, x.numel())

    Tensors that it stores to are written in place. Raises AscendCError if the arguments do not fit.
    """
    from npusim.torch.source_kernels import launch as run

    run(kernel, *args)


def record(title: str = "model") -> Recording:
    """Record the launches of the card for a report; call :func:`install` first.

    ::

        with npusim.torch.record("decode step") as recorded:
            model(token)
        print(recorded.summary())
        recorded.write("report")

    Raises RuntimeError if no card is simulated.
    """
    from npusim.torch.recording import Recording

    return Recording(title)
