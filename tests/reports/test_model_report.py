"""Runs of models: their tables, their headline, how two compare, and what a page is given."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_runs import NORM, PRODUCT, QUANT_PRODUCT, run_of, small

from npusim import ops
from npusim.collectives import KINDS
from npusim.reports import model
from npusim.reports.model import tables
from npusim.reports.model.first_screen import Lead
from npusim.reports.model.page import payload
from npusim.reports.model.works import WORKS, work_of
from npusim.trace.model import Kernel, ModelRun

PATHS = ("", "Net", "Net.layers.0", "Net.layers.0.up", "Net.layers.1.up", "Net.head", "Other.0")
KERNELS = (PRODUCT, NORM, QUANT_PRODUCT, replace(NORM, time_us=1 / 3))
RUNS = st.lists(
    st.tuples(st.sampled_from(KERNELS), st.sampled_from(PATHS), st.integers(0, 2)), max_size=12
).map(lambda launched: run_of(*launched))


# ---- tables ----


@given(RUNS)
def test_every_table_adds_up_to_the_run(run: ModelRun) -> None:
    time_us = sum(launch.kernel.time_us for launch in run.launches)
    read = sum(launch.kernel.read_bytes for launch in run.launches)
    outermost = [own for path, own in tables.by_module(run).items() if path.count(".") == 0]
    layers = [own for works in tables.by_layer(run).values() for own in works.values()]
    for own in (
        tables.by_work(run).values(),
        tables.by_operator(run).values(),
        tables.by_op(run).values(),
        tables.by_kernel(run).values(),
        layers,
        outermost,
    ):
        assert sum(each.time_us for each in own) == pytest.approx(time_us)
        assert sum(each.read_bytes for each in own) == read
        assert sum(each.launches for each in own) == len(run.launches)


@given(RUNS)
def test_a_module_holds_what_runs_below_it(run: ModelRun) -> None:
    found = tables.by_module(run)
    for path, own in found.items():
        inside = [
            launch
            for launch in run.launches
            if f"{launch.module}.".startswith(f"{path}.")
            or (path == tables.OUTSIDE and not launch.module)
        ]
        assert own.launches == len(inside)
        assert own.time_us == pytest.approx(sum(launch.time_us for launch in inside))
    names = list(found)
    for path in names:
        around = path.rpartition(".")[0]
        if around in found:
            assert names.index(around) < names.index(path)


COVERAGE = (
    "coverage 75 %: 6 of 8 kernels timed; 2 run on the host in zero time, so that the total is a "
    "lower bound: 2 x aten.pow.Tensor_Scalar"
)


def test_modules_stand_as_they_first_ran() -> None:
    assert list(tables.by_module(small())) == [
        *("Net", "Net.layers.0", "Net.layers.0.norm", "Net.layers.0.up"),
        *("Net.layers.1", "Net.layers.1.norm", "Net.layers.1.up", "Net.head", "outside modules"),
    ]
    assert list(tables.by_role(small())) == [
        *("Net", "Net.layers.*", "Net.layers.*.norm", "Net.layers.*.up", "Net.head"),
        "outside modules",
    ]


def test_a_module_of_which_nothing_is_timed_is_there() -> None:
    run = run_of((PRODUCT, "Net.head", 0))
    rows = {row[0]: row for row in model.sheets(run)["modules"].rows}
    assert rows["Net.layers.0"][2:4] == (0, 0.0)
    assert (rows["Net.layers.0"][-1], rows["Net"][-1], rows["Net.head"][-1]) == (2, 2, 0)


def test_what_bounds_most_of_the_time_bounds_all() -> None:
    whole = tables.total(small().launches)
    assert (whole.bound, whole.time_us) == ("the bandwidth of global memory", 37.5)
    assert whole.bound_share == pytest.approx(30 / 37.5)
    assert (whole.launch_us, whole.gm_bytes) == (18.0, 3 * 8192 + 3 * 1024)
    assert tables.total(()).bound == ""


@pytest.mark.parametrize(
    ("op", "work"),
    [
        ("npu_fused_infer_attention_score", "attention"),
        ("npu_grouped_matmul_swiglu_quant", "matrix products"),
        ("npu_moe_gating_top_k", "experts"),
        ("npu_add_rms_norm_quant", "norms"),
        ("npu_dequant_swiglu_quant", "activations"),
        ("npu_scatter_pa_kv_cache", "caches"),
        ("npu_trans_quant_param", "quantising"),
        ("my_kernel", "own kernels"),
    ],
)
def test_a_kind_of_work_is_what_an_operator_is_for(op: str, work: str) -> None:
    assert work_of(op) == work


def test_every_operator_has_a_kind_of_work() -> None:
    found = Counter(map(work_of, ops.names()))
    assert [name for name in ops.names() if work_of(name) == "own kernels"] == []
    assert set(found) == set(WORKS) - {"own kernels", "communication"}
    assert {work_of(kind) for kind in (*KINDS, "dispatch", "combine")} == {"communication"}


def test_a_sheet_is_the_same_as_csv_and_json() -> None:
    for sheet in model.sheets(small()).values():
        read = list(csv.reader(io.StringIO(sheet.to_csv())))
        told = sheet.to_json()
        assert tuple(read[0]) == sheet.columns
        assert len(read) == len(told) + 1
        for line, row, values in zip(read[1:], told, sheet.rows, strict=True):
            assert line == ["" if value is None else str(value) for value in values]
            assert tuple(row.values()) == values


# ---- words ----


def test_a_headline_in_plain_words() -> None:
    assert model.headline(small()) == [
        "37.5 us of device time on Ascend910B2 (Atlas A2): 6 kernels in 6 launches",
        "work: 80 % matrix products, 20 % norms",
        "bounds: 80 % in kernels bound by the bandwidth of global memory, 20 % in kernels bound by "
        "launch and completion; launch and completion are 48 % of the time",
        "bytes: cores read 21.5 kB and write 6.14 kB; 27.6 kB move from and to global memory",
        COVERAGE,
    ]


def test_a_run_of_nothing_is_reported_too() -> None:
    nothing = run_of(missing=0)
    assert model.headline(nothing) == [
        "0.00 us of device time on Ascend910B2 (Atlas A2): 0 kernels in 0 launches",
        "0 of 0 kernels timed",
    ]
    assert "Every kernel that a card would run is timed." in model.page([nothing])
    assert model.headline_of([nothing, small()]) == [
        "A takes 0.00 us on Ascend910B2 (net.py)",
        "B takes 37.5 us on Ascend910B2 (net.py), more than A",
        "A: 0 of 0 kernels timed",
        f"B: {COVERAGE}",
        "not the same is missing from all: beyond what all miss, B 2 x aten.pow.Tensor_Scalar",
    ]
    page = model.page([nothing, small(), nothing])
    assert "<p>A is the quickest: 0.00 us. B is the slowest: 37.5 us, more.</p>" in page
    assert "A</b> 0 kernels, longest none</p>" in page
    assert "C</b> like A</p>" in page
    with pytest.raises(ValueError, match=r"^reports: one run at least must be given, not none; "
                       r"record a model$"):  # fmt: skip
        model.page([])


# ---- several runs ----


def test_two_runs_are_held_against_each_other() -> None:
    a, b = small(), small(QUANT_PRODUCT, "quantised.py")
    found = model.compared([a, b])
    assert model.headline_of([a, b]) == [
        "A takes 37.5 us on Ascend910B2 (net.py)",
        "B takes 25.5 us on Ascend910B2 (quantised.py), 32 % less than A",
        *(f"{letter}: {COVERAGE}" for letter in "AB"),
    ]  # fmt: skip
    assert found["works"].columns == (
        *("work", "a_us", "b_us", "ratio", "difference_us", "a_launches", "b_launches"),
    )
    assert found["works"].rows == (
        ("matrix products", 30.0, 18.0, 0.6, -12.0, 3, 3),
        ("norms", 7.5, 7.5, 1.0, 0.0, 3, 3),
    )
    assert found["operators"].rows == (
        ("matmul", 30.0, None, None, -30.0, 3, 0),
        ("npu_quant_matmul", None, 18.0, None, 18.0, 0, 3),
        ("npu_rms_norm", 7.5, 7.5, 1.0, 0.0, 3, 3),
    )
    roles = {row[0]: row[1:4] for row in found["roles"].rows}
    assert roles["root.layers.*.up"] == (20.0, 12.0, 0.6)
    assert roles["outside modules"] == (2.5, 2.5, 1.0)


def test_three_runs_are_held_against_the_first() -> None:
    slow = small(replace(PRODUCT, time_us=40.0), "slow.py")
    runs = [small(), slow, small(QUANT_PRODUCT, "quantised.py")]
    assert model.headline_of(runs)[:3] == [
        "A takes 37.5 us on Ascend910B2 (net.py)",
        "B takes 127.5 us on Ascend910B2 (slow.py), 3.4 times as long as A",
        "C takes 25.5 us on Ascend910B2 (quantised.py), 32 % less than A",
    ]
    works = model.compared(runs)["works"]
    assert works.columns == (
        *("work", "a_us", "b_us", "c_us", "b_ratio", "c_ratio"),
        *("a_launches", "b_launches", "c_launches"),
    )
    assert works.headings() == [
        *("work", "A", "B", "C", "B / A", "C / A"),
        *("launches of A", "launches of B", "launches of C"),
    ]
    assert works.rows == (
        ("matrix products", 30.0, 120.0, 18.0, 4.0, 0.6, 3, 3, 3),
        ("norms", 7.5, 7.5, 7.5, 1.0, 1.0, 3, 3, 3),
    )
    assert works.readable()[0] == ["matrix products", "30.0 us", "120.0 us", "18.0 us", "4.00",
                                   "0.60", 3, 3, 3]  # fmt: skip
    operators = {row[0]: row[1:6] for row in model.compared(runs)["operators"].rows}
    assert operators["npu_quant_matmul"] == (None, None, 18.0, None, None)
    assert operators["matmul"] == (30.0, 120.0, None, 4.0, None)


def test_models_of_one_name_are_distinguished_by_their_kernels() -> None:
    wide = replace(PRODUCT, inputs=("float16 256x64", "float16 64x32"))
    page = model.page([small(), small(wide), small()])
    assert "<title>npusim: 3 runs of net.py on Ascend910B2</title>" in page
    assert "A</b> longest matmul of float16 16x64, float16 64x32</p>" in page
    assert "B</b> longest matmul of float16 256x64, float16 64x32</p>" in page
    assert "C</b> like A</p>" in page
    # All take as long, in layers too, of which two are alike.
    assert "<p>All 3 take 37.5 us.</p>" in page
    cells = "".join(f'<td class="number">{text}</td>' for text in (*["12.5 us"] * 3, *["1.00"] * 2))
    assert '<td title="root.layers.0 to root.layers.1">layers.0 to 1, each of 2</td>' in page
    assert cells in page
    other = model.page([small(), small(title="other.py"), small(title="third.py")])
    title = "3 runs: net.py on Ascend910B2, other.py on Ascend910B2 and third.py on Ascend910B2"
    assert f"<title>npusim: {title}</title>" in other
    assert "A</b> net.py</p>" in other


def test_what_some_runs_alone_miss_is_reported() -> None:
    a, b = run_of((NORM, "", 0), missing=3), run_of((NORM, "", 0), missing=1)
    start = "not the same is missing from all: beyond what all miss, "
    assert model.headline_of([a, b])[-1] == f"{start}A 2 x aten.pow.Tensor_Scalar"
    assert model.headline_of([b, a, a])[-1] == (
        f"{start}B 2 x aten.pow.Tensor_Scalar; C 2 x aten.pow.Tensor_Scalar"
    )


def test_modules_of_other_classes_are_found_again() -> None:
    a = run_of((PRODUCT, "Net.head", 0), missing=0)
    b = run_of((NORM, "Quantised.head", 0), missing=0)
    assert [row[:3] for row in model.compared([a, b])["modules"].rows] == [
        ("root", 10.0, 2.5),
        ("root.head", 10.0, 2.5),
    ]
    several = run_of((NORM, "Quantised.head", 0), (NORM, "Other", 0), missing=0)
    assert [row[0] for row in model.compared([a, several])["modules"].rows] == [
        *("root", "root.head", "Quantised", "Quantised.head", "Other")
    ]


# ---- what a page is given ----


@given(RUNS)
def test_the_payload_is_the_run(run: ModelRun) -> None:
    found = payload(run, 100.0)
    words, end_us = found["words"], 0.0
    for number, launch in enumerate(run.launches):
        kernel: Kernel = launch.kernel
        row = found["kernels"][found["kernel"][number]]
        assert row[0] == kernel.op
        assert row[6:11] == [
            *(kernel.time_us, kernel.launch_us, kernel.read_bytes, kernel.written_bytes),
            kernel.gm_bytes,
        ]
        start_us = end_us + found["gap"][number]
        assert start_us == pytest.approx(launch.start_us)
        end_us = start_us + kernel.time_us
        assert words[found["operator"][number]] == launch.operator
        assert words[found["module"][number]] == launch.module
        assert ".".join(found["steps"][launch.module]) == launch.module
        assert found["stream"][number] == launch.stream
    assert len(found["kernels"]) == len(set(run.kernels))


TILES = re.compile(r"<div><b>(.*?)</b>(.*?)</div>")


def test_a_page_begins_with_the_time_and_how_much_of_it_is_known() -> None:
    page = model.page([small()])
    assert TILES.findall(page) == [
        ("37.5 us", "device time of all kernels"),
        ("48 %", "of it is launch and completion"),
        ("100 %", "validated: of the time, in kinds of kernel measured on Atlas A2"),
        ("75 %", "coverage: 2 kernels of 1 kind took no time"),
    ]
    assert '<p class="soft">Atlas A2 · 6 kernels in 6 launches · model: Net</p>' in page
    assert "The time is a lower bound, since these took none here: 2 x aten.pow" in page
    assert page.index("The longest kernels") < page.index("<nav>")


def test_a_kernel_that_nobody_measured_is_not_validated() -> None:
    odd = replace(PRODUCT, inputs=("int4 16x64", "int4 64x32"))
    run = run_of((odd, "Net.head", 0), (NORM, "Net.head", 0), missing=0)
    assert TILES.findall(model.page([run]))[2][0] == "20 %"


def test_a_step_begins_with_its_time_and_tokens() -> None:
    lead = Lead("TPOT", 50.0, 2.0, 320.0, "made", {"gaps": 8.5, "rest": 4.0})
    page = model.page([small()], lead)
    assert TILES.findall(page)[:2] == [
        ("50.0 us", "TPOT: ± 4 %, half of such times are within that"),
        ("320", "tokens are made a second"),
    ]
    bar = page.partition('<div class="stack">')[2].partition("</div>")[0]
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", bar)]
    assert widths == pytest.approx([60, 15, 17, 8])


def test_models_on_one_page_have_their_names() -> None:
    both = run_of((PRODUCT, "Net.layers.0", 0), (NORM, "Other.layers.0", 0), missing=0)
    page = model.page([both])
    assert "<dt>Net</dt>" in page
    assert "<dt>Other</dt>" in page
    for name in ("Net.layers.0", "Other.layers.0"):
        assert f'<td title="{name}">{name}</td>' in page


def test_layers_that_are_alike_are_one_line() -> None:
    page = model.page([small()])
    assert '<td title="Net.layers.0 to Net.layers.1">layers.0 to 1, 2 alike</td>' in page
    odd = run_of((NORM, "Net.layers.0", 0), (PRODUCT, "Net.layers.1", 0))
    page = model.page([odd])
    assert "alike</td>" not in page
    assert '<td title="Net.layers.1">layers.1</td>' in page
