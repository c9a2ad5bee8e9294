"""Running an operator or a custom kernel: from a call to a Run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from npusim.chip import EngineChoice, L2State, Progress
    from npusim.data.product import CubeOrder
    from npusim.devices.schema import DeviceSpec, ICache
    from npusim.run.result import Output
    from npusim.run.runs import Run
    from npusim.run.user_kernel import OwnKernel

__all__ = ["Output", "Run", "run"]

HOMES = {"Output": "npusim.run.result", "Run": "npusim.run.runs"}
"""Public name -> the module that defines it, imported when the name is first used."""


def run(
    op: str | OwnKernel,
    *args: object,
    device: str | os.PathLike[str] | DeviceSpec,
    values: bool = True,
    timing: bool = True,
    l2: L2State = "cold",
    icache: ICache | None = None,
    every_core: bool = False,
    engine: EngineChoice = "auto",
    cache: str | os.PathLike[str] | None = None,
    byte_exact: bool = False,
    cube_order: CubeOrder = "k16",
    progress: Progress | None = None,
    **kwargs: object,
) -> Run:
    """Run operator *op* on *device*, with the parameters of the torch_npu function.

    *op* may also be a function that writes a kernel, or FILE.py:FUNCTION, with its own parameters.
    *args* and *kwargs* are numpy arrays, a :class:`Tensor` for FRACTAL_NZ, and plain attributes; a
    :class:`TensorSpec` in place of an array requests the time only. *values* and *timing* can turn
    either half off. *l2* is the state of the L2 at launch: empty ("cold"), inputs and outputs
    cached ("warm"), the state that earlier runs of the same call leave ("repeat"), a tuple of the
    inputs that are cached, or the share of each, as in `{"x": 1, "weight": 0.5}`. *icache* is
    whether the instruction caches hold the kernel ("warm") or not ("cold"); by default they do with
    "warm" and "repeat". *every_core* times each core separately, and *byte_exact* stores every byte
    of L1 and L0 and computes core after core: both give the same results more slowly. *engine* is
    "compiled", or "simpy", which finds the same times more slowly; "auto" is the one that the
    environment variable NPUSIM_ENGINE names, else "compiled" if it was built. *cube_order* is the
    model of fp16 and bf16 products: how many products the cube adds exactly before it rounds.
    *progress* is :data:`npusim.chip.Progress`.

    Programs and times of earlier calls are cached: see :mod:`npusim.run.memory_cache`; times also
    for other processes, in the folder *cache* or NPUSIM_CACHE: see :mod:`npusim.run.disk_cache`.

    Raises OpError, with the code that CANN would return, if the operator refuses its arguments or
    traps; ValueError for an unknown operator or device; TypeError for unknown parameters.

    >>> import numpy as np
    >>> x = np.array([[0.4, 1.5, -300.0]], np.float32)
    >>> run("npu_quantize", x, np.ones(1, np.float32), None, "qint8", device="ascend310p3").output
    array([[   0,    2, -128]], dtype=int8)
    """
    # The first call imports the simulator; importing npusim alone does not need it.
    from npusim.run.call import play
    from npusim.run.options import Options
    from npusim.run.runs import Run

    options = Options(
        values=values,
        timing=timing,
        l2=l2,
        icache=icache,
        every_core=every_core,
        engine=engine,
        cache=cache,
        byte_exact=byte_exact,
        cube_order=cube_order,
    )
    return Run.of(play(op, args, kwargs, device, options, progress))


if not TYPE_CHECKING:  # mypy would otherwise accept any name

    def __getattr__(name: str) -> Any:
        """The classes of results, imported on first access (PEP 562)."""
        if name not in HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(HOMES[name]), name)
