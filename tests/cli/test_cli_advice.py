"""Advice and the critical path on the command line and on pages, and the same from a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from browser import CHROMIUM, MISSING, Browser
from commands import npusim_says
from matplotlib.axes import Axes
from records import written

import npusim
from npusim import TensorSpec
from npusim.data.files import FileError

RAGGED = (
    *("run", "matmul", "-d", "ascend910b2"),
    *("-i", "x1=spec:16x512:float16", "-i", "x2=spec:512x513:float16"),
)


def ragged() -> npusim.Run:
    x1, x2 = TensorSpec((16, 512), "float16"), TensorSpec((512, 513), "float16")
    return npusim.run("matmul", x1, x2, device="ascend910b2")


def test_advice_comes_after_the_summary() -> None:
    _, plain, _ = npusim_says(*RAGGED)
    code, told, error = npusim_says(*RAGGED, "--advice")
    assert (code, error) == (0, "")
    assert told.startswith(plain)
    lines = told.removeprefix(plain).strip().splitlines()
    wanted = []
    for each in ragged().advice():
        if each.kind == "change":
            wanted += [f"advice   {each.change}", f"{'':9}{each.times}"]
            wanted += [f"{'':9}because {each.text}"]
        else:
            wanted += [f"what if  {each.text}: {each.change}, {each.times}"]
    assert lines == wanted
    assert any(line.startswith("advice   store x2 as (n, k) and pass") for line in lines)


def test_what_does_not_gain_is_said_in_a_line() -> None:
    """A row that fits: nothing to change, and the launch is all that counts."""
    _, told, _ = npusim_says(
        *("run", "npu_rms_norm", "-d", "ascend910b2", "--advice"),
        *("-i", "x=spec:50x8192:float16", "-i", "gamma=spec:8192:float16"),
    )
    own = told.partition("\nadvice")[2]
    assert own.startswith("   Nothing that was tried gains.\nwhat if  launch and completion take ")


def test_the_critical_path_is_told_in_tables() -> None:
    code, told, error = npusim_says(*RAGGED, "--critical-path")
    assert (code, error) == (0, "")
    path = ragged().critical_path()
    first = path.parts[0]
    assert f"{first.pipe} of {first.kind}" in told
    for heading in (
        "critical path  ",
        "from core   ",
        "minimum slack, cycles   median slack",
        "tail imbalance",
    ):
        assert heading in told


def test_the_trials_are_printed_with_what_each_gained() -> None:
    code, printed, error = npusim_says(*RAGGED, "--prove")
    assert (code, error) == (0, "")
    listed = printed.partition("a twentieth faster")[2]
    for trial in ragged().trials:
        assert f"{trial.time_us:.2f}" in listed
    assert "launch.base_us" in listed


def test_json_has_all_when_asked() -> None:
    _, text, _ = npusim_says(*RAGGED, "--json", "--advice", "--critical-path", "--prove")
    found = json.loads(text)
    run = ragged()
    assert [each["change"] for each in found["advice"]] == [each.change for each in run.advice()]
    assert found["critical_path"] == json.loads(json.dumps(run.critical_path().to_json()))
    assert [row["settings"] for row in found["trials"]] == [each.settings for each in run.trials]
    plain = json.loads(npusim_says(*RAGGED, "--json")[1])
    assert {"advice", "critical_path", "trials"}.isdisjoint(plain)
    empty = ("run", "npu_quantize", "-d", "ascend910b2", "-a", "dtype=qint8")
    inputs = "-i", "input=spec:0x512:float16", "-i", "scales=spec:1:float32"
    _, text, _ = npusim_says(*empty, *inputs, "--json", "--advice", "--critical-path", "--prove")
    found = json.loads(text)
    assert (found["advice"], found["critical_path"], found["trials"]) == ([], None, [])


@pytest.mark.parametrize("option", ["--critical-path", "--prove"])
def test_their_tables_fit_a_pipe(option: str) -> None:
    _, plain, _ = npusim_says(*RAGGED)
    _, told, _ = npusim_says(*RAGGED, option)
    assert max(map(len, told.removeprefix(plain).splitlines())) <= 100


@pytest.mark.parametrize("option", ["--advice", "--critical-path", "--prove"])
def test_without_times_there_is_none(option: str) -> None:
    assert npusim_says(*RAGGED, "--no-timing", option) == (
        *(2, ""),
        f"npusim: run: {option} must come with times, which it is about; leave --no-timing out\n",
    )


# ---- pages ----


def test_a_page_begins_with_advice(tmp_path: Path) -> None:
    out = written(tmp_path / "run")
    for more, is_there in ((), True), (("--advice",), True), (("--no-advice",), False):
        assert npusim_says("report", out, "-o", tmp_path / "page.html", "--force", *more)[0] == 0
        text = (tmp_path / "page.html").read_text()
        assert ("<h2>What to change" in text) == is_there
        assert text.index("<h2>Where the time goes</h2>") < text.index("<section")


def test_advice_is_for_pages(tmp_path: Path) -> None:
    out = written(tmp_path / "run")
    assert npusim_says("report", out, "--advice", "--format", "png", "-o", tmp_path / "p") == (
        *(2, ""),
        "npusim: report: --advice must come with a page, which it is for; leave --format png out\n",
    )


def test_a_run_writes_the_page_that_its_folder_gives(tmp_path: Path) -> None:
    own = ragged().report(tmp_path / "own.html")
    assert own == tmp_path / "own.html"
    assert npusim_says(*RAGGED, "-o", tmp_path / "run")[0] == 0
    assert npusim_says("report", tmp_path / "run", "-o", tmp_path / "page.html")[0] == 0
    assert own.read_text() == (tmp_path / "page.html").read_text()
    with pytest.raises(FileError) as raised:
        ragged().report(own)
    assert str(raised.value) == (
        f"report: {own} must be a new file, but there is one; name another, or pass force=True to "
        f"replace it"
    )
    ragged().report(own, ragged(), ragged(), force=True)
    assert "<h1>3 runs of matmul (nd2nz) on ascend910b2</h1>" in own.read_text()


def test_a_run_draws_its_timeline() -> None:
    ax = ragged().timeline(name="mine", flags=False)
    assert isinstance(ax, Axes)
    assert ax.get_title(loc="left").startswith("mine: ")


def test_a_run_without_times_has_no_page(tmp_path: Path) -> None:
    x = TensorSpec((8, 64), "float16"), TensorSpec((64, 64), "float16")
    run = npusim.run("matmul", *x, device="ascend910b2", timing=False)
    message = (
        "reports: a run must have been timed and have had work to do, but it has no trace; run it "
        "with timing=True on tensors that are not empty"
    )
    for ask in (lambda: run.report(tmp_path / "x.html"), run.timeline, run.critical_path):
        with pytest.raises(ValueError) as raised:
            ask()
        assert str(raised.value) == message
    assert not (tmp_path / "x.html").exists()


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_a_browser_shows_the_advice_and_the_path(tmp_path: Path) -> None:
    page = ragged().report(tmp_path / "page.html")
    with Browser(tmp_path / "profile") as browser:
        browser.open(page)
        browser.evaluate("window.timelines")
        # All that answers a question stands above the first section, on a screen of 900 pixels.
        bottom = browser.evaluate(
            "document.querySelector('.answer').getBoundingClientRect().bottom"
        )
        assert 300 < bottom < 900
        first = browser.evaluate("document.querySelector('.changes li').textContent")
        assert first.startswith("The weight, x2, lies in ND: vector cores turn matrices ")
        # Dark lines below the spans, as long as the path is.
        lanes = browser.evaluate(
            "window.timelines.then((all) => all[0].data.lanes.map((lane) =>"
            " lane.path.reduce((sum, [, since, until]) => sum + until - since, 0)))"
        )
        assert sum(lanes) == pytest.approx(ragged().critical_path().us)
        dark = browser.evaluate(
            "window.timelines.then(([one]) => { const g = one.ink, row = one.rows[1];"
            " const ratio = window.devicePixelRatio || 1; const [, since, until] ="
            " one.data.lanes[row.lane].path.find(([pipe]) => pipe === row.pipe);"
            " return [...g.getImageData(one.x((since + until) / 2) * ratio,"
            " (row.y + 22.5) * ratio, 1, 1).data]; })"
        )
        assert dark == [34, 34, 34, 255]
        assert browser.complaints == []
