"""Whatever is passed to whatever parameter: a result, or one of npusim's own errors in a line."""

from __future__ import annotations

import random
import warnings
from traceback import extract_tb
from typing import Any

import numpy as np
import pytest
from calls import OF_EACH
from calls import half_ones as ones

import npusim
from npusim import OpError, Tensor, TensorSpec, ops, run

HALF, FULL = np.float16, np.float32


class Hostile:
    """Neither printed, compared, hashed nor taken for true or false."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError

    def __bool__(self) -> bool:
        raise RuntimeError

    def __eq__(self, _: object) -> bool:
        raise RuntimeError


JUNK: dict[str, Any] = {
    **{repr(value): value for value in (None, True, False, 0, 1, -1, 10**30, 0.5, 1j, "", "x")},
    **{repr(value): value for value in ("int8", b"x", (), (1,), [], [1], [[1, 2]], {}, {"a": 1})},
    **{repr(value): value for value in (set(), np.float16, np.float16(1), np.int64(3), float, len)},
    **{repr(value): value for value in (np.str_("qint8"), np.dtype("float16"), ..., range(3))},
    "nan": float("nan"),
    "5,000 digits": 10**5000,
    "a long word": "a" * 5000,
    "an object": object(),
    "a hostile object": Hostile(),
    "a hostile class": Hostile,
    "a function": lambda: 1,
    "a module": npusim,
    "a slice": slice(1),
    "no numbers": ones(0),
    "one number": ones(),
    "float64": np.ones((2, 3)),
    "12 dimensions": ones(*[1] * 12),
    "bool": ones(3, dtype=bool),
    "complex": ones(3, dtype=complex),
    "text": np.array(["a", "b"]),
    "objects": np.array([object()]),
    "fields": np.zeros(2, [("a", int)]),
    "dates": np.array(["2020"], "datetime64[Y]"),
    "a mask": np.ma.ones((4, 16)),
    "big-endian": ones(4, 16, dtype=">f4"),
    "gaps": ones(8, 16)[::2],
    "int32": ones(4, 16, dtype=np.int32),
    "a spec": TensorSpec((4, 16), "float16"),
    "a spec without dimensions": TensorSpec((), "float32"),
    "a spec in fractals": TensorSpec((4, 16), "float16", "FRACTAL_NZ"),
    "a transposed spec": TensorSpec((16, 4), "int8").T,
    "a spec of int4": TensorSpec((4, 16), "int4"),
    "the class TensorSpec": TensorSpec,
    "the class Tensor": Tensor,
    "a tensor in fractals": Tensor.of(ones(4, 16), "FRACTAL_NZ"),
    "a transposed tensor": Tensor.of(ones(4, 16, dtype=np.int32), "FRACTAL_NZ").T,
}


def ends_well(call: Any, what: str) -> str | None:
    """What is wrong with how *call* ends; None if nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except (OpError, ValueError, TypeError) as error:
            text, place = str(error), extract_tb(error.__traceback__)[-1].filename
            is_ours = "npusim" in place and (" must " in text or "no device" in text)
            # A device that nobody knows is answered with all names there are.
            if is_ours and "\n" not in text and (len(text) < 700 or "no device" in text):
                return None
            return f"{what}: {type(error).__name__} {text[:200]}"
        except Exception as error:
            return f"{what}: {error!r}"
    return None


def test_every_operator_is_called() -> None:
    assert set(OF_EACH) == set(ops.names())


@pytest.mark.sample(20)
@pytest.mark.parametrize("op", ops.names())
def test_junk_in_any_parameter(op: str) -> None:
    call = OF_EACH[op]
    found = [
        ends_well(
            lambda name=name, value=value: run(
                op, device="ascend910b2", timing=False, **call | {name: value}
            ),
            f"{name} = {what}",
        )
        for name in ops.signature(ops.load(op)).parameters
        for what, value in JUNK.items()
    ]
    assert [wrong for wrong in found if wrong] == []


@pytest.mark.sample(40)
@pytest.mark.parametrize("op", ops.names())
def test_junk_in_several_parameters_by_place_and_by_name(op: str) -> None:
    source = random.Random(op)
    names = list(ops.signature(ops.load(op)).parameters)
    found = []
    for _ in range(80):
        chosen = {
            name: source.choice(list(JUNK)) for name in source.sample(names, min(2, len(names)))
        }
        by_place = [source.choice(list(JUNK)) for _ in range(source.randint(0, 12))]
        device = source.choice(("ascend910b2", "ascend910_9391", "ascend310p3"))
        kwargs = OF_EACH[op] | {name: JUNK[what] for name, what in chosen.items()}
        if by_place:
            kwargs = {name: kwargs[name] for name in chosen}
        found.append(
            ends_well(
                lambda device=device, by_place=by_place, kwargs=kwargs: run(
                    op, *(JUNK[what] for what in by_place), device=device, timing=False, **kwargs
                ),
                f"{device}: {by_place}, {chosen}",
            )
        )
    assert [wrong for wrong in found if wrong] == []


