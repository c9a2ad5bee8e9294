"""What the operators share that scale rows by their root mean square.

.. code-block:: text

    r = 1 / sqrt(mean(x * x) + epsilon)
    y = x * r * gamma

Pages import this as `norm`: what all of them ask of a call (``contract``), who takes which rows in
what steps (``tiling``), what kernels are written with (``core``), and the same sums in plain numpy
(``oracle``).

Source of all of them: ops-nn@e5c3fa9 norm/rms_norm, norm/add_rms_norm, norm/add_rms_norm_quant and
norm/add_rms_norm_dynamic_quant, their op_kernel and op_host.
"""

from npusim.ops._rms_norm.contract import (
    Problem,
    check_gamma,
    check_pair,
    epsilon_of,
    root_shape,
    template_of,
    vector_of,
)
from npusim.ops._rms_norm.core import (
    NormCore,
    Residual,
    RootsOfRows,
    Rounding,
    block_of,
    upper_half,
)
from npusim.ops._rms_norm.oracle import (
    element_of,
    halving_sum,
    lanes_sum,
    scaled_root,
    sum_of_parts,
)
from npusim.ops._rms_norm.tiling import (
    KEPT_BYTES,
    Kernel,
    Machine,
    Plan,
    Template,
    chosen,
    launch_rows,
    planned,
    whole_blocks,
)

__all__ = [
    "KEPT_BYTES",
    "Kernel",
    "Machine",
    "NormCore",
    "Plan",
    "Problem",
    "Residual",
    "RootsOfRows",
    "Rounding",
    "Template",
    "block_of",
    "check_gamma",
    "check_pair",
    "chosen",
    "element_of",
    "epsilon_of",
    "halving_sum",
    "lanes_sum",
    "launch_rows",
    "planned",
    "root_shape",
    "scaled_root",
    "sum_of_parts",
    "template_of",
    "upper_half",
    "vector_of",
    "whole_blocks",
]
