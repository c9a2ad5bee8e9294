"""Which of the vendor's kernels a caller of npu_quant_matmul may name.

Which one the vendor takes follows from its tiles, see `tiling`. A name overrules that, but not what
a kernel cannot do without.
"""

from __future__ import annotations

from typing import Any, Literal

from npusim.data.dtypes import INT32
from npusim.data.errors import shown
from npusim.data.tensor import Operand
from npusim.ops._contract import Contract, listed

__all__ = ["Form", "Template", "asked_for", "form_of"]

Template = Literal["basic", "tbe", "tbe_opt", "pp", "coupled", "msd", "pergroup"]
"""basic     blocks by load and reuse, a ring of two for the vector cores
tbe       the older library's tiles; vector cores start the cube cores by messages
tbe_opt   those tiles with a place for each block of a row of them
pp        310P's kernel of powers of two
coupled   310P's other kernel, whose rules are closed
msd       int8 times int4, x1 written as two int4 a number
pergroup  int4 times int4, with scales and offsets of groups of k"""

Form = Literal["plain", "int8 times int4", "groups of int4"]
"""What decides between the kernels of version 3, plain, and those of version 4."""
OF_FORM: dict[Form, tuple[Template, ...]] = {
    "plain": ("basic", "tbe", "tbe_opt"),
    "int8 times int4": ("msd",),
    "groups of int4": ("pergroup",),
}
COUPLED: tuple[Template, ...] = ("pp", "coupled")


def form_of(x1: Operand, x2: Operand, groups: tuple[int, int, int]) -> Form:
    """Which kernels take these types; *groups* are rows, columns and k of a group, 0 for none."""
    if x2.element is not INT32:
        return "plain"
    if x1.element is not INT32:
        return "int8 times int4"
    return "groups of int4" if any(groups) else "plain"


def asked_for(
    contract: Contract, template: Any, epilogue: str, form: Form = "plain"
) -> Template | None:
    """*template* held against the product line, the types, and the *epilogue* that they need."""
    is_310p = contract.spec.arch == "2002"
    own = COUPLED if is_310p else OF_FORM[form]
    if template is None:
        return None
    named = [name for name in own if isinstance(template, str) and name == template]
    if not named:
        line = "Atlas inference" if is_310p else "Atlas A2 and Atlas A3"
        what = "" if form == "plain" else f" with {form}"
        contract.fail(
            f"template must be {listed(own)} on {line}{what}, not {shown(template)}; leave it out "
            f"to get the vendor's choice"
        )
    contract.require(
        template != "tbe_opt" or epilogue == "vector",
        f"template {template!r} can run only if vector cores make the output; pass a "
        f"pertoken_scale or output_dtype='bfloat16', or leave it out to get the vendor's choice",
    )
    return named[0]
