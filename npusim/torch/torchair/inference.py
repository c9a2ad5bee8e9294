"""`torchair.inference`: models compiled once, for shapes that are known in advance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from npusim.torch.refusals import others_of
from npusim.torch.torchair.compiler_config import CompilerConfig
from npusim.torch.torchair.graph import get_npu_backend

__all__ = ["cache_compile", "set_dim_gears"]

MOST_GEARS = 100
"""Most sizes for which a dimension can be prepared; at least 2 (torchair, inference)."""


def cache_compile(
    func: Callable[..., object],
    *,
    config: CompilerConfig | None = None,
    dynamic: bool = True,
    cache_dir: str | None = None,  # noqa: ARG001
    global_rank: int | None = None,  # noqa: ARG001
    tp_rank: int | None = None,  # noqa: ARG001
    pp_rank: int | None = None,  # noqa: ARG001
    custom_decompositions: object = None,
    ge_cache: bool = False,  # noqa: ARG001
) -> Callable[..., object]:
    """Compile *func* as a whole. On a card the result is stored in *cache_dir*; compilation is fast
    here, so the folder is not used."""
    backend = get_npu_backend(compiler_config=config, custom_decompositions=custom_decompositions)
    compiled: Callable[..., object] = torch.compile(
        func, backend=backend, fullgraph=True, dynamic=dynamic
    )
    return compiled


def set_dim_gears(t: torch.Tensor, dim_gears: Mapping[int, Sequence[int]]) -> None:
    """Prepare *t* for the sizes `dim_gears[dim]` of its dimension *dim*, 2 to 100 of them.

    Here each size is compiled when it is first used. Raises ValueError if torchair would.
    """
    for dim, gears in dim_gears.items():
        if not isinstance(dim, int) or not 0 <= dim < t.dim():
            raise ValueError(
                f"torchair.inference.set_dim_gears: a dimension must be 0 to {t.dim() - 1}, not "
                f"{dim!r}; name one of the tensor's"
            )
        are_sizes = isinstance(gears, list | tuple) and all(isinstance(n, int) and n for n in gears)
        if not are_sizes or not 2 <= len(gears) <= MOST_GEARS:
            raise ValueError(
                f"torchair.inference.set_dim_gears: the sizes of dimension {dim} must be a list of "
                f"2 to {MOST_GEARS} whole numbers but 0, not {gears!r}; list them"
            )
        torch._dynamo.mark_dynamic(t, dim)


__getattr__ = others_of("torchair.inference")
