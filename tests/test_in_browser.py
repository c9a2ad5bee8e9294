"""The page of the site that runs npusim without a server: in Pyodide's Python, and in Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import as_in_a_browser
import pytest
from browser import CHROMIUM, MISSING, Browser

SITE = Path(__file__).parent.parent / "docs" / "site"
STATIC = SITE / "static"

ICON = '<!DOCTYPE html><link rel="icon" href="data:,">'
"""Without it the browser asks for one."""
PYODIDE = os.environ.get("NPUSIM_PYODIDE")
"""The address of a distribution of Pyodide, with which a test runs npusim in Chromium."""
STUB = """
export async function loadPyodide() {
  const answers = {
    command: (words) => ({ printed: `run ${[...words].join(" ")}`, page: "<h1>the page</h1>" }),
    cell: (source) => ({ printed: "", text: `of ${source}`, html: "", picture: "" }),
  };
  const python = Object.fromEntries(Object.entries(answers).map(
    ([name, call]) => [name, (argument) => ({ toJs: () => call(argument) })]));
  return {
    loadPackage: async () => {},
    pyimport: (name) => (name === "micropip" ? { install: async () => {} } : python),
    FS: { writeFile: () => {} },
  };
}
"""
"""Answers as Pyodide does, without Python."""


def test_python_with_less_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without threads, processes and integers of 64 bits: all bits, times, words and pictures."""
    script = Path(as_in_a_browser.__file__)
    monkeypatch.setenv("NPUSIM_ENGINE", "simpy")
    monkeypatch.chdir(tmp_path)
    less = subprocess.run(
        [sys.executable, script, STATIC],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert less.returncode == 0, less.stderr
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(STATIC)
    monkeypatch.setattr("npusim.cli.progress.HAS_THREADS", False)  # no lines if it takes long
    found = json.loads(less.stdout.splitlines()[-1])
    expected = as_in_a_browser.answers()
    page, same = (each["command"].pop("page") for each in (found, expected))
    assert page == same
    assert page.startswith("<!DOCTYPE html>")
    assert found == expected
    assert found["refused"] == {
        "printed": "npusim: run: x of npu_swiglu must be given; add for example -i x=randn:8x16\n",
        "page": "",
    }
    written, printed, wrong = found["cells"]
    assert set(written.values()) == {""}
    assert (printed["printed"], printed["text"]) == ("7\n", "8")
    assert wrong["printed"].endswith("ZeroDivisionError: division by zero\n")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the page, as Sphinx puts it among its files, next to a stub of Pyodide."""
    monkeypatch.syspath_prepend(SITE)
    import try_page

    text = [(SITE.parent / "try.md").read_text(encoding="utf-8")]
    try_page.fill(None, "try", text)
    parts = re.findall(r"```{raw} html\n(.*?)```\n", text[0], re.DOTALL)
    tmp_path.joinpath("try.html").write_text(ICON + "".join(parts), encoding="utf-8")
    shutil.copytree(STATIC, tmp_path / "_static")
    tmp_path.joinpath("pyodide.mjs").write_text(STUB, encoding="utf-8")
    cells = [{"cell_type": "code", "source": "1 + 1"}, {"cell_type": "markdown", "source": "text"}]
    course = tmp_path / "course"
    course.mkdir()
    course.joinpath("04_nd_and_nz.ipynb").write_text(json.dumps({"cells": cells}))
    handler = partial(_Quiet, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript"}

    def log_message(self, *_: object) -> None:
        pass


def _becomes(browser: Browser, expression: str, expected: object, within_s: float = 20) -> None:
    end = monotonic() + within_s
    while (found := browser.evaluate(expression)) != expected:
        assert monotonic() < end, (expression, found)
        sleep(0.05)


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_the_address_says_what_the_page_runs(served: str, tmp_path: Path) -> None:
    words = "op=npu_quantize&d=Atlas+inference&i=input%3Drandn%3A8x16&a=dtype%3Dqint8"
    with Browser(tmp_path / "profile") as browser:
        address = f"{served}try.html#{words}&pyodide={served}&course=04_nd_and_nz"
        browser.call("Page.navigate", url=address)
        _becomes(
            browser,
            "document.querySelector('#command')?.textContent",
            "npusim run npu_quantize -d 'Atlas inference' -i input=randn:8x16 -a dtype=qint8",
        )
        browser.evaluate("document.querySelector('#run').click()")
        said = "document.querySelector('#printed').textContent"
        _becomes(
            browser, said, "run npu_quantize -d Atlas inference -i input=randn:8x16 -a dtype=qint8"
        )
        assert browser.evaluate("document.querySelector('#page').srcdoc") == "<h1>the page</h1>"
        browser.evaluate(
            "const given = document.querySelector('#attributes'); given.value = 'axis=-1';"
            "given.dispatchEvent(new Event('input', { bubbles: true }))"
        )
        assert browser.evaluate("new URLSearchParams(location.hash.slice(1)).get('a')") == "axis=-1"
        browser.evaluate("document.querySelector('.cell button').click()")
        _becomes(browser, "document.querySelector('.output pre')?.textContent", "of 1 + 1")
        assert browser.complaints == []


@pytest.mark.nightly
@pytest.mark.skipif(
    CHROMIUM is None or PYODIDE is None, reason="NPUSIM_PYODIDE says from where Pyodide comes"
)
def test_pyodide_runs_npusim(served: str, tmp_path: Path) -> None:
    import try_page

    try_page.build_wheel(tmp_path / "_static")
    words = "op=npu_quantize&i=input%3Dfull%3A8x16%3Avalue%3D2&i=scales%3Dfull%3A1%3Avalue%3D20"
    with Browser(tmp_path / "profile") as browser:
        address = f"{served}try.html#{words}&a=dtype%3Dqint8&pyodide={PYODIDE}"
        browser.call("Page.navigate", url=address)
        _becomes(
            browser, "document.querySelector('#command')?.textContent.length > 0", expected=True
        )
        browser.evaluate("document.querySelector('#run').click()")
        _becomes(browser, "document.querySelector('#page').hidden", expected=False, within_s=300)
