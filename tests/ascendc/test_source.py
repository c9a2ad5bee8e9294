"""What stands in a source: kernels, their parameters and cores, and launches."""

from __future__ import annotations

import pytest

from npusim.ascendc import AscendCError
from npusim.ascendc.source import CUBE, VECTOR, Cores, kernels, with_launches


def test_kernels_and_their_parameters() -> None:
    text = """
    // __global__ void not_this(int a);
    const char* words = "__global__ void nor_this(int a)";
    template <typename T, int N = (3 > 2)>
    __global__ __aicore__ void first(__gm__ T* x, GM_ADDR y, const float scale, Pair<int, 2> both)
    {
    }
    extern "C" __global__ __aicore__ void second() {}
    """
    found = kernels(text)
    assert list(found) == ["first", "second"]
    assert [tuple(each) for each in found["first"].parameters] == [
        ("x", True, "T"),
        ("y", True, "GM_ADDR"),
        ("scale", False, "float"),
        ("both", False, "Pair"),
    ]
    assert found["first"].is_template
    assert not found["second"].is_template
    assert found["second"].parameters == ()
    assert found["second"].line == 8


def test_cores_that_hang_on_the_preprocessor() -> None:
    text = """#if SCENARIO == 2
    extern "C" __global__ __cube__ void f(GM_ADDR a)
    #else
    extern "C" __global__ __aicore__ void f(GM_ADDR a)
    #endif
    {
    }
    """
    assert kernels(text, lambda marked: marked.split("#else")[0])["f"].cores == CUBE
    assert kernels(text, lambda marked: marked.split("#else")[1])["f"].cores is None
    with pytest.raises(AscendCError) as caught:
        kernels(text)
    assert str(caught.value) == (
        "ascendc: f must have the same cores wherever a source defines it, but has others in line "
        "2 than in line 4, and npusim does not evaluate #if here; leave one of them"
    )
    same = kernels(text.replace("__aicore__", "__cube__"))
    declared = kernels("__global__ void f(GM_ADDR a);\n__global__ __cube__ void f(GM_ADDR a) {}")
    assert same["f"].cores == declared["f"].cores == CUBE


@pytest.mark.parametrize(
    ("qualifiers", "body", "cores"),
    [
        ("__vector__", "", VECTOR),
        ("__cube__", "", CUBE),
        ("__mix__(1, 2)", "", Cores(1, 2)),
        ("__mix__(1, 1)", "", Cores(1, 1)),
        ("__mix__(0, 1)", "", VECTOR),
        ("__aicore__", "KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);", Cores(1, 2)),
        ("__aicore__", "KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);", VECTOR),
        ("__aicore__", "", None),
    ],
)
def test_cores_of_a_kernel(qualifiers: str, body: str, cores: Cores | None) -> None:
    text = f"__global__ {qualifiers} void k(GM_ADDR x) {{ {body} }}"
    assert kernels(text)["k"].cores == cores


def test_launches_become_calls_line_for_line() -> None:
    text = """int main() {
    add<float, 2><<<8, nullptr, stream>>>(x,  // the first
                                          y);
    ns::mul<<<blocks, 0, stream>>>(x + 1, f(y, 2));
    if (a << 3 >> b) {}
}
"""
    made = with_launches(text, {"add": Cores(1, 2), "mul": VECTOR})
    assert made.count("\n") == text.count("\n")
    assert (
        made
        == """int main() {
    ::npusim::launch("add", {1, 2}, ::npusim::Grid(8, nullptr, stream).blocks, \
::npusim::pointers(x, y), [&] { add<float, 2>(x,  // the first
                                          y); });
    ::npusim::launch("mul", {0, 0}, ::npusim::Grid(blocks, 0, stream).blocks, \
::npusim::pointers(x + 1, f(y, 2)), [&] { ns::mul(x + 1, f(y, 2)); });
    if (a << 3 >> b) {}
}
"""
    )


@pytest.mark.parametrize(("others", "cores"), [({}, "{1, 0}"), ({"mul": VECTOR}, "{0, 0}")])
def test_a_pointer_points_to_any_kernel(others: dict[str, Cores], cores: str) -> None:
    made = with_launches("chosen<<<8, 0, stream>>>(x);", {"add": CUBE, **others})
    assert made.startswith(f'::npusim::launch("chosen", {cores}, ')
