"""The tables of a run of a model, as plain rows: by kind of work, operator, module, layer, kernel.

Each table except that of modules adds up to the whole run. A module includes what runs in its own
forward and in the modules below it, so that the outermost modules, and what runs outside of all of
them, add up to the whole run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from npusim.reports.model.works import WORKS, work_of
from npusim.trace.model import Kernel, KernelLaunch, ModelRun

__all__ = [
    "OUTSIDE",
    "Total",
    "above",
    "as_tree",
    "by_kernel",
    "by_layer",
    "by_module",
    "by_op",
    "by_operator",
    "by_role",
    "by_root",
    "by_work",
    "layer_of",
    "role_of",
    "steps",
    "total",
]

Key = TypeVar("Key", bound=Hashable)

OUTSIDE = "outside modules"
"""Stands for what runs outside all modules."""
ANY = "*"
"""Stands for all numbers of a list."""


@dataclass(frozen=True, slots=True)
class Total:
    """The totals of some launches."""

    launches: int
    time_us: float
    launch_us: float
    """The part of it for starting and ending the kernels."""
    read_bytes: int
    """Bytes that cores read from memory, including the L2."""
    written_bytes: int
    gm_bytes: int
    """Bytes that moved from and to global memory."""
    bound: str
    """The bottleneck of the kernels that take most of the time."""
    bound_share: float
    """The share of the time of those kernels."""


def total(launches: Iterable[KernelLaunch]) -> Total:
    """The totals of all *launches*."""
    counts: Counter[Kernel] = Counter(launch.kernel for launch in launches)
    bounds: dict[str, float] = {}
    time_us = launch_us = 0.0
    read = written = gm = 0
    for kernel, count in counts.items():
        bounds[kernel.bound] = bounds.get(kernel.bound, 0.0) + count * kernel.time_us
        time_us += count * kernel.time_us
        launch_us += count * kernel.launch_us
        read += count * kernel.read_bytes
        written += count * kernel.written_bytes
        gm += count * kernel.gm_bytes
    bound = min(bounds, key=lambda words: (-bounds[words], words), default="")
    share = bounds[bound] / time_us if time_us else 0.0
    return Total(counts.total(), time_us, launch_us, read, written, gm, bound, share)


def _grouped(
    run: ModelRun, key: Callable[[KernelLaunch], Key]
) -> dict[Key, tuple[KernelLaunch, ...]]:
    found: dict[Key, list[KernelLaunch]] = {}
    for launch in run.launches:
        found.setdefault(key(launch), []).append(launch)
    return {name: tuple(launches) for name, launches in found.items()}


def _longest_first(found: dict[Key, Total]) -> dict[Key, Total]:
    ranked = sorted(found.items(), key=lambda item: (-item[1].time_us, str(item[0])))
    return dict(ranked)


def by_work(run: ModelRun) -> dict[str, Total]:
    """Kind of work -> totals of its launches, in the order of `WORKS`."""
    found = _grouped(run, lambda launch: work_of(launch.kernel.op))
    return {work: total(found[work]) for work in WORKS if work in found}


def by_operator(run: ModelRun) -> dict[tuple[str, str], Total]:
    """Operation of torch and operator of npusim -> totals of launches, the longest first."""
    found = _grouped(run, lambda launch: (launch.operator, launch.kernel.op))
    return _longest_first({name: total(own) for name, own in found.items()})


def by_op(run: ModelRun) -> dict[str, Total]:
    """Operator of npusim -> totals of its launches, the longest first."""
    found = _grouped(run, lambda launch: launch.kernel.op)
    return _longest_first({op: total(own) for op, own in found.items()})


def by_kernel(run: ModelRun) -> dict[Kernel, Total]:
    """Kernel -> totals of its launches, the longest first."""
    found = _grouped(run, lambda launch: launch.kernel)
    own = {kernel: total(launches) for kernel, launches in found.items()}
    ranked = sorted(own.items(), key=lambda item: (-item[1].time_us, item[0].op, item[0].inputs))
    return dict(ranked)


# ---- modules ----


def steps(path: str) -> tuple[str, ...]:
    """The steps of a path from the outermost module on; a list and its index form one step.

    >>> steps("Llama.model.layers.0.mlp")
    ('Llama', 'model', 'layers.0', 'mlp')
    """
    found: list[str] = []
    for part in path.split(".") if path else ():
        if len(found) > 1 and (part.isdigit() or part == ANY):
            found[-1] += f".{part}"
        else:
            found.append(part)
    return tuple(found)


def above(path: str) -> list[str]:
    """*path* and the paths of all modules around it, the outermost first; `OUTSIDE` without any.

    >>> above("Llama.layers.0.mlp")
    ['Llama', 'Llama.layers.0', 'Llama.layers.0.mlp']
    """
    parts = steps(path)
    return [".".join(parts[: depth + 1]) for depth in range(len(parts))] or [OUTSIDE]


def by_module(run: ModelRun) -> dict[str, Total]:
    """Path of a module -> launches in it and below; parents first, then in order of execution."""
    return _by_path(run, str)


def by_role(run: ModelRun) -> dict[str, Total]:
    """The same with all modules of a list together; the index in the list becomes a star."""
    return _by_path(run, role_of)


def role_of(path: str) -> str:
    """*path* with stars for indices.

    >>> role_of("Llama.layers.17.mlp")
    'Llama.layers.*.mlp'
    """
    return ".".join(ANY if part.isdigit() else part for part in path.split("."))


def _by_path(run: ModelRun, named: Callable[[str], str]) -> dict[str, Total]:
    """A module without timed kernels is included too, with no launches."""
    own = _grouped(run, lambda launch: named(launch.module))
    missing = (named(each.module) for each in run.not_timed)
    inside: dict[str, list[KernelLaunch]] = {}
    for path in dict.fromkeys((*own, *missing)):
        for outer in above(path):
            inside.setdefault(outer, []).extend(own.get(path, ()))
    return {path: total(inside[path]) for path in as_tree(inside)}


def as_tree(paths: Iterable[str]) -> list[str]:
    """*paths* with each module right before its children, otherwise in the given order."""
    children: dict[str, list[str]] = {}
    for path in paths:
        around = above(path)
        children.setdefault(around[-2] if len(around) > 1 else "", []).append(path)
    found: list[str] = []
    waiting = list(reversed(children.get("", [])))
    while waiting:
        path = waiting.pop()
        found.append(path)
        waiting += reversed(children.get(path, []))
    return found


def layer_of(path: str) -> str:
    """The layer of the module at *path*: the outermost module around it that belongs to a list.

    A module outside all layers counts as its own layer; without any module it is `OUTSIDE`.

    >>> layer_of("Llama.model.layers.0.mlp.up"), layer_of("Llama.lm_head"), layer_of("")
    ('Llama.model.layers.0', 'Llama.lm_head', 'outside modules')
    """
    around = above(path)
    return next((each for each in around if each.rpartition(".")[2].isdigit()), around[-1])


def by_root(run: ModelRun) -> dict[str, Total]:
    """Outermost module, which is a model -> totals of its launches, in order of execution."""
    found = _grouped(run, lambda launch: above(launch.module)[0])
    return {name: total(own) for name, own in found.items() if name != OUTSIDE}


def by_layer(run: ModelRun) -> dict[str, dict[str, Total]]:
    """Layer -> kind of work -> totals of its launches, layers in order of execution."""
    found = _grouped(run, lambda launch: layer_of(launch.module))
    return {layer: _works(launches) for layer, launches in found.items()}


def _works(launches: Sequence[KernelLaunch]) -> dict[str, Total]:
    own: dict[str, list[KernelLaunch]] = {}
    for launch in launches:
        own.setdefault(work_of(launch.kernel.op), []).append(launch)
    return {work: total(own[work]) for work in WORKS if work in own}
