"""`torch_npu` and `torchair` by name: which module of ours answers for which of theirs."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib import metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["MODULES", "check_free", "check_torch", "install", "installed"]

MODULES: dict[str, str | None] = {
    "torch_npu": "npusim.torch.torch_npu",
    "torch_npu.npu": "npusim.torch.npu",
    "torch_npu.contrib": "npusim.torch.contrib",
    "torch_npu.contrib.module": "npusim.torch.contrib.module",
    "torch_npu.profiler": "npusim.torch.profiler",
    "torch_npu.testing": "npusim.torch.testing",
    "torch_npu.testing.common_utils": "npusim.torch.testing.common_utils",
    "torch_npu.testing.decorator": "npusim.torch.testing.decorator",
    "torch_npu.testing.testcase": "npusim.torch.testing.testcase",
    "torchair": "npusim.torch.torchair",
    "torchair.configs": None,
    "torchair.configs.compiler_config": "npusim.torch.torchair.compiler_config",
    "torchair.core": None,
    "torchair.core.utils": "npusim.torch.torchair.log",
    "torchair.experimental": "npusim.torch.torchair.experimental",
    "torchair.experimental.inference": "npusim.torch.torchair.inference",
    # Scripts import it and use nothing of it: GE's own operators are not simulated.
    "torchair.ge_concrete_graph": None,
    "torchair.ge_concrete_graph.ge_apis": None,
}
"""Name that scripts import -> module that answers; None for an empty one."""

PACKAGES = ("torch_npu", "torchair")

LEAST_TORCH = (2, 13)
"""The oldest on which the tests run."""


class _StandIns(MetaPathFinder, Loader):
    """Answers for the names above, and refuses other parts of the same packages."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        if name.partition(".")[0] not in PACKAGES:
            return None
        if name not in MODULES:
            raise ModuleNotFoundError(
                f"No module named {name!r}\nnpusim.torch: an import must name a part that is "
                f"modelled, not {name}; do without it",
                name=name,
            )
        return ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Put our module in the place of the empty one (a loader may do so)."""
        answering = MODULES[module.__name__]
        if answering is None:
            return
        ours: Any = importlib.import_module(answering)
        if not hasattr(ours, "__path__"):
            ours.__path__ = []
        sys.modules[module.__name__] = ours


def installed() -> bool:
    """Whether the names are ours."""
    return any(isinstance(finder, _StandIns) for finder in sys.meta_path)


def install() -> None:
    """Answer for the names from now on."""
    sys.meta_path.insert(0, _StandIns())


def check_free(shadow: bool) -> None:
    """Raise RuntimeError if real packages have the names; unless *shadow*, also if they could."""
    for name in PACKAGES:
        if name in sys.modules:
            where = getattr(sys.modules[name], "__file__", None)
            raise RuntimeError(
                f"npusim.torch: {name} must not be imported before install(), but is already "
                f"imported from {where}; start a new process and call install() first"
            )
        found = None if shadow else importlib.util.find_spec(name)
        if found is not None:
            raise RuntimeError(
                f"npusim.torch: a real {name} must not be hidden, but there is one at "
                f"{found.origin}; start the script with python -m npusim.torch, "
                "or call install(shadow=True)"
            )


def check_torch() -> None:
    """Raise ImportError without a torch that is new enough."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = "none"
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < LEAST_TORCH:
        raise ImportError(
            f"npusim.torch: torch must be 2.13 or newer, not {version}; "
            "install it with: pip install 'npusim[torch]'"
        )
