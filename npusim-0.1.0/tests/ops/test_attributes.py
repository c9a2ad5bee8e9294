"""Attributes are of the types of the schema: in Python, and as words of a command line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import OF_EACH

from npusim import OpError, devices, ops
from npusim.cli.call import UsageError, arguments
from npusim.ops import NO_DEFAULT, Parameter

A2 = devices.load("ascend910b2")
OPS = [op for op in ops.names() if ops.load(op).attributes]
LEAST, MOST = -(2**63), 2**63 - 1
WRONG: dict[str, tuple[object, ...]] = {
    "int": (1.0, "1", True, np.float32(1), None),
    "SymInt": (1.0, "1", True, None),
    "float": ("1.5", False, 1j, None, np.bool_(True)),
    "bool": (1, "true", None, np.int8(1), 0.0),
}
"""Type -> values that are of another. Names are not here: contracts list those that there are."""
SAME: dict[str, tuple[tuple[Any, Any], ...]] = {
    "int": ((np.int64(3), 3), (np.uint8(3), 3), (MOST, MOST), (LEAST, LEAST)),
    "SymInt": ((np.int32(3), 3),),
    "float": ((np.float16(0.5), 0.5), (np.float64(0.1), 0.1), (np.int8(2), 2), (1, 1)),
    "bool": ((np.bool_(True), True), (False, False)),
    "str": ((np.str_("x"), "x"),),
    "dtype": ((np.dtype("float16"), "float16"), (np.float32, "float32"), (np.str_("f"), "f")),
    "int|str": ((np.int64(29), 29), ("ND", "ND")),
}
"""Type -> values, and Python's own of them."""


WORDS: dict[str, tuple[str, str, object]] = {
    "int": ("1.5", "-12", -12),
    "SymInt": ("1.5", "12", 12),
    "float": ("half", "1e-6", 1e-6),
    "bool": ("1", "false", False),
    "str": ("", "1", "1"),
    "dtype": ("", "float16", "float16"),
    "int|str": ("", "29", 29),
}
"""Type -> a word of another one, one of it, and what that means."""


def of(op: str, parameter: Parameter, value: object) -> Any:
    """What a call of *op* gets for *parameter*, which is given *value*."""
    return ops.normalize(ops.load(op), {parameter.name: value})[parameter.name]


def enclosed(parameter: Parameter, value: object) -> object:
    """*value*, or as many of it in a list as *parameter* takes."""
    return [value] * (parameter.length or 1) if parameter.is_sequence else value


def kind_of(parameter: Parameter) -> str:
    return "|".join(parameter.words)


def test_attributes_are_of_known_types() -> None:
    kinds = {kind_of(each) for op in OPS for each in ops.load(op).attributes}
    assert kinds == {*WRONG, "str", "dtype", "int|str"} == set(SAME) == set(WORDS)


@pytest.mark.parametrize("op", OPS)
def test_attributes_of_another_type_are_refused(op: str) -> None:
    def check(parameter: Parameter, value: object) -> None:
        ops.load(op).check(A2, **OF_EACH[op] | {parameter.name: value})

    for parameter in ops.load(op).attributes:
        name, place = parameter.name, r"(\[0\])?" if parameter.is_sequence else ""
        for value in WRONG.get(kind_of(parameter), ()):
            if value is None and parameter.may_be_none:
                continue
            with pytest.raises(OpError, match=rf"^{op}: {name}{place} must be .*, not .*; pass "):
                check(parameter, enclosed(parameter, value))
        for value in (1, "1", np.ones((1, 1), np.int64)) if parameter.is_sequence else ():
            with pytest.raises(OpError, match=rf"^{op}: {name} must be a list of .*; pass "):
                check(parameter, value)
        for value in (MOST + 1, LEAST - 1) if "int" in parameter.words else ():
            with pytest.raises(OpError, match=r" must fit into 64 bits, not be .*; pass a smaller"):
                check(parameter, enclosed(parameter, value))


@pytest.mark.parametrize("op", OPS)
def test_attributes_arrive_as_values_of_python(op: str) -> None:
    for parameter in ops.load(op).attributes:
        for value, wanted in SAME[kind_of(parameter)]:
            found = of(op, parameter, enclosed(parameter, value))
            assert found == enclosed(parameter, wanted)
            assert type(found[0] if isinstance(found, list) else found) in (type(wanted), list)
        if parameter.default is not NO_DEFAULT:
            assert of(op, parameter, parameter.default) == parameter.default
        if parameter.may_be_none:
            assert of(op, parameter, None) is None


@pytest.mark.parametrize("op", OPS)
def test_words_mean_what_the_type_of_the_attribute_says(op: str) -> None:
    operator = ops.load(op)
    tensors = [f"{each.name}=spec:8x16:float16" for each in operator.parameters if each.is_tensor]
    needed = {each.name: each for each in operator.attributes if each.default is NO_DEFAULT}

    def read(parameter: Parameter, word: str) -> Any:
        others = [f"{name}={right(each)}" for name, each in needed.items() if each != parameter]
        found = arguments(op, tensors, [f"{parameter.name}={word}", *others])
        return found[parameter.name]

    for parameter in operator.attributes:
        wrong, _, meant = WORDS[kind_of(parameter)]
        assert read(parameter, right(parameter)) == enclosed(parameter, meant)
        if parameter.may_be_none:
            assert read(parameter, "none") is None
        elif wrong:
            with pytest.raises(UsageError) as caught:
                read(parameter, wrong)
            text, _, example = str(caught.value).rpartition("; write for example -a ")
            assert text.startswith(f"run: {parameter.name} of {op}")
            assert text.endswith(f", not {wrong!r}")
            assert " must be " in text
            read(parameter, example.partition("=")[2])


def right(parameter: Parameter) -> str:
    """A word that *parameter* takes."""
    word = WORDS[kind_of(parameter)][1]
    return ",".join([word] * (parameter.length or 1)) if parameter.is_sequence else word


def test_none_is_a_word_where_none_cannot_be_given() -> None:
    assert arguments("npu_gelu", ["x=ones:8"], ["approximate=none"])["approximate"] == "none"


def test_a_tensor_or_number_is_given_by_either_option_but_not_both() -> None:
    assert arguments("add", ["x=ones:8"], ["other=inf"])["other"] == float("inf")
    with pytest.raises(UsageError, match=r"^run: other of add must come once; drop -i or -a other"):
        arguments("add", ["x=ones:8", "other=ones:8"], ["other=2"])
    with pytest.raises(UsageError, match=r"^run: other of add must be a number, not 'two'; write"):
        arguments("add", ["x=ones:8"], ["other=two"])
