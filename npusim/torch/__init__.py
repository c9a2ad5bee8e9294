"""torch_npu scripts as they stand, on a simulated card.

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

from npusim import devices
from npusim.spec import DeviceSpec

__all__ = ["DEFAULT_DEVICE", "install"]

DEFAULT_DEVICE = "ascend910b2"


def install(device: str | os.PathLike[str] | DeviceSpec = DEFAULT_DEVICE) -> None:
    """Simulate *device* as `npu:0`, and answer for `torch_npu` and `torchair`.

    A second call puts another card in. Raises ImportError where torch is missing, and RuntimeError
    where a real torch_npu is there.
    """
    spec = devices.load(device)
    from npusim.torch import card, stand_ins

    if stand_ins.installed():
        card.insert(spec)
        return
    stand_ins.check_free()
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    from npusim.torch import backend, operators

    backend.register()
    card.insert(spec)
    backend.check()
    operators.register(backend.define)
    stand_ins.install()
