"""Any call by any of matmul's kernels that can run it: values, and programs that hold."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
from chips import every
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from matrix_calls import SPLIT, gm_matrix, halves, sizes, turned, with_special
from op_calls import BF16
from test_matmul_split_k import SMALL, assert_as_the_reference

from npusim import TensorSpec, chip, devices, ops
from npusim.ops.matmul.choice import Template, unmet
from npusim.ops.matmul.traits import Chip

MATMUL = ops.load("matmul")
TEMPLATES: tuple[str, ...] = get_args(Template)
NZ = "FRACTAL_NZ"
DEEP = ("al1_split_k", "single_core_split_k", "deterministic_split_k")


class TemplateCall(NamedTuple):
    """Arguments of matmul, and the kernel that makes it."""

    args: tuple[Any, ...]
    template: str


@st.composite
def template_calls(draw: st.DrawFn) -> TemplateCall:
    """Any call that the kernel can run, with some chunks of k where it cuts k."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    template = draw(st.sampled_from(TEMPLATES))
    m, n = draw(sizes(90)), draw(sizes(90))
    k = draw(st.integers(300, 1500)) if template in DEEP else draw(sizes(90))
    kind = draw(st.sampled_from((np.float16, BF16)))
    a, b = halves(rng, (m, k), kind), halves(rng, (k, n), kind)
    if draw(st.booleans()):
        a, b = with_special(rng, a), with_special(rng, b)
    x1 = turned(a) if template != "al1_split_k" and draw(st.booleans()) else a
    layout = draw(st.sampled_from(("ND", NZ)))
    x2 = gm_matrix(b, draw(st.booleans()), layout)
    bias = halves(rng, (n,), np.float32) if draw(st.booleans()) else None
    plain = MATMUL.check(SMALL, x1, x2, bias, template="base")
    if any(unmet(template, plain.traits, Chip.of(SMALL))):
        template = "base"
    return TemplateCall((x1, x2, bias), template)


@draws(60)
@given(call=template_calls())
def test_any_call(call: TemplateCall) -> None:
    assert_as_the_reference(*call.args, template=call.template, timing=False)


@pytest.mark.nightly
@pytest.mark.parametrize("byte_exact", [False, True])
@draws(150)
@given(call=template_calls())
def test_any_further_call(byte_exact: bool, call: TemplateCall) -> None:
    modes = {"timing": False, "byte_exact": byte_exact}
    assert_as_the_reference(*call.args, template=call.template, **modes)


@pytest.mark.sample(4)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("device", every(SPLIT))
def test_programs_of_large_products_hold(device: str, template: str) -> None:
    spec, rng = devices.load(device), np.random.default_rng(TEMPLATES.index(template))
    for is_turned, layout, has_bias in ((False, "ND", False), (True, "ND", True), (True, NZ, True)):
        # Odd, so that rows are ragged; within what every kernel takes.
        m, n = (int(np.exp(rng.uniform(3, 5.5))) | 1 for _ in range(2))
        k = int(np.exp(rng.uniform(7, 9))) | 1 if template in DEEP else 251
        m *= 1 if template == "al1_split_k" else 17
        x2 = TensorSpec((n, k) if is_turned else (k, n), "float16", layout)
        bias = TensorSpec((n,), "float32") if has_bias else None
        call = TensorSpec((m, k), "float16"), x2.T if is_turned else x2, bias
        problem = MATMUL.check(spec, *call, template=template)
        blocks = MATMUL.build(spec, problem, MATMUL.tile(spec, problem))
        assert set(chip.verify(blocks, spec)) == {block.program for block in blocks}
