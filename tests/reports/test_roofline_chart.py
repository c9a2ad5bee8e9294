"""The roofline of a page: what it is given, and what it says to a pointer, a click or a key."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import pairwise, product
from math import prod
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, MISSING, Browser
from played import CHAIN, MUL, Played, lane, trace
from typer.testing import CliRunner

import npusim
from npusim import TensorSpec
from npusim.cli import app
from npusim.devices import changed
from npusim.reports import frame, html, roofline, roofline_chart
from npusim.reports.roofline import Row
from npusim.reports.subject import Timed
from npusim.trace.record import Record, read

CALL = (
    *("run", "npu_quantize", "-i", "input=spec:4x64:float16", "-i", "scales=spec:1:float16"),
    *("-a", "dtype=qint8", "-a", "div_mode=false"),
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)


def mix(device: str = "ascend910b2") -> Timed:
    x, weight = TensorSpec((16, 512), "float16"), TensorSpec((512, 512), "int8")
    scale = TensorSpec((512,), "float16")
    return npusim.run("npu_weight_quant_batchmatmul", x, weight, scale, device=device)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """One call on three chips."""
    above = tmp_path_factory.mktemp("runs")
    chips = ("ascend910b2", "ascend910b4", "ascend310p3")
    for chip in chips:
        assert CliRunner().invoke(app, [*CALL, "-d", chip, "-o", str(above / chip)]).exit_code == 0
    return [read(above / chip) for chip in chips]


@pytest.fixture(scope="module")
def page(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the first one."""
    out = tmp_path_factory.mktemp("page") / "page.html"
    out.write_text(html.report(records[:1]), "utf-8")
    return out


