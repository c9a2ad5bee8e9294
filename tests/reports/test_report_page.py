"""`npusim report`: what it writes, what it refuses, and what the page does in a browser."""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe import needs_axe, shown, violations
from browser import CHROMIUM, MISSING, Browser
from commands import entries, npusim_says, refused
from played import CHAIN, LOAD, MUL, lane, trace
from records import written
from tampering import members, replaced, retold

import npusim
from npusim import reports
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, SetFlag, WaitFlag
from npusim.reports import style, timeline_data
from npusim.reports.html import SUMMARISED
from npusim.reports.tables import difference, table
from npusim.trace import Trace, record

MIX = (
    *("run", "npu_weight_quant_batchmatmul", "-i", "x=spec:64x1024:float16"),
    *("-i", "weight=spec:1024x4096:int8", "-i", "antiquant_scale=spec:4096:float16"),
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("small") / "out")


@pytest.fixture(scope="module")
def page(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of that run."""
    out = tmp_path_factory.mktemp("page") / "deep" / "page.html"
    assert npusim_says("report", small, "-o", out)[:2] == (0, f"wrote {out}\n")
    return out


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same call on two chips."""
    above = tmp_path_factory.mktemp("two")
    chips = ("ascend910b2", "ascend910b4")
    return [written(above / chip, "-d", chip) for chip in chips]


@pytest.fixture(scope="module")
def three(two: list[Path], small: Path) -> list[Path]:
    """The same call on three chips."""
    return [*two, small]


# ---- files ----


def test_a_page_is_one_file_that_asks_nothing_of_a_network(page: Path) -> None:
    assert entries(page.parent) == ["page.html"]
    text = page.read_text()
    assert len(text) < 3_000_000
    assert not re.search(r'(src|href)="(?!#|data:)', text.replace('xlink:href="#', 'href="#'))
    assert "default-src 'none'" in text
    for heading in (
        "Numbers",
        "Timeline",
        "Roofline",
        "Pictures",
        "Tables",
        "The chip",
        "What bounds it",
    ):
        assert f">{heading}</h" in text
    assert text.count('<figure tabindex="0"><svg role="img" aria-label="') == 6
    assert (
        "<td>unvalidated: no public measurement of this kind of kernel on Atlas inference; 90 % of "
        "the kernels of other kinds are within 49 %</td>"
    ) in text
    assert "vendor file" in text
    assert "[AICoreSpec] cube_freq" in text


def test_names_inside_pictures_stay_apart(page: Path) -> None:
    found = re.findall(r'<clipPath id="([^"]+)"', page.read_text())

    assert len(found) == len(set(found)) > 5


def test_the_same_run_gives_the_same_bytes_under_a_name_of_its_own(
    small: Path, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert npusim_says("report", small)[:2] == (0, "wrote report.html\n")
    assert entries(tmp_path) == ["report.html"]
    assert (tmp_path / "report.html").read_bytes() == page.read_bytes()


def test_two_runs_are_compared(two: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"

    assert npusim_says("report", *two, "-o", out)[0] == 0
    page = out.read_text()
    assert len(page) < 3_000_000
    title = "npu_quantize on ascend910b2 against npu_quantize on ascend910b4"
    assert f"<title>npusim: {title}</title>" in page
    assert page.count('class="timeline"') == 2
    assert re.search(r'<tr class="differs"><td>time</td>.*?<td[^>]*>[+-][\d.]+ %</td>', page)
    assert re.search(r'<tr class="differs"><td>cores.aic.clock_hz</td>', page)
    assert re.search(r"<tr><td>cores.aic.l1_bytes</td>", page)


def test_three_runs_are_held_against_the_first(three: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"

    assert npusim_says("report", *three, "-o", out, "--no-advice")[:2] == (0, f"wrote {out}\n")
    page = out.read_text()
    title = "3 runs of npu_quantize on ascend910b2, ascend910b4 and ascend310p3"
    assert f"<title>npusim: {title}</title>" in page
    assert page.count('class="timeline"') == 3
    assert page.index("<section") == page.index('<section id="timeline"><h2>Timeline</h2>')
    assert page.index('class="glance"') < page.index("<nav>")
    chips = ("A</b> ascend910b2", "B</b> ascend910b4", "C</b> ascend310p3")
    assert re.findall(r'<p class="who"><b>(.*?)</p>', page) == list(chips)
    names = [chip.replace("</b>", ' <span class="soft">').replace('"> ', '">') for chip in chips]
    # Above its timeline, its tables and each of its pictures.
    for name in names:
        assert page.count(f"<h3>{name}</span></h3>") >= 8
    heads = ("A", "B", "B against A", "C", "C against A")
    assert "".join(f"<th>{head}</th>" for head in heads) in page
    assert re.search(
        r'<tr class="differs"><td>time</td><td>[^<]* us</td><td>[^<]* us</td><td>[+-][\d.]+ %</td>'
        r"<td>[^<]* us</td><td>[+-][\d.]+ %</td></tr>",
        page,
    )
    assert re.search(r"<th>ascend910b2</th><th>its source</th><th>ascend910b4</th>", page)
    assert 'aria-label="C, What bounds it"' in page
    assert 'aria-label="timeline of C, npu_quantize on ascend310p3"' in page


@pytest.mark.nightly
def test_a_run_may_stand_there_twice(three: list[Path], small: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"

    assert npusim_says("report", small, small, three[0], "-o", out, "--no-advice")[0] == 0
    page = out.read_text()
    assert re.findall(r'<p class="who"><b>(.*?)</p>', page) == [
        *("A</b> ascend310p3", "B</b> the same call as A", "C</b> ascend910b2")
    ]
    # Two chips, of which each is told once.
    assert re.search(r"<th>ascend310p3</th><th>its source</th><th>ascend910b2</th>", page)
    assert page.count("<th>ascend310p3</th>") == 1
    found = re.findall(r'<clipPath id="([^"]+)"', page)
    assert len(found) == len(set(found))


@pytest.mark.nightly
def test_chips_of_one_name_have_the_letters_of_their_runs(small: Path, tmp_path: Path) -> None:
    slow = [written(tmp_path / by, "--set", f"gm.read_bytes_per_s={by}") for by in ("x0.5", "x2")]
    out = tmp_path / "page.html"
    assert npusim_says("report", *slow, slow[1], small, "-o", out, "--no-advice")[0] == 0
    page = out.read_text()
    heads = "ascend310p3 (changed) (A)", "ascend310p3 (changed) (B, C)", "ascend310p3"
    assert "".join(f"<th>{head}</th><th>its source</th>" for head in heads) in page


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_pictures_alone_go_into_a_folder(kind: str, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    assert npusim_says("report", small, "-f", kind, "-o", out)[0] == 0
    names = entries(out)
    assert {f"{name}.{kind}" for name in ("timeline", "bounds", "costs")} < set(names)
    start = {"png": b"\x89PNG", "svg": b"<?xml"}[kind]
    assert all((out / name).read_bytes().startswith(start) for name in names)
    refused(
        1,
        f"report: the folder {out} must be new or empty, but holds bandwidth.{kind}; "
        f"name another, or add --force to replace an earlier run",
        "report",
        small,
        "-f",
        kind,
        "-o",
        out,
    )
    assert npusim_says("report", small, "-f", kind, "-o", out, "--force")[0] == 0
    assert entries(tmp_path) == ["out"]


@pytest.mark.nightly
def test_pictures_of_several_runs_have_letters(three: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, _ = npusim_says("report", *three, "-f", "svg", "-o", out)
    names = [f"timeline_{letter}.svg" for letter in "abc"]

    assert code == 0
    assert said.endswith(f" to {out}\n")
    assert set(names) < set(entries(out))
    assert sorted(said.removeprefix("wrote ").removesuffix(f" to {out}\n").split(", ")) == (
        entries(out)
    )
    assert "<!-- C, ascend310p3 -->" in (out / "bounds_c.svg").read_text()
    # Pictures of three make room for those of one and the other way round, but for nothing else.
    assert npusim_says("report", three[0], "-f", "svg", "-o", out, "--force")[0] == 0
    assert "timeline_a.svg" not in entries(out)
    assert npusim_says("report", *three, "-f", "svg", "-o", out, "--force")[0] == 0
    assert set(names) < set(entries(out))
    for mine in ("timeline_me.svg", "timeline_aa_b.svg"):
        (out / mine).write_text("mine")
        refused(
            1,
            f"report: the folder {out} must hold only what npusim wrote to be replaced, "
            f"but holds {mine}; move that away, or name another",
            "report",
            *three,
            "-f",
            "svg",
            "-o",
            out,
            "--force",
        )
        (out / mine).unlink()


def test_a_pdf_has_a_page_a_picture(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.pdf"

    assert npusim_says("report", small, "-f", "pdf", "-o", out)[:2] == (0, f"wrote {out}\n")
    assert out.read_bytes().startswith(b"%PDF")
    assert out.read_bytes().count(b"/Type /Page ") == 10


# ---- what is refused ----


def test_the_folder_that_is_no_run_is_named(three: list[Path], tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    refused(
        1,
        f"report: the folder {tmp_path / 'none'} must hold a run.json, but holds none; "
        f"name one that npusim run -o has written",
        "report",
        *three[:2],
        tmp_path / "none",
        three[2],
        "-o",
        tmp_path / "x.html",
    )
    assert entries(tmp_path) == ["none"]


def test_a_run_without_time_is_refused(tmp_path: Path) -> None:
    out = written(tmp_path / "out", "--no-timing")

    refused(
        1,
        f"report: the run in {out} must have been timed and have had work to do, but it "
        f"has no trace; run it with --timing on tensors that are not empty",
        "report",
        out,
        "-o",
        tmp_path / "page.html",
    )
    assert entries(tmp_path) == ["out"]


def test_failures_keep_a_page(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from npusim.reports import html as page

    out = tmp_path / "page.html"
    out.write_text("earlier")

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page, "report", full)
    refused(
        1,
        f"report: {out} must be a file that can be written, but: No space left on device; "
        f"name another",
        "report",
        small,
        "-o",
        out,
        "--force",
    )
    assert (out.read_text(), entries(tmp_path)) == ("earlier", ["page.html"])


def test_an_earlier_page_is_replaced_only_when_told(small: Path, tmp_path: Path) -> None:
    for name, kind in (("page.html", "html"), ("pages.pdf", "pdf")):
        out = tmp_path / name
        out.write_text("earlier")
        refused(
            1,
            f"report: {out} must be a new file, but there is one; name another, or add "
            f"--force to replace it",
            "report",
            small,
            "-f",
            kind,
            "-o",
            out,
        )
        assert out.read_text() == "earlier"
        assert npusim_says("report", small, "-f", kind, "-o", out, "--force")[0] == 0
        assert out.read_bytes()[:4] in (b"<!DO", b"%PDF")


def test_only_pictures_make_room_for_pictures(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    npusim_says("report", small, "-f", "svg", "-o", out)
    (out / "notes.txt").write_text("mine")
    refused(
        1,
        f"report: the folder {out} must hold only what npusim wrote to be replaced, but "
        f"holds notes.txt; move that away, or name another",
        "report",
        small,
        "-f",
        "svg",
        "-o",
        out,
        "--force",
    )
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("part", "value", "shown"),
    [(1, "<img src=x>", "<img src=x>"), (2, 1 << 20, "ub[1048576:"), (4, -5, "")],
)
def test_bad_programs(part: int, value: object, shown: str, small: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(small, tmp_path / "out"))
    tree, arrays = members(out)
    tree["bodies"][0][0][0][1][part] = value
    replaced(out, tree, arrays)
    code, said, told = npusim_says("report", out, "-o", tmp_path / "page.html")

    assert (code, said, told.count("\n")) == (1, "", 1)
    # What the rules of the chip say of it stands in the middle.
    assert told.startswith(
        f"npusim: report: the folder {out} must hold a whole run, but trace.npz is damaged: "
    )
    assert shown in told
    assert told.endswith("; write it again with npusim run -o\n")


# ---- what the page knows ----


def test_the_payload_is_the_trace() -> None:
    ready = SetFlag("mte2", "vector", 0)
    wait = WaitFlag("mte2", "vector", 0)
    played = trace(lane((0, 1), (ready, 0, 1, 5), (wait, 2, 6, 6)), lane((2,), (ready, 3, 4, 9)))
    found = timeline_data.payload(played, {})
    second, first = found["lanes"]  # the slowest comes first

    assert (first["name"], second["name"]) == ("cores 0-1 (aiv)", "core 2 (aiv)")
    assert (first["start"], first["free"], first["end"]) == ([0, 2], [1, 4], [4, 0])
    assert first["waits"] == [[1, 0, found["words"].index("")]]
    assert [found["words"][op[2]] for op in found["bodies"][first["calls"][0][0]]] == [
        "set_flag mte2->vector 0",
        "wait_flag mte2->vector 0",
    ]
    assert found["level"] == "full"


def test_flags_between_cores_are_those_that_cores_stood_still_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rise, take = CrossCoreSetFlag("group", "mte3", 1), CrossCoreWaitFlag("group", "mte2", 1)
    first = lane((0,), (rise, 3, 4, 20), (rise, 20, 21, 30), kind="aic")
    other = lane((1,), (rise, 5, 6, 25), (rise, 6, 7, 28), kind="aic")
    # The first wait hangs on the later of both; at the second one both had risen.
    waiter = lane((2,), (take, 0, 26, 26), (take, 40, 41, 41))
    played = trace(first, other, waiter)

    mte2, mte3 = style.PIPES.index("mte2"), style.PIPES.index("mte3")
    found = timeline_data.payload(played, {})
    names = [own["name"] for own in found["lanes"]]
    setter, waits = names.index("core 1 (aic)"), names.index("core 2 (aiv)")
    assert found["handed"] == [[setter, mte3, 25, waits, mte2, 26]]
    assert timeline_data.payload(played, {}, "summary")["handed"] == found["handed"]
    monkeypatch.setattr(timeline_data, "MOST_HANDED", 0)
    assert timeline_data.payload(played, {})["handed"] == []


def test_without_room_for_all_micro_ops_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, wait = SetFlag("mte2", "vector", 0), WaitFlag("mte2", "vector", 0)
    ops = (LOAD, 0, 8, 9), (ready, 8, 9, 9), (LOAD, 9, 12, 19), (wait, 9, 12, 12), (MUL, 12, 15, 20)
    late = (MUL, 30, 35, 40)
    played = trace(lane((0, 1), *ops), lane((2,), *ops, late), lane((3,), *ops, (MUL, 15, 16, 25)))
    monkeypatch.setattr(timeline_data, "MOST_SPANS", 12)
    found = timeline_data.payload(played, {})

    assert found["level"] == "summary"
    # The slowest comes first, and is shown one by one; of the others a pipe has one entry.
    assert [own["name"] for own in found["lanes"]] == [
        *("core 2 (aiv)", "cores 0-1 (aiv)", "core 3 (aiv)")
    ]
    assert [len(own["start"]) for own in found["lanes"]] == [6, 2, 2]
    slow, _, other = found["lanes"]
    assert slow["waits"] == [[3, 1, found["words"].index("data in ub")]]
    assert other["waits"] == []
    assert [np.cumsum(other["start"]).tolist(), other["free"], other["end"]] == [
        *([12, 0], [4, 12], [9, 7])
    ]
    rows = found["bodies"][other["calls"][0][0]]
    assert [(found["pipes"][row[0]], found["words"][row[2]], row[3], row[8]) for row in rows] == [
        ("vector", "2 instructions", 0, 4),
        ("mte2", "2 instructions", 64, 11),
    ]
    assert timeline_data.payload(played, {}, "full")["level"] == "full"
    assert len(timeline_data.payload(trace(lane((0,), *ops)), {}, "summary")["lanes"]) == 1


def test_tables_escape_and_align() -> None:
    assert table(["a", "b"], [["<", 1000]], [True]) == (
        '<div class="scroll" tabindex="0"><table>'
        '<thead><tr><th>a</th><th class="number">b</th></tr></thead>'
        '<tbody><tr class="differs"><td>&lt;</td><td class="number">1,000</td></tr>'
        "</tbody></table></div>"
    )


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        (1.0, 3308.0, "from next to nothing"),
        (1.0, 1994.0, "1,994 times"),
        (4.0, 8.0, "2.0 times"),
        (100.0, 1994.0, "20 times"),
        (4.0, 7.0, "+75.0 %"),
        (8.0, 4.0, "-50.0 %"),
        (8.0, 0.0, "-100.0 %"),
        (1e6, 1.0, "next to nothing"),
        (1e6, 1e6 + 1, "a little more"),
        (1e6, 1e6 - 1, "a little less"),
        (5.0, 5.0, "same"),
        (0.0, 0.0, "same"),
        (0.0, 5.0, "new"),
        (None, 5.0, ""),
    ],
)
def test_differences_in_percent_or_times(a: float | None, b: float | None, told: str) -> None:
    assert difference(a, b) == told


# ---- notebooks ----


def test_a_run_shows_itself() -> None:
    x, scales = np.zeros((2, 12), np.float32), np.ones(12, np.float32)
    run = npusim.run("npu_quantize", x, scales, None, "qint8", -1, False, device="ascend310p3")
    shown = run._repr_html_()

    assert html.escape(repr(run)) in shown
    assert shown.count("<svg") == 2
    untimed = npusim.run(
        "npu_quantize", x, scales, None, "qint8", -1, False, device="ascend310p3", timing=False
    )
    assert untimed._repr_html_() == f"<p><code>{html.escape(repr(untimed))}</code></p>"


def test_a_trace_shows_itself() -> None:
    shown = trace(lane((0, 1), *CHAIN), lane((2,), (MUL, 0, 10, 25), kind="aic"))._repr_html_()

    assert shown.startswith(
        "<p>100 cycles at 0.001 GHz on 3 cores; the slowest is core 0 (aiv)</p>"
    )
    assert "<tr><td>0 (aiv)</td><td>mte2</td><td>59.0 %</td><td>2</td><td>64</td></tr>" in shown
    assert "<tr><td>2 (aic)</td><td>vector</td><td>25.0 %</td><td>1</td><td>0</td></tr>" in shown
    assert trace()._repr_html_().startswith("<p>0 cycles at 0.001 GHz on 0 cores</p>")


# ---- in a browser ----

PROBE = """timelines.then(([t]) => {
  const said = [], box = t.canvas.getBoundingClientRect();
  t.canvas.setPointerCapture = () => {};
  const send = (kind, type, x, y, more = {}) => t.canvas.dispatchEvent(new kind(type,
    { bubbles: true, cancelable: true, clientX: box.left + x, clientY: box.top + y, ...more }));
  const lane = t.data.lanes[0], cube = t.rows.find((row) => row.lane === 0 && row.pipe === 3);
  const op = lane.pipes[3][1], middle = () => t.x((lane.start[op] + lane.free[op]) / 2);
  said.push(`range ${t.from} ${t.to > t.data.total}`);
  const wide = t.to - t.from, under = t.timeAt(middle());
  const x = middle();
  for (let n = 0; n < 5; n++) send(WheelEvent, "wheel", x, 50, { deltaY: -200, ctrlKey: true });
  said.push(`zoomed ${t.to - t.from < wide / 4} ${Math.abs(t.timeAt(x) - under) < wide / 1000}`);
  send(PointerEvent, "pointermove", middle(), cube.y + 12);
  said.push("hover " + t.canvas.title.split(",")[0]);
  send(PointerEvent, "pointerdown", middle(), cube.y + 12);
  send(PointerEvent, "pointerup", middle(), cube.y + 12);
  said.push("picked " + (t.picked.op === op));
  for (const term of t.details.querySelectorAll("dt")) said.push("term " + term.textContent);
  const text = t.details.textContent;
  said.push("line " + /templates\\/msd\\/cube\\.py:\\d+/.test(text));
  said.push("flag " + /wait_flag mte1->cube/.test(text));
  t.details.querySelector("a").click();
  said.push("went to " + t.data.pipes[lane.ops[t.picked.op][0]]);
  const before = t.from;
  send(PointerEvent, "pointerdown", 500, 50, { shiftKey: true });
  send(PointerEvent, "pointermove", 400, 50);
  send(PointerEvent, "pointerup", 400, 50);
  said.push("panned " + (t.from > before));
  t.host.querySelector("input").value = "fixpipe";
  t.host.querySelector('[data-act="next"]').click();
  said.push("found " + t.data.words[lane.ops[t.picked.op][1]]);
  t.host.querySelector('[data-act="all"]').click();
  said.push("all " + (t.from === 0));
  const ink = t.ink.getImageData(0, 0, t.canvas.width, t.canvas.height).data;
  said.push("drawn " + ink.some((value) => value !== 0));
  return said;
})"""


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_two_timelines_have_one_scale(tmp_path: Path) -> None:
    """What takes half as long is half as wide, also after one of the two was zoomed."""
    sizes = {"short": 1024, "long": 4096}
    for name, rows in sizes.items():
        words = (
            *("run", "npu_quantize", "-d", "Atlas A2", "-i", f"input=spec:{rows}x2048:float16"),
            *("-i", "scales=spec:1:float16", "-a", "dtype=qint8", "-a", "div_mode=false"),
            *("-o", tmp_path / name),
        )
        assert npusim_says(*words)[0] == 0
    page = tmp_path / "page.html"
    assert npusim_says("report", tmp_path / "short", tmp_path / "long", "-o", page)[0] == 0
    with Browser(tmp_path / "profile") as browser:
        browser.open(page)
        browser.call(
            "Runtime.evaluate", awaitPromise=True,
            expression="timelines.then((all) => { window.all = all; return 0; })",
        )  # fmt: skip
        ends = "[all[0].x(all[0].data.total), all[1].x(all[1].data.total), all[0].width, LEFT]"
        short, long, width, left = browser.evaluate(ends)
        totals = browser.evaluate("all.map((one) => one.data.total)")
        assert 0.2 < totals[0] / totals[1] < 0.8
        assert (short - left) / (long - left) == pytest.approx(totals[0] / totals[1])
        assert long - left == pytest.approx((width - left) / 1.01)
        assert browser.evaluate("all[0].where.textContent").endswith(
            f"us; this run ends at {totals[0]:.3f} us"
        )
        assert "ends" not in browser.evaluate("all[1].where.textContent")
        browser.evaluate("all[0].zoom(0.3, all[0].data.total / 2)")
        first, second = browser.evaluate("all.map((one) => [one.from, one.to])")
        assert first == second
        assert first[1] - first[0] < 0.5 * totals[1]
        browser.evaluate("all[1].reset()")
        assert browser.evaluate("all.map((one) => [one.from, one.to])") == [
            [0, pytest.approx(1.01 * totals[1])]
        ] * 2  # fmt: skip
        assert browser.complaints == []


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_a_summary_says_so_and_tells_what_it_joins(tmp_path: Path) -> None:
    words = ("-i", "input=spec:1024x2048:float16", "-i", "scales=spec:1:float16")
    words = ("run", "npu_quantize", "-d", "Atlas A2", *words, "-a", "dtype=qint8")
    assert npusim_says(*words, "-a", "div_mode=false", "-o", tmp_path / "out")[0] == 0
    page = tmp_path / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline_data, "MOST_SPANS", 200)
        assert npusim_says("report", tmp_path / "out", "-o", page)[0] == 0
    assert f'<p class="note">{SUMMARISED}</p>' in page.read_text()
    with Browser(tmp_path / "profile") as browser:
        browser.open(page)
        told = browser.evaluate(
            "timelines.then(([t]) => { const l = t.data.lanes.length - 1, lane = t.data.lanes[l];"
            " t.pick({ lane: l, op: lane.pipes[1][0] });"
            " return [...t.details.querySelectorAll('dt')].map((each) => each.textContent)"
            " .concat(t.details.querySelector('code').textContent); })"
        )
        assert told[:-1] == ["summary of", "where", "when", "bytes"]
        assert re.fullmatch(r"\d+ instructions( \(\d+ iterations\))?", told[-1])
        opened, whole = browser.evaluate(OPENED), timeline_data.payload(found(tmp_path / "out"), {})
        browser.evaluate("new Promise((done) => setTimeout(done, 400))")
        address = browser.evaluate("location.hash")
        browser.open(page)
        browser.evaluate(f"location.hash = {address!r}")
        again = (
            "timelines.then(([t]) => new Promise((done) => setTimeout(() => done(t.picked), 400)))"
        )
        assert browser.evaluate(again) == opened["picked"]
        assert browser.complaints == []
    # Its micro-ops are those of the page that has all of them, at the same times.
    (lane,) = (own for own in whole["lanes"] if own["cores"] == opened["cores"])
    ops = [op for body, _ in lane["calls"] for op in whole["bodies"][body]]
    words, first = whole["words"], opened["first"]
    count = len(opened["ops"])
    assert count > 50
    assert [words[op[2]] for op in ops[first : first + count]] == opened["ops"]
    assert np.cumsum(lane["start"])[first : first + count].tolist() == opened["start"]
    assert lane["free"][first : first + count] == opened["held"]
    assert opened["found"] > 0
    waits = [[wait, raised] for wait, raised, _ in lane["waits"] if first <= wait < first + count]
    assert waits
    assert opened["sets"] == [[wait - first, raised] for wait, raised in waits]
    assert opened["setters"] == [words[ops[raised][2]] for _, raised in waits]
    assert all("set_flag" in each for each in opened["setters"])


def found(folder: Path) -> Trace:
    trace = record.read(folder).trace
    assert trace is not None
    return trace


OPENED = """timelines.then(async ([t]) => {
  const l = t.data.lanes.length - 1, lane = t.data.lanes[l], i = lane.pipes[1][0];
  const number = lane.ops[i][9], { us } = t.behind;
  t.frame(lane.start[i], lane.end[i]);
  t.host.scrollIntoView();
  t.behind.of(l, number);
  await new Promise((done) => setTimeout(done, 300));
  const part = t.behind.of(l, number), row = t.places.get(`${l} 1`);
  const picked = t.at(t.x(part.start[part.pipes[1][0]]) + 1, row.y + 5);
  t.pick(picked);
  t.input.value = "load";
  t.seek();
  const before = lane.details.slice(0, number).flatMap(([, , calls]) => calls);
  return { picked, cores: lane.cores,
    first: before.reduce((sum, [body]) => sum + t.data.bodies[body].length, 0),
    ops: part.ops.map((op) => t.data.words[op[2]]),
    start: part.start.map((at) => Math.round(at / us)),
    sets: [...part.sets],
    setters: [...part.sets.keys()].map((op) => t.setOf({ lane: l, part: number, op }))
      .map((set) => t.data.words[t.laneOf(set).ops[set.op][2]]),
    held: part.cycles, found: t.hits.filter(({ lane }) => lane === l).length };
})"""


HANDS = """timelines.then(([t]) => {
  const box = t.canvas.getBoundingClientRect(), said = {};
  t.canvas.setPointerCapture = () => {};
  const send = (kind, type, x, y, more = {}) => t.canvas.dispatchEvent(new kind(type,
    { bubbles: true, cancelable: true, clientX: box.left + x, clientY: box.top + y, ...more }));
  const typed = (to, key, more = {}) =>
    to.dispatchEvent(new KeyboardEvent("keydown", { key, ...more }));
  const key = (key) => typed(t.canvas, key), enter = (more) => typed(t.input, "Enter", more);
  const cells = (n) => [...t.details.querySelectorAll("table")[n].tBodies[0].rows]
    .map((row) => [...row.cells].map((cell) => cell.textContent));
  const plain = new WheelEvent("wheel", { deltaY: 100, cancelable: true });
  t.canvas.dispatchEvent(plain);
  said.scrolls = !plain.defaultPrevented && t.from === 0 && t.to === t.data.full;
  send(PointerEvent, "pointerdown", t.x(0), 5);
  send(PointerEvent, "pointermove", t.x(t.data.total), 5);
  send(PointerEvent, "pointerup", t.x(t.data.total), 5);
  said.operations = cells(0);
  said.lines = cells(1);
  const half = t.data.total / 2;
  t.choose(half, 0, true);
  said.halves = t.chosen.map((us) => us / half);
  key("z");
  said.zoomed = [t.from === 0, t.to === half];
  const wide = t.to - t.from;
  key("w");
  said.w = t.to - t.from < wide;
  const from = t.from;
  key("d");
  said.d = t.from > from;
  key("0");
  key("Escape");
  said.clear = [t.chosen, t.details.querySelectorAll("table").length];
  t.input.value = "LOAD ub";
  t.input.dispatchEvent(new Event("input"));
  said.count = t.count.textContent;
  const places = [];
  for (const more of [{}, {}, { shiftKey: true }, { shiftKey: true }])
    { enter(more); places.push(t.count.textContent); }
  said.places = places;
  said.names = t.hits.every(({ lane, op }) => {
    const text = t.data.words[t.data.lanes[lane].ops[op][2]];
    return text.includes("load") && text.includes("ub");
  });
  t.input.value = "nowhere";
  enter({});
  said.none = [t.count.textContent, t.details.textContent];
  const names = () => t.rows.filter((row) => row.head !== undefined)
    .map((row) => t.data.lanes[row.head].name);
  const every = names(), rows = t.rows.length;
  t.chooser.value = "47";
  t.chooser.dispatchEvent(new Event("input"));
  said.one = names();
  t.chooser.value = "3-5, aiv";
  t.chooser.dispatchEvent(new Event("input"));
  said.all = names().length === every.length;
  send(PointerEvent, "pointerdown", 20, 10);
  send(PointerEvent, "pointerup", 20, 10);
  said.folded = [t.rows[1].head, t.rows.length < rows];
  t.go({ lane: 0, op: t.data.lanes[0].pipes[1][0] });
  said.unfolded = t.rows.length === rows;
  return said;
})"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run on 48 cores."""
    above = tmp_path_factory.mktemp("many")
    words = ("-i", "input=spec:1024x2048:float16", "-i", "scales=spec:1:float16")
    words = ("run", "npu_quantize", "-d", "Atlas A2", *words, "-a", "dtype=qint8")
    assert npusim_says(*words, "-a", "div_mode=false", "-o", above / "out")[0] == 0
    assert npusim_says("report", above / "out", "-o", above / "page.html")[0] == 0
    return above / "page.html"


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_hands_choose_spans_cores_and_words(many: Path, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.open(many)
        said = browser.evaluate(HANDS)
        complaints = browser.complaints
    operations = {row[0]: row[1:] for row in said.pop("operations")}
    lines = said.pop("lines")
    # A thousand rows of 2048 halves are read once, and written as bytes.
    assert operations["store"][2] == f"{1024 * 2048:,}"
    assert float(operations["load"][2].replace(",", "")) == pytest.approx(2 * 1024 * 2048, rel=1e-3)
    assert {(row[0], row[1]) for row in lines} >= {("cores 0-46 (aiv)", "mte2")}
    assert complaints == []
    assert said == {
        "scrolls": True, "halves": [0, 1], "zoomed": [True, True], "w": True, "d": True,
        "clear": [None, 0], "count": "12 found", "names": True,
        "places": ["1 of 12", "2 of 12", "1 of 12", "12 of 12"],
        "none": ["0 found", "No micro-op has nowhere in it."],
        "one": ["core 47 (aiv)"], "all": True, "folded": [1, True], "unfolded": True,
    }  # fmt: skip


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of three sizes of a call, of which the last takes longest."""
    above = tmp_path_factory.mktemp("sides")
    for rows in (512, 1024, 2048):
        words = ("-i", f"input=spec:{rows}x2048:float16", "-i", "scales=spec:1:float16")
        words = ("run", "npu_quantize", "-d", "Atlas A2", *words, "-a", "dtype=qint8")
        assert npusim_says(*words, "-a", "div_mode=false", "-o", above / str(rows))[0] == 0
    page = above / "page.html"
    assert npusim_says("report", *sorted(above.iterdir()), "-o", page, "--no-advice")[0] == 0
    return page


RANGES = "all.map((one) => [one.from, one.to])"


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 820, 1300])
def test_three_pages_move(side_by_side: Path, tmp_path: Path, width: int, scheme: str) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.sized(width, 900, scheme)
        browser.open(side_by_side)
        browser.evaluate("timelines.then((all) => { window.all = all; })")
        assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
        who = "[...document.querySelectorAll('.glance .who')].map((each) => each.innerText)"
        # 1024 comes before 2048 and 512.
        assert browser.evaluate(who) == [
            *("A input 1024x2048", "B input 2048x2048", "C input 512x2048")
        ]
        bars = "[...document.querySelectorAll('.glance .stack')].map((bar) =>"
        bars += " bar.lastChild.getBoundingClientRect().right - bar.getBoundingClientRect().left)"
        first, longest, shortest = browser.evaluate(bars)
        assert shortest < first < longest
        columns = "new Set([...document.querySelectorAll('#pictures .runs')[0].children]"
        columns += ".map((each) => Math.round(each.getBoundingClientRect().left))).size"
        assert browser.evaluate(columns) == (2 if width == 1300 else 1)
        browser.evaluate("all[2].zoom(0.3, 2)")
        ranges = browser.evaluate(RANGES)
        assert ranges == [ranges[0]] * 3
        assert ranges[0][1] < browser.evaluate("all[0].data.full")
        browser.evaluate("all[1].choose(1, 2, true)")
        assert browser.evaluate("all.map((one) => one.chosen)") == [[1, 2]] * 3
        assert browser.complaints == []


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_three_timelines_have_their_own_search(side_by_side: Path, tmp_path: Path) -> None:
    own = "all.map((t) => [t.chooser.value, [...t.folded], t.input.value, t.hits.length > 0])"
    with Browser(tmp_path / "profile") as browser:
        browser.open(side_by_side)
        browser.evaluate("timelines.then((all) => { window.all = all; })")
        link = "t=1-3us&core=aiv&find2=load&core3=0&fold3=1&find3=store"
        browser.evaluate(f"location.hash = {link!r}")
        browser.evaluate("new Promise((done) => setTimeout(done, 500))")
        assert browser.evaluate(RANGES) == [[1, 3]] * 3
        assert browser.evaluate(own) == [
            *(["aiv", [], "", False], ["", [], "load", True], ["0", [1], "store", True])
        ]
        browser.evaluate("all[1].pan(0.5)")
        browser.evaluate("new Promise((done) => setTimeout(done, 500))")
        assert browser.evaluate("location.hash") == "#" + link.replace("1-3us", "1.5-3.5us")


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_timelines_are_drawn_when_seen(side_by_side: Path, tmp_path: Path) -> None:
    calm = "new Promise((done) => setTimeout(done, 300))"
    with Browser(tmp_path / "profile") as browser:
        browser.sized(1300, 300, "light")
        browser.open(side_by_side)
        browser.evaluate("timelines.then((all) => { window.all = all; })")
        browser.evaluate("all[0].host.scrollIntoView()")
        browser.evaluate(calm)
        browser.evaluate("all[0].frame(1, 2)")
        where = "all[2].where.textContent.slice(0, 20)"
        assert browser.evaluate(RANGES) == [[1, 2]] * 3
        assert browser.evaluate(where) != "1.000 us to 2.000 us"
        browser.evaluate("all[2].host.scrollIntoView()")
        browser.evaluate(calm)
        assert browser.evaluate(where) == "1.000 us to 2.000 us"
        browser.evaluate("all[2].frame(2, 3)")
        browser.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert browser.evaluate("all[0].where.textContent.slice(0, 20)") == "2.000 us to 3.000 us"


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_keys_fold_a_core(many: Path, tmp_path: Path) -> None:
    keys = {"Tab": 9, "Enter": 13, " ": 32, "ArrowUp": 38, "ArrowDown": 40}

    with Browser(tmp_path / "profile") as browser:

        def seen(*typed: str) -> list[Any]:
            for key in typed:
                text = {"Enter": "\r", " ": " "}.get(key, "")
                press = {"key": key, "windowsVirtualKeyCode": keys[key]}
                browser.call("Input.dispatchKeyEvent", type="keyDown", text=text, **press)
                browser.call("Input.dispatchKeyEvent", type="keyUp", **press)
            told: list[Any] = browser.evaluate(
                "(({ ariaLabel, ariaExpanded }) => [ariaLabel, ariaExpanded, [...t.folded]])"
                "(document.activeElement)"
            )
            return told

        browser.open(many)
        browser.evaluate("timelines.then(([t]) => { window.t = t; t.canvas.focus(); })")
        first, second = browser.evaluate("t.data.lanes.slice(0, 2).map((lane) => lane.name)")
        assert seen("Tab") == [first, "true", []]
        assert seen("ArrowUp", "Enter") == [first, "false", [0]]
        assert seen("ArrowDown", " ") == [second, "false", [0, 1]]
        assert browser.evaluate("t.rows[1].head") == 1
        assert seen("ArrowUp", "Enter") == [first, "true", [1]]
        # The mouse reaches the canvas below.
        browser.point(".view canvas", 20, 10, click=True)
        assert browser.evaluate("[...t.folded]") == [1, 0]
        # Tab leaves the cores, and those that are not chosen are none of its stops.
        browser.evaluate("t.chooser.value = '47'; t.choosing(); t.canvas.focus()")
        assert seen("Tab") == ["core 47 (aiv)", "false", [1, 0]]
        assert seen("Tab")[0] is None
        assert browser.complaints == []


@needs_axe
@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (800, "dark"), (1400, "light")])
def test_axe_finds_nothing(many: Path, tmp_path: Path, width: int, scheme: str) -> None:
    with Browser(tmp_path / "profile") as browser:
        shown(browser, many, width, scheme)
        browser.evaluate("timelines.then(([t]) => { t.choose(0, 2, true); })")
        assert violations(browser) == []


STATE = """[t.from, t.to, t.chosen, t.input.value, t.count.textContent, t.chooser.value,
  [...t.folded], t.picked, t.rows.length]"""
KNOW = "timelines.then(([t]) => { window.t = t; })"


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_an_address_shows_what_was_seen(many: Path, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.open(many)
        browser.evaluate(KNOW)
        op = browser.evaluate("t.data.lanes[0].pipes[1].find((i) => t.data.lanes[0].start[i] > 1)")
        link = f"t=1-3us&span=1.5-2.25us&core=aiv&fold=1&op=0.{op}&find=load%20ub"
        browser.evaluate(f"location.hash = {link!r}")
        browser.evaluate("new Promise((done) => setTimeout(done, 500))")
        state = browser.evaluate(STATE)
        assert state[:4] == [1, 3, [1.5, 2.25], "load ub"]
        assert state[5:8] == ["aiv", [1], {"lane": 0, "op": op}]
        assert browser.evaluate("location.hash") == f"#{link}"
        browser.evaluate("t.pan(0.5); t.pick(null)")
        browser.evaluate("new Promise((done) => setTimeout(done, 500))")
        after = "#t=1.5-3.5us&core=aiv&fold=1&find=load%20ub"
        assert browser.evaluate("location.hash") == after
        state = browser.evaluate(STATE)
        # The same address, opened anew.
        browser.call("Page.reload")
        browser.evaluate("new Promise((done) => setTimeout(done, 500))")
        browser.evaluate(KNOW)
        assert browser.evaluate(STATE) == state
        for wrong in ("t=3-1us&op=99.1&fold=7,x&core=abc&find=%", "t=&op=0.99999", "t=1e9-2us"):
            browser.evaluate(f"location.hash = {wrong!r}")
            browser.evaluate("new Promise((done) => setTimeout(done, 400))")
            assert browser.evaluate("[t.from, t.to === t.data.full, t.picked]") == [0, True, None]
        browser.evaluate("t.reset(); document.querySelector('nav a[href=\"#tables\"]').click()")
        browser.evaluate("new Promise((done) => setTimeout(done, 500))")
        assert browser.evaluate("location.hash") == "#tables"
        assert browser.complaints == []


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1400])
def test_pages_fit_and_show_the_axis(many: Path, tmp_path: Path, width: int, scheme: str) -> None:
    with Browser(tmp_path / "profile") as browser:
        metrics = {"width": width, "height": 500, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **metrics)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.call("Emulation.setEmulatedMedia", features=[feature])
        browser.open(many)
        browser.evaluate("timelines.then(([t]) => { window.t = t; t.choose(0, 1, true); })")
        assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
        browser.evaluate("window.scrollTo(0, t.view.getBoundingClientRect().top - 10)")
        top = "t.ruler.getBoundingClientRect().top"
        assert browser.evaluate(top) == 42
        ink = "[...t.rule.getImageData(0, 0, t.ruler.width, t.ruler.height).data].some((v) => v)"
        assert browser.evaluate(ink)
        paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        unnamed = "[...document.querySelectorAll('button, input, canvas[tabindex]')].filter((e) =>"
        unnamed += " !e.getAttribute('aria-label') && !e.textContent.trim()).length"
        assert browser.evaluate(unnamed) == 0
        assert browser.complaints == []


def test_a_level_is_for_pages(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    message = (
        "npusim: report: --level full must come with a page, whose timelines it is for; "
        "leave --format svg out\n"
    )
    assert npusim_says("report", small, "-f", "svg", "-o", out, "--level", "full") == (
        2,
        "",
        message,
    )
    assert not out.exists()


@pytest.mark.nightly
@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_the_timeline_zooms_pans_and_tells(tmp_path: Path) -> None:
    mixes = [tmp_path / chip for chip in ("ascend910b2", "ascend910b4")]
    for out in mixes:
        assert npusim_says(*MIX, "-d", out.name, "-o", out)[0] == 0
    assert npusim_says("report", *mixes, "-o", tmp_path / "page.html")[0] == 0

    with Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "page.html")
        assert browser.evaluate(PROBE) == [
            "range 0 true",
            "zoomed true true",
            "hover mmad",
            "picked true",
            *("term micro-op", "term where", "term when", "term waited for", "term written by"),
            *("line true", "flag true", "went to mte1", "panned true", "found fixpipe.none"),
            *("all true", "drawn true"),
        ]
        assert browser.requests == [(tmp_path / "page.html").as_uri()]
        assert browser.complaints == []


EVIL = "<img src=x onerror=window.ran=1>"


def _renamed(tree: Any) -> Any:
    """*tree* with all of global memory under another name."""
    if isinstance(tree, list):
        if tree[:1] == ["Global"]:
            return [*tree[:1], EVIL, *tree[2:]]
        return [_renamed(part) for part in tree]
    return {key: _renamed(part) for key, part in tree.items()} if isinstance(tree, dict) else tree


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_markup_in_a_name_is_shown_and_does_not_run(small: Path, tmp_path: Path) -> None:
    out, page = Path(shutil.copytree(small, tmp_path / "out")), tmp_path / "page.html"
    tree, arrays = members(out)
    tree["code"] = [[file, number, EVIL] for file, number, _ in tree["code"]]
    replaced(out, _renamed(tree), arrays)
    retold(out, lambda facts: facts.update(op=EVIL, template=EVIL, reason=EVIL))
    assert npusim_says("report", out, "-o", page)[0] == 0

    with Browser(tmp_path / "profile") as browser:
        browser.open(page)
        told = browser.evaluate(
            "timelines.then(([t]) => { t.pick({ lane: 0, op: t.data.lanes[0].pipes[1][0] });"
            " return [...t.details.querySelectorAll('dd')].map((each) => each.textContent); })"
        )
        assert told[0].startswith(f"load ub[768:816] uint8 <- {EVIL}+0 ")
        assert told[-1].endswith(EVIL)
        assert browser.evaluate("document.querySelectorAll('.details img').length") == 0
        assert browser.evaluate("document.querySelector('h1').textContent").startswith(EVIL)
        # And were there such names elsewhere:
        browser.evaluate(
            "timelines.then(([t]) => { const evil = document.title; t.data.words.fill(evil);"
            " t.data.pipes.fill(evil); t.data.lanes[0].name = evil;"
            " for (const op of t.data.lanes[0].ops.keys()) t.pick({ lane: 0, op }); })"
        )
        assert browser.evaluate("document.querySelector('.details').textContent").count(EVIL) > 2
        assert browser.evaluate("document.images.length") == 0
        assert browser.evaluate("window.ran === undefined")
        assert browser.requests == [page.as_uri()]
        assert browser.complaints == []


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_markup_that_gets_into_a_page_runs_nothing(page: Path, tmp_path: Path) -> None:
    probed = tmp_path / "probed.html"
    probed.write_text(
        page.read_text().replace("<h1>", f"<script>window.ran = 2</script>{EVIL}<h1>")
    )
    with Browser(tmp_path / "profile") as browser:
        browser.open(probed)
        assert browser.evaluate("timelines.then(() => document.images.length)") == 1
        assert browser.evaluate("window.ran === undefined")
        refused = [text for text in browser.complaints if "Content Security Policy" in text]
        assert len(refused) >= 2


def test_no_script_of_a_page_makes_markup() -> None:
    scripts = sorted(Path(reports.__file__).parent.rglob("*.js"))
    assert {"lanes.js", "map.js", "page.js", "roofline.js", "zoom.js"} <= {
        script.name for script in scripts
    }
    for script in scripts:
        sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function"
        assert not re.search(sinks, script.read_text("utf-8")), script
