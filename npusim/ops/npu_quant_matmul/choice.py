"""Which of the vendor's kernels a caller of npu_quant_matmul may name.

Which one the vendor takes follows from its tiles, see `tiling`. A name overrules that, but not what
a kernel cannot do without.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from npusim.data.errors import shown
from npusim.ops._contract import Contract, listed

__all__ = ["Template", "asked_for"]

Template = Literal["basic", "tbe", "tbe_opt", "pp", "coupled"]
"""basic    blocks by load and reuse, a ring of two for the vector cores
tbe      the older library's tiles; vector cores start the cube cores by messages
tbe_opt  those tiles with a place for each block of a row of them
pp       310P's kernel of powers of two
coupled  310P's other kernel, whose rules are closed"""
COUPLED: tuple[Template, ...] = ("pp", "coupled")


def asked_for(contract: Contract, template: Any, epilogue: str) -> Template | None:
    """*template* held against the product line, and the *epilogue* that the call needs."""
    is_310p = contract.spec.arch == "2002"
    own: tuple[Template, ...] = tuple(
        name for name in get_args(Template) if (name in COUPLED) == is_310p
    )
    if template is None:
        return None
    named = [name for name in own if isinstance(template, str) and name == template]
    if not named:
        line = "Atlas inference" if is_310p else "Atlas A2 and Atlas A3"
        contract.fail(
            f"template must be {listed(own)} on {line}, not {shown(template)}; leave it out to get "
            f"the vendor's choice"
        )
    contract.require(
        template != "tbe_opt" or epilogue == "vector",
        f"template {template!r} can run only if vector cores make the output; pass a "
        f"pertoken_scale or output_dtype='bfloat16', or leave it out to get the vendor's choice",
    )
    return named[0]
