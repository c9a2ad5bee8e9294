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
"""Public name -> the module that defines it, which is loaded when the name is first used."""


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
    *args* and *kwargs* are numpy arrays, :class:`Tensor` in place of an array for FRACTAL_NZ, and
    plain attributes; a :class:`TensorSpec` in place of either asks for time only. *values* and
    *timing* turn either half off. *l2* says what lies in the L2 at launch: nothing ("cold"), inputs
    and outputs ("warm"), what earlier runs of the same left there ("repeat"), the inputs named in a
    tuple, or a share of each, as in `{"x": 1, "weight": 0.5}`; *icache* whether the instruction
    caches hold the kernel ("warm") or not ("cold"); by default they do with "warm" and "repeat".
    *every_core* times each core on its own, and *byte_exact* keeps every byte of L1 and L0 and
    computes core after core: both give the same more slowly. *engine* is "compiled", or "simpy",
    which finds the same times more slowly; "auto" is what the environment variable NPUSIM_ENGINE
    says, or else "compiled" where a C compiler was there to build it. *cube_order* is the model of
    fp16 and bf16 products: how many products the cube adds exactly before it rounds. *progress* is
    :data:`npusim.chip.Progress`.

    Programs and times of earlier calls are cached: see :mod:`npusim.run.memory_cache`; times also
    for other processes, in the folder *cache* or NPUSIM_CACHE: see :mod:`npusim.run.disk_cache`.

    Raises OpError, with the code CANN would give, when the operator refuses its arguments or traps;
    ValueError for an unknown operator or device; TypeError for arguments it does not have.

    >>> import numpy as np
    >>> x = np.array([[0.4, 1.5, -300.0]], np.float32)
    >>> run("npu_quantize", x, np.ones(1, np.float32), None, "qint8", device="ascend310p3").output
    array([[   0,    2, -128]], dtype=int8)
    """
    # The first call loads the simulator; the import of npusim alone does without it.
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


if not TYPE_CHECKING:  # mypy would take any name for one that there is

    def __getattr__(name: str) -> Any:
        """What a run gives back, loaded when it is first asked for (PEP 562)."""
        if name not in HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(HOMES[name]), name)