@pytest.mark.parametrize(
    "name",
    ["device", "values", "timing", "l2", "every_core", "byte_exact", "cube_order", "progress"],
)
def test_junk_in_the_options_of_a_run(name: str) -> None:
    calls_back = ("a function", "a hostile class", repr(len), repr(float), repr(np.float16))
    found = [
        ends_well(
            lambda value=value: run(
                "npu_dynamic_quant", ones(4, 16), **{"device": "ascend910b2", name: value}
            ),
            what,
        )
        for what, value in JUNK.items()
        # A function that fails when it is called back fails by itself.
        if name != "progress" or what not in (*calls_back, "the class TensorSpec")
    ]
    assert [wrong for wrong in found if wrong and "the class Tensor" not in wrong] == []


def test_junk_for_an_operator_and_in_a_tensor() -> None:
    x, spec = ones(4, 16), TensorSpec((4, 16), "float16")
    calls: dict[str, Any] = {
        "operator": lambda value: run(value, x, device="ascend910b2"),
        "shape": lambda value: TensorSpec(value, "int8"),
        "dtype": lambda value: TensorSpec((3, 4), value),
        "layout": lambda value: TensorSpec((3, 4), "int8", value),
        "transposed": lambda value: TensorSpec((3, 4), "int8", "ND", value),
        "array": lambda value: Tensor.of(value),
        "array's layout": lambda value: Tensor.of(x, value),
        "array's transposed": lambda value: Tensor.of(x, "ND", value),
        "tensor": lambda value: Tensor(value, x),
        "storage": lambda value: Tensor(spec, value),
    }
    found = [
        ends_well(lambda value=value, call=call: call(value), f"{name} = {what}")
        for name, call in calls.items()
        for what, value in JUNK.items()
    ]
    assert [wrong for wrong in found if wrong] == []


REFUSALS = [
    (
        lambda: run("npu_dynamic_quant", ones(4, 16), device="Atlas A2", cube_order=ones(2)),
        ValueError,
        "run: cube_order must be one of k16, k8, k4, k1, not an array of float16 (2,); "
        "use one of these",
    ),
    (
        lambda: run("npu_dynamic_quant", ones(4, 16), device="Atlas A2", values="no"),
        TypeError,
        "run: values must be True or False, not 'no'; pass one of them",
    ),
    (
        lambda: run("npu_dynamic_quant", ones(4, 16), device="Atlas A2", progress=3),
        TypeError,
        "run: progress must be a function of a stage and a share, not 3; leave it out",
    ),
    (
        lambda: run("matmul", ones(4, 16), ones(16, 8), np.float16, device="Atlas A2"),
        OpError,
        "matmul: bias must be a numpy array or a TensorSpec, not type; make it one of them "
        "[161002]",
    ),
    (
        lambda: run(
            *("npu_group_quant", ones(4, 16), ones(1, 16), np.array([4]), ones(1)),
            device="Atlas A2",
        ),
        TypeError,
        "npu_group_quant: arguments must fit npu_group_quant(x, scale, group_index, *, "
        "offset=None, dst_dtype=None), but: too many positional arguments; pass at most 3 by "
        "position; pass offset, dst_dtype by name",
    ),
    (
        lambda: run("npu_trans_quant_param", *[ones(4, dtype=FULL)] * 4, device="Atlas A2"),
        TypeError,
        "npu_trans_quant_param: arguments must fit npu_trans_quant_param(scale, offset=None, "
        "round_mode=0), but: too many positional arguments; pass at most 3 "
        "by position",
    ),
    (
        lambda: run("npu_quantize", ones(4, 16), device="Atlas A2"),
        TypeError,
        "npu_quantize: arguments must fit npu_quantize(input, scales, zero_points, dtype, axis=1, "
        "div_mode=True), but: missing a required argument: 'scales'; add it",
    ),
    (
        lambda: run(
            "npu_quantize", ones(4, 16), ones(1, dtype=FULL), None, None, device="Atlas A2"
        ),
        OpError,
        "npu_quantize: dtype must be qint8, quint8, int32 or qint32 with div_mode=True on Atlas "
        "A2, not None; choose one of these [161002]",
    ),
    (
        lambda: TensorSpec((3, 4), [1]),  # type: ignore[arg-type]
        ValueError,
        "dtypes: a dtype must be one of float32, float16, bfloat16, int4, int8, uint8, int32, "
        "int64, uint64, int16, uint16, uint32, not [1]; use one of these",
    ),
    (
        lambda: TensorSpec((3, 4), "int8", transposed=1),  # type: ignore[arg-type]
        ValueError,
        "TensorSpec: transposed must be True or False, not 1; pass one of them",
    ),
    (
        lambda: Tensor.of([1, 2]),  # type: ignore[arg-type]
        TypeError,
        "Tensor.of: array must be a numpy array, not [1, 2]; make it one with numpy.asarray",
    ),
    (
        lambda: Tensor(ones(2), ones(2)),
        TypeError,
        "Tensor: spec must be a TensorSpec, not an array of float16 (2,); make it with "
        "Tensor.of(array)",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_a_refusal_says_what_to_do(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_sizes_of_numpy_are_sizes() -> None:
    assert TensorSpec((np.int64(3), 4), "int8") == TensorSpec((3, 4), "int8")  # type: ignore[arg-type]
