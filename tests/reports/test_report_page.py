"""`npusim report`: what it writes, what it refuses, and what the page does in a browser."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from played import CHAIN, lane, trace
from records import written
from typer.testing import CliRunner

import npusim
from npusim.cli import app
from npusim.isa import SetFlag, WaitFlag
from npusim.reports import payload
from npusim.reports.tables import table

CHROMIUM = shutil.which("chromium")
MIX = (
    *("run", "npu_weight_quant_batchmatmul", "-i", "x=spec:64x1024:float16"),
    *("-i", "weight=spec:1024x4096:int8", "-i", "antiquant_scale=spec:4096:float16"),
)


def says(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="npusim")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("small") / "out")


@pytest.fixture(scope="module")
def page(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of that run."""
    out = tmp_path_factory.mktemp("page") / "deep" / "page.html"
    assert says("report", small, "-o", out) == (0, f"wrote {out}\n", "")
    return out


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same call on two chips."""
    above = tmp_path_factory.mktemp("two")
    chips = ("ascend910b2", "ascend910b4")
    return [written(above / chip, "-d", chip) for chip in chips]


def entries(where: Path) -> list[str]:
    return sorted(path.name for path in where.iterdir())


# ---- files ----


def test_a_page_is_one_file_that_asks_nothing_of_a_network(page: Path) -> None:
    assert entries(page.parent) == ["page.html"]
    text = page.read_text()
    assert len(text) < 3_000_000
    assert not re.search(r'(src|href)="(?!#|data:)', text.replace('xlink:href="#', 'href="#'))
    assert "default-src 'none'" in text
    for heading in ("Numbers", "Timeline", "Pictures", "Tables", "The chip", "What bounds it"):
        assert f">{heading}</h" in text
    assert text.count("<figure>") == 10
    assert "vendor file" in text
    assert "[AICoreSpec] cube_freq" in text


def test_names_inside_pictures_stay_apart(page: Path) -> None:
    found = re.findall(r'<clipPath id="([^"]+)"', page.read_text())

    assert len(found) == len(set(found)) > 5


def test_the_same_run_gives_the_same_bytes_under_a_name_of_its_own(
    small: Path, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert says("report", small) == (0, "wrote report.html\n", "")
    assert entries(tmp_path) == ["report.html"]
    assert (tmp_path / "report.html").read_bytes() == page.read_bytes()


def test_two_runs_are_compared(two: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"

    assert says("report", *two, "-o", out)[0] == 0
    page = out.read_text()
    assert len(page) < 3_000_000
    title = "npu_quantize on ascend910b2 against npu_quantize on ascend910b4"
    assert f"<title>npusim: {title}</title>" in page
    assert page.count('class="timeline"') == 2
    assert re.search(r'<tr class="differs"><td>time</td>.*?<td[^>]*>[+-][\d.]+ %</td>', page)
    assert re.search(r'<tr class="differs"><td>cores.aic.clock_hz</td>', page)
    assert re.search(r"<tr><td>cores.aic.l1_bytes</td>", page)


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_pictures_alone_go_into_a_folder(kind: str, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    assert says("report", small, "-f", kind, "-o", out)[0] == 0
    names = entries(out)
    assert {f"{name}.{kind}" for name in ("timeline", "bounds", "costs")} < set(names)
    start = {"png": b"\x89PNG", "svg": b"<?xml"}[kind]
    assert all((out / name).read_bytes().startswith(start) for name in names)
    assert says("report", small, "-f", kind, "-o", out) == (
        1,
        "",
        f"npusim: report: the folder {out} must be new or empty, but holds bandwidth.{kind}; "
        f"name another, or add --force to replace an earlier run\n",
    )
    assert says("report", small, "-f", kind, "-o", out, "--force")[0] == 0
    assert entries(tmp_path) == ["out"]


def test_pictures_of_two_runs_have_a_letter(two: list[Path], tmp_path: Path) -> None:
    says("report", *two, "-f", "svg", "-o", tmp_path / "out")

    assert {"bounds_a.svg", "bounds_b.svg"} < set(entries(tmp_path / "out"))


def test_a_pdf_has_a_page_a_picture(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.pdf"

    assert says("report", small, "-f", "pdf", "-o", out) == (0, f"wrote {out}\n", "")
    assert out.read_bytes().startswith(b"%PDF")
    assert out.read_bytes().count(b"/Type /Page ") == 10


# ---- what is refused ----


def test_what_is_no_run_is_told_in_a_line(tmp_path: Path) -> None:
    assert says("report", tmp_path, "-o", tmp_path / "page.html") == (
        1,
        "",
        f"npusim: report: the folder {tmp_path} must hold a run.json, but holds none; "
        f"name one that npusim run -o has written\n",
    )
    assert entries(tmp_path) == []


def test_a_run_without_time_is_refused(tmp_path: Path) -> None:
    out = written(tmp_path / "out", "--no-timing")

    assert says("report", out, "-o", tmp_path / "page.html") == (
        1,
        "",
        f"npusim: report: the run in {out} must have been timed and have had work to do, but it "
        f"has no trace; run it with --timing on tensors that are not empty\n",
    )
    assert entries(tmp_path) == ["out"]


def test_a_page_that_fails_leaves_the_earlier_one(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npusim.reports import html as page

    out = tmp_path / "page.html"
    out.write_text("earlier")

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page, "report", full)
    assert says("report", small, "-o", out) == (
        1,
        "",
        f"npusim: report: {out} must be a file that can be written, but: No space left on device; "
        f"name another\n",
    )
    assert (out.read_text(), entries(tmp_path)) == ("earlier", ["page.html"])


def test_a_page_does_not_take_the_place_of_a_folder(small: Path, tmp_path: Path) -> None:
    assert says("report", small, "-o", tmp_path) == (
        1,
        "",
        f"npusim: report: {tmp_path} must be a file, not a folder; name a file in it\n",
    )


# ---- what the page knows ----


def test_the_payload_is_the_trace() -> None:
    ready = SetFlag("mte2", "vector", 0)
    wait = WaitFlag("mte2", "vector", 0)
    played = trace(lane((0, 1), (ready, 0, 1, 5), (wait, 2, 6, 6)), lane((2,), (ready, 3, 4, 9)))
    found = payload.payload(played, {})
    second, first = found["lanes"]  # the slowest comes first

    assert (first["name"], second["name"]) == ("cores 0-1 (aiv)", "core 2 (aiv)")
    assert (first["start"], first["free"], first["end"]) == ([0, 2], [1, 4], [4, 0])
    assert first["waits"] == [[1, 0, found["words"].index("")]]
    assert [found["words"][op[2]] for op in found["bodies"][first["calls"][0][0]]] == [
        "set_flag mte2->vector 0",
        "wait_flag mte2->vector 0",
    ]
    assert found["left_out"] == 0


def test_cores_without_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = SetFlag("mte2", "vector", 0)
    played = trace(*(lane((core,), (ready, 0, 1, 5 + core)) for core in range(4)))
    monkeypatch.setattr(payload, "MAX_OPS", 2)
    found = payload.payload(played, {})

    # The slowest comes first.
    assert [own["name"] for own in found["lanes"]] == ["core 3 (aiv)", "core 0 (aiv)"]
    assert found["left_out"] == 2


def test_tables_escape_and_align() -> None:
    assert table(["a", "b"], [["<", 1000]], [True]) == (
        '<div class="scroll"><table><thead><tr><th>a</th><th class="number">b</th></tr></thead>'
        '<tbody><tr class="differs"><td>&lt;</td><td class="number">1,000</td></tr>'
        "</tbody></table></div>"
    )


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
    shown = trace(lane((0, 1), *CHAIN))._repr_html_()

    assert shown.startswith(
        "<p>100 cycles at 0.001 GHz on 2 cores; the slowest is core 0 (aiv)</p>"
    )
    assert "<tr><td>mte2</td><td>59.0 %</td><td>2</td><td>64</td></tr>" in shown
    assert trace()._repr_html_().startswith("<p>0 cycles at 0.001 GHz on 0 cores</p>")


# ---- in a browser ----

PROBE = """<script>
const said = [];
window.addEventListener("error", (e) => said.push("error " + e.message));
window.addEventListener("unhandledrejection", (e) => said.push("error " + e.reason));
window.addEventListener("securitypolicyviolation", (e) => said.push("request " + e.blockedURI));
timelines.then(([t]) => {
  const box = t.canvas.getBoundingClientRect();
  t.canvas.setPointerCapture = () => {};
  const send = (kind, type, x, y, more = {}) => t.canvas.dispatchEvent(new kind(type,
    { bubbles: true, cancelable: true, clientX: box.left + x, clientY: box.top + y, ...more }));
  const lane = t.data.lanes[0], cube = t.rows.find((row) => row.lane === 0 && row.pipe === 3);
  const op = lane.pipes[3][1], middle = () => t.x((lane.start[op] + lane.free[op]) / 2);
  said.push(`range ${t.from} ${t.to > t.data.total}`);
  const wide = t.to - t.from, under = t.timeAt(middle());
  const x = middle();
  for (let n = 0; n < 5; n++) send(WheelEvent, "wheel", x, 50, { deltaY: -200 });
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
  send(PointerEvent, "pointerdown", 500, 50);
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
}).catch((e) => said.push("error " + e.stack)).then(() => {
  const told = document.createElement("pre");
  told.id = "said";
  told.textContent = said.join("\\n");
  document.body.append(told);
});
</script></body>"""


@pytest.fixture
def browse(tmp_path: Path) -> Callable[[Path], list[str]]:
    """What PROBE says of a page."""

    def said(page: Path) -> list[str]:
        probed = tmp_path / "probed.html"
        probed.write_text(page.read_text().replace("</body>", PROBE))
        words = (
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu"),
            *("--window-size=1400,1400", "--virtual-time-budget=8000"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", probed.as_uri()),
        )
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
        found = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.DOTALL)
        assert found, done.stdout[-500:]
        return html.unescape(found[1]).splitlines()

    return said


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
def test_the_timeline_zooms_pans_and_tells(
    tmp_path: Path, browse: Callable[[Path], list[str]]
) -> None:
    mixes = [tmp_path / chip for chip in ("ascend910b2", "ascend910b4")]
    for out in mixes:
        assert says(*MIX, "-d", out.name, "-o", out)[0] == 0
    assert says("report", *mixes, "-o", tmp_path / "page.html")[0] == 0

    assert browse(tmp_path / "page.html") == [
        "range 0 true",
        "zoomed true true",
        "hover mmad",
        "picked true",
        *("term micro-op", "term where", "term when", "term waited for", "term written by"),
        *("line true", "flag true", "went to mte1", "panned true", "found fixpipe.none"),
        *("all true", "drawn true"),
    ]
