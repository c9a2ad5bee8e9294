"""The operators, one module or folder each, named after the torch_npu function.

An operator's module declares it: `OPERATOR = Operator(torch=..., support=..., contract=...,
tile=..., build=..., oracle=...)`, see :class:`Operator`; or, in the folder ``families``, as one of
several rows served by one kernel. `torch` says how torch calls it, and so which parameters it has;
the rows of `support` say which types go together on which product line; `contract` checks all other
conditions of a call and returns a :class:`Problem`; `tile` splits it over cores and buffers as the
vendor's kernel does and returns a :class:`Plan`; `build` writes the programs; and `oracle` computes
the result on whole arrays in plain numpy. `kernel_type` is CANN's name of the kernel. To add an
operator, add its module: nothing else lists it.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.resources import files
from pkgutil import iter_modules

from npusim import published
from npusim.data.errors import shown
from npusim.ops._attributes import Kind, KindError, in_words, kinds_of, value_of
from npusim.ops._contract import Contract, warnings_given
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator, Plan, Problem, Reads, normalize, signature
from npusim.ops._signature import NO_DEFAULT, Parameter
from npusim.ops._support import A2_A3, Row
from npusim.ops._support_table import support_table, support_text
from npusim.ops._torch import TorchFunction, TorchTensor

__all__ = [
    "A2_A3",
    "NOT_BUILT",
    "NO_DEFAULT",
    "Contract",
    "Given",
    "Kind",
    "KindError",
    "Operator",
    "Parameter",
    "Plan",
    "Problem",
    "Reads",
    "Row",
    "TorchFunction",
    "TorchTensor",
    "in_place_of",
    "in_words",
    "kinds_of",
    "load",
    "names",
    "normalize",
    "signature",
    "support_table",
    "support_text",
    "value_of",
    "warnings_given",
]


NOT_BUILT = {"npu_prompt_flash_attention": "PromptFlashAttention"}
"""Operators of torch_npu that are not simulated; another operator accepts such calls too."""
LIKENESS = 0.7
"""Share of common letters, as difflib computes it, above which a name counts as misspelled."""
FAMILIES = "families"
"""The folder of operators that share kernels."""


@cache
def names() -> tuple[str, ...]:
    """The names of all operators, sorted."""
    return tuple(sorted((*_modules(), *_of_families())))


@cache
def _modules() -> frozenset[str]:
    """The operators that have a module."""
    found = (module.name for module in iter_modules(__path__))
    return frozenset(name for name in found if not name.startswith("_") and name != FAMILIES)


@cache
def _of_families() -> dict[str, Operator]:
    """The operators of the families, by name."""
    modules = iter_modules([f"{folder}/{FAMILIES}" for folder in __path__])
    families = (import_module(f"{__name__}.{FAMILIES}.{module.name}") for module in modules)
    return {operator.name: operator for family in families for operator in family.OPERATORS}


def load(name: str) -> Operator:
    """The operator called *name*; raises ValueError if there is none."""
    if isinstance(name, str) and name in _modules():
        found: Operator = import_module(f"{__name__}.{name}").OPERATOR
        return found
    if isinstance(name, str) and name in NOT_BUILT:
        raise ValueError(f"ops: {name} must be modelled, but is not; {in_place_of(name)}")
    if not isinstance(name, str) or name not in _of_families():
        raise ValueError(
            f"ops: an operator must be one that npusim simulates, not {_described(name)}"
        )
    return _of_families()[name]


def _described(name: object) -> str:
    """What torch_npu has under *name*, which is no operator here, and what to do."""
    if not isinstance(name, str):
        return f"{shown(name)}; npusim ops lists them all"
    near = get_close_matches(name, names(), n=1, cutoff=LIKENESS)
    if name in under_torch():
        return f"{name}, which {_under_torch(name)}"
    if name in published.operators():
        hint = f"the closest one that is: {near[0]}" if near else "npusim ops lists them all"
        return f"{name}, which torch_npu has and npusim does not simulate; {hint}"
    if near:
        return f"{shown(name)}; did you mean {near[0]}?"
    if meant := get_close_matches(name, published.operators(), n=1, cutoff=LIKENESS):
        is_there = meant[0] in under_torch()
        what = _under_torch(meant[0]) if is_there else "npusim does not simulate"
        return f"{shown(name)}; torch_npu has {meant[0]}, which {what}"
    if name[:1].isupper():
        return f"{shown(name)}; for a model run npusim model with its config.json"
    return f"{shown(name)}, which is no operator of torch_npu either; npusim ops lists them all"


@cache
def under_torch() -> frozenset[str]:
    """Functions of torch_npu that scripts alone can call, by npusim.torch: no operators here."""
    return frozenset((files(__name__) / "under_torch.txt").read_text(encoding="utf-8").split())


OF_SEVERAL_CARDS = ("all_gather", "all_reduce", "distribute", "reduce_scatter")
"""What the names of those have in them that are called on several cards at once."""


def _under_torch(name: str) -> str:
    """That scripts alone can call function *name*, and how such a script is run."""
    starts = "torchrun --nproc-per-node 2" if any(each in name for each in OF_SEVERAL_CARDS) else ""
    command = f"{starts or 'python'} -m npusim.torch SCRIPT.py"
    return f"npusim has under PyTorch alone; call it in a script and run {command}"


def in_place_of(name: str) -> str:
    """What to call instead of operator *name*, one of `NOT_BUILT`."""
    return (
        f"call npu_fused_infer_attention_score on Atlas A2 or A3, whose kernels are not "
        f"{NOT_BUILT[name]}, with scale for scale_value, and take the first of its two outputs"
    )
