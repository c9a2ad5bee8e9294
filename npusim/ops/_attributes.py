"""The attributes of a call: each must be of the type that the operator's schema gives it.

All type checks are here. Accepts a numpy scalar for a Python one, a one-dimensional array for a
list, and a dtype of torch or numpy for its name. Which values are supported, and which names exist,
is left to the contract, whose refusals list them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.data.dtypes import DTYPES
from npusim.data.errors import shown
from npusim.ops._signature import Parameter

__all__ = ["Kind", "KindError", "in_words", "kinds_of", "one", "value_of"]


class KindError(ValueError):
    """A value is not of its type: the message gives the rule, the value and the remedy."""

    def __init__(self, must: str, came: str, remedy: str) -> None:
        super().__init__(f"{must}, not {came}; {remedy}")
        self.must = must


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of attributes in schemas."""

    singular: str
    plural: str
    remedy: str
    examples: tuple[object, object]
    types: tuple[type, ...]
    """Accepted types; a bool is not an integer."""
    make: Callable[[Any], Any]
    """Converts to a plain Python value."""
    is_name: bool = False
    """Whether the contract refuses other types, as it does unknown names, since it lists them."""

    def takes(self, value: object) -> bool:
        """Whether *value* is of this type."""
        return isinstance(value, self.types) and (bool in self.types or type(value) is not bool)


def _number(value: Any) -> int | float:
    return int(value) if isinstance(value, int | np.integer) else float(value)


WHOLE = (int, np.integer)
KINDS = {
    "int": Kind("an integer", "integers", "pass one without quotes or a point", (1, 2), WHOLE, int),
    "float": Kind(
        *("a number", "numbers", "pass one without quotes", (0.5, 1.0)),
        types=(*WHOLE, float, np.floating),
        make=_number,
    ),
    "bool": Kind(
        *("True or False", "booleans", "pass one of them", (True, False)),
        types=(bool, np.bool_),
        make=bool,
    ),
    "str": Kind("a name", "names", "pass one in quotes", ("a", "b"), (str,), str, is_name=True),
    "dtype": Kind(
        *("the name of a dtype", "names of dtypes", "pass one in quotes", ("int8", "float16")),
        types=(str,),
        make=str,
        is_name=True,
    ),
}
KINDS["SymInt"] = KINDS["int"]


def kinds_of(parameter: Parameter) -> tuple[Kind, ...]:
    """The types of an attribute, or of the elements of a list of them; none if unknown."""
    return tuple(KINDS[word] for word in parameter.words if word in KINDS)


def in_words(parameter: Parameter) -> str:
    """The type of attribute *parameter*, whether or not it may be None.

    >>> in_words(Parameter("sizes", "SymInt[]?")), in_words(Parameter("mask", "bool[2]"))
    ('a list of integers', 'a list of 2 booleans')
    """
    kinds, count = kinds_of(parameter), f"{parameter.length} " if parameter.length else ""
    if parameter.is_sequence:
        return f"a list of {count}{kinds[0].plural}"
    return " or ".join(each.singular for each in kinds)


def value_of(parameter: Parameter, value: object) -> object:
    """*value* as a plain Python value of the type of attribute *parameter*; raises KindError."""
    kinds, name = kinds_of(parameter), parameter.name
    if not kinds or value is parameter.default or (value is None and parameter.may_be_none):
        return value
    if "dtype" in parameter.words:
        value = _dtype_word(value)
    if not parameter.is_sequence:
        return one(name, value, *kinds)
    elements: Any = value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else value
    is_list, length = isinstance(elements, list | tuple), parameter.length
    if not is_list or len(elements) != (length or len(elements)):
        remedy = f"for example {list(kinds[0].examples)}" if length else "a list of them"
        raise KindError(f"{name} must be {in_words(parameter)}", shown(value), f"pass {remedy}")
    found = [one(f"{name}[{place}]", each, *kinds) for place, each in enumerate(elements)]
    return tuple(found) if isinstance(elements, tuple) else found


def one(name: str, value: object, *kinds: Kind) -> Any:
    """*value* as a plain Python value of the first of *kinds* that accepts it; raises KindError."""
    kind = next((each for each in kinds if each.takes(value)), None)
    if kind is None and any(each.is_name for each in kinds):
        return value
    if kind is None:
        raise KindError(f"{name} must be {kinds[0].singular}", shown(value), kinds[0].remedy)
    found = kind.make(value)
    if isinstance(found, int) and not -(2**63) <= found < 2**63:
        raise KindError(f"{name} must fit into 64 bits", f"be {shown(value)}", "pass a smaller one")
    return found


def _dtype_word(value: Any) -> object:
    """The name of a dtype of torch or of numpy; anything else unchanged."""
    kind = type(value)
    # torch itself is not imported, since npusim works without it.
    if (kind.__module__, kind.__name__) == ("torch", "dtype"):
        return str(value).removeprefix("torch.")
    if isinstance(value, np.dtype):
        return value.name
    return _OF_NUMPY.get(value, value) if kind is type else value


_OF_NUMPY = {dtype.numpy.type: dtype.name for dtype in DTYPES}
"""numpy.float16 and the like, the classes -> the names of their dtypes."""
