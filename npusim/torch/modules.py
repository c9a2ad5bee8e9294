"""Track which module of a model is running, for recordings of the card.

torch calls hooks around the forward of every module. The path of a module is its path in
`named_modules()` below the outermost module that was called, and starts with the class of that one:
`LlamaForCausalLM.model.layers.0.self_attn.q_proj`. A module made by `torch.compile` has the path of
the original, and operations of a compiled graph have the paths recorded by dynamo. Kernels of a
backward pass belong to no module.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from npusim.torch.clock import clock

__all__ = ["GraphRun", "Modules"]

COMPILED = "_orig_mod"
"""The attribute of a compiled module that holds the original module."""
HOOKS_WARNING = "Using `torch.compile\\(module\\)` when there are global hooks on modules"
"""The beginning of a warning of torch; the hooks here handle that case."""


class Modules:
    """Sets the running module on the clock, between enter and exit."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}
        """Path of each known module -> its class."""
        self._paths: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        self._roots: Counter[str] = Counter()
        self._outer: list[str] = []
        self._hooks: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        warnings.filterwarnings("ignore", HOOKS_WARNING, UserWarning)
        self._hooks = [
            register_module_forward_pre_hook(self._enter).remove,
            register_module_forward_hook(self._leave, always_call=True).remove,
        ]

    def __exit__(self, *_: object) -> None:
        for remove in self._hooks:
            remove()
        self._outer.clear()
        clock.module = ""

    def classes_of(self, paths: Iterable[str]) -> dict[str, str]:
        """The classes of the modules at *paths*, and of the modules that contain them."""
        found: dict[str, str] = {}
        for path in dict.fromkeys(paths):
            parts = path.split(".")
            for depth in range(1, len(parts) + 1):
                outer = ".".join(parts[:depth])
                if outer in self._classes:
                    found[outer] = self._classes[outer]
        return found

    def _enter(self, module: torch.nn.Module, _: object) -> None:
        # Dynamo traces hooks too; its graphs have the paths of modules already.
        if torch.compiler.is_compiling() or clock.is_in_graph:
            return
        path = self._paths.get(module)
        self._outer.append(clock.module)
        clock.module = self._named(module) if path is None else path

    def _leave(self, module: torch.nn.Module, _: object, __: object) -> None:  # noqa: ARG002
        if torch.compiler.is_compiling() or clock.is_in_graph:
            return
        # A module whose forward was running when the recording started was never entered.
        if self._outer:
            clock.module = self._outer.pop()

    def _named(self, root: torch.nn.Module) -> str:
        """The path of *root*, which is in no known module; sets those of its submodules too."""
        origin = _origin(root)
        own = self._paths.get(origin)
        if own is None:
            kind = type(origin).__name__
            self._roots[kind] += 1
            own = kind if self._roots[kind] == 1 else f"{kind} ({self._roots[kind]})"
        for name, module in root.named_modules():
            parts = [own, *(part for part in name.split(".") if part not in ("", COMPILED))]
            path = self._paths.setdefault(module, ".".join(parts))
            self._classes.setdefault(path, type(_origin(module)).__name__)
        return own


def _origin(module: torch.nn.Module) -> torch.nn.Module:
    """*module*, or the original module if `torch.compile` made it."""
    origin = module._modules.get(COMPILED)
    return module if origin is None else origin


class GraphRun(torch.fx.Interpreter):
    """Runs a compiled graph node by node, and sets the module of each node on the clock."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph)
        self._around = clock.module

    def run(self, *args: object, **kwargs: object) -> object:
        """Run the graph on *args*."""
        try:
            return super().run(*args, **kwargs)
        finally:
            clock.module = self._around

    def run_node(self, n: torch.fx.Node) -> object:
        """Run node *n*."""
        stack = n.meta.get("nn_module_stack") or {"": ("", None)}
        path, _ = list(stack.values())[-1]
        clock.module = ".".join(part for part in (self._around, _below(path)) if part)
        return super().run_node(n)


def _below(path: str) -> str:
    """The part of dynamo's *path* below the module that was compiled.

    >>> _below("L['self'].layers.0.up"), _below("G['model'].head"), _below("")
    ('layers.0.up', 'model.head', '')
    """
    found = re.sub(r"^[LG]\['(\w+)'\]", r"\1", path)
    return re.sub(r"^self(\.|$)", "", found).replace(f".{COMPILED}", "")