@pytest.fixture(scope="module")
def two(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two of them."""
    out = tmp_path_factory.mktemp("two") / "page.html"
    out.write_text(html.report(records[:2]), "utf-8")
    return out


def alone(runs: Sequence[Timed], out: Path) -> Path:
    """A page of nothing but the chart of *runs*."""
    here = "npusim.reports"
    scripts = ("zoom", "plot", "roofs", "roofline")
    script = "".join(frame.text_of(here, f"{name}.js") for name in scripts)
    styles = frame.text_of(here, "page.css") + frame.text_of(here, "roofline.css")
    body = frame.sections({"roofline": ("Roofline", roofline_chart.section(runs))})
    out.write_text(frame.document("chart", styles, script, body), "utf-8")
    return out


# ---- what it is given ----


@pytest.mark.parametrize("device", ["ascend910b2", "ascend310p3"])
def test_all_roofs_and_points_are_on_the_page(device: str) -> None:
    run = npusim.run(
        "matmul", TensorSpec((96, 512), "float16"), TensorSpec((512, 768), "float16"), device=device
    )
    data = roofline_chart.payload([run])
    limits = data["limits"]
    rows = roofline.rows(run)

    assert [name for _, name in data["titles"]] == list(dict.fromkeys(row.title for row in rows))
    for (run_number, title, name, slanted, flat, *reached), row in zip(
        data["rows"], rows, strict=True
    ):
        assert (run_number, title, name) == (0, roofline.slug(row.title), row.name)
        assert limits[slanted]["per_s"] == row.bytes_per_s
        assert limits[flat]["per_s"] == row.peak_ops_per_s
        assert reached == [row.intensity, row.ops_per_s]


def test_every_roof_is_made_of_numbers_of_the_device_file() -> None:
    run = mix()
    (chip,) = (data := roofline_chart.payload([run]))["chips"]
    tree = run.device.model_dump()

    for limit in data["limits"]:
        total = 0.0
        for factor, keys in limit["terms"]:
            for key in keys:
                value, *source = chip["numbers"][key]
                assert value == reduce(lambda table, name: table[name], key.split("."), tree)
                known = run.device.sources[key]
                assert source == [known.confidence, known.text]
            total += factor * prod(chip["numbers"][key][0] for key in keys)
        assert limit["per_s"] == pytest.approx(total, rel=1e-12)


def test_a_roof_moves_with_its_number_and_nothing_else_does() -> None:
    run = mix()
    key = "gm.read_bytes_per_s"
    twice = replace(run, device=changed(run.device, {key: "x2"}))  # type: ignore[type-var]
    before, after = roofline_chart.payload([run]), roofline_chart.payload([twice])

    own = next(limit for limit in after["limits"] if limit["terms"] == [[1, [key]]])
    assert own["per_s"] == 2 * run.device.gm.read_bytes_per_s
    own["per_s"] /= 2
    assert after["chips"][0]["numbers"][key][:2] == [2 * run.device.gm.read_bytes_per_s, "assumed"]
    after["chips"][0]["numbers"][key] = before["chips"][0]["numbers"][key]
    assert after["chips"][0].pop("name") == f"{before['chips'][0].pop('name')} (changed)"
    assert (after["runs"][0].pop("name"), before["runs"][0].pop("name")) == (
        "npu_weight_quant_batchmatmul (msd) on ascend910b2 (changed)",
        "npu_weight_quant_batchmatmul (msd) on ascend910b2",
    )
    assert after == before


def test_runs_on_one_chip_share_its_roofs() -> None:
    run = mix()
    one, both = (
        roofline_chart.payload([run]),
        roofline_chart.payload([run, run, mix("ascend910b4")]),
    )

    assert [chip["name"] for chip in both["chips"]] == ["ascend910b2", "ascend910b4"]
    assert [own["chip"] for own in both["runs"]] == [0, 0, 1]
    assert [limit for limit in both["limits"] if limit["chip"] == 0] == one["limits"]
    assert len(both["rows"]) == 3 * len(one["rows"])


def test_what_computes_or_moves_nothing_has_no_chart() -> None:
    quiet = Played(trace(lane((0,), *(each for each in CHAIN if each[0] is not MUL))))

    assert roofline_chart.section([quiet]) == (
        '<p class="note">does not apply: nothing was computed, or nothing was moved</p>'
    )


def test_the_page_holds_what_the_chart_is_given(page: Path, records: list[Record]) -> None:
    text = page.read_text("utf-8")
    packed = re.search(r'id="roofs">([^<]+)<', text)
    assert packed is not None

    given = json.loads(zlib.decompress(base64.b64decode(packed[1])))
    assert given == json.loads(json.dumps(roofline_chart.payload(records[:1])))
    assert len(packed[1]) < 4_000
    # Without scripts a table has the numbers.
    assert "<noscript>" in text
    assert "<h3>Rooflines</h3>" in text
    assert "Roofline: GM/L2" not in text


def luminance(color: str) -> float:
    """As WCAG 2.2 defines it, in another way than the page does."""
    shares = np.array([int(color[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize(("paper", "place"), [("#ffffff", 0), ("#191919", 1)])
def test_looks_stand_out_from_the_paper_and_from_each_other(paper: str, place: int) -> None:
    looks = roofline_chart.payload([mix()])["looks"]
    levels = [sorted((luminance(look[place]), luminance(paper))) for look in looks]

    assert all((light + 0.05) / (dark + 0.05) >= 4.5 for dark, light in levels)
    assert len({(look[place], look[2]) for look in looks}) == len(looks) == 16
    assert f"--paper: {paper.replace('#ffffff', 'white')};" in frame.text_of(
        "npusim.reports", "page.css"
    )


# ---- in a browser ----


@contextmanager
def opened(
    page: Path, tmp_path: Path, width: int = 1300, scheme: str = "light"
) -> Iterator[Browser]:
    """*page* as it is seen, with the chart in `r` and its first run in sight."""
    with Browser(tmp_path / "profile") as browser:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **metrics)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.call("Emulation.setEmulatedMedia", features=[feature])
        browser.open(page)
        browser.evaluate(
            "Promise.all(beside).then((all) => { window.r = all.find((each) => each.tip); })"
        )
        rest(browser)
        yield browser
        assert browser.complaints == []


def rest(browser: Browser) -> None:
    """Until the address is written."""
    browser.evaluate("new Promise((done) => setTimeout(done, 400))")


AREA = ".plot .paper"


def clicked(browser: Browser, row: Row, run: int = 0, *, click: bool = True) -> None:
    """Point at what *run* reached of *row*, and click it."""
    where = f"""(() => {{ const item = r.items.find((item) => item.kind === "point" &&
      item.rows.some((row) => row.run.n === {run} && row.name === {row.name!r}));
      return r.spot(item); }})()"""
    browser.point(AREA, *browser.evaluate(where), click=click)


def pressed(browser: Browser, *names: str) -> None:
    codes = {"Tab": 9, "Enter": 13, "Escape": 27}
    codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
    for name in names:
        for kind in ("rawKeyDown", "keyUp"):
            code = codes.get(name, ord(name[0].upper()))
            browser.call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code)


def named(per_s: float, unit: str) -> str:
    size, prefix = (1e12, "T") if per_s >= 1e12 else (1e9, "G")
    return f"{per_s / size:.4g} {prefix}{unit}"


def percent(share: float) -> str:
    return f"{100 * share:.{2 if share < 0.01 else 3}g} %"


FACTS = "[...r.details.querySelectorAll('dd')].map((each) => each.innerText)"
TIP = "r.tip.hidden ? null : [...r.tip.children].map((line) => line.textContent)"
BOX = """(element) => {
  const box = element.getBoundingClientRect();
  return [box.left, box.right, box.top, box.bottom];
}"""
FOCUSED = "document.activeElement.getAttribute('aria-label')?.split(';')[0]"


@needs_browser
@pytest.mark.parametrize(
    ("width", "scheme"), list(product((360, 820, 1300), ("light", "dark"))), ids=str
)
def test_a_point_says_what_was_reached_and_allowed(
    page: Path, records: list[Record], tmp_path: Path, width: int, scheme: str
) -> None:
    rows = [row for row in roofline.rows(records[0]) if row.title == "GM/L2"]
    assert {row.is_memory for row in rows} == {True, False}
    keys = {"GM": "gm.read_bytes_per_s", "L2 read": "l2.read_bytes_per_s",
            "L2 write": "l2.write_bytes_per_s"}  # fmt: skip
    sources = records[0].device.sources
    with opened(page, tmp_path, width, scheme) as browser:
        assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
        for row in rows:
            reached, allowed = named(row.ops_per_s, "OPS"), named(row.allowed_ops_per_s, "OPS")
            slanted, flat = named(row.bytes_per_s, "B/s"), named(row.peak_ops_per_s, "OPS")
            above = f"slanted part of its roof: {row.name}, {slanted}"
            if not row.is_memory:
                above = "flat part of its roof: the vector unit's peak for elements of 32 bits, "
                above += flat
            made = "vector.repeat_bytes x cores.aiv.count x cores.aiv.clock_hz"
            parts = [f"{slanted} = {keys[row.name]}", f"{flat} = 0.25 x {made}"]
            clicked(browser, row)
            assert browser.evaluate(FACTS) == [
                f"{row.name} of npu_quantize on ascend910b2",
                f"{reached} at {row.intensity:.4g} operations a byte",
                f"{allowed}, of which {percent(row.share)} are reached",
                f"the {above}",
                *(parts if row.is_memory else reversed(parts)),
            ]
            source = f"{keys[row.name]} ({sources[keys[row.name]].confidence})"
            if not row.is_memory:
                source = f"0.25 x {made} (vendor doc, vendor file, inferred)"
            assert browser.evaluate(TIP) == [
                row.name,
                f"reached {reached}, {percent(row.share)} of the {allowed} allowed",
                f"at {row.intensity:.4g} operations a byte",
                f"above it the {above}",
                f"source: {source}",
            ]
            numbers = browser.evaluate(
                "[...r.details.querySelectorAll('tbody tr')].map((row) =>"
                " [...row.cells].map((cell) => cell.textContent))"
            )
            known = sources[keys[row.name]]
            value = f"{row.bytes_per_s:,.0f}"
            assert [keys[row.name], value, known.confidence, known.text] in numbers
            assert len(numbers) == 4
            # The lines stand next to the point that they are about, and not over it.
            left, right, top, bottom = browser.evaluate(f"({BOX})(r.tip)")
            assert 0 <= left < right <= width
            mark = browser.evaluate(f"({BOX})(r.told.element.querySelector('.sign'))")
            assert mark[1] <= left or right <= mark[0] or mark[3] <= top or bottom <= mark[2]


@needs_browser
@pytest.mark.parametrize("width", [360, 820, 1300])
def test_labels_stand_clear_of_each_other_and_axes_in_sight(tmp_path: Path, width: int) -> None:
    boxes = """(all) => [...all].filter((each) => !each.getAttribute("transform"))
      .map((each) => each.getBoundingClientRect())
      .map((box) => [box.left, box.right, box.top + 2, box.bottom - 2])"""
    marks = "r.marks.querySelectorAll('.sign')"
    with opened(alone([mix()], tmp_path / "page.html"), tmp_path, width) as browser:
        edge = browser.evaluate("r.box.getBoundingClientRect().left")
        for title in ("gm_l2", "memory_unit_cube", "all"):
            browser.evaluate(f"r.restore((name) => name === 'roofs' ? {title!r} : '')")
            for by in (1, 0.4, 0.1):
                browser.evaluate(f"r.reset(); r.zoom({by}, r.wide * 0.6, r.high * 0.3)")
                labels = browser.evaluate(f"({boxes})(r.labels.children)")
                places = labels + browser.evaluate(f"({boxes})({marks})")
                for number, (left, right, top, bottom) in enumerate(labels):
                    for left2, right2, top2, bottom2 in places[number + 1 :]:
                        beside = right <= left2 or right2 <= left
                        assert beside or bottom <= top2 or bottom2 <= top, (title, by)
                shown = browser.evaluate("[...r.axes.children].map((text) => text.textContent)")
                assert len(shown) >= 6
                assert all(start >= edge for start, *_ in browser.evaluate(
                    f"({boxes})(r.axes.children)"
                ))  # fmt: skip


WHEEL = """r.wheel = (ctrlKey) => {
  const at = { clientX: 500, clientY: 300 };
  const turned = new WheelEvent("wheel", { deltaY: -400, ctrlKey, cancelable: true, ...at });
  r.svg.dispatchEvent(turned);
  return [turned.defaultPrevented, r.to[0] - r.from[0]];
}; 0"""


@needs_browser
def test_a_group_is_chosen_and_zoomed(page: Path, records: list[Record], tmp_path: Path) -> None:
    rows = roofline.rows(records[0])
    points = "r.items.filter((item) => item.kind === 'point').map((item) => item.row.name)"
    with opened(page, tmp_path) as browser:
        for title in dict.fromkeys(row.title for row in rows):
            browser.evaluate(
                f"r.chooser.value = {roofline.slug(title)!r};"
                " r.chooser.dispatchEvent(new Event('change'))"
            )
            own = sorted((row for row in rows if row.title == title), key=lambda row: row.intensity)
            assert browser.evaluate(points) == [row.name for row in own]
        browser.evaluate("r.chooser.value = 'all'; r.chooser.dispatchEvent(new Event('change'))")
        told = browser.evaluate(
            "r.items.filter((item) => item.kind === 'point')"
            ".flatMap((item) => item.rows.map((row) => [row.title, row.name]))"
        )
        assert sorted(told) == sorted([roofline.slug(row.title), row.name] for row in rows)
        browser.evaluate(WHEEL)
        wide = browser.evaluate("r.wheel(false)")
        zoomed = browser.evaluate("r.wheel(true)")
        assert (wide[0], zoomed[0]) == (False, True)
        assert zoomed[1] < 0.6 * wide[1]
        ends = "[...r.from, ...r.to]"
        seen = browser.evaluate(ends)
        # A drag moves what is seen with the hand.
        browser.point(AREA, 300, 300)
        at = browser.evaluate("(b => [b.left + 300, b.top + 300])(r.svg.getBoundingClientRect())")
        for kind, x in (("mousePressed", 0), ("mouseMoved", 60), ("mouseReleased", 60)):
            browser.call("Input.dispatchMouseEvent", type=kind, button="left", buttons=1,
                         clickCount=1, x=at[0] + x, y=at[1])  # fmt: skip
        moved = browser.evaluate(ends)
        share = 60 / browser.evaluate("r.wide") * (seen[2] - seen[0])
        assert [was - now for was, now in zip(seen, moved, strict=True)] == [
            pytest.approx(share), 0, pytest.approx(share), 0
        ]  # fmt: skip
        browser.evaluate("r.host.querySelector('.bar [data-act=all]').click()")
        assert browser.evaluate("r.to[0] - r.from[0]") == pytest.approx(wide[1])


@needs_browser
def test_keys_lead_to_points_and_roofs(page: Path, records: list[Record], tmp_path: Path) -> None:
    rows = [row for row in roofline.rows(records[0]) if row.title == "GM/L2"]
    first, second, third = sorted(rows, key=lambda row: row.intensity)
    with opened(page, tmp_path) as browser:
        browser.evaluate("r.host.querySelector('.bar [data-act=all]').focus()")
        pressed(browser, "Tab")
        assert browser.evaluate(FOCUSED) == first.name
        assert browser.evaluate(TIP)[0] == first.name
        pressed(browser, "ArrowRight", "ArrowRight")
        assert browser.evaluate(FOCUSED) == third.name
        pressed(browser, "ArrowLeft")
        assert browser.evaluate(FOCUSED) == second.name
        for row in (second, first):
            above = f"{row.name}: {named(row.bytes_per_s, 'B/s')}"
            if not row.is_memory:
                above = "the vector unit's peak for elements of 32 bits: "
                above += named(row.peak_ops_per_s, "OPS")
            browser.evaluate(
                f"r.items.find((item) => item.row.name === {row.name!r}).element.focus()"
            )
            pressed(browser, "ArrowUp")
            assert browser.evaluate(FOCUSED) == above
            pressed(browser, "Enter")
            assert browser.evaluate(FACTS)[0] == above
            pressed(browser, "Escape", "ArrowDown")
            assert browser.evaluate(FACTS) == []
            assert browser.evaluate(FOCUSED) in {each.name for each in rows}
        wide = browser.evaluate("r.to[0] - r.from[0]")
        pressed(browser, "w")
        assert browser.evaluate("r.to[0] - r.from[0]") == pytest.approx(0.7 * wide)
        pressed(browser, "0")
        assert browser.evaluate("r.to[0] - r.from[0]") == pytest.approx(wide)
        # The chart is one stop.
        pressed(browser, "Tab")
        assert browser.evaluate("document.activeElement.closest('.legend') !== null")


@needs_browser
def test_an_address_keeps_the_group(two: Path, records: list[Record], tmp_path: Path) -> None:
    rows = roofline.rows(records[1])
    place, row = next((n, row) for n, row in enumerate(rows) if row.title == "Pipeline(Vector)")
    with opened(two, tmp_path) as browser:
        browser.evaluate(f"location.hash = 'roofs=pipeline_vector&point=1.{place}'")
        rest(browser)
        facts = browser.evaluate(FACTS)
        assert facts[0] == f"{row.name} of B, ascend910b4"
        assert browser.evaluate("r.host.getBoundingClientRect().top < 100")
        browser.evaluate("timelines.then(([t]) => t.frame(0.125, 0.25))")
        browser.evaluate("r.legend.querySelector('[aria-pressed]').click()")
        rest(browser)
        after = f"#t=0.125-0.25us&roofs=pipeline_vector&point=1.{place}&runs=B"
        assert browser.evaluate("location.hash") == after
        browser.call("Page.reload")
        browser.evaluate("new Promise((done) => setTimeout(done, 500))")
        browser.evaluate("timelines.then(() => { window.r = window.roofline; })")
        assert browser.evaluate(FACTS) == facts
        assert browser.evaluate("[...r.away].map((run) => run.letter)") == ["A"]
        for wrong in (
            "roofs=nothing&point=7.7",
            "roofs=%&slanted=x",
            "flat=0",
            "runs=Z&point=-1.0",
        ):
            browser.evaluate(f"location.hash = {wrong!r}")
            rest(browser)
            assert browser.evaluate("[r.chooser.value, r.picked]") == ["gm_l2", None]
        browser.evaluate(
            "r.restore(() => ''); document.querySelector('nav a[href=\"#tables\"]').click()"
        )
        rest(browser)
        assert browser.evaluate("location.hash") == "#tables"


LOOKS = """r.items.map(({ kind, row, element }) => {
  const part = element.querySelector(".sign, .line"), look = getComputedStyle(part);
  return [kind, row.run.n, ...(kind === "point" ? [look.fill, part.getAttribute("d")]
    : [look.stroke, part.getAttribute("stroke-dasharray")])];
})"""


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_runs_share_axes(records: list[Record], tmp_path: Path, scheme: str) -> None:
    runs = [*records, records[0]]
    gm = [next(row for row in roofline.rows(run) if row.name == "GM") for run in runs]
    with opened(alone(runs, tmp_path / "page.html"), tmp_path, 1300, scheme) as browser:
        looks = browser.evaluate(LOOKS)
        marks = {(run, color, sign) for kind, run, color, sign in looks if kind == "point"}
        # As many as runs: by colour alone, and by shape alone.
        assert [len({mark[part] for mark in marks}) for part in (0, 1, 2)] == [4, 4, 4]
        roofs = {(color, dash) for kind, _, color, dash in looks if kind == "slanted"}
        assert len(roofs) == len({dash for _, dash in roofs}) == 3
        heights = browser.evaluate(
            "r.items.filter((item) => item.kind === 'point' && item.row.name === 'GM')"
            ".map((item) => r.spot(item))"
        )
        for (one, other), (x, y) in zip(
            pairwise(gm), [(b[0] - a[0], a[1] - b[1]) for a, b in pairwise(heights)], strict=True
        ):
            assert (x > 0, y > 0) == (
                other.intensity > one.intensity, other.ops_per_s > one.ops_per_s
            )  # fmt: skip
        # On this chip, as many bytes come from global memory as from the L2.
        clicked(browser, gm[2], 2)
        assert browser.evaluate(FACTS)[:2] == [
            "GM, L2 read of C, npu_quantize on ascend310p3",
            f"{named(gm[2].ops_per_s, 'OPS')} at {gm[2].intensity:.4g} operations a byte",
        ]
        # The first run and the last, which is the same, cover each other and half of the second.
        met = []
        for _ in range(4):
            clicked(browser, gm[0], 0)
            met.append(browser.evaluate(FACTS)[0].removeprefix("GM of ")[0])
        assert browser.evaluate(TIP)[-1] == "2 more here; click again for the next"
        assert met == ["D", "A", "B", "D"]
        legend = "[...r.legend.children].map((each) => each.textContent)"
        assert browser.evaluate(legend)[:4] == [
            f"{letter} npu_quantize on {run.device.name}"
            for letter, run in zip("ABCD", runs, strict=True)
        ]
        assert f"GM of ascend910b2 (A, D): {named(gm[0].bytes_per_s, 'B/s')}" in (
            browser.evaluate(legend)
        )
        browser.evaluate("r.legend.children[2].click()")
        shown = "r.items.filter((item) => item.element.getBoundingClientRect().width)"
        chips = f"[...new Set({shown}.map((item) => item.limit?.chip.n ?? -1))].sort()"
        assert browser.evaluate(chips) == [-1, 0, 1]
