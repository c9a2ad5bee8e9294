"""The backend of `torch.compile` for the card: the same kernels, with one launch."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from npusim.torch.clock import clock
from npusim.torch.modules import GraphRun
from npusim.torch.torchair.compiler_config import CompilerConfig

__all__ = ["get_npu_backend"]

_numbers = itertools.count(1)


def get_npu_backend(
    *, compiler_config: CompilerConfig | None = None, custom_decompositions: object = None
) -> Callable[..., object]:
    """A backend for `torch.compile`. *compiler_config* is read when a model is compiled.

    Raises TypeError for another kind of config.
    """
    config = CompilerConfig() if compiler_config is None else compiler_config
    if not isinstance(config, CompilerConfig):
        raise TypeError(
            f"torchair.get_npu_backend: compiler_config must be a CompilerConfig, not "
            f"{type(config).__name__}; pass torchair.CompilerConfig()"
        )

    def compile_graph(graph: torch.fx.GraphModule, _inputs: object) -> object:
        name = f"graph_{next(_numbers)}"
        if config.debug.graph_dump.type is not None:
            _dump(graph, name, config.debug.graph_dump.path, config.debug.graph_dump.type)

        def play(*args: object) -> object:
            with clock.graph(name):
                return GraphRun(graph).run(*args) if clock.is_recorded else graph(*args)

        return make_boxed_func(play)

    backend = aot_autograd(
        fw_compiler=compile_graph,
        decompositions=custom_decompositions or {},
        keep_inference_input_mutations=True,
    )

    def npu_backend(module: torch.fx.GraphModule, inputs: object) -> object:
        return backend(module, inputs)

    return npu_backend


def _dump(graph: torch.fx.GraphModule, name: str, folder: str, kind: str) -> None:
    """Write the graph under torchair's file name, for a single rank."""
    stamp = time.strftime("%Y%m%d%H%M%S")
    file = f"dynamo_optimized_{name}_rank_0_pid_{os.getpid()}_ts_{stamp}.{kind}"
    text = graph.print_readable(print_output=False)
    note = "# A graph of torch.fx as npusim runs it, not one of GE.\n"
    Path(folder, file).write_text(note + text, encoding="utf-8")
