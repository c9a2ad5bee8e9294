"""Pages in English and Chinese, and the terms that explain themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from axe import needs_axe, shown, violations
from browser import CHROMIUM, MISSING, Browser
from model_runs import small

import npusim
from npusim import TensorSpec
from npusim.data.glossary import find, terms
from npusim.profile import read
from npusim.profile.page import page as profile_page
from npusim.reports import model
from npusim.reports.html import report
from npusim.reports.words import chinese, words
from npusim.run.page import recorded
from npusim.sweeps.page import page as sweep_page

NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
PLACE = re.compile(r"\{(\w+)\*?\}")
KINDS = ("run", "comparison", "model", "models", "profile", "sweep")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind."""
    above = tmp_path_factory.mktemp("pages")
    x = TensorSpec((16, 256), "float16")
    runs = [npusim.run("npu_swiglu", x, device=chip) for chip in ("Atlas A2", "Atlas 300I Pro")]
    records = [recorded(run, above / str(number)) for number, run in enumerate(runs)]
    sweep = npusim.sweep("npu_dynamic_quant", lambda m: {"x": TensorSpec((m, 256), "float16")},
                         {"m": [1, 2]}, device=["A2", "310P"], jobs=1)  # fmt: skip
    profile = Path(npusim.__file__).parents[1] / "examples" / "profile"
    texts = {
        "run": report(records[:1], advice=[runs[0].advice()]),
        "comparison": report(records),
        "model": model.page([small()]),
        "models": model.page([small(), small(title="other.py")]),
        "profile": profile_page(read(profile).compare("910B3", jobs=1)),
        "sweep": sweep_page(sweep),
    }
    found = {}
    for kind, text in texts.items():
        found[kind] = above / f"{kind}.html"
        found[kind].write_text(text, encoding="utf-8")
    return found


def test_places_are_the_same_in_both_languages() -> None:
    for en, zh in chinese().items():
        assert sorted(PLACE.findall(en)) == sorted(PLACE.findall(zh)), en
        is_unit = PLACE.sub("", en).split() in (["us"], ["ms"], ["%"])
        assert is_unit or re.search(r"[\u4e00-\u9fff，：]", zh), en


def test_no_text_is_given_twice() -> None:
    found = words()["labels"]
    assert isinstance(found, dict)
    assert len(found) > 400


# ---- in a browser ----

SPOKEN = "(async () => { await spoken; %s; await new Promise((r) => setTimeout(r, 100)); })()"
TEXTS = (
    "h2, nav a, .tiles div, .key span, .answer p:not(.soft):not(.who), dt, th, .details, "
    "button:not(.language)"
)
LEFT = f"""[...document.querySelectorAll("{TEXTS}")].filter((element) => !element.closest(".keep"))
  .flatMap((element) => [...element.childNodes])
  .filter((node) => node.nodeType === 3).map((node) => node.data.trim())
  .filter((text) => /[a-z]{{4}}/.test(text) && !/[\\u4e00-\\u9fff]/.test(text))"""
MIXED = """(() => {
  const words = /(^| )(and|by|for|from|in|is|its|of|on|than|that|the|to|which|takes?)( |$)/i;
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode())
    if (!text.parentElement.closest("code, kbd, script, style, .keep")) found.push(text.data);
  for (const each of document.querySelectorAll("[title], [aria-label]"))
    if (!each.closest(".keep")) found.push(each.title ?? "", each.ariaLabel ?? "");
  return found.filter((text) => /[\\u4e00-\\u9fff]/.test(text) && words.test(text));
})()"""
"""Texts half in Chinese and half in English."""
NAMES = re.compile(r"^([A-Z][， ]|ascend|npu_|SwiGlu|float16|[\d.,]+ x |GM|L2|TOPS|ND|Net$)")
MEANINGS = """[...document.querySelectorAll('[aria-describedby^=term]')].map((each) => [
  each.textContent.trim().toLowerCase(),
  document.getElementById(each.getAttribute('aria-describedby')).textContent])"""
UNFOLD = "document.querySelectorAll('details').forEach((d) => { d.open = true; })"
TIP = "(({ hidden, innerText }) => [hidden, innerText])(document.getElementById('tip'))"
SEEN = "document.body.innerText"


@NEEDS_CHROMIUM
@pytest.mark.parametrize("kind", KINDS)
def test_a_switch_changes_every_word(kind: str, pages: dict[str, Path], tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.open(pages[kind])
        browser.evaluate(SPOKEN % "")
        before = browser.evaluate(SEEN)
        browser.evaluate(SPOKEN % "words.button.click()")
        assert [text for text in browser.evaluate(LEFT) if not NAMES.match(text)] == []
        assert browser.evaluate(MIXED) == []
        assert browser.evaluate("document.documentElement.lang") == "zh-CN"
        assert browser.evaluate("location.hash").endswith("lang=zh")
        assert "{" not in browser.evaluate("document.querySelector('.answer').innerText")
        browser.evaluate(SPOKEN % "words.button.click()")
        assert browser.evaluate(SEEN) == before
        assert browser.evaluate("[document.documentElement.lang, location.hash]") == ["en", ""]
        assert browser.complaints == []


@NEEDS_CHROMIUM
def test_the_language_is_found_again(pages: dict[str, Path], tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.open(pages["run"])
        browser.evaluate(SPOKEN % "words.button.click(); history.replaceState(null, '', '#')")
        browser.open(pages["run"])
        browser.evaluate(SPOKEN % "")
        assert browser.evaluate("words.language") == "zh"
        # What is written later is in Chinese too, and the address has both.
        browser.evaluate(SPOKEN % "words.choose('zh'); (await timelines)[0].choose(0, 1, true)")
        browser.evaluate("new Promise((r) => setTimeout(r, 400))")
        assert "缩放到选区" in browser.evaluate("document.querySelector('.details').innerText")
        address = browser.evaluate("location.hash")
        assert "lang=zh" in address
        assert "span=0-" in address


@NEEDS_CHROMIUM
def test_terms_explain_themselves(pages: dict[str, Path], tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.open(pages["run"])
        browser.evaluate(SPOKEN % UNFOLD)
        meanings = dict(browser.evaluate(MEANINGS))
        for word in ("mte2", "mte3", "vector", "busy", "active", "global memory"):
            term = find(word)
            assert term is not None
            assert meanings[word] == term.meaning
        browser.evaluate("document.querySelector('#tables th[data-term]').focus()")
        is_hidden, text = browser.evaluate(TIP)
        assert not is_hidden
        assert any(text.endswith(term.meaning) for term in terms())


@needs_axe
@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_pages_of_both_languages_keep_nobody_out(
    kind: str, width: int, scheme: str, pages: dict[str, Path], tmp_path: Path
) -> None:
    with Browser(tmp_path) as browser:
        shown(browser, pages[kind], width, scheme)
        browser.evaluate(SPOKEN % UNFOLD)
        assert violations(browser) == []
        browser.evaluate(SPOKEN % "words.button.click()")
        assert violations(browser) == []


@NEEDS_CHROMIUM
@pytest.mark.parametrize("kind", KINDS)
def test_a_first_screen_needs_no_scrolling(
    kind: str, pages: dict[str, Path], tmp_path: Path
) -> None:
    with Browser(tmp_path) as browser:
        for width in (1440, 390):
            browser.sized(width, 900, "light")
            browser.open(pages[kind])
            browser.evaluate(SPOKEN % "")
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            end = browser.evaluate("document.querySelector('nav').getBoundingClientRect().top")
            assert width < 1440 or end <= 900
