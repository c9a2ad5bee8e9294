"""`npusim report` and `compare` of runs of models, and their page in a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from axe import needs_axe, shown, violations
from browser import CHROMIUM, MISSING, Browser
from commands import npusim_says, refused
from model_runs import NORM, QUANT_PRODUCT, run_of, small

from npusim.reports import model
from npusim.trace.model import ModelRun

NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)


def written(out: Path, run: ModelRun) -> Path:
    model.write(run, out, model.kind())
    return out


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return written(tmp_path / "a", small())


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return written(tmp_path / "b", small(QUANT_PRODUCT, "quantised.py"))


# ---- folders and commands ----


def test_a_folder_holds_page_tables_and_record(a: Path) -> None:
    assert sorted(path.name for path in a.iterdir()) == [
        *("kernels.csv", "launches.csv", "layers.csv", "model.json", "modules.csv"),
        *("not_timed.csv", "operators.csv", "report.html", "roles.csv", "tables.json", "works.csv"),
    ]
    told = json.loads((a / "tables.json").read_text())
    assert told["works"] == model.sheets(small())["works"].to_json()
    assert (a / "works.csv").read_text() == (
        "work,launches,time_us,share,launch_us,read_bytes,written_bytes,gm_bytes,bound,bound_share"
        "\nmatrix products,3,30.0,0.8,12.0,18432,3072,24576,the bandwidth of global memory,1.0"
        "\nnorms,3,7.5,0.2,6.0,3072,3072,3072,launch and completion,1.0\n"
    )


def test_report_writes_the_page_again(a: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert npusim_says("report", str(a), "-o", str(page)).out == f"wrote {page}\n"
    assert page.read_bytes() == (a / "report.html").read_bytes()
    refused(
        1,
        f"report: {page} must be a new file, but there is one; "
        f"name another, or add --force to replace it",
        *("report", str(a), "-o", str(page)),
    )


def test_compare_lists_two_runs_side_by_side(a: Path, b: Path) -> None:
    lines = npusim_says("compare", str(a), str(b)).out.splitlines()
    assert lines[:4] == model.headline_of([small(), small(QUANT_PRODUCT, "quantised.py")])
    table = [" ".join(line.split()) for line in lines]
    assert "work A B B / A B - A launches" in table
    assert "matrix products 30.0 us 18.0 us 0.60 -12.0 us 3, 3" in table
    assert "npu_quant_matmul 18.0 us +18.0 us 0, 3" in table
    assert "root.layers.*.up 20.0 us 12.0 us 0.60 -8.00 us 2, 2" in table
    told = json.loads(npusim_says("compare", str(a), str(b), "--json").out)
    assert told["works"][1] == {
        "work": "norms", "a_us": 7.5, "b_us": 7.5, "ratio": 1.0, "difference_us": 0.0,
        "a_launches": 3, "b_launches": 3,
    }  # fmt: skip


def test_compare_takes_several_models_and_two_arrays(a: Path, b: Path) -> None:
    runs = [small(), small(QUANT_PRODUCT, "quantised.py"), small()]
    lines = npusim_says("compare", str(a), str(b), str(a)).out.splitlines()
    assert lines[:6] == model.headline_of(runs)
    table = [" ".join(line.split()) for line in lines]
    assert "work A B C B / A C / A launches" in table
    assert "npu_quant_matmul 18.0 us 0, 3, 0" in table
    assert "root.layers.*.up 20.0 us 12.0 us 20.0 us 0.60 1.00 2, 2, 2" in table
    refused(
        2,
        "compare: arrays must be two, not 3; compare each with the golden one by itself",
        *("compare", "ones:2", "ones:2", "ones:2"),
    )


def test_a_run_of_a_model_is_compared_with_another_one(a: Path, b: Path, tmp_path: Path) -> None:
    other = tmp_path / "else"
    for command in ("report", "compare"):
        for paths in ((a, other), (other, a, b), (a, b, other)):
            refused(
                2,
                f"{command}: all must be runs of models, as {a} is, but {other} is none; name "
                f"folders that python -m npusim.torch --report has written, or leave {a} out",
                *(command, *map(str, paths)),
            )


@pytest.mark.parametrize("words", [("--format", "png"), ("--level", "full")])
def test_a_model_has_a_page_alone(a: Path, words: tuple[str, str]) -> None:
    refused(
        2,
        f"report: the report of a model must be a page that shows all, not {' '.join(words)}; "
        f"leave that out",
        *("report", str(a), *words),
    )


# ---- in a browser ----

SEEN = """timelines.then(([t]) => {
  const said = [], box = t.canvas.getBoundingClientRect();
  t.canvas.setPointerCapture = () => {};
  const send = (kind, type, x, y, more = {}) => t.canvas.dispatchEvent(new kind(type,
    { bubbles: true, cancelable: true, clientX: box.left + x, clientY: box.top + y, ...more }));
  const row = t.rows.find((row) => row.stream === 0), at = (us) => t.x(us);
  said.push(t.rows.map((row) => row.spans ? row.spans.map((s) => s.name).join(" ")
    : `${row.stream}: ${row.found.map((i) => t.data.kernels[t.data.kernel[i]].op).join(" ")}`));
  send(PointerEvent, "pointermove", at(5), row.y + 8);
  said.push(t.canvas.title);
  send(PointerEvent, "pointerdown", at(5), row.y + 8);
  send(PointerEvent, "pointerup", at(5), row.y + 8);
  said.push([...t.details.querySelectorAll("dd")].map((each) => each.textContent));
  t.canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  said.push(t.told(t.picked));
  t.host.querySelector("input").value = "HEAD";
  t.host.querySelector('[data-act="next"]').click();
  said.push(t.told(t.picked));
  t.host.querySelector("input").value = "nothing";
  t.host.querySelector('[data-act="next"]').click();
  said.push(t.details.textContent);
  send(PointerEvent, "pointerdown", at(1), t.rows[1].y + 8);
  send(PointerEvent, "pointerup", at(1), t.rows[1].y + 8);
  said.push([...t.details.querySelectorAll("dd")].map((each) => each.textContent));
  t.details.querySelector("a").click();
  said.push([t.from < 0.01, t.to > 12.5 && t.to < 13.5]);
  const wide = t.to - t.from;
  send(WheelEvent, "wheel", 300, 50, { deltaY: -200, ctrlKey: true });
  said.push(t.to - t.from < wide);
  t.host.querySelector('[data-act="all"]').click();
  said.push([t.from, t.to === t.data.full]);
  const ink = t.ink.getImageData(0, 0, t.canvas.width, t.canvas.height).data;
  said.push(ink.some((value) => value !== 0));
  return said;
})"""


@NEEDS_CHROMIUM
@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (700, "dark")])
def test_kernels_lie_below_modules(a: Path, tmp_path: Path, width: int, scheme: str) -> None:
    with Browser(tmp_path / "profile") as browser:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **metrics)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.call("Emulation.setEmulatedMedia", features=[feature])
        browser.open(a / "report.html")
        rows, *told = browser.evaluate(SEEN)
        assert rows == [
            *("Net", "layers.0 layers.1 head", "norm up norm up"),
            "0: npu_rms_norm matmul npu_rms_norm matmul matmul",
            "3: npu_rms_norm",
        ]
        assert told == [
            "matmul, 10.00 us",
            [
                "matmul (v3) \u00a0matrix products",
                "aten.mm.default in Net.layers.0.up",
                "2.500 us to 12.50 us on stream 0: 10.00 us, of which launch and completion "
                "4.000 us; 3 alike take 30.00 us",
                "float16 16x64, float16 64x32 \u2192 float16 16x32; 8 cores",
                "cores read 6.14 kB and write 1.02 kB; 8.19 kB from and to global memory, "
                "0.819 GB/s",
                "the bandwidth of global memory, 50 % of its time",
            ],
            "npu_rms_norm, 2.500 us",
            "matmul, 10.00 us",
            "No launch has nothing in it.",
            [
                "Net.layers.0 \u00a0zoom to it",
                "0.000 us to 12.50 us: 12.50 us in 2 launches, 33 % of all",
                "matrix products 80 % \u00a0 norms 20 % \u00a0 ",
            ],
            *([True, True], True, [0, True], True),
        ]
        assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
        paper = "getComputedStyle(document.body).backgroundColor"
        white = "rgb(255, 255, 255)"
        assert (browser.evaluate(paper) == white) == (scheme == "light")
        assert browser.requests == [(a / "report.html").as_uri()]
        assert browser.complaints == []


@NEEDS_CHROMIUM
def test_modules_fold(a: Path, tmp_path: Path) -> None:
    seen = (
        "[...document.querySelectorAll('#modules table.tree')[1].tBodies[0].rows]"
        ".filter((row) => !row.hidden).map((row) => row.cells[0].textContent)"
    )
    fold = "document.querySelectorAll('#modules table.tree')[1].querySelectorAll('.fold')"
    below = ["head", "outside modules"]
    with Browser(tmp_path / "profile") as browser:
        browser.open(a / "report.html")
        every = ["Net", "layers.0", "norm", "up", "layers.1", "norm", "up", *below]
        assert browser.evaluate(seen) == every
        browser.evaluate(f"{fold}[1].click()")
        assert browser.evaluate(seen) == ["Net", "layers.0", "layers.1", "norm", "up", *below]
        browser.evaluate(f"{fold}[0].click()")
        assert browser.evaluate(seen) == ["Net", "outside modules"]
        browser.evaluate(f"{fold}[0].click()")
        assert browser.evaluate(seen) == ["Net", "layers.0", "layers.1", "norm", "up", *below]
        browser.evaluate("document.querySelectorAll('.unfold')[1].click()")
        assert browser.evaluate(seen) == every


@NEEDS_CHROMIUM
def test_two_runs_share_a_page_and_a_scale(a: Path, b: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert npusim_says("report", str(a), str(b), "-o", str(page)).code == 0
    with Browser(tmp_path / "profile") as browser:
        browser.open(page)
        assert browser.evaluate("document.querySelector('h1').textContent") == (
            "net.py on Ascend910B2 against quantised.py on Ascend910B2"
        )
        ranges = "timelines.then((all) => all.map((one) => [one.from, one.to]))"
        browser.evaluate("timelines.then((all) => all[0].zoom(0.3, 10))")
        first, second = browser.evaluate(ranges)
        assert first == second
        row = "document.querySelector('#work tbody tr').textContent"
        assert browser.evaluate(row) == "matrix products30.0 us18.0 us0.60-12.0 us33"
        assert browser.complaints == []


@NEEDS_CHROMIUM
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 820, 1300])
def test_three_runs_move(a: Path, b: Path, tmp_path: Path, width: int, scheme: str) -> None:
    page = tmp_path / "page.html"
    assert npusim_says("report", str(a), str(b), str(a), "-o", str(page)).code == 0
    with Browser(tmp_path / "profile") as browser:
        browser.sized(width, 900, scheme)
        browser.open(page)
        browser.evaluate("timelines.then((all) => { window.all = all; all[2].zoom(0.3, 10); })")
        first, *others = browser.evaluate("all.map((one) => [one.from, one.to])")
        assert others == [first] * 2
        assert first[1] - first[0] < 15
        assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
        told = "[...document.querySelectorAll('.glance .who, .took')].map((e) => e.innerText)"
        assert browser.evaluate(told) == [
            *("A net.py", "37.5 us", "B quantised.py", "25.5 us 32 % less than A"),
            *("C like A", "37.5 us as long as A"),
        ]
        bars = "[...document.querySelectorAll('.glance .stack')].map((bar) => [...bar.children]"
        bars += ".reduce((sum, part) => sum + part.getBoundingClientRect().width, 0)"
        bars += " / bar.getBoundingClientRect().width)"
        assert browser.evaluate(bars) == pytest.approx([1, 25.5 / 37.5, 1], abs=0.01)
        row = "document.querySelector('#work tbody tr').textContent"
        assert browser.evaluate(row) == "matrix products30.0 us18.0 us30.0 us0.601.00333"
        assert browser.complaints == []


EVIL = "<img src=x onerror=window.ran=1>"


@NEEDS_CHROMIUM
def test_markup_in_a_name_is_shown_and_does_not_run(tmp_path: Path) -> None:
    evil = replace(NORM, op=EVIL, inputs=(EVIL,), bound=EVIL)
    out = written(tmp_path / "out", run_of((evil, EVIL, 0), title=EVIL))
    with Browser(tmp_path / "profile") as browser:
        browser.open(out / "report.html")
        told = browser.evaluate(
            "timelines.then(([t]) => { t.pick({ row: t.rows.length - 1, n: 0 });"
            " return t.details.textContent; })"
        )
        assert told.count(EVIL) == 4
        assert browser.evaluate("document.images.length") == 0
        assert browser.evaluate("window.ran === undefined")
        assert browser.complaints == []


@NEEDS_CHROMIUM
def test_a_page_of_nothing_opens(tmp_path: Path) -> None:
    out = written(tmp_path / "out", run_of(missing=0))
    with Browser(tmp_path / "profile") as browser:
        browser.open(out / "report.html")
        assert browser.evaluate("timelines.then(([t]) => t.rows.length)") == 0
        assert browser.complaints == []


@needs_axe
@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (360, "dark")])
def test_axe_finds_nothing(a: Path, b: Path, tmp_path: Path, width: int, scheme: str) -> None:
    both = tmp_path / "page.html"
    assert npusim_says("report", str(a), str(b), "-o", str(both)).code == 0
    with Browser(tmp_path / "profile") as browser:
        for page in a / "report.html", both:
            shown(browser, page, width, scheme)
            browser.evaluate("timelines.then(([t]) => { t.choose(0, 5, true); })")
            assert violations(browser) == []
