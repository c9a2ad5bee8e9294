"""What an operator declares, its plan and its problem: nothing can be forgotten or misspelt."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

import npusim
from npusim import TensorSpec, ops
from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.ops import Given, Plan, Problem, Row
from npusim.ops._protocol import present

QUANTIZE = ops.load("npu_quantize")


@pytest.mark.parametrize("name", ops.names())
def test_every_operator_declares_itself(name: str) -> None:
    operator = ops.load(name)
    assert operator.name == name
    assert operator.document.startswith(f"{name}: ")


def test_a_contract_names_templates_that_are_declared() -> None:
    """Its words on a wrong name list what the chip has of them."""
    x, weight = TensorSpec((16, 512), "float16"), TensorSpec((512, 512), "float16")
    int8 = replace(x, dtype="int8"), replace(weight, dtype="int8")
    scale = TensorSpec((512,), "float16")
    calls: dict[str, tuple[Any, ...]] = {
        "matmul": (x, weight),
        "npu_dynamic_quant": (x,),
        "npu_quant_matmul": (*int8, replace(scale, dtype="float32")),
        "npu_rms_norm": (x, scale),
        "npu_weight_quant_batchmatmul": (x, int8[1], scale),
    }
    for name, call in calls.items():
        known = set(ops.load(name).templates)
        with pytest.raises(npusim.OpError) as raised:
            npusim.run(name, *call, template="none of them", device="ascend910b2")
        told = str(raised.value).partition("template must be ")[2].partition(", not 'none of")[0]
        words = re.sub(" on Atlas.*|^one of ", "", told)
        assert set(re.split(r", | or ", words)) <= known


def test_a_plan_refuses_a_field_that_it_does_not_have() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'reads_tilings'$"):
        Plan(block_dim=1, reads_tilings=False)  # type: ignore[call-arg]
    plan: Any = Plan(block_dim=1)
    assert (plan.template, plan.reason, plan.is_mix, plan.reads_tiling, plan.workspaces) == (
        *(None, None, False, True),
        {},
    )
    with pytest.raises(AttributeError, match=r"no attribute 'read_tiling'"):
        _ = plan.read_tiling
    with pytest.raises(FrozenInstanceError):
        plan.block_dim = 2


def test_a_problem_must_say_what_goes_in_and_comes_out() -> None:
    with pytest.raises(TypeError, match=r"missing 1 required keyword-only argument: 'outputs'$"):
        Problem(inputs=present(None, None))  # type: ignore[call-arg]


LACKS = "an operator with on_host=False must have both tile and build, not lack"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tile": None}, f"{LACKS} tile"),
        ({"build": None}, f"{LACKS} build"),
        ({"tile": None, "build": None}, f"{LACKS} tile and build"),
        (
            {"on_host": True},
            "an operator with on_host=True must have neither tile nor build, not have both",
        ),
        (
            {"on_host": True, "build": None},
            "an operator with on_host=True must have neither tile nor build, not lack build",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_an_operator_that_does_not_hold_together_is_refused(
    wrong: dict[str, Any], message: str
) -> None:
    host = ops.load("npu_convert_weight_to_int4pack")
    given = {name: vars(host)[name] if of is None else of for name, of in wrong.items()}
    with pytest.raises(
        TypeError, match=f"^{re.escape(f'npu_quantize: {message}; declare what it is')}$"
    ):
        replace(QUANTIZE, **given)


SWIGLU = ops.load("npu_swiglu")
SWIGLU_ROW = Row(x=(FLOAT16, FLOAT32))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"oracle": None},
            "npu_swiglu: an operator must have an oracle, a function of what is given, not None; "
            "write what it computes in plain numpy",
        ),
        (
            {"torch": ()},
            "npu_swiglu: an operator must have a function of torch or a signature, not neither; "
            'declare for example signature="abs(Tensor x) -> Tensor"',
        ),
        (
            {"support": ()},
            "npu_swiglu: an operator must have at least one row of support, not none; say which "
            "types of its tensors go together, as in support=(Row(x=(FLOAT16, FLOAT32)),)",
        ),
        (
            {"support": (Row(on=("Atlas A4",), x=FLOAT16),)},
            "npu_swiglu: a row of support must be on Atlas A2, Atlas A3 or Atlas inference, not on "
            "'Atlas A4'; name product lines",
        ),
        (
            {"support": (Row(y=FLOAT16),)},
            "npu_swiglu: a row of support must name parameters of the operator, x, dim, not y; "
            "correct the name",
        ),
        (
            {"support": (SWIGLU_ROW, Row(dim=(-1,)))},
            "npu_swiglu: a row of support must name each tensor that must be given, but one lacks "
            "x; add its types",
        ),
        (
            {"support": (Row(x=("float16",)),)},
            "npu_swiglu: a row of support must give x types or Operands, not ('float16',); "
            "correct it",
        ),
        (
            {"support": (Row(x=FLOAT16, dim=-1),)},
            "npu_swiglu: a row of support must give dim a tuple of values, not -1; correct it",
        ),
        (
            {"time_key": lambda *_: None},
            "npu_swiglu: an operator with a time_key must have an at_once, since its programs "
            "serve other values than their own for times alone; declare one",
        ),
    ],
    ids=[
        *("oracle", "signature", "support", "product line", "unknown parameter"),
        *("missing tensor", "names of types", "a value", "shared times"),
    ],
)
def test_an_operator_is_refused_without_what_every_operator_declares(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        replace(SWIGLU, **wrong)


def test_an_oracle_asks_for_what_there_is() -> None:
    given = Given("npu_swiglu", {"x": 1, "dim": -1})
    assert (given.dim, given.spec, given.cube_order) == (-1, None, "k16")
    message = (
        "npu_swiglu: its oracle must read one of x, dim, spec, cube_order, not dmi; "
        "did you mean dim?"
    )
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
        _ = given.dmi


def test_an_operator_has_a_name_for_its_kernel() -> None:
    host = ops.load("npu_convert_weight_to_int4pack")
    assert host.kernel_type == ""
    remedy = "declare what CANN calls its kernel, if there is one"
    message = (
        f"npu_quantize: an operator with on_host=False must have a kernel_type, but has none; "
        f"{remedy}"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        replace(QUANTIZE, kernel_type="")
    message = (
        "npu_convert_weight_to_int4pack: an operator with on_host=True must have no kernel_type, "
        f"but has one; {remedy}"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        replace(host, kernel_type="Pack")


def spec(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(shape, dtype)


SQUARE = {"x1": spec("float16", 64, 64), "x2": spec("float16", 64, 64)}
ROWS = {"input": spec("float16", 8, 16), "zero_points": None, "dtype": "qint8"}


@pytest.mark.parametrize(
    ("op", "given", "named"),
    [
        ("add", {"x": spec("float16", 8, 16), "other": 1.0}, "Add"),
        ("mul", {"x": spec("bfloat16", 8, 16), "other": 2.0}, "Muls"),
        ("mul", {"x": spec("float16", 8, 16), "other": 2.0}, "Mul"),
        ("mul", {"x": spec("bfloat16", 8, 16), "other": spec("bfloat16", 1)}, "Mul"),
        ("npu_quantize", ROWS | {"scales": spec("float32", 16)}, "Quantize"),
        (
            "npu_quantize",
            ROWS | {"scales": spec("float16", 16), "div_mode": False},
            "AscendQuantV2",
        ),
        ("matmul", SQUARE, "MatMulV3"),
        ("matmul", SQUARE | {"template": "v2"}, "MatMulV2"),
        ("matmul", SQUARE | {"x1": spec("float16", 4, 64, 64)}, "MatMulV3"),
        ("matmul", dict.fromkeys(SQUARE, spec("float16", 4, 64, 64)), "BatchMatMulV2"),
        (
            "npu_quant_matmul",
            {"x1": spec("int8", 16, 64), "x2": spec("int8", 64, 32), "scale": spec("float32", 32)},
            "QuantBatchMatmulV3",
        ),
        ("index_select", {"x": spec("float16", 8, 16), "dim": 0, "index": spec("int32", 4)},
        "GatherV3"),
    ],
)  # fmt: skip
def test_a_run_knows_what_cann_calls_its_kernel(op: str, given: dict[str, Any], named: str) -> None:
    run = npusim.run(op, **given, device="ascend910b2", timing=False)
    assert run.kernel_type == named


def test_nothing_to_do_is_no_kernel() -> None:
    none = spec("float16", 0, 16)
    assert npusim.run("add", none, none, device="ascend910b2").kernel_type is None


@pytest.mark.parametrize("name", ops.names())
def test_templates_are_declared_where_one_can_be_named(name: str) -> None:
    operator = ops.load(name)
    assert bool(operator.templates) is ("template" in ops.signature(operator).parameters)
    assert len(set(operator.templates)) == len(operator.templates)


# ---- how torch knows it ----


@pytest.mark.parametrize("name", ops.names())
def test_every_function_of_torch_npu_is_declared_by_its_operator(name: str) -> None:
    """Those of other names are torch's own."""
    functions = ops.load(name).torch
    assert bool(functions) is name.startswith("npu_")
    for function in functions:
        assert function.name.strip("_") in (name, name.removeprefix("npu_"))
        assert set(function.parameters) <= set(ops.signature(ops.load(name)).parameters)


def test_every_function_of_torch_hands_on_parameters_that_there_are() -> None:
    (function,) = QUANTIZE.torch
    assert function.parameters == ("input", "scales", "zero_points", "dtype", "axis", "div_mode")
    message = (
        "npu_quantize: npu_quantize must hand on parameters of the operator, input, scales, "
        "zero_points, dtype, axis, div_mode, not self; give them their names, or say that they are "
        "absent"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        replace(QUANTIZE, torch=(function, replace(function, names={})))


def test_operators_are_declared_without_torch() -> None:
    """npusim does without torch: loading every operator leaves it alone."""
    code = "import sys; from npusim import ops; [ops.load(n) for n in ops.names()]"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
