"""Imports for the module of an operator, besides :mod:`npusim.kernel`.

The declaration: :class:`Operator`, the :class:`TorchFunction` whose schema gives its parameters,
and its :class:`Row` s of support. The functions it names get a :class:`Contract` (check), a
:class:`Given` (oracle), and :class:`TorchArguments` (shapes of results).
"""

from npusim.ops._contract import Contract, listed
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator, Plan, Problem, Reads, present
from npusim.ops._remedies import same_shape_remedy
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, EVERYWHERE, Operands, Row, alike, required
from npusim.ops._torch import Gradient, TorchArguments, TorchFunction, TorchTensor

__all__ = [
    "A2_A3",
    "ATLAS_INFERENCE",
    "EVERYWHERE",
    "Contract",
    "Given",
    "Gradient",
    "Operands",
    "Operator",
    "Plan",
    "Problem",
    "Reads",
    "Row",
    "TorchArguments",
    "TorchFunction",
    "TorchTensor",
    "alike",
    "listed",
    "present",
    "required",
    "same_shape_remedy",
]
