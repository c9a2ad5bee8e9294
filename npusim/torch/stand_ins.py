"""The modules of npusim that replace those of `torch_npu`, `torchair` and `acl`, by name."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib import metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from npusim.published import names

__all__ = ["MODULES", "check_free", "check_torch", "install", "installed"]

MODULES: dict[str, str | None] = {
    "acl": "npusim.torch.acl",
    "acl.rt": "npusim.torch.acl.rt",
    "torch_npu": "npusim.torch.torch_npu",
    "torch_npu._C": "npusim.torch.bindings",
    "torch_npu._C._distributed_c10d": "npusim.torch.distributed.bindings",
    "torch_npu.npu": "npusim.torch.npu",
    "torch_npu.npu.amp": "npusim.torch.amp",
    "torch_npu.npu.memory": "npusim.torch.allocator",
    "torch_npu.npu.npugraph_ex": "npusim.torch.torchair.npugraph_ex",
    "torch_npu.atb": "npusim.torch.atb",
    "torch_npu.op_plugin.atb._atb_ops": "npusim.torch.atb",
    "torch_npu.contrib": "npusim.torch.contrib",
    "torch_npu.contrib.function": "npusim.torch.contrib.function",
    "torch_npu.contrib.module": "npusim.torch.contrib.module",
    "torch_npu.contrib.transfer_to_npu": "npusim.torch.contrib.transfer_to_npu",
    "torch_npu.distributed": "npusim.torch.distributed",
    "torch_npu.dynamo": "npusim.torch.dynamo",
    "torch_npu.optim": "npusim.torch.optim",
    "torch_npu.profiler": "npusim.torch.profiler",
    "torch_npu.profiler.dynamic_profile": "npusim.torch.profiler.dynamic_profile",
    "torch_npu.testing": "npusim.torch.testing",
    "torch_npu.testing.common_distributed": "npusim.torch.testing.common_distributed",
    "torch_npu.testing.common_utils": "npusim.torch.testing.common_utils",
    "torch_npu.testing.decorator": "npusim.torch.testing.decorator",
    "torch_npu.testing.testcase": "npusim.torch.testing.testcase",
    "torchair": "npusim.torch.torchair",
    "torchair.configs": None,
    "torchair.configs.compiler_config": "npusim.torch.torchair.compiler_config",
    "torchair.core": None,
    "torchair.core.utils": "npusim.torch.torchair.log",
    "torchair.experimental": "npusim.torch.torchair.experimental",
    "torchair.experimental.inference": "npusim.torch.torchair.internal_format",
    "torchair.inference": "npusim.torch.torchair.inference",
    "torchair.ops": "npusim.torch.torchair.ops",
    "torchair.scope": "npusim.torch.torchair.scope",
    # Scripts import it but use none of its names: GE's operators are not simulated.
    "torchair.ge_concrete_graph": None,
    "torchair.ge_concrete_graph.ge_apis": None,
}
"""Name that scripts import -> the module that replaces it; None for an empty one. The other modules
of torch_npu with published names have those names, which raise an error when they are called."""

SECOND_NAME = "torch_npu.dynamo."
"""torch_npu contains torchair as torch_npu.dynamo.torchair."""

PACKAGES = ("torch_npu", "torchair")
OF_CANN = "acl"
"""The package of pyACL. A real one may be there, and is hidden: the toolkit has it without a card.
"""

LEAST_TORCH = (2, 11)
"""The oldest version of torch on which the tests run."""


class _StandIns(MetaPathFinder, Loader):
    """Imports the modules above, and raises an error for other parts of the same packages."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if name.partition(".")[0] not in (*PACKAGES, OF_CANN):
            return None
        own_name = _own_name(name)
        if own_name not in MODULES and own_name not in names():
            raise ModuleNotFoundError(
                f"No module named {name!r}\nnpusim.torch: an import must name a part that is "
                f"modelled, not {name}; do without it",
                name=name,
            )
        return ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Replace the empty module by that of npusim (a loader may do so)."""
        name = module.__name__
        own_name = _own_name(name)
        if own_name != name:
            sys.modules[name] = importlib.import_module(own_name)
            return
        if own_name not in MODULES:
            _fill(module)
            return
        answering = MODULES[own_name]
        if answering is None:
            return
        ours: Any = importlib.import_module(answering)
        if not hasattr(ours, "__path__"):
            ours.__path__ = []
        sys.modules[name] = ours


class _Package(ModuleType):
    """A package in which a function keeps its name when the module of that name is imported.

    In torch_npu each such module is imported before the function, which then replaces it.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and callable(vars(self).get(name))):
            super().__setattr__(name, value)


def _own_name(name: str) -> str:
    """torchair.X for torch_npu.dynamo.torchair.X; other names are unchanged."""
    shorter = name.removeprefix(SECOND_NAME)
    return shorter if shorter.partition(".")[0] == "torchair" else name


def _fill(module: ModuleType) -> None:
    """Give *module*, which npusim does not replace, its names in torch_npu. Those that its parent
    has are the same objects, as torch_npu.npu has those of torch_npu.npu.streams; the others raise
    an error when called."""
    from npusim.torch.refusals import refusal

    above = sys.modules[module.__name__.rpartition(".")[0]]
    above.__class__ = _Package
    parts = (*vars(above).get("PARTS", ()), above)
    own = {name: found for part in parts for name, found in vars(part).items()}
    for name in names()[module.__name__]:
        found = own[name] if name in own else refusal(module.__name__, name)
        setattr(module, name, found)
    module.__dict__["__all__"] = list(names()[module.__name__])


def installed() -> bool:
    """Whether the names import npusim's modules."""
    return any(isinstance(finder, _StandIns) for finder in sys.meta_path)


def install() -> None:
    """Import npusim's modules under these names from now on."""
    sys.meta_path.insert(0, _StandIns())


def check_free(shadow: bool) -> None:
    """Raise RuntimeError if real packages are imported, or, unless *shadow*, installed."""
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
    """Raise ImportError if torch is missing or too old."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = "none"
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < LEAST_TORCH:
        raise ImportError(
            f"npusim.torch: torch must be 2.11 or newer, not {version}; "
            "install it with: pip install 'npusim[torch]'"
        )
