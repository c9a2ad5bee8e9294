"""What torch_npu itself offers: the schemas of its operators, and the names of its modules.

`operators.txt` was read off the wheel of torch_npu 2.14.0 on PyPI: the schemas that its libraries
register in the namespace `npu`, one a line, without those of process groups. `names.toml` has the
names of its modules, those that begin with an underscore too: what the wheel lists in `__all__`,
what the sources of Ascend/pytorch and op-plugin define, and what their C++ binds; its first lines
say of which commits.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

__all__ = ["names", "operators", "schemas"]


@cache
def schemas() -> tuple[str, ...]:
    """The schemas of torch_npu's operators, as torch parses them."""
    return tuple(_read("operators.txt").splitlines())


@cache
def operators() -> frozenset[str]:
    """The names of torch_npu's operators."""
    return frozenset(schema.partition("(")[0].partition(".")[0] for schema in schemas())


@cache
def names() -> dict[str, tuple[str, ...]]:
    """Module of torch_npu -> its names."""
    return {module: tuple(found) for module, found in tomllib.loads(_read("names.toml")).items()}


def _read(file: str) -> str:
    return (files(__package__) / file).read_text(encoding="utf-8")
